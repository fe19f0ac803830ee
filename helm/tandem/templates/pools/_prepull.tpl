{{/*
An image that is pulled and left again, for prepulls.yaml.
*/}}

{{/* Every image here has `cp`, GNU's or busybox's, and both only print for --help. NVIDIA's image asks for all cards, which are none of its
     business here. Takes (dict "name" "triton" "image" "..." "pullPolicy" "..."). */}}
{{- define "tandem.prePulled" -}}
- name: {{ .name }}
  image: {{ .image | quote }}
  imagePullPolicy: {{ .pullPolicy }}
  command: [cp, --help]
  env:
    - {name: NVIDIA_VISIBLE_DEVICES, value: void}
  {{- include "tandem.prePullResources" . | nindent 2 }}
  {{- include "tandem.containerSecurity" (dict "root" .root) | nindent 2 }}
{{- end }}

{{/* A guess, not measured: one small process that sleeps. */}}
{{- define "tandem.prePullResources" -}}
resources:
  requests: {cpu: 5m, memory: 16Mi}
  limits: {cpu: 100m, memory: 64Mi}
{{- end }}
