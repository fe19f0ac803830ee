{{/*
The model repository in a pod: its volume, how it gets there, its proof, and what network that takes. Pools and gateway use the same.
A pod that includes these has a volume `tmp`; it mounts `models` at /models, read-only, in every container of its own. Nothing but the
four sources of modelRepository.source is told apart here; what contradicts itself is refused in _guards.tpl.
*/}}

{{/* Whether something is copied when the pod starts; the volume is a part of the node's disk then. Takes the root; empty is no. */}}
{{- define "tandem.modelsAreCopied" -}}
{{- if has .Values.modelRepository.source (list "image" "objectStore") }}true{{ end }}
{{- end }}

{{/* The volume `models`, as an entry of a pod's `volumes`. Takes the root. */}}
{{- define "tandem.modelVolumes" -}}
{{- $repository := .Values.modelRepository -}}
- name: models
  {{- if eq $repository.source "claim" }}
  persistentVolumeClaim: {claimName: {{ include "tandem.modelClaim" . | quote }}, readOnly: true}
  {{- else if eq $repository.source "imageVolume" }}
  image: {reference: {{ $repository.imageVolume.reference | quote }}, pullPolicy: {{ $repository.imageVolume.pullPolicy }}}
  {{- else if $repository.nodeCache.path }}
  # Somebody made it for user 1000 to write; a folder that the kubelet makes is root's.
  hostPath: {path: {{ $repository.nodeCache.path | quote }}, type: Directory}
  {{- else }}
  emptyDir: {sizeLimit: {{ $repository.sizeLimit }}}
  {{- end }}
{{- if include "tandem.followsModels" . }}
- name: rclone
  emptyDir: {sizeLimit: 256Mi}
{{- end }}
{{- end }}

{{/* The claim of models: the values', or the chart's own (models/claim.yaml). Takes the root. */}}
{{- define "tandem.modelClaim" -}}
{{- if .Values.modelRepository.newClaim.create }}{{ include "tandem.fullname" . }}-models{{ else }}{{ .Values.modelRepository.claimName }}{{ end }}
{{- end }}

{{/* For a container of the pod, as an entry of its `volumeMounts`. Takes the root. */}}
{{- define "tandem.modelMount" -}}
- {name: models, mountPath: /models, {{ with .Values.modelRepository.claimSubPath }}subPath: {{ . | quote }}, {{ end }}readOnly: true}
{{- end }}

{{/* Copies where the source wants it, then verifies. Takes (dict "root" $ "verify" (list "--variant=...")): arguments for
     `tandem verify` beside the repository and --digests-only; none verifies every variant that is there. */}}
{{- define "tandem.modelInitContainers" -}}
{{- $root := .root }}
{{- if eq $root.Values.modelRepository.source "image" }}
{{ include "tandem.copyModelsFromImage" $root | trim }}
{{- else if eq $root.Values.modelRepository.source "objectStore" }}
{{ include "tandem.copyModelsFromObjectStore" $root | trim }}
{{- end }}
# A file that changed after its gate stops the pod here, and so does a variant that its server would compute otherwise.
- name: verify-models
  image: {{ include "tandem.gatewayImage" $root | quote }}
  imagePullPolicy: {{ $root.Values.images.gateway.pullPolicy }}
  command:
    - tandem
    - verify
    - --model-repository=/models
    - --digests-only
    {{- range .verify }}
    - {{ . | quote }}
    {{- end }}
  {{- include "tandem.smallResources" . | nindent 2 }}
  {{- include "tandem.containerSecurity" (dict "root" $root) | nindent 2 }}
  volumeMounts:
    {{- include "tandem.modelMount" $root | nindent 4 }}
    - {name: tmp, mountPath: /tmp}
{{- end }}

{{/* The image that carries the repository: the user's, or the gateway's. Takes the root. */}}
{{- define "tandem.modelImage" -}}
{{- $image := .Values.modelRepository.image }}
{{- if $image.repository }}
{{- include "tandem.image" (dict "root" . "image" $image "registry" "") }}
{{- else }}
{{- include "tandem.gatewayImage" . }}
{{- end }}
{{- end }}

{{- define "tandem.copyModelsFromImage" -}}
{{- $image := .Values.modelRepository.image -}}
- name: copy-models
  image: {{ include "tandem.modelImage" . | quote }}
  imagePullPolicy: {{ ternary $image.pullPolicy .Values.images.gateway.pullPolicy (ne $image.repository "") }}
  command: [cp, -R, {{ printf "%s/." (trimSuffix "/" $image.path) | quote }}, /models]
  {{- include "tandem.smallResources" . | nindent 2 }}
  {{- include "tandem.containerSecurity" (dict "root" .) | nindent 2 }}
  volumeMounts:
    - {name: models, mountPath: /models}
{{- end }}

{{- define "tandem.rcloneImage" -}}
{{- include "tandem.image" (dict "root" . "image" .Values.images.rclone "registry" "") }}
{{- end }}

{{/* Settings come from the environment alone: an empty --config keeps rclone from looking for a file. With its own ten tries it said nothing for
     more than two minutes about a server that was down, with three it ended after 2 s (1.60 here), and the kubelet starts it again anyway. */}}
{{- define "tandem.copyModelsFromObjectStore" -}}
{{- $store := .Values.modelRepository.objectStore -}}
- name: copy-models
  image: {{ include "tandem.rcloneImage" . | quote }}
  imagePullPolicy: {{ .Values.images.rclone.pullPolicy }}
  command: [rclone, copy, {{ $store.from | quote }}, /models, --config=, --low-level-retries=3, --contimeout=10s]
  {{- with $store.existingSecret }}
  envFrom:
    - secretRef: {name: {{ . | quote }}}
  {{- end }}
  {{- with $store.env }}
  env:
    {{- range $name, $value := . }}
    - {name: {{ $name | quote }}, value: {{ $value | quote }}}
    {{- end }}
  {{- end }}
  resources:
    {{- toYaml $store.resources | nindent 4 }}
  {{- include "tandem.containerSecurity" (dict "root" .) | nindent 2 }}
  volumeMounts:
    - {name: models, mountPath: /models}
    - {name: tmp, mountPath: /tmp}
{{- if include "tandem.followsModels" . }}
- name: copy-rclone
  image: {{ include "tandem.rcloneImage" . | quote }}
  imagePullPolicy: {{ .Values.images.rclone.pullPolicy }}
  command: [cp, /usr/local/bin/rclone, /opt/rclone/rclone]
  {{- include "tandem.smallResources" . | nindent 2 }}
  {{- include "tandem.containerSecurity" (dict "root" .) | nindent 2 }}
  volumeMounts:
    - {name: models, mountPath: /models, readOnly: true}
    - {name: rclone, mountPath: /opt/rclone}
{{- end }}
{{- end }}

{{/* Whether a container follows the bucket; empty is no. Takes the root. */}}
{{- define "tandem.followsModels" -}}
{{- if and (eq .Values.modelRepository.source "objectStore") .Values.modelRepository.objectStore.follow }}true{{ end }}
{{- end }}

{{/* Beside a pod's own container: `tandem models mirror`, with the rclone of its image. Nothing unless the bucket is followed. Takes the root. */}}
{{- define "tandem.mirrorModels" -}}
{{- if include "tandem.followsModels" . }}
{{- $store := .Values.modelRepository.objectStore }}
- name: mirror-models
  image: {{ include "tandem.gatewayImage" . | quote }}
  imagePullPolicy: {{ .Values.images.gateway.pullPolicy }}
  command: [sh, -c, 'PATH="/opt/rclone:$PATH" exec tandem models mirror --adopt "$0" /models', {{ printf "rclone://%s" (regexReplaceAll "^([A-Za-z0-9_]+):/*" $store.from "${1}/") | quote }}]
  {{- with $store.existingSecret }}
  envFrom:
    - secretRef: {name: {{ . | quote }}}
  {{- end }}
  {{- with $store.env }}
  env:
    {{- range $name, $value := . }}
    - {name: {{ $name | quote }}, value: {{ $value | quote }}}
    {{- end }}
  {{- end }}
  resources:
    {{- toYaml $store.resources | nindent 4 }}
  {{- include "tandem.containerSecurity" (dict "root" .) | nindent 2 }}
  volumeMounts:
    - {name: models, mountPath: /models}
    - {name: rclone, mountPath: /opt/rclone, readOnly: true}
    - {name: tmp, mountPath: /tmp}
{{- end }}
{{- end }}

{{/* Entries of a NetworkPolicy's `egress` by which a pod's copy reaches its source; names are looked up on port 53 by another rule.
     A policy counts for init containers, too. Takes the root; nothing unless models come from an object store. */}}
{{- define "tandem.modelEgress" -}}
{{- if eq .Values.modelRepository.source "objectStore" }}
{{- if .Values.networkPolicy.modelsTo }}
- to:
    {{- toYaml .Values.networkPolicy.modelsTo | nindent 4 }}
  ports:
    - {protocol: TCP}
{{- else }}
# Anywhere by HTTPS, except for link-local addresses: there the cloud hands out the node's own credentials.
- to:
    - ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16]}
    - ipBlock: {cidr: "::/0", except: ["fe80::/10", "fd00:ec2::254/128"]}
  ports:
    - {port: 443, protocol: TCP}
{{- end }}
{{- end }}
{{- end }}
