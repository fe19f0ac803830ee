{{/*
Names, labels and the pieces that every pod shares. No guard lives here (_guards.tpl) and nothing here renders an object.
A selector label, once released, never changes: Kubernetes refuses to update a Deployment's selector.
*/}}

{{- define "tandem.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 40 characters, so that a pool's name of up to 20 still fits behind it. */}}
{{- define "tandem.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "tandem.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "tandem.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Takes (dict "root" $ "component" "gateway"). */}}
{{- define "tandem.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tandem.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "tandem.labels" -}}
{{ include "tandem.selectorLabels" . }}
app.kubernetes.io/part-of: tandem
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Takes (dict "root" $ "image" .Values.images.x "registry" "..."). */}}
{{- define "tandem.image" -}}
{{- $name := .image.repository }}
{{- if .registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .registry) $name }}{{ end }}
{{- if .image.digest }}
{{- printf "%s@%s" $name .image.digest }}
{{- else }}
{{- printf "%s:%s" $name (default .root.Chart.AppVersion .image.tag) }}
{{- end }}
{{- end }}

{{- define "tandem.gatewayImage" -}}
{{- include "tandem.image" (dict "root" . "image" .Values.images.gateway "registry" .Values.imageRegistry) }}
{{- end }}

{{- define "tandem.gatewayServiceAccount" -}}
{{- default (printf "%s-gateway" (include "tandem.fullname" .)) .Values.gateway.serviceAccount.name }}
{{- end }}

{{- define "tandem.tritonServiceAccount" -}}
{{- default (printf "%s-triton" (include "tandem.fullname" .)) .Values.triton.serviceAccount.name }}
{{- end }}

{{/* The pools that are on, as YAML {name: pool}, each laid over poolDefaults. */}}
{{- define "tandem.pools" -}}
{{- $pools := dict }}
{{- range $name, $own := .Values.pools }}
{{- $pool := mustMergeOverwrite (deepCopy $.Values.poolDefaults) (deepCopy (default dict $own)) }}
{{- if $pool.enabled }}{{ $_ := set $pools $name $pool }}{{ end }}
{{- end }}
{{- toYaml $pools }}
{{- end }}

{{/* The most Tritons of a pool without an autoscaler: as many as there are, unless said otherwise. Takes a pool. */}}
{{- define "tandem.maxReplicas" -}}
{{- if kindIs "invalid" .maxReplicas }}{{ max 1 (int64 .replicas) (int64 (default 0 .minReplicas)) }}{{ else }}{{ int64 .maxReplicas }}{{ end }}
{{- end }}

{{/* Seconds between the delete of a pod and the kernel's kill. Takes a map with drain and terminationGracePeriodSeconds. */}}
{{- define "tandem.graceSeconds" -}}
{{- $sum := add (int .drain.preStopSeconds) (int .drain.exitTimeoutSeconds) (int .drain.marginSeconds) }}
{{- if kindIs "invalid" .terminationGracePeriodSeconds }}{{ $sum }}{{ else }}{{ int .terminationGracePeriodSeconds }}{{ end }}
{{- end }}

{{/* The pod-level settings that Pod Security "restricted" wants, and what needs no token and no service environment. User 1000 is
     the user of Tandem's images and of NVIDIA's (triton-server); the stub of the slim image must belong to the user that runs it. */}}
{{- define "tandem.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "tandem.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* What a small init container or the test pod may take; it copies or hashes a few files. */}}
{{- define "tandem.smallResources" -}}
resources:
  requests: {cpu: 50m, memory: 64Mi}
  limits: {cpu: 500m, memory: 256Mi}
{{- end }}

{{- define "tandem.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The gateway's tandem.yaml. The order of pools is their order of preference: who turns a GPU pool on wants it used. int64 keeps a
     large number from being written as 6.7e+07. */}}
{{- define "tandem.gatewayConfig" -}}
{{- $pools := fromYaml (include "tandem.pools" .) -}}
version: 1
pools:
  {{- range $device := list "gpu" "cpu" }}
  {{- range $name, $pool := $pools }}
  {{- if eq $pool.device $device }}
  {{ $name }}:
    urls: ["http://{{ include "tandem.fullname" $ }}-{{ $name }}:8000"]
    device: {{ $pool.device }}
    {{- $autoscaling := $pool.autoscaling }}
    {{- if $autoscaling.enabled }}
    min_replicas: {{ int64 $autoscaling.minReplicas }}
    max_replicas: {{ int64 $autoscaling.maxReplicas }}
    {{- else }}
    {{- if not (kindIs "invalid" $pool.minReplicas) }}
    min_replicas: {{ int64 $pool.minReplicas }}
    {{- end }}
    max_replicas: {{ include "tandem.maxReplicas" $pool }}
    {{- end }}
    {{- if not (kindIs "invalid" $pool.pricePerHour) }}
    price_per_hour: {{ toJson $pool.pricePerHour }}
    {{- end }}
    {{- if not (kindIs "invalid" $pool.coldStartS) }}
    cold_start_s: {{ toJson $pool.coldStartS }}
    {{- end }}
  {{- end }}
  {{- end }}
  {{- end }}
{{- $variants := .Values.gateway.variants }}
{{- $objectives := .Values.gateway.objectives }}
{{- with concat (keys $variants) (keys $objectives) | uniq | sortAlpha }}
models:
  {{- range $model := . }}
  {{ $model }}:
    {{- if hasKey $variants $model }}
    variants: {{ toJson (get $variants $model) }}
    {{- end }}
    {{- if hasKey $objectives $model }}
    objective: {latency_s: {{ toJson (get $objectives $model).latencyS }}}
    {{- end }}
  {{- end }}
{{- end }}
limits:
  {{- range $name, $limit := .Values.gateway.limits }}
  {{ snakecase $name }}: {{ toJson $limit }}
  {{- end }}
  drain_s: {{ .Values.gateway.drain.exitTimeoutSeconds }}
{{- end }}
