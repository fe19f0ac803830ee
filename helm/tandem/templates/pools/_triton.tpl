{{/*
What a pool's Triton is told: command, environment, and the probes that ask it. All take a pool.
*/}}

{{/* Options that the chart sets; a second one among extraArgs would win or stop Triton, so it is refused (_guards.tpl). */}}
{{- define "tandem.poolArgs" -}}
{{- if eq .server "tandem" }}
command:
  - tandem
  - triton
  - --pool={{ .device }}
  - --model-repository=/models
  - --host=0.0.0.0
  - --http-port=8000
  - --grpc-port=8001
  - --metrics-port=8002
  - --exit-timeout-s={{ .drain.exitTimeoutSeconds }}
  - --ready-file=/tmp/ready
  {{- range $key, $option := dict "instances" "instances" "threads" "threads" "queueDelayUs" "queue-delay-us" "maxBatch" "max-batch" "versions" "versions" "maxMemoryMb" "max-memory-mb" }}
  {{- $value := index $ $key }}
  {{- if not (kindIs "invalid" $value) }}
  - --{{ $option }}={{ int64 $value }}
  {{- end }}
  {{- end }}
  {{- with .batchBuckets }}
  - --batch-buckets={{ if kindIs "string" . }}{{ . }}{{ else }}{{ join "," . }}{{ end }}
  {{- end }}
  {{- with .bucketLengths }}
  - --bucket-lengths={{ join "," . }}
  {{- end }}
  {{- range $option, $value := .cuda }}
  - --cuda-option={{ $option }}={{ if kindIs "float64" $value }}{{ int64 $value }}{{ else }}{{ $value }}{{ end }}
  {{- end }}
{{- else }}
# NVIDIA's entry point becomes the program that it is given, so Triton gets the signals. A model that does not load ends Triton, which stops
# a rollout before it takes traffic. Not strict: a model that is being loaded or did not load must not take the others' traffic away.
args:
  - tritonserver
  - --model-repository=/models
  - --model-control-mode=explicit
  {{- range .models }}
  - --load-model={{ . }}
  {{- end }}
  - --model-config-name={{ .device }}
  - --disable-auto-complete-config
  - --strict-readiness=false
  - --exit-timeout-secs={{ .drain.exitTimeoutSeconds }}
  - --allow-gpu-metrics={{ eq .device "gpu" }}
  - --log-format=ISO8601
{{- end }}
{{- range .extraArgs }}
  - {{ . | quote }}
{{- end }}
{{- end }}

{{/* Triton's spans of the requests that a gateway traces, which are those with a `traceparent`. Takes (dict "root" $ "pool" $pool). */}}
{{- define "tandem.poolTraces" -}}
{{- with .root.Values.otel.endpoint }}
{{- if eq $.pool.server "tandem" }}
- --otel-endpoint={{ . }}
{{- else }}
{{- range $setting := list "mode=opentelemetry" "level=TIMESTAMPS" "rate=0" (printf "opentelemetry,url=%s/v1/traces" (trimSuffix "/" .)) "opentelemetry,resource=service.name=tandem-triton" }}
- --trace-config={{ $setting }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tandem.poolEnv" -}}
{{- $own := list }}
{{- range .env }}{{ $own = append $own .name }}{{ end }}
env:
  {{- if not (has "ORT_DISABLE_TELEMETRY" $own) }}
  # ONNX Runtime 1.31 sends usage data to its maker unless told otherwise.
  - {name: ORT_DISABLE_TELEMETRY, value: "1"}
  {{- end }}
  {{- if and (eq .device "cpu") (not (has "NVIDIA_VISIBLE_DEVICES" $own)) }}
  # NVIDIA's image asks for all cards; on a GPU node it would get them without having claimed one.
  - {name: NVIDIA_VISIBLE_DEVICES, value: void}
  {{- end }}
  {{- with .env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Startup: the models are loaded. NVIDIA's Triton opens its port once all that it was told to load are, or ends. `tandem triton` loads one
     after the other behind an open port and writes down what it serves when it is through; the first of `models` has to be there.
     Ready: Triton takes requests. Which models it serves then is asked per model by the gateway: if readiness hung on one model, unloading
     that one would take the traffic of all others away.
     Live: the process answers. A model that failed is no reason to kill it. */}}
{{- define "tandem.poolProbes" -}}
startupProbe:
  {{- if eq .server "tandem" }}
  exec: {command: [grep, -qxF, {{ first .models | quote }}, /tmp/ready]}
  {{- else }}
  httpGet: {path: /v2/models/{{ first .models }}/ready, port: http}
  {{- end }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ divf .startupTimeoutSeconds 5 | ceil | int }}
readinessProbe:
  httpGet: {path: /v2/health/ready, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /v2/health/live, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}
