{{/*
Values that are each allowed but contradict one another, or that somebody must have meant. The schema says what one value may be;
here is what it cannot say. Every sentence tells what is wrong and the way out, and tests/helm has a test for each.
*/}}

{{- define "tandem.guards" -}}
{{- include "tandem.guardAuth" . }}
{{- include "tandem.guardImages" . }}
{{- include "tandem.guardAccounts" . }}
{{- if and (eq .Values.modelRepository.source "claim") (not .Values.modelRepository.claimName) }}
{{- fail "modelRepository.source is claim, but no claim is named. Set modelRepository.claimName to a PersistentVolumeClaim that holds the model repository." }}
{{- end }}
{{- if and (ne .Values.modelRepository.source "claim") .Values.modelRepository.claimName }}
{{- fail "modelRepository.claimName is set, but modelRepository.source is image, so the claim would be ignored. Set modelRepository.source=claim." }}
{{- end }}
{{- $pools := fromYaml (include "tandem.pools" .) }}
{{- if not $pools }}
{{- fail "no pool is on, so nothing would serve. Set pools.cpu.enabled=true or another pool's." }}
{{- end }}
{{- include "tandem.guardPrices" $pools }}
{{- range $name, $pool := $pools }}
{{- include "tandem.guardPool" (dict "root" $ "path" (printf "pools.%s" $name) "pool" $pool) }}
{{- end }}
{{- include "tandem.guardGateway" (dict "root" . "pools" $pools) }}
{{- include "tandem.guardWaysIn" . }}
{{- end }}

{{- define "tandem.guardImages" -}}
{{- $images := dict "modelRepository.image" .Values.modelRepository.image }}
{{- range $name, $image := .Values.images }}{{ $_ := set $images (printf "images.%s" $name) $image }}{{ end }}
{{- range $path, $image := $images }}
{{- if and (eq $image.tag "latest") (not $image.digest) }}
{{- fail (printf "%s.tag is latest, which is another image tomorrow. Name a version or a digest." $path) }}
{{- end }}
{{- end }}
{{- $own := .Values.modelRepository.image }}
{{- if and $own.repository (not $own.tag) (not $own.digest) }}
{{- fail (printf "modelRepository.image.repository is %s without a version. Set modelRepository.image.tag or digest." $own.repository) }}
{{- end }}
{{- $reference := .Values.modelRepository.imageVolume.reference }}
{{- if and $reference (not (regexMatch "(:[^/:@]+|@sha256:[0-9a-f]{64})$" $reference)) }}
{{- fail (printf "modelRepository.imageVolume.reference is %s, which is another image tomorrow. Add a version or a digest." $reference) }}
{{- end }}
{{- end }}

{{- define "tandem.guardAccounts" -}}
{{- range $path, $account := dict "gateway" .Values.gateway.serviceAccount "triton" .Values.triton.serviceAccount }}
{{- if and (not $account.create) (not $account.name) }}
{{- fail (printf "%s.serviceAccount.create is false and no name is given. Set %s.serviceAccount.name to an account that exists." $path $path) }}
{{- end }}
{{- if and (not $account.create) $account.annotations }}
{{- fail (printf "%s.serviceAccount.annotations would be ignored, because create is false. Annotate the account that exists, or set %s.serviceAccount.create=true." $path $path) }}
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

{{- define "tandem.guardDrain" -}}
{{- $drain := .values.drain }}
{{- $sum := add (int $drain.preStopSeconds) (int $drain.exitTimeoutSeconds) (int $drain.marginSeconds) }}
{{- $grace := include "tandem.graceSeconds" .values | int }}
{{- if lt $grace (int $sum) }}
{{- fail (printf "%s.terminationGracePeriodSeconds is %d, but its drain takes %d s (%d before SIGTERM, %d to finish, %d margin), so requests would be cut off. Raise it to %d, shorten the drain, or leave it unset." .path $grace $sum (int $drain.preStopSeconds) (int $drain.exitTimeoutSeconds) (int $drain.marginSeconds) $sum) }}
{{- end }}
{{- end }}

{{- define "tandem.guardPool" -}}
{{- $pool := .pool }}
{{- $path := .path }}
{{- if not $pool.models }}
{{- fail (printf "%s.models is empty, so its Triton would serve nothing. Name the variants to load, for example digits-fp32." $path) }}
{{- end }}
{{- range $model := $pool.models }}
{{- if and (eq $pool.server "nvidia") (hasSuffix "-bf16" $model) }}
{{- fail (printf "%s.models names %s, but NVIDIA's server cannot ask OpenVINO for BF16 and would compute in FP32 without a word. Leave it out, or set %s.server=tandem." $path $model $path) }}
{{- end }}
{{- end }}
{{- range $key := list "instances" "threads" "queueDelayUs" "maxBatch" }}
{{- if and (eq $pool.server "nvidia") (not (kindIs "invalid" (index $pool $key))) }}
{{- fail (printf "%s.%s would be ignored, because NVIDIA's server reads it from the model repository. Leave it out, or set %s.server=tandem." $path $key $path) }}
{{- end }}
{{- end }}
{{- if and (eq $pool.server "tandem") (ne $pool.device "cpu") }}
{{- fail (printf "%s.server is tandem, but Tandem's own Triton image is for CPU pools only so far. Set %s.server=nvidia." $path $path) }}
{{- end }}
{{- if and (eq $pool.server "tandem") (not .root.Values.networkPolicy.enabled) }}
{{- fail (printf "%s.server is tandem, whose Triton 2.51 has known security holes and may only be reached by the gateway. Keep networkPolicy.enabled=true, or set %s.server=nvidia." $path $path) }}
{{- end }}
{{- if and $pool.autoscaling.enabled (ne $pool.device "cpu") }}
{{- fail (printf "%s.autoscaling follows CPU use, which says nothing about a GPU. Set %s.autoscaling.enabled=false and %s.replicas." $path $path $path) }}
{{- end }}
{{- if gt (int $pool.autoscaling.minReplicas) (int $pool.autoscaling.maxReplicas) }}
{{- fail (printf "%s.autoscaling.minReplicas is %d, more than its maxReplicas of %d. Make them agree." $path (int $pool.autoscaling.minReplicas) (int $pool.autoscaling.maxReplicas)) }}
{{- end }}
{{- if and (not (kindIs "invalid" $pool.minReplicas)) (gt (int $pool.minReplicas) (int (include "tandem.maxReplicas" $pool))) }}
{{- fail (printf "%s.minReplicas is %d, more than its maxReplicas of %d. Make them agree." $path (int $pool.minReplicas) (int (include "tandem.maxReplicas" $pool))) }}
{{- end }}
{{- if and $pool.autoscaling.enabled (not (and (kindIs "invalid" $pool.minReplicas) (kindIs "invalid" $pool.maxReplicas))) }}
{{- fail (printf "%s.minReplicas and maxReplicas would be ignored, because %s.autoscaling is on and has its own. Leave them out." $path $path) }}
{{- end }}
{{- range $kind, $resources := $pool.resources }}
{{- range $resource, $_ := $resources }}
{{- if or (contains "nvidia.com/" $resource) (eq $resource $pool.gpu.resource) }}
{{- fail (printf "%s.resources.%s names %s, which %s.gpu sets. Use %s.device=gpu with gpu.resource and gpu.count." $path $kind $resource $path $path) }}
{{- end }}
{{- end }}
{{- end }}
{{- include "tandem.guardDrain" (dict "path" $path "values" $pool) }}
{{- end }}
