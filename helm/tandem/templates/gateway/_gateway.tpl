{{/*
What the gateway is told: its tandem.yaml, and where its models lie.
*/}}

{{- define "tandem.gatewayServiceAccount" -}}
{{- default (printf "%s-gateway" (include "tandem.fullname" .)) .Values.gateway.serviceAccount.name }}
{{- end }}

{{/* Where the gateway listens: on every address, of both families where its Service may have one of IPv6. Takes the root. */}}
{{- define "tandem.gatewayHost" -}}
{{- $service := .Values.gateway.service }}
{{- if or (has "IPv6" $service.ipFamilies) (hasSuffix "DualStack" $service.ipFamilyPolicy) }}::{{ else }}0.0.0.0{{ end }}
{{- end }}

{{/* Where the gateway's pods have the model repository: nowhere (empty), in their own `image`, or in a `volume`. Takes the root. */}}
{{- define "tandem.gatewayModels" -}}
{{- if .Values.gateway.preprocessing.enabled -}}
{{- if and (eq .Values.modelRepository.source "image") (not .Values.modelRepository.image.repository) -}}
image
{{- else -}}
volume
{{- end }}
{{- end }}
{{- end }}

{{/* The init containers of the gateway's pods, if its models are copied. Takes the root. */}}
{{- define "tandem.gatewayCopies" -}}
{{- if eq (include "tandem.gatewayModels" .) "volume" }}
{{- if eq .Values.modelRepository.source "image" }}
{{ include "tandem.copyModelsFromImage" . }}
{{- else if eq .Values.modelRepository.source "objectStore" }}
{{ include "tandem.copyModelsFromObjectStore" . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The fewest gateways that are kept. Takes .Values.gateway. */}}
{{- define "tandem.gatewayMinReplicas" -}}
{{- if .autoscaling.enabled }}{{ int .autoscaling.minReplicas }}{{ else }}{{ int .replicas }}{{ end }}
{{- end }}

{{/* How long a route waits, as the Gateway API writes it: limits.upstream_timeout_s of docs/settings.md, 60 s unless it is set, and 10 s for the body on
     its way; these 10 are a guess, not measured. Takes the root. */}}
{{- define "tandem.routeTimeout" -}}
{{- $limits := .Values.gateway.limits -}}
{{- addf 10 (default 60 $limits.upstreamTimeoutS) | ceil | int }}s
{{- end }}

{{/* The gateway's tandem.yaml. `server: tandem` loads all that the pool may run, which the gateway reads in the model repository, if it has it. The order of pools is their order of preference: who turns a GPU pool on wants it used. int64 keeps a
     large number from being written as 6.7e+07. */}}
{{- define "tandem.gatewayConfig" -}}
{{- $pools := fromYaml (include "tandem.pools" .) -}}
version: 1
{{- if .Values.gateway.tritonWords }}
triton_words: true
{{- end }}
{{- if .Values.scaler.enabled }}
scaler: http://{{ include "tandem.scalerName" . }}:9091
{{- end }}
pools:
  {{- range $device := list "gpu" "cpu" }}
  {{- range $name, $pool := $pools }}
  {{- if eq $pool.device $device }}
  {{ $name | quote }}:
    urls: {{ toJson (default (list (printf "http://%s-%s:8000" (include "tandem.fullname" $) $name)) $pool.urls) }}
    device: {{ $pool.device }}
    {{- if and $pool.models (or (eq $pool.server "nvidia") (not (include "tandem.gatewayModels" $))) }}
    models: {{ toJson $pool.models }}
    {{- end }}
    {{- $autoscaling := $pool.autoscaling }}
    {{- if $pool.urls }}
    {{- range $key, $setting := dict "minReplicas" "min_replicas" "maxReplicas" "max_replicas" }}
    {{- if not (kindIs "invalid" (index $pool $key)) }}
    {{ $setting }}: {{ int64 (index $pool $key) }}
    {{- end }}
    {{- end }}
    {{- else if $autoscaling.enabled }}
    min_replicas: {{ int64 $autoscaling.minReplicas }}
    max_replicas: {{ int64 $autoscaling.maxReplicas }}
    {{- else }}
    {{- with include "tandem.minReplicas" $pool }}
    min_replicas: {{ . }}
    {{- end }}
    max_replicas: {{ include "tandem.maxReplicas" $pool }}
    {{- end }}
    {{- if not (kindIs "invalid" $pool.pricePerHour) }}
    price_per_hour: {{ toJson $pool.pricePerHour }}
    {{- end }}
    {{- if not (kindIs "invalid" $pool.coldStartS) }}
    cold_start_s: {{ toJson $pool.coldStartS }}
    {{- end }}
    {{- if ne (int64 $pool.serversPerCard) 1 }}
    servers_per_card: {{ int64 $pool.serversPerCard }}
    {{- end }}
    {{- if not (kindIs "invalid" $pool.memoryBytes) }}
    memory_bytes: {{ int64 $pool.memoryBytes }}
    {{- end }}
    {{- if not (kindIs "invalid" $pool.minBillingS) }}
    min_billing_s: {{ toJson $pool.minBillingS }}
    {{- end }}
    {{- if not (kindIs "invalid" $pool.consolidationS) }}
    consolidation_s: {{ toJson $pool.consolidationS }}
    {{- end }}
  {{- end }}
  {{- end }}
  {{- end }}
{{- $variants := .Values.gateway.variants }}
{{- $objectives := .Values.gateway.objectives }}
{{- $takesIds := .Values.gateway.tokenIds }}
{{- $memory := .Values.gateway.modelMemoryBytes }}
{{- with .Values.scaler.quotas }}
quotas:
  {{- range $name, $quota := . }}
  {{ $name | quote }}: {pools: {{ toJson $quota.pools }}, max_cards: {{ int64 $quota.maxCards }}}
  {{- end }}
{{- end }}
{{- with .Values.scaler.warmNodes }}
warm_nodes:
  {{- range $name, $warm := . }}
  {{ $name | quote }}: {pools: {{ toJson $warm.pools }}, max_nodes: {{ int64 $warm.maxNodes }}{{ with $warm.nodeStartS }}, node_start_s: {{ toJson . }}{{ end }}}
  {{- end }}
{{- end }}
{{- with .Values.scaler.rules }}
scaling:
  {{- range $name, $rule := . }}
  {{ snakecase $name }}: {{ toJson $rule }}
  {{- end }}
{{- end }}
{{- with concat (keys $variants) (keys $objectives) (keys $memory) $takesIds | uniq | sortAlpha }}
models:
  {{- range $model := . }}
  {{ $model | quote }}:
    {{- if hasKey $variants $model }}
    variants: {{ toJson (get $variants $model) }}
    {{- end }}
    {{- if hasKey $objectives $model }}
    objective: {latency_s: {{ toJson (get $objectives $model).latencyS }}}
    {{- end }}
    {{- if hasKey $memory $model }}
    memory_bytes: {{ int64 (get $memory $model) }}
    {{- end }}
    {{- if has $model $takesIds }}
    token_ids: true
    {{- end }}
  {{- end }}
{{- end }}
{{- with .Values.gateway.allowedHosts }}
{{- $names := concat . $.Values.ingress.hosts $.Values.httpRoute.hostnames }}
{{- range $service := list "gateway" "gateway-admin" }}
{{- $name := printf "%s-%s" (include "tandem.fullname" $) $service }}
{{- $below := printf "%s.%s" $name $.Release.Namespace }}
{{- $names = concat $names (list $name $below (printf "%s.svc" $below) (printf "%s.svc.cluster.local" $below)) }}
{{- end }}
allowed_hosts: {{ toJson (uniq $names) }}
{{- end }}
{{- with .Values.gateway.allowedOrigins }}
allowed_origins: {{ toJson . }}
{{- end }}
{{- if .Values.gateway.allowMissing }}
allow_missing: true
{{- end }}
{{- with .Values.gateway.usage }}
{{- if .place }}
usage: {place: {{ .place | quote }}, if_away: {{ .ifAway }}}
{{- end }}
{{- end }}
{{- with .Values.gateway.accessLogRatio }}
access_log: {path: "-", sample_ratio: {{ . }}}
{{- end }}
{{- with .Values.otel }}
{{- if .endpoint }}
otel: {endpoint: {{ .endpoint | quote }}, sample_ratio: {{ .sampleRatio }}, max_tail_rps: {{ .maxTailRps }}}
{{- end }}
{{- end }}
limits:
  {{- range $name, $limit := .Values.gateway.limits }}
  {{ snakecase $name }}: {{ toJson $limit }}
  {{- end }}
  drain_s: {{ .Values.gateway.drain.exitTimeoutSeconds }}
{{- end }}
