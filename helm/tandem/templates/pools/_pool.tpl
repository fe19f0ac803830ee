{{/*
The one template of all pools: what is the same for a CPU and a GPU pool, for NVIDIA's image and for ours. What differs is asked for
by `device` and `server`, nowhere else. Takes (dict "root" $ "name" "cpu" "pool" $pool).
*/}}

{{- define "tandem.poolName" -}}
{{ include "tandem.fullname" .root }}-{{ .name }}
{{- end }}

{{- define "tandem.poolSelectorLabels" -}}
{{ include "tandem.selectorLabels" (dict "root" .root "component" "triton") }}
tandem-pool: {{ .name }}
{{- end }}

{{- define "tandem.poolLabels" -}}
{{ include "tandem.labels" (dict "root" .root "component" "triton") }}
tandem-pool: {{ .name }}
{{- end }}

{{- define "tandem.poolImage" -}}
{{- if eq .pool.server "tandem" }}
{{- include "tandem.image" (dict "root" .root "image" .root.Values.images.tritonCpu "registry" .root.Values.imageRegistry) }}
{{- else }}
{{- include "tandem.image" (dict "root" .root "image" .root.Values.images.nvidia "registry" "") }}
{{- end }}
{{- end }}

{{/* NVIDIA's entry point becomes the program that it is given, so Triton gets the signals. A model that does not load ends Triton,
     which stops a rollout before it takes traffic. */}}
{{- define "tandem.poolArgs" -}}
{{- if eq .pool.server "tandem" }}
command:
  - tandem
  - triton
  - --pool={{ .pool.device }}
  - --model-repository=/models
  - --host=0.0.0.0
  - --http-port=8000
  - --grpc-port=8001
  - --metrics-port=8002
  - --exit-timeout-s={{ .pool.drain.exitTimeoutSeconds }}
  {{- range $key, $option := dict "instances" "instances" "threads" "threads" "queueDelayUs" "queue-delay-us" "maxBatch" "max-batch" }}
  {{- $value := index $.pool $key }}
  {{- if not (kindIs "invalid" $value) }}
  - --{{ $option }}={{ int64 $value }}
  {{- end }}
  {{- end }}
{{- else }}
args:
  - tritonserver
  - --model-repository=/models
  - --model-control-mode=explicit
  {{- range .pool.models }}
  - --load-model={{ . }}
  {{- end }}
  - --model-config-name={{ .pool.device }}
  - --disable-auto-complete-config
  - --strict-readiness=false
  - --exit-timeout-secs={{ .pool.drain.exitTimeoutSeconds }}
  - --allow-gpu-metrics={{ eq .pool.device "gpu" }}
  - --log-format=ISO8601
{{- end }}
{{- range .pool.extraArgs }}
  - {{ . | quote }}
{{- end }}
{{- end }}

{{/* Replacing a single GPU Triton in place: a rolling update leaves the new pod pending while the old one stops, and a node autoscaler
     then buys a second GPU node. Meanwhile the CPU pool answers. */}}
{{- define "tandem.poolStrategy" -}}
{{- if ne .pool.device "gpu" -}}
rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
{{- else if le (int .pool.replicas) 1 -}}
type: Recreate
{{- else -}}
rollingUpdate: {maxSurge: 0, maxUnavailable: 1}
{{- end }}
{{- end }}

{{- define "tandem.poolResources" -}}
{{- $resources := deepCopy .pool.resources }}
{{- if eq .pool.device "gpu" }}
{{- $_ := set $resources "limits" (merge (dict .pool.gpu.resource (int .pool.gpu.count)) (default dict $resources.limits)) }}
{{- end }}
{{- toYaml $resources }}
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

{{- define "tandem.poolDeployment" -}}
{{- $pool := .pool -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "tandem.poolName" . }}
  labels:
    {{- include "tandem.poolLabels" . | nindent 4 }}
spec:
  {{- if not $pool.autoscaling.enabled }}
  replicas: {{ $pool.replicas }}
  {{- end }}
  strategy:
    {{- include "tandem.poolStrategy" . | nindent 4 }}
  selector:
    matchLabels:
      {{- include "tandem.poolSelectorLabels" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "tandem.poolLabels" . | nindent 8 }}
      {{- with $pool.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- include "tandem.podSecurity" . | nindent 6 }}
      serviceAccountName: {{ include "tandem.tritonServiceAccount" .root }}
      terminationGracePeriodSeconds: {{ include "tandem.graceSeconds" $pool }}
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with include "tandem.placement" $pool | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      initContainers:
        {{- include "tandem.poolInitContainers" . | trim | nindent 8 }}
      containers:
        - name: triton
          image: {{ include "tandem.poolImage" . | quote }}
          imagePullPolicy: {{ ternary .root.Values.images.tritonCpu.pullPolicy .root.Values.images.nvidia.pullPolicy (eq $pool.server "tandem") }}
          {{- include "tandem.poolArgs" . | trim | nindent 10 }}
          env:
            # ONNX Runtime 1.31 sends usage data to its maker unless told otherwise.
            - {name: ORT_DISABLE_TELEMETRY, value: "1"}
          ports:
            - {name: http, containerPort: 8000}
            - {name: grpc, containerPort: 8001}
            - {name: metrics, containerPort: 8002}
          # Triton's own readiness says nothing about a model, so these ask for one.
          startupProbe:
            httpGet: {path: /v2/models/{{ first $pool.models }}/ready, port: http}
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: {{ divf $pool.startupTimeoutSeconds 5 | ceil | int }}
          readinessProbe:
            httpGet: {path: /v2/models/{{ first $pool.models }}/ready, port: http}
            periodSeconds: 5
            timeoutSeconds: 5
          livenessProbe:
            httpGet: {path: /v2/health/live, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          lifecycle:
            preStop:
              sleep: {seconds: {{ $pool.drain.preStopSeconds }}}
          resources:
            {{- include "tandem.poolResources" . | nindent 12 }}
          {{- include "tandem.containerSecurity" . | nindent 10 }}
          volumeMounts:
            {{- include "tandem.modelMount" . | nindent 12 }}
            - {name: tmp, mountPath: /tmp}
            - {name: shm, mountPath: /dev/shm}
            {{- if eq $pool.server "tandem" }}
            - {name: speeds, mountPath: /opt/tandem/speeds}
            {{- end }}
      volumes:
        {{- include "tandem.modelVolumes" .root | nindent 8 }}
        - name: tmp
          emptyDir: {sizeLimit: 256Mi}
        - name: shm
          emptyDir: {medium: Memory, sizeLimit: {{ $pool.shmSize }}}
        {{- if eq $pool.server "tandem" }}
        # What `tandem triton` measured of the variants on this processor.
        - name: speeds
          emptyDir: {sizeLimit: 16Mi}
        {{- end }}
{{- end }}
