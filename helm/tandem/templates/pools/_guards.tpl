{{/*
Guards of the pools: what a Triton could not load or would ignore, autoscalers without sense, cards asked for wrongly. As everywhere, each
sentence tells what is wrong and the way out, and has a test in tests/helm.
*/}}

{{/* Takes (dict "root" $ "pools" $pools), the pools that are on. */}}
{{- define "tandem.guardPools" -}}
{{- include "tandem.guardPrices" .pools }}
{{- range $name, $pool := .pools }}
{{- $it := dict "root" $.root "name" $name "path" (printf "pools.%s" $name) "pool" $pool }}
{{- if $pool.urls }}
{{- include "tandem.guardPoolOfOthers" $it }}
{{- else }}
{{- include "tandem.guardPoolModels" $it }}
{{- include "tandem.guardPoolImage" $it }}
{{- include "tandem.guardPoolClaims" $it }}
{{- include "tandem.guardPoolServer" $it }}
{{- include "tandem.guardPoolNumbers" $it }}
{{- include "tandem.guardPoolFollows" $it }}
{{- include "tandem.guardPoolAutoscaling" $it }}
{{- include "tandem.guardPoolCards" $it }}
{{- include "tandem.guardPoolMemory" $it }}
{{- include "tandem.guardPoolTolerations" $it }}
{{- include "tandem.guardPoolBuckets" $it }}
{{- include "tandem.guardPoolCuda" $it }}
{{- include "tandem.guardPoolPrePull" $it }}
{{- include "tandem.guardDrain" (dict "path" $it.path "values" $pool) }}
{{- include "tandem.guardPodExtras" (dict "path" $it.path "values" $pool "volumes" (list "models" "shm" "speeds" "tmp") "containers" (list "copy-models" "triton" "verify-models")) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Tritons that somebody else runs: the gateway asks them, and the chart makes nothing for them. */}}
{{- define "tandem.guardPoolOfOthers" -}}
{{- $path := .path }}
{{- range $key, $_ := omit (default dict (index .root.Values.pools .name)) "enabled" "device" "urls" "models" "pricePerHour" "minReplicas" "maxReplicas" "coldStartS" "serversPerCard" "memoryBytes" }}
{{- fail (printf "%s.%s would be ignored, because %s.urls names Tritons that are not this release's. Leave one of them out." $path $key $path) }}
{{- end }}
{{- $pool := .pool }}
{{- if and (not (kindIs "invalid" $pool.minReplicas)) (not (kindIs "invalid" $pool.maxReplicas)) (gt (int $pool.minReplicas) (int $pool.maxReplicas)) }}
{{- fail (printf "%s.minReplicas is %d, more than its maxReplicas of %d. Make them agree." $path (int $pool.minReplicas) (int $pool.maxReplicas)) }}
{{- end }}
{{- $policy := .root.Values.networkPolicy }}
{{- if and $policy.enabled (not $policy.tritonsTo) }}
{{- fail (printf "%s.urls names Tritons that are not this release's, and the NetworkPolicy keeps the gateway from them. Name where they are in networkPolicy.tritonsTo, such as {ipBlock: {cidr: 10.0.0.0/8}}." $path) }}
{{- end }}
{{- end }}

{{- define "tandem.guardPoolImage" -}}
{{- $pool := .pool }}
{{- $path := .path }}
{{- $image := $pool.ownImage }}
{{- if $image.repository }}
{{- if ne $pool.server "nvidia" }}
{{- fail (printf "%s.ownImage would be ignored, because %s.server is tandem, whose images are Tandem's. Leave it out, or set %s.server=nvidia." $path $path $path) }}
{{- end }}
{{- if not (or $image.tag $image.digest) }}
{{- fail (printf "%s.ownImage.repository is %s without a version. Set %s.ownImage.tag or digest." $path $image.repository $path) }}
{{- end }}
{{- if and (eq $image.tag "latest") (not $image.digest) }}
{{- fail (printf "%s.ownImage.tag is latest, which is another image tomorrow. Name a version or a digest." $path) }}
{{- end }}
{{- else if or $image.tag $image.digest }}
{{- fail (printf "%s.ownImage has a tag or digest, but no repository, so images.nvidia would be taken. Set %s.ownImage.repository, or leave them out." $path $path) }}
{{- else if eq $pool.device "gpu" }}
{{- range $vendor := list "amd.com/" "gpu.intel.com/" "habana.ai/" }}
{{- if hasPrefix $vendor $pool.gpu.resource }}
{{- fail (printf "%s.gpu.resource is %s, a card that neither NVIDIA's image nor Tandem's computes on. Name an image of Triton that does in %s.ownImage, with %s.server=nvidia." $path $pool.gpu.resource $path $path) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Devices by DRA: no resource of the node's beside them, and each claim is one. */}}
{{- define "tandem.guardPoolClaims" -}}
{{- $path := .path }}
{{- if .pool.resourceClaims }}
{{- if ne .pool.device "gpu" }}
{{- fail (printf "%s.resourceClaims ask for cards, and %s.device is cpu. Leave them out, or set %s.device=gpu." $path $path $path) }}
{{- end }}
{{- if (default dict (index .root.Values.pools .name)).gpu }}
{{- fail (printf "%s.gpu would be ignored, because %s.resourceClaims say which card a Triton gets. Leave one of them out." $path $path) }}
{{- end }}
{{- $version := .root.Capabilities.KubeVersion.Version }}
{{- if semverCompare "<1.34.0-0" $version }}
{{- fail (printf "%s.resourceClaims need Kubernetes 1.34 or newer, and this is %s, which would drop them. Use %s.gpu." $path $version $path) }}
{{- end }}
{{- range .pool.resourceClaims }}
{{- if ne (len (omit . "name")) 1 }}
{{- fail (printf "%s.resourceClaims.%s names neither or both of resourceClaimName and resourceClaimTemplateName. Give it one of them." $path .name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Takes the pools that are on. */}}
{{- define "tandem.guardPrices" -}}
{{- $priced := list }}
{{- $others := list }}
{{- range $name, $pool := . }}
{{- if kindIs "invalid" $pool.pricePerHour }}{{ $others = append $others $name }}{{ else }}{{ $priced = append $priced $name }}{{ end }}
{{- end }}
{{- if and $priced $others }}
{{- fail (printf "pools.%s.pricePerHour is not set and that of pools.%s is. Give every pool that is on a price, or none (without prices all Tritons cost the same)." (first $others) (first $priced)) }}
{{- end }}
{{- end }}

{{/* A variant without a configuration for the pool's device would come up on another's, without a word. */}}
{{- define "tandem.guardPoolModels" -}}
{{- $pool := .pool }}
{{- $path := .path }}
{{- if not $pool.models }}
{{- fail (printf "%s.models is empty, so its Triton would serve nothing. Name the variants to load, for example digits-fp32." $path) }}
{{- end }}
{{- range $model := $pool.models }}
{{- if and (eq $pool.device "cpu") (hasSuffix "-fp16" $model) }}
{{- fail (printf "%s.models names %s, but FP16 never runs on a CPU. Leave it out, or set %s.device=gpu." $path $model $path) }}
{{- end }}
{{- if and (eq $pool.device "cpu") (hasSuffix "-tf32" $model) }}
{{- fail (printf "%s.models names %s, but processors have no TF32. Leave it out, or set %s.device=gpu." $path $model $path) }}
{{- end }}
{{- if and (eq $pool.device "gpu") (or (hasSuffix "-int8" $model) (hasSuffix "-bf16" $model)) }}
{{- fail (printf "%s.models names %s, but of a model's variants only FP32, TF32 and FP16 run on a GPU. Leave it out, or set %s.device=cpu." $path $model $path) }}
{{- end }}
{{- if and (eq $pool.server "nvidia") (hasSuffix "-bf16" $model) }}
{{- fail (printf "%s.models names %s, but NVIDIA's server cannot ask OpenVINO for BF16 and would compute in FP32 without a word. Leave it out, or set %s.server=tandem." $path $model $path) }}
{{- end }}
{{- if and (hasSuffix "-bf16" $model) (ne $pool.image "tritonCpuOpenvino") }}
{{- fail (printf "%s.models names %s, but only OpenVINO computes in BF16. Leave it out, or set %s.image=tritonCpuOpenvino." $path $model $path) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tandem.guardPoolServer" -}}
{{- $pool := .pool }}
{{- $path := .path }}
{{- $fixed := list "model-repository" "model-control-mode" "load-model" "model-config-name" "strict-readiness" "exit-timeout-secs" "http-port" "grpc-port" "metrics-port" }}
{{- if eq $pool.server "nvidia" }}
{{- if .root.Values.otel.endpoint }}{{ $fixed = append $fixed "trace-config" }}{{ end }}
{{- range $key := list "instances" "threads" "queueDelayUs" "maxBatch" "batchBuckets" "bucketLengths" "versions" "maxMemoryMb" }}
{{- if not (kindIs "invalid" (index $pool $key)) }}
{{- fail (printf "%s.%s would be ignored, because NVIDIA's server reads it from the model repository. Leave it out, or set %s.server=tandem." $path $key $path) }}
{{- end }}
{{- end }}
{{- if $pool.cuda }}
{{- fail (printf "%s.cuda would be ignored, because NVIDIA's server reads it from the model repository. Leave it out, or set %s.server=tandem." $path $path) }}
{{- end }}
{{- if $pool.image }}
{{- fail (printf "%s.image would be ignored, because %s.server is nvidia, whose image is images.nvidia. Leave it out, or set %s.server=tandem." $path $path $path) }}
{{- end }}
{{- else }}
{{- $fixed = list "pool" "model-repository" "host" "http-port" "grpc-port" "metrics-port" "exit-timeout-s" "ready-file" "otel-endpoint" }}
{{- if not .root.Values.networkPolicy.enabled }}
{{- fail (printf "%s.server is tandem, whose Triton 2.51 has known security holes and may only be reached by the gateway. Keep networkPolicy.enabled=true, or set %s.server=nvidia." $path $path) }}
{{- end }}
{{- $security := mustMergeOverwrite (deepCopy .root.Values.podSecurityContext) (deepCopy $pool.podSecurityContext) }}
{{- $user := default $security.runAsUser $pool.securityContext.runAsUser }}
{{- if ne (int64 (default 0 $user)) 1000 }}
{{- fail (printf "%s.server is tandem, whose Triton's files belong to user 1000, and its pods would run as %s. Set podSecurityContext.runAsUser=1000, or %s.server=nvidia." $path (ternary "a user that the cluster chooses" (printf "user %d" (int64 (default 0 $user))) (kindIs "invalid" $user)) $path) }}
{{- end }}
{{- if and $pool.image (ne (eq $pool.image "tritonGpu") (eq $pool.device "gpu")) }}
{{- fail (printf "%s.image is %s, but %s.device is %s. Leave the image out, which takes the device's own, or change the device." $path $pool.image $path $pool.device) }}
{{- end }}
{{- end }}
{{- range $argument := $pool.extraArgs }}
{{- $option := $argument | trimPrefix "--" | splitList "=" | first }}
{{- if has $option $fixed }}
{{- fail (printf "%s.extraArgs has --%s, which the chart sets itself. Leave it out." $path $option) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tandem.guardPoolNumbers" -}}
{{- $pool := .pool }}
{{- $path := .path }}
{{- if and (not (kindIs "invalid" $pool.minReplicas)) (gt (int $pool.minReplicas) (int (include "tandem.maxReplicas" $pool))) }}
{{- fail (printf "%s.minReplicas is %d, more than its maxReplicas of %d. Make them agree." $path (int $pool.minReplicas) (int (include "tandem.maxReplicas" $pool))) }}
{{- end }}
{{- if not (or $pool.autoscaling.enabled (kindIs "invalid" $pool.replicas)) }}
{{- range $key, $is := dict "minReplicas" "more" "maxReplicas" "less" }}
{{- $said := index $pool $key }}
{{- if and (not (kindIs "invalid" $said)) (ternary (gt (int $said) (int $pool.replicas)) (lt (int $said) (int $pool.replicas)) (eq $is "more")) }}
{{- fail (printf "%s.%s is %d, %s than the %d of %s.replicas, which nothing changes. Make them agree, or set %s.replicas=null where a scaler of yours owns the number." $path $key (int $said) $is (int $pool.replicas) $path $path) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $pool.autoscaling.enabled (not (and (kindIs "invalid" $pool.minReplicas) (kindIs "invalid" $pool.maxReplicas))) }}
{{- fail (printf "%s.minReplicas and maxReplicas would be ignored, because %s.autoscaling is on and has its own. Leave them out." $path $path) }}
{{- end }}
{{- end }}

{{- define "tandem.guardPoolAutoscaling" -}}
{{- $scaling := .pool.autoscaling }}
{{- $path := printf "%s.autoscaling" .path }}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) }}
{{- fail (printf "%s.minReplicas is %d, more than its maxReplicas of %d. Make them agree." $path (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}
{{- end }}
{{- if and $scaling.enabled (eq $scaling.by "metrics") }}
{{- $alive := false }}
{{- $useful := false }}
{{- range $scaling.metrics }}
{{- if has .type (list "Object" "External") }}{{ $alive = true }}{{ end }}
{{- if not (has .type (list "Resource" "ContainerResource")) }}{{ $useful = true }}{{ end }}
{{- end }}
{{- if and (eq .pool.device "gpu") (not $useful) }}
{{- fail (printf "%s would follow the use of CPU or memory, which says nothing about a GPU. Name what it is to follow in %s.metrics, or set %s.enabled=false." $path $path $path) }}
{{- end }}
{{- if and (eq (int $scaling.minReplicas) 0) (not $alive) }}
{{- fail (printf "%s.minReplicas is 0, but without a Triton nothing would tell it to start one. Name a metric of type External or Object in %s.metrics, or set minReplicas=1." $path $path) }}
{{- end }}
{{- $resources := .pool.resources }}
{{- if and (not $scaling.metrics) (not (or (hasKey (default dict $resources.requests) "cpu") (hasKey (default dict $resources.limits) "cpu"))) }}
{{- fail (printf "%s.targetCpuPercent is a share of the CPU that a Triton requests, and %s.resources requests none. Set %s.resources.requests.cpu." $path .path .path) }}
{{- end }}
{{- end }}
{{- end }}

{{/* What stands in /dev/shm counts as the container's memory: at the limit the kernel kills it. */}}
{{- define "tandem.guardPoolMemory" -}}
{{- $limit := (default dict .pool.resources.limits).memory }}
{{- if $limit }}
{{- if ge (include "tandem.bytes" .pool.shmSize | float64) (include "tandem.bytes" $limit | float64) }}
{{- fail (printf "%s.shmSize is %v, all of %s.resources.limits.memory of %v, which it counts for. Raise the limit, or lower shmSize." .path .pool.shmSize .path $limit) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Helm replaces a list as a whole. A toleration too many does no harm. */}}
{{- define "tandem.guardPoolTolerations" -}}
{{- $pool := .pool }}
{{- if and (eq $pool.device "gpu") $pool.tolerations (hasPrefix "nvidia.com/" $pool.gpu.resource) }}
{{- $tolerated := false }}
{{- range $pool.tolerations }}
{{- if or (not .key) (eq .key "nvidia.com/gpu") }}{{ $tolerated = true }}{{ end }}
{{- end }}
{{- if not $tolerated }}
{{- fail (printf "%s.tolerations replaces the chart's own, and has lost nvidia.com/gpu, the taint by which GPU nodes keep others out. Add {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}." .path) }}
{{- end }}
{{- end }}
{{- end }}

{{/* A process computes on one MIG slice, and two shares of a card are no more of it than one. */}}
{{- define "tandem.guardPoolCards" -}}
{{- $pool := .pool }}
{{- $path := .path }}
{{- range $kind, $resources := $pool.resources }}
{{- range $resource, $_ := $resources }}
{{- if or (contains "nvidia.com/" $resource) (eq $resource $pool.gpu.resource) }}
{{- fail (printf "%s.resources.%s names %s, which %s.gpu sets. Use %s.device=gpu with gpu.resource and gpu.count." $path $kind $resource $path $path) }}
{{- end }}
{{- end }}
{{- end }}
{{- if eq $pool.device "gpu" }}
{{- if and (gt (int $pool.gpu.count) 1) (or (contains "/mig-" $pool.gpu.resource) (hasSuffix ".shared" $pool.gpu.resource)) }}
{{- fail (printf "%s.gpu.count is %d, but a Triton gains nothing by more than one %s. Set it to 1 and raise %s.replicas, or take a larger part of the card." $path (int $pool.gpu.count) $pool.gpu.resource $path) }}
{{- end }}
{{- else if (index .root.Values.pools .name | default dict).gpu }}
{{- fail (printf "%s.gpu would be ignored, because %s.device is cpu. Leave it out, or set %s.device=gpu." $path $path $path) }}
{{- end }}
{{- end }}

{{- define "tandem.guardPoolBuckets" -}}
{{- if and .pool.bucketLengths (not .pool.batchBuckets) }}
{{- fail (printf "%s.bucketLengths are of batchBuckets, and there are none. Set %s.batchBuckets=auto, or leave them out." .path .path) }}
{{- end }}
{{- if and .pool.cuda.enable_cuda_graph (not .pool.batchBuckets) }}
{{- fail (printf "%s.cuda.enable_cuda_graph needs batchBuckets, because a graph replays batches of one size. Set %s.batchBuckets=auto, or leave it out." .path .path) }}
{{- end }}
{{- end }}

{{/* Names that are no option are told with the nearest: the one that has most of their runs of three letters. A test compares the list with
     what `tandem triton` takes. */}}
{{- define "tandem.guardPoolCuda" -}}
{{- $path := .path }}
{{- $known := list "arena_extend_strategy" "cudnn_conv1d_pad_to_nc1d" "cudnn_conv_algo_search" "cudnn_conv_use_max_workspace" "do_copy_in_default_stream" "enable_cuda_graph" "enable_cudnn" "fuse_conv_bias" "gpu_mem_limit" "prefer_nhwc" "sdpa_kernel" "tunable_op_enable" "tunable_op_tuning_enable" "use_ep_level_unified_stream" }}
{{- if and .pool.cuda (ne .pool.device "gpu") }}
{{- fail (printf "%s.cuda would be ignored, because %s.device is cpu. Leave it out, or set %s.device=gpu." $path $path $path) }}
{{- end }}
{{- range $option, $_ := .pool.cuda }}
{{- if not (has $option $known) }}
{{- $name := snakecase $option }}
{{- $nearest := "" }}
{{- $most := 0 }}
{{- range $candidate := $known }}
{{- $shared := 0 }}
{{- range $at := until (max 0 (sub (len $name) 2) | int) }}
{{- if contains (substr $at (add $at 3 | int) $name) $candidate }}{{ $shared = add $shared 1 }}{{ end }}
{{- end }}
{{- if gt (int $shared) (int $most) }}{{ $most = $shared }}{{ $nearest = $candidate }}{{ end }}
{{- end }}
{{- $hint := ternary (printf "; did you mean %s?" $nearest) (printf "; known: %s." (join ", " $known)) (gt (mul $most 2) (sub (len $name) 2)) }}
{{- fail (printf "%s.cuda has no option %s%s" $path $option $hint) }}
{{- end }}
{{- end }}
{{- end }}

{{/* What asks for no card lands on every node. */}}
{{- define "tandem.guardPoolPrePull" -}}
{{- if and .pool.prePull.enabled (eq .pool.device "gpu") (not .pool.nodeSelector) (not .pool.affinity.nodeAffinity) }}
{{- fail (printf "%s.prePull.enabled is true, but nothing tells GPU nodes from others, so every node would pull the image. Set %s.nodeSelector, for example {nvidia.com/gpu.present: \"true\"}." .path .path) }}
{{- end }}
{{- end }}
