{{/*
Which secrets have the API keys: those that are named, or the one that the hook makes (hook.yaml). All take the root; empty is none.
*/}}

{{- define "tandem.keysAreMade" -}}
{{- if not (or .Values.auth.existingSecret .Values.auth.insecureNoAuth) }}true{{ end }}
{{- end }}

{{- define "tandem.madeSecret" -}}
{{ include "tandem.fullname" . }}-keys
{{- end }}

{{/* With the file that gateways read. */}}
{{- define "tandem.keysSecret" -}}
{{- if include "tandem.keysAreMade" . }}{{ include "tandem.madeSecret" . }}{{ else }}{{ .Values.auth.existingSecret }}{{ end }}
{{- end }}

{{/* With the key in plain of the chart's own clients. */}}
{{- define "tandem.clientSecret" -}}
{{- if include "tandem.keysAreMade" . }}{{ include "tandem.madeSecret" . }}{{ else }}{{ .Values.auth.client.existingSecret }}{{ end }}
{{- end }}

{{/* Of all that there is for the hook alone: there before an install or upgrade, gone after it. Argo CD knows these words, too. Takes a weight. */}}
{{- define "tandem.keysHook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
