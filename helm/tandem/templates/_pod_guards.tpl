{{/*
Guards of what the values add to a pod: labels by which pods are found, volumes and containers with the chart's names, what nothing would use.
As everywhere, each sentence tells what is wrong and the way out, and has a test in tests/helm.
*/}}

{{- define "tandem.guardCommonLabels" -}}
{{- include "tandem.guardLabels" (dict "path" "commonLabels" "labels" .Values.commonLabels) }}
{{- end }}

{{/* Takes (dict "path" "gateway.podLabels" "labels" $map). */}}
{{- define "tandem.guardLabels" -}}
{{- range $label, $_ := .labels }}
{{- if or (hasPrefix "app.kubernetes.io/" $label) (has $label (list "helm.sh/chart" "tandem-pool" "tandem-prepull" "tandem-loadtest" "tandem-loadtest-run")) }}
{{- fail (printf "%s has %s, which the chart sets itself and finds its pods by. Leave it out." $.path $label) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Takes (dict "path" "gateway" "values" .Values.gateway "volumes" (list "config" ...) "containers" (list "gateway" ...)): the chart's own names. */}}
{{- define "tandem.guardPodExtras" -}}
{{- $path := .path }}
{{- $values := .values }}
{{- include "tandem.guardLabels" (dict "path" (printf "%s.podLabels" $path) "labels" $values.podLabels) }}
{{- $names := .containers }}
{{- $mounted := list }}
{{- range $mount := $values.extraVolumeMounts }}{{ $mounted = append $mounted $mount.name }}{{ end }}
{{- range $key := list "initContainers" "extraContainers" }}
{{- range $container := index $values $key }}
{{- if has $container.name $names }}
{{- fail (printf "%s.%s has a container %s, and there is one of that name already. Give it another." $path $key $container.name) }}
{{- end }}
{{- $names = append $names $container.name }}
{{- range $mount := $container.volumeMounts }}{{ $mounted = append $mounted $mount.name }}{{ end }}
{{- end }}
{{- end }}
{{- $volumes := .volumes }}
{{- range $volume := $values.extraVolumes }}
{{- if has $volume.name $volumes }}
{{- fail (printf "%s.extraVolumes has a volume %s, and there is one of that name already. Give it another." $path $volume.name) }}
{{- end }}
{{- if lt (len $volume) 2 }}
{{- fail (printf "%s.extraVolumes.%s says nothing but its name. Say what it is, for example emptyDir: {} or secret: {secretName: mine}." $path $volume.name) }}
{{- end }}
{{- if not (has $volume.name $mounted) }}
{{- fail (printf "%s.extraVolumes has a volume %s, which nothing mounts. Name it in %s.extraVolumeMounts or in a container's volumeMounts, or leave it out." $path $volume.name $path) }}
{{- end }}
{{- $volumes = append $volumes $volume.name }}
{{- end }}
{{- range $name := $mounted }}
{{- if not (has $name $volumes) }}
{{- fail (printf "%s mounts a volume %s that its pod does not have. Add it to %s.extraVolumes; the pod has %s." $path $name $path (join ", " $volumes)) }}
{{- end }}
{{- end }}
{{- range $from := $values.envFrom }}
{{- if ne (len (omit $from "prefix")) 1 }}
{{- fail (printf "%s.envFrom has an entry of neither or both of secretRef and configMapRef. Give each its own." $path) }}
{{- end }}
{{- end }}
{{- end }}
