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
{{- define "tandem.warmPriorityClass" -}}
{{ printf "%s-%s-warm" .Release.Namespace (include "tandem.fullname" .) }}
{{- end }}

{{/* Cluster-wide, so the namespace is in it. */}}
{{- define "tandem.scalerClusterRole" -}}
{{ printf "%s-%s" .Release.Namespace (include "tandem.scalerName" .) }}
{{- end }}

{{/* `behavior` of an autoscaler that follows the scaler: the user's, or all at once in both directions, because how long a Triton stays was weighed
     before, and waiting once more would cost what was to be saved. Without a tolerance where Kubernetes knows one (beta and on from 1.35): else it takes
     nine instead of ten for the same. Takes (dict "own" $behavior "version" "v1.35.0"), empty where it is not known. */}}
{{- define "tandem.followingBehavior" -}}
{{- if .own }}
{{- toYaml .own }}
{{- else }}
{{- $rules := dict "stabilizationWindowSeconds" 0 }}
{{- if and .version (semverCompare ">=1.35.0-0" .version) }}{{ $_ := set $rules "tolerance" "0" }}{{ end }}
{{- toYaml (dict "scaleUp" $rules "scaleDown" $rules) }}
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
