{{/*
Names, labels and the pieces that every pod shares. No guard lives here (_guards.tpl) and nothing here renders an object.
A selector label, once released, never changes: Kubernetes refuses to update a Deployment's selector.
*/}}

{{- define "tandem.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 40 characters, so that a pool's name of up to 20 still fits behind it. A Service's name has no dots and begins with a letter; a
     release's may be otherwise. */}}
{{/* At most 40 characters, so that what is added fits in 63; of two long names with the same beginning each keeps its own. */}}
{{- define "tandem.shortened" -}}
{{- if gt (len .) 40 }}{{ printf "%s-%s" (. | trunc 31 | trimSuffix "-") (sha256sum . | trunc 8) }}
{{- else }}{{ . | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tandem.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- include "tandem.shortened" .Values.fullnameOverride }}
{{- else }}
{{- $name := include "tandem.name" . }}
{{- $release := .Release.Name | replace "." "-" }}
{{- $full := ternary $release (printf "%s-%s" $release $name) (contains $name $release) }}
{{- if regexMatch "^[0-9]" $full }}{{ $full = printf "%s-%s" $name $release }}{{ end }}
{{- include "tandem.shortened" $full }}
{{- end }}
{{- end }}

{{/* Of every pod of the release, whatever it does. Takes the root. */}}
{{- define "tandem.instanceLabels" -}}
app.kubernetes.io/name: {{ include "tandem.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Takes (dict "root" $ "component" "gateway"). */}}
{{- define "tandem.selectorLabels" -}}
{{ include "tandem.instanceLabels" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "tandem.labels" -}}
{{- with .root.Values.commonLabels }}
{{- toYaml . }}{{ "\n" }}
{{- end }}
{{- include "tandem.selectorLabels" . }}
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

{{- define "tandem.tritonServiceAccount" -}}
{{- default (printf "%s-triton" (include "tandem.fullname" .)) .Values.triton.serviceAccount.name }}
{{- end }}

{{/* The pools that are on, as YAML {name: pool}, each laid over poolDefaults; with what follows from the device where nothing is said: a card's taint is
     tolerated, and the scaler says how many. Nothing scales Tritons that are others'. */}}
{{- define "tandem.pools" -}}
{{- $pools := dict }}
{{- range $name, $own := .Values.pools }}
{{- $pool := mustMergeOverwrite (deepCopy $.Values.poolDefaults) (deepCopy (default dict $own)) }}
{{- if not $pool.autoscaling.by }}
{{- $_ := set $pool.autoscaling "by" (ternary "scaler" "metrics" (and (eq $pool.device "gpu") (not $pool.autoscaling.metrics))) }}
{{- end }}
{{- if and (eq $pool.device "gpu") (not $pool.tolerations) }}
{{- $key := ternary "nvidia.com/gpu" $pool.gpu.resource (hasPrefix "nvidia.com/" $pool.gpu.resource) }}
{{- $_ := set $pool "tolerations" (list (dict "key" $key "operator" "Exists" "effect" "NoSchedule")) }}
{{- end }}
{{- if $pool.urls }}
{{- $_ := set $pool.autoscaling "enabled" false }}
{{- $_ := set $pool "replicas" (default 1 $pool.minReplicas) }}
{{- end }}
{{- if $pool.enabled }}{{ $_ := set $pools $name $pool }}{{ end }}
{{- end }}
{{- toYaml $pools }}
{{- end }}

{{/* Those of them whose Tritons are the release's own. */}}
{{- define "tandem.ownPools" -}}
{{- $own := dict }}
{{- range $name, $pool := fromYaml (include "tandem.pools" .) }}
{{- if not $pool.urls }}{{ $_ := set $own $name $pool }}{{ end }}
{{- end }}
{{- toYaml $own }}
{{- end }}

{{/* The fewest and the most Tritons of a pool without an autoscaler: as many as there are, unless something is said of it. Empty for the fewest is the
     gateway's own default. A pool of none is one of which one could be had. Both take a pool. */}}
{{- define "tandem.minReplicas" -}}
{{- if not (kindIs "invalid" .minReplicas) }}{{ int64 .minReplicas }}
{{- else if and (kindIs "invalid" .maxReplicas) (not (kindIs "invalid" .replicas)) }}{{ int64 .replicas }}
{{- end }}
{{- end }}

{{- define "tandem.maxReplicas" -}}
{{- if kindIs "invalid" .maxReplicas }}{{ max 1 (int64 .replicas) (int64 (default 0 .minReplicas)) }}{{ else }}{{ int64 .maxReplicas }}{{ end }}
{{- end }}

{{/* Seconds between the delete of a pod and the kernel's kill. Takes a map with drain and terminationGracePeriodSeconds. */}}
{{- define "tandem.graceSeconds" -}}
{{- $sum := add (int .drain.preStopSeconds) (int .drain.exitTimeoutSeconds) (int .drain.marginSeconds) }}
{{- if kindIs "invalid" .terminationGracePeriodSeconds }}{{ $sum }}{{ else }}{{ int .terminationGracePeriodSeconds }}{{ end }}
{{- end }}

{{/* The pod-level settings of podSecurityContext, by default what Pod Security "restricted" wants, and what needs no token and no service
     environment. Both take (dict "root" $), and perhaps "own", a pool's settings that are laid over. */}}
{{- define "tandem.podSecurity" -}}
automountServiceAccountToken: false
{{ include "tandem.podSecurityContext" . }}
{{- end }}

{{- define "tandem.podSecurityContext" -}}
enableServiceLinks: false
securityContext:
  {{- toYaml (mustMergeOverwrite (deepCopy .root.Values.podSecurityContext) (deepCopy (default dict .own))) | nindent 2 }}
{{- end }}

{{/* Of every container of the chart's. Takes the same. */}}
{{- define "tandem.containerSecurity" -}}
securityContext:
  {{- toYaml (mustMergeOverwrite (deepCopy .root.Values.securityContext) (deepCopy (default dict .own))) | nindent 2 }}
{{- end }}

{{/* Entries of a pod's `initContainers`: the values' own first, so that the chart's find what those made. Takes (dict "own" $list "chart" "- name: ..."). */}}
{{- define "tandem.initContainers" -}}
{{- with .own }}{{ toYaml . }}{{ end }}
{{ .chart | trim }}
{{- end }}

{{/* What a small init container or the test pod may take; it copies or hashes a few files. */}}
{{- define "tandem.smallResources" -}}
resources:
  requests: {cpu: 50m, memory: 64Mi}
  limits: {cpu: 500m, memory: 256Mi}
{{- end }}

{{/* Where a pod may run, who looks for its node, and how long it stays on a node that is lost. Takes a map with nodeSelector, tolerations and
     affinity, and perhaps schedulerName and lostNodeSeconds. Tolerations of the user's for such a node go before, as in Kubernetes' own default. */}}
{{- define "tandem.placement" -}}
{{- with .schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := default list .tolerations }}
{{- if hasKey . "lostNodeSeconds" }}
{{- range $key := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" }}
{{- $isTold := false }}
{{- range $.tolerations }}
{{- if and (has (default "" .key) (list "" $key)) (has (default "" .effect) (list "" "NoExecute")) }}{{ $isTold = true }}{{ end }}
{{- end }}
{{- if not $isTold }}
{{- $tolerations = append $tolerations (dict "key" $key "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" (int64 $.lostNodeSeconds)) }}
{{- end }}
{{- end }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Over zones and nodes as evenly as there is room, and scheduled all the same where there is none; counted among the pods of one revision,
     because those of an older one are about to go. Takes a text of selector labels. */}}
{{- define "tandem.topologySpread" -}}
topologySpreadConstraints:
  {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}

{{/* Name of the chart's priority class: cluster-wide, so the namespace is in it unless it was chosen. Takes the root; empty is none. */}}
{{- define "tandem.priorityClass" -}}
{{- if .Values.priorityClass.name }}
{{- .Values.priorityClass.name }}
{{- else if .Values.priorityClass.create }}
{{- printf "%s-%s" .Release.Namespace (include "tandem.fullname" .) }}
{{- end }}
{{- end }}

{{/* The line of a pod that names its priority class, if it has one. Takes (dict "root" $ "own" .Values.gateway.priorityClassName). */}}
{{- define "tandem.priorityClassName" -}}
{{- with default (include "tandem.priorityClass" .root) .own }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end }}

{{/* `behavior` of an autoscaler: the user's, or up at once and down slowly. 300 s is what Kubernetes itself waits before it takes pods away;
     one a minute is a guess, not measured. Takes the user's map. */}}
{{- define "tandem.scalingBehavior" -}}
{{- if . }}
{{- toYaml . }}
{{- else -}}
scaleUp: {stabilizationWindowSeconds: 0}
scaleDown:
  stabilizationWindowSeconds: 300
  policies:
    - {type: Pods, value: 1, periodSeconds: 60}
{{- end }}
{{- end }}

{{/* What every PodDisruptionBudget here says: one at a time, and a pod that is not ready never keeps a node from being drained. */}}
{{- define "tandem.disruptionBudget" -}}
maxUnavailable: 1
unhealthyPodEvictionPolicy: AlwaysAllow
{{- end }}

{{/* Entries of a NetworkPolicy's `egress` by which names are looked up. Takes the root. */}}
{{- define "tandem.dnsEgress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
  {{- with .Values.networkPolicy.dnsTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Entries of a NetworkPolicy's `egress` for the collector of traces, if there is one. Takes the root. */}}
{{- define "tandem.collectorEgress" -}}
{{- if .Values.otel.endpoint }}
- to:
    {{- toYaml .Values.networkPolicy.collectorTo | nindent 4 }}
  ports:
    - {protocol: TCP}
{{- end }}
{{- end }}

{{/* Entries of a NetworkPolicy's `egress` by which the API server is asked. Its address is none that a chart knows, and it is often no pod; where no
     peer is named, any address will do. Takes the root. */}}
{{- define "tandem.apiServerEgress" -}}
- ports:
    - {port: 443, protocol: TCP}
    - {port: 6443, protocol: TCP}
  {{- with .Values.networkPolicy.apiServerTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{ include "tandem.dnsEgress" . }}
{{- end }}

{{/* Entries of a NetworkPolicy's `egress` by which the chart's own clients ask the gateway. Takes the root. */}}
{{- define "tandem.clientEgress" -}}
- to:
    - podSelector:
        matchLabels:
          {{- include "tandem.selectorLabels" (dict "root" . "component" "gateway") | nindent 10 }}
  ports:
    - {port: http, protocol: TCP}
    {{- if .Values.gateway.grpc.enabled }}
    - {port: grpc, protocol: TCP}
    {{- end }}
{{ include "tandem.dnsEgress" . }}
{{- end }}

{{/* A quantity of memory in bytes, as a number with a fraction: 1536Mi, 2Gi, 1e9. Takes the quantity. */}}
{{- define "tandem.bytes" -}}
{{- $text := toString . }}
{{- $unit := regexFind "[A-Za-z]+$" (regexReplaceAll "[eE][0-9]+$" $text "") }}
{{- $factor := dict "" 1 "k" 1e3 "K" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- mulf (float64 (trimSuffix $unit $text)) (float64 (default 1 (get $factor $unit))) }}
{{- end }}
