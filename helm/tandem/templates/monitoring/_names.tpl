{{/*
How the installation is told apart in Prometheus: by `namespace`, by `tandem` (the first part of all its objects' names) and by `job`.
The monitors write these labels, rules and dashboard read them.
*/}}

{{/* For a monitor's endpoint, as `relabelings`. Takes (dict "root" $ "job" "tandem-gateway"). */}}
{{- define "tandem.targetLabels" -}}
- {targetLabel: job, replacement: {{ .job }}}
- {targetLabel: tandem, replacement: {{ include "tandem.fullname" .root | quote }}}
{{- end }}

{{/* Label matchers of this installation, without braces. */}}
{{- define "tandem.matchers" -}}
namespace="{{ .Release.Namespace }}",tandem="{{ include "tandem.fullname" . }}"
{{- end }}

{{/* The labels of what a rule makes, where its expression has none. */}}
{{- define "tandem.ruleLabels" -}}
namespace: {{ .Release.Namespace | quote }}
tandem: {{ include "tandem.fullname" . | quote }}
{{- end }}

{{/* The chart's labels with some of the user's laid over them. Takes (dict "root" $ "component" "gateway" "own" $labels). */}}
{{- define "tandem.labelsWith" -}}
{{- toYaml (mustMergeOverwrite (fromYaml (include "tandem.labels" .)) (deepCopy .own)) }}
{{- end }}
