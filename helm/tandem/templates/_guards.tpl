{{/*
Values that are each allowed but contradict one another, or that somebody must have meant. The schema says what one value may be;
here is what it cannot say. Every sentence tells what is wrong and the way out, and tests/helm has a test for each.
*/}}

{{- define "tandem.guards" -}}
{{- include "tandem.guardAuth" . }}
{{- include "tandem.guardGlobal" . }}
{{- include "tandem.guardCommonLabels" . }}
{{- include "tandem.guardImages" . }}
{{- include "tandem.guardAccounts" . }}
{{- include "tandem.guardModels" . }}
{{- $pools := fromYaml (include "tandem.pools" .) }}
{{- if not $pools }}
{{- fail "no pool is on, so nothing would serve. Set pools.cpu.enabled=true or another pool's." }}
{{- end }}
{{- include "tandem.guardPools" (dict "root" . "pools" $pools) }}
{{- include "tandem.guardGateway" (dict "root" . "pools" $pools) }}
{{- include "tandem.guardScaler" . }}
{{- include "tandem.guardWaysIn" . }}
{{- if and .Values.otel.endpoint .Values.networkPolicy.enabled (not .Values.networkPolicy.collectorTo) }}
{{- fail "otel.endpoint names a collector that network policies keep gateways and Tritons from. Name where it runs in networkPolicy.collectorTo." }}
{{- end }}
{{- end }}

{{/* What a chart above this one hands to all of its parts, and this one would not do. */}}
{{- define "tandem.guardGlobal" -}}
{{- $global := default dict .Values.global }}
{{- if and $global.imageRegistry (not .Values.imageRegistry) }}
{{- fail (printf "global.imageRegistry is %s, but this chart's images come from imageRegistry and from images.*. Set imageRegistry, too." $global.imageRegistry) }}
{{- end }}
{{- if and $global.imagePullSecrets (not .Values.imagePullSecrets) }}
{{- fail "global.imagePullSecrets names secrets, but this chart's pods take imagePullSecrets. Set those, too." }}
{{- end }}
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
{{- range $path, $account := dict "gateway" .Values.gateway.serviceAccount "triton" .Values.triton.serviceAccount "scaler" .Values.scaler.serviceAccount }}
{{- if and (not $account.create) (not $account.name) }}
{{- fail (printf "%s.serviceAccount.create is false and no name is given. Set %s.serviceAccount.name to an account that exists." $path $path) }}
{{- end }}
{{- if and (not $account.create) $account.annotations }}
{{- fail (printf "%s.serviceAccount.annotations would be ignored, because create is false. Annotate the account that exists, or set %s.serviceAccount.create=true." $path $path) }}
{{- end }}
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
