{{/* The key of the chart's own clients, as an entry of a container's `env`; nothing where no keys are asked for. */}}
{{- define "tandem.clientKey" -}}
{{- with include "tandem.clientSecret" . }}
- name: TANDEM_API_KEY
  valueFrom:
    secretKeyRef: {name: {{ . | quote }}, key: {{ $.Values.auth.client.key | quote }}}
{{- end }}
{{- end }}
