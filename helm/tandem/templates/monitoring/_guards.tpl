{{/*
What contradicts itself in monitoring.*; each sentence has a test in tests/helm/wrong_values/rest.py.
*/}}

{{- define "tandem.guardMonitoring" -}}
{{- $monitoring := .Values.monitoring }}
{{- if $monitoring.serviceMonitor.enabled }}
{{- if not .Values.gateway.admin.enabled }}
{{- fail "monitoring.serviceMonitor.enabled is true, but the gateway's metrics are on its admin listener, which is off. Set gateway.admin.enabled=true." }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.metricsFrom) }}
{{- fail "monitoring.serviceMonitor.enabled is true, but networkPolicy.metricsFrom names nobody, so Prometheus would be kept out. Name its pods there, as NetworkPolicy peers." }}
{{- end }}
{{- end }}
{{- if and $monitoring.prometheusRule.enabled (not $monitoring.serviceMonitor.enabled) }}
{{- fail "monitoring.prometheusRule.enabled is true, but its rules ask for labels that only monitoring.serviceMonitor gives, so that they would see nothing. Set monitoring.serviceMonitor.enabled=true." }}
{{- end }}
{{- end }}
