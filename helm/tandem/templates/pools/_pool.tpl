{{/*
What is the same for a CPU and a GPU pool, for NVIDIA's image and for ours, and what differs: asked for by `device` and `server`, nowhere
else. Every template takes (dict "root" $ "name" "cpu" "pool" $pool) unless it says otherwise; what Triton is told is in _triton.tpl.
*/}}

{{- define "tandem.poolName" -}}
{{ include "tandem.fullname" .root }}-{{ .name }}
{{- end }}

{{- define "tandem.poolSelectorLabels" -}}
{{ include "tandem.selectorLabels" (dict "root" .root "component" "triton") }}
tandem-pool: {{ .name | quote }}
{{- end }}

{{- define "tandem.poolLabels" -}}
{{ include "tandem.labels" (dict "root" .root "component" "triton") }}
tandem-pool: {{ .name | quote }}
{{- end }}

{{/* Which of `images` the pool runs. Takes a pool. */}}
{{- define "tandem.poolImageName" -}}
{{- if eq .server "nvidia" }}nvidia
{{- else if .image }}{{ .image }}
{{- else }}{{ ternary "tritonGpu" "tritonCpu" (eq .device "gpu") }}
{{- end }}
{{- end }}

{{- define "tandem.poolImage" -}}
{{- if .pool.ownImage.repository }}
{{- include "tandem.image" (dict "root" .root "image" .pool.ownImage "registry" "") }}
{{- else }}
{{- $registry := ternary "" .root.Values.imageRegistry (eq .pool.server "nvidia") }}
{{- include "tandem.image" (dict "root" .root "image" (index .root.Values.images (include "tandem.poolImageName" .pool)) "registry" $registry) }}
{{- end }}
{{- end }}

{{- define "tandem.poolPullPolicy" -}}
{{- if .pool.ownImage.repository }}{{ .pool.ownImage.pullPolicy }}{{ else }}{{ (index .root.Values.images (include "tandem.poolImageName" .pool)).pullPolicy }}{{ end }}
{{- end }}

{{/* Fewest and most Tritons at once. `replicas` null: somebody else's scaler owns the number, and minReplicas and maxReplicas are what is known
     of it. Both take a pool. */}}
{{- define "tandem.fewestTritons" -}}
{{- if .autoscaling.enabled }}{{ int64 .autoscaling.minReplicas }}
{{- else if kindIs "invalid" .replicas }}{{ int64 (default 0 .minReplicas) }}
{{- else }}{{ int64 .replicas }}
{{- end }}
{{- end }}

{{- define "tandem.mostTritons" -}}
{{- if .autoscaling.enabled }}{{ int64 .autoscaling.maxReplicas }}
{{- else if kindIs "invalid" .replicas }}{{ include "tandem.maxReplicas" . }}
{{- else }}{{ int64 .replicas }}
{{- end }}
{{- end }}

{{/* `replicas` of the Deployment: empty where whoever owns the number is left alone. What a new pool begins with is in the release's manifest, and
     Helm takes for 1 what is in one revision and missing from the next; so every later one has the number that is there. The annotation says so
     when the value says it no more. Without a cluster nothing is found. Takes (dict "root" $ "name" "gpu" "pool" $pool). */}}
{{- define "tandem.poolReplicas" -}}
{{- if .pool.autoscaling.enabled }}
{{- $there := lookup "apps/v1" "Deployment" .root.Release.Namespace (include "tandem.poolName" .) }}
{{- if or (and .pool.autoscaling.beginsAtMinReplicas (ne .pool.autoscaling.by "scaler")) (dig "metadata" "annotations" "tandem-replicas" "" $there) }}
{{- max (int64 .pool.autoscaling.minReplicas) (dig "spec" "replicas" 0 $there | int64) }}
{{- end }}
{{- else if not (kindIs "invalid" .pool.replicas) }}
{{- int64 .pool.replicas }}
{{- end }}
{{- end }}

{{/* Whether the scaler sets the number itself; empty is no. Takes a pool. */}}
{{- define "tandem.poolScaledByUs" -}}
{{- if and .autoscaling.enabled (eq .autoscaling.by "scaler") }}true{{ end }}
{{- end }}

{{/* Pools, by commas, that the scaler scales itself. Takes the root. */}}
{{- define "tandem.poolsScaledByUs" -}}
{{- $names := list }}
{{- range $name, $pool := fromYaml (include "tandem.pools" .) }}
{{- if include "tandem.poolScaledByUs" $pool }}{{ $names = append $names $name }}{{ end }}
{{- end }}
{{- join "," $names }}
{{- end }}

{{/* Whether a pod waits for the scaler before a node is looked for; empty is no. Takes the root. */}}
{{- define "tandem.hasGatedPods" -}}
{{- $found := false }}
{{- range fromYaml (include "tandem.pools" .) }}
{{- if and (include "tandem.poolScaledByUs" .) (eq (int .autoscaling.minReplicas) 0) }}{{ $found = true }}{{ end }}
{{- end }}
{{- if or $found .Values.scaler.warmNodes }}true{{ end }}
{{- end }}

{{/* Replacing a single GPU Triton in place: a rolling update leaves the new pod pending while the old one stops, and a node autoscaler
     then buys a second GPU node. Meanwhile the CPU pool answers. Takes a pool. */}}
{{- define "tandem.poolStrategy" -}}
{{- if ne .device "gpu" -}}
rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
{{- else if le (include "tandem.mostTritons" . | int) 1 -}}
type: Recreate
{{- else -}}
rollingUpdate: {maxSurge: 0, maxUnavailable: 1}
{{- end }}
{{- end }}

{{/* A card is a resource of the node's, or what the pod's resource claims (DRA) give it. Takes a pool. */}}
{{- define "tandem.poolResources" -}}
{{- $resources := deepCopy .resources }}
{{- if .resourceClaims }}
{{- $claims := list }}
{{- range .resourceClaims }}{{ $claims = append $claims (dict "name" .name) }}{{ end }}
{{- $_ := set $resources "claims" $claims }}
{{- else if eq .device "gpu" }}
{{- $_ := set $resources "limits" (merge (dict .gpu.resource (int .gpu.count)) (default dict $resources.limits)) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/* Spread unless told otherwise on a CPU pool; a GPU pool's Tritons stay together, so that nodes can be emptied. Takes a pool; empty is no. */}}
{{- define "tandem.poolSpreads" -}}
{{- $enabled := .topologySpread.enabled }}
{{- if kindIs "invalid" $enabled }}{{ $enabled = eq .device "cpu" }}{{ end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{/* NVIDIA's Triton loads what it is told by name, so that is what has to be sound; `tandem triton` loads all that it finds. What
     `--server=nvidia` asks is about CPU pools: cards are computed on there as the configuration says. */}}
{{- define "tandem.poolInitContainers" -}}
{{- $verify := list }}
{{- if eq .pool.server "nvidia" }}
{{- if eq .pool.device "cpu" }}{{ $verify = append $verify "--server=nvidia" }}{{ end }}
{{- range .pool.models }}{{ $verify = append $verify (printf "--variant=%s" .) }}{{ end }}
{{- end }}
{{- include "tandem.modelInitContainers" (dict "root" .root "verify" $verify) }}
{{- end }}
