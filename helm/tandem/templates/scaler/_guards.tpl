{{/*
Guards of the scaler and of pools that follow it. As everywhere, each sentence tells what is wrong and the way out, and has a test in tests/helm.
*/}}

{{- define "tandem.guardScaler" -}}
{{- if and .Values.scaler.enabled (not .Values.gateway.admin.enabled) }}
{{- fail "scaler.enabled is true, but it goes by the gateways' metrics, which are on their admin listener, and that is off. Set gateway.admin.enabled=true." }}
{{- end }}
{{- range $name := list "rules" "quotas" "warmNodes" }}
{{- if and (get $.Values.scaler $name) (not $.Values.scaler.enabled) }}
{{- fail (printf "scaler.%s would be ignored, because scaler.enabled is false. Set scaler.enabled=true, or leave it out." $name) }}
{{- end }}
{{- end }}
{{- $pools := fromYaml (include "tandem.pools" .) }}
{{- range $name, $quota := .Values.scaler.quotas }}
{{- range $quota.pools }}
{{- if not (hasKey $pools .) }}
{{- fail (printf "scaler.quotas.%s.pools names %s, and no pool of that name is on. Turn it on, or leave it out." $name .) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $warm := .Values.scaler.warmNodes }}
{{- $first := get $pools (first $warm.pools) }}
{{- range $pool := $warm.pools }}
{{- $path := printf "scaler.warmNodes.%s.pools names %s" $name $pool }}
{{- if not (hasKey $pools $pool) }}
{{- fail (printf "%s, and no pool of that name is on. Turn it on, or leave it out." $path) }}
{{- end }}
{{- $it := get $pools $pool }}
{{- if not (and (eq $it.device "gpu") (include "tandem.poolScaledByUs" $it)) }}
{{- fail (printf "%s, whose nodes the scaler does not wake: only pools of device gpu with autoscaling.by=scaler have nodes to keep. Set pools.%s.autoscaling.enabled=true and .by=scaler, or leave it out." $path $pool) }}
{{- end }}
{{- if $it.resourceClaims }}
{{- fail (printf "%s, whose cards come by resource claims, which no other pod can hold for it. Leave it out." $path) }}
{{- end }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "gpu" "runtimeClassName" "schedulerName" }}
{{- if ne (toJson (get $it $field)) (toJson (get $first $field)) }}
{{- fail (printf "%s, but its %s differs from that of %s: a node that is kept would be no place for both. Make them the same, or leave it out." $path $field (first $warm.pools)) }}
{{- end }}
{{- end }}
{{- end }}
{{- if hasKey $pools (printf "warm-%s" $name) }}
{{- fail (printf "scaler.warmNodes.%s: a pool is called warm-%s. Take another name." $name $name) }}
{{- end }}
{{- end }}
{{- include "tandem.guardPodExtras" (dict "path" "scaler" "values" .Values.scaler "volumes" (list "config" "key" "tmp") "containers" (list "scaler")) }}
{{- range $variable := .Values.scaler.env }}
{{- if regexMatch "^TANDEM_(CONFIG|API_KEY)$" $variable.name }}
{{- fail (printf "scaler.env has %s, which the chart decides: by its configuration and auth.client. Leave it out." $variable.name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Takes (dict "root" $ "name" "gpu" "path" "pools.gpu" "pool" $pool). */}}
{{- define "tandem.guardPoolFollows" -}}
{{- $values := .root.Values }}
{{- $path := printf "%s.autoscaling" .path }}
{{- $by := .pool.autoscaling.by }}
{{- $own := (index $values.pools .name | default dict).autoscaling | default dict }}
{{- if and $own.by (not .pool.autoscaling.enabled) }}
{{- fail (printf "%s.by would be ignored, because %s.enabled is false. Set %s.enabled=true, or leave it out." $path $path $path) }}
{{- end }}
{{- if and .pool.autoscaling.triggers (not (and .pool.autoscaling.enabled (eq $by "keda"))) }}
{{- fail (printf "%s.triggers would be ignored, because they are KEDA's, and %s is not. Set %s.enabled=true and %s.by=keda, or leave them out." $path (ternary (printf "%s.by" $path) (printf "%s.enabled" $path) .pool.autoscaling.enabled) $path $path) }}
{{- end }}
{{- if and .pool.autoscaling.enabled (ne $by "metrics") }}
{{- if .pool.autoscaling.metrics }}
{{- fail (printf "%s.metrics would be ignored, because %s.by is %s. Leave them out, or set %s.by=metrics." $path $path $by $path) }}
{{- end }}
{{- if $own.targetCpuPercent }}
{{- fail (printf "%s.targetCpuPercent would be ignored, because %s.by is %s. Leave it out, or set %s.by=metrics." $path $path $by $path) }}
{{- end }}
{{- if and (not $values.scaler.enabled) (not (and (eq $by "keda") .pool.autoscaling.triggers)) }}
{{- fail (printf "%s.by is %s, but there is no scaler to say how many Tritons are wanted. Set scaler.enabled=true, or %s.by=metrics." $path $by $path) }}
{{- end }}
{{- if and (eq $by "scaler") .pool.autoscaling.beginsAtMinReplicas }}
{{- fail (printf "%s.beginsAtMinReplicas would be ignored, because %s.by is scaler: its pods wait for the scaler, so an install buys no node anyway. Leave it out." $path $path) }}
{{- end }}
{{- if and (eq $by "scaler") (or $own.behavior ($values.poolDefaults.autoscaling | default dict).behavior) }}
{{- fail (printf "%s.behavior would be ignored, because %s.by is scaler, which has weighed how long a Triton stays. Leave it out." $path $path) }}
{{- end }}
{{- if and (eq $by "wanted") (not $values.monitoring.serviceMonitor.enabled) }}
{{- fail (printf "%s.by is wanted, a number that Prometheus has to carry, and nothing tells it where the scaler is. Set monitoring.serviceMonitor.enabled=true, or %s.by=keda." $path $path) }}
{{- end }}
{{- if and (eq $by "keda") $values.scaler.enabled $values.networkPolicy.enabled (not $values.networkPolicy.kedaFrom) }}
{{- fail (printf "%s.by is keda, but networkPolicy.kedaFrom names nobody, so KEDA would be kept out. Name its pods there, such as {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: keda}}}." $path) }}
{{- end }}
{{- end }}
{{- end }}
