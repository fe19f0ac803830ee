{{/*
The scaler: names, what it is told, and how autoscalers follow it (pools/autoscalers.yaml).
*/}}

{{- define "tandem.scalerName" -}}
{{ include "tandem.fullname" . }}-scaler
{{- end }}

{{- define "tandem.scalerServiceAccount" -}}
{{- default (include "tandem.scalerName" .) .Values.scaler.serviceAccount.name }}
{{- end }}

{{/* Cluster-wide, so the namespace is in it. */}}
{{- define "tandem.scalerClusterRole" -}}
{{ printf "%s-%s" .Release.Namespace (include "tandem.scalerName" .) }}
{{- end }}

{{/* `behavior` of an autoscaler that follows the scaler: the user's, or all at once in both directions, because how long a Triton stays was weighed
     before, and waiting once more would cost what was to be saved. Takes the user's map. */}}
{{- define "tandem.followingBehavior" -}}
{{- if . }}
{{- toYaml . }}
{{- else -}}
scaleUp: {stabilizationWindowSeconds: 0}
scaleDown: {stabilizationWindowSeconds: 0}
{{- end }}
{{- end }}

{{/* The number of Tritons, and one for each: the autoscaler's answer is the number itself. `tandem` is the ServiceMonitor's label, without which
     two releases of a namespace would be one. Takes (dict "root" $ "name" "gpu"). */}}
{{- define "tandem.wantedMetric" -}}
- type: External
  external:
    metric:
      name: tandem_wanted_replicas
      selector: {matchLabels: {pool: {{ .name | quote }}, tandem: {{ include "tandem.fullname" .root | quote }}}}
    target: {type: AverageValue, averageValue: "1"}
{{- end }}
