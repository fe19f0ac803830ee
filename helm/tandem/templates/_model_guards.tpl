{{/*
Guards of where the models come from: a source without what it needs, what another source would need, and secrets in plain. As everywhere, each
sentence tells what is wrong and the way out, and has a test in tests/helm.
*/}}

{{- define "tandem.guardModels" -}}
{{- $models := .Values.modelRepository }}
{{- include "tandem.guardModelsIgnored" $models }}
{{- if eq $models.source "claim" }}
{{- if not (or $models.claimName $models.newClaim.create) }}
{{- fail "modelRepository.source is claim, but no claim is named. Set modelRepository.claimName to a PersistentVolumeClaim that holds the model repository, or modelRepository.newClaim.create=true." }}
{{- end }}
{{- if and $models.claimName $models.newClaim.create }}
{{- fail (printf "modelRepository.newClaim.create makes a claim, and modelRepository.claimName names %s. Leave one of them out." $models.claimName) }}
{{- end }}
{{- else if eq $models.source "objectStore" }}
{{- include "tandem.guardObjectStore" $models.objectStore }}
{{- include "tandem.guardFollowed" . }}
{{- else if eq $models.source "imageVolume" }}
{{- include "tandem.guardImageVolume" . }}
{{- end }}
{{- end }}

{{/* What is set for another source than the one that counts. Takes .Values.modelRepository. */}}
{{- define "tandem.guardModelsIgnored" -}}
{{- range $it := list
  (list "claim" "claimName" .claimName)
  (list "claim" "claimSubPath" .claimSubPath)
  (list "claim" "newClaim.create" .newClaim.create)
  (list "objectStore" "nodeCache.path" .nodeCache.path)
  (list "image" "image.repository" .image.repository)
  (list "objectStore" "objectStore.from" .objectStore.from)
  (list "objectStore" "objectStore.existingSecret" .objectStore.existingSecret)
  (list "objectStore" "objectStore.env" .objectStore.env)
  (list "objectStore" "objectStore.follow" .objectStore.follow)
  (list "imageVolume" "imageVolume.reference" .imageVolume.reference) }}
{{- if and (eq (index $it 1) "nodeCache.path") (last $it) (has $.source (list "image" "imageVolume")) }}
{{- fail (printf "modelRepository.nodeCache.path would do nothing: with source=%s the node keeps the image itself, as any other. Leave it out, or set modelRepository.source=objectStore." $.source) }}
{{- end }}
{{- if and (last $it) (ne (first $it) $.source) }}
{{- fail (printf "modelRepository.%s is set, but modelRepository.source is %s, so it would be ignored. Set modelRepository.source=%s, or leave it out." (index $it 1) $.source (first $it)) }}
{{- end }}
{{- end }}
{{- if and (not .image.repository) (or .image.tag .image.digest) }}
{{- fail "modelRepository.image has a tag or digest, but no repository, so the gateway's image would be taken. Set modelRepository.image.repository, or leave them out." }}
{{- end }}
{{- end }}

{{/* Takes .Values.modelRepository.objectStore. rclone reads RCLONE_CONFIG_MODELS_TYPE as `type` of the remote `models`. */}}
{{- define "tandem.guardObjectStore" -}}
{{- if not .from }}
{{- fail "modelRepository.source is objectStore, but nothing is named to copy. Set modelRepository.objectStore.from to REMOTE:BUCKET/PATH, as rclone names it." }}
{{- end }}
{{- $remote := first (splitList ":" .from) }}
{{- $type := printf "RCLONE_CONFIG_%s_TYPE" (upper $remote) }}
{{- if and (not .existingSecret) (not (hasKey .env $type)) }}
{{- fail (printf "modelRepository.objectStore.from names the remote %s, but nothing says what it is. Put %s and the rest into a secret and set modelRepository.objectStore.existingSecret to its name, or set it in modelRepository.objectStore.env." $remote $type) }}
{{- end }}
{{- range $name, $value := .env }}
{{- if and $value (regexMatch "(SECRET|PASS|TOKEN|CREDENTIALS|SAS_URL|_KEY$)" $name) }}
{{- fail (printf "modelRepository.objectStore.env.%s looks like a secret, and values are plain. Put it into a secret and set modelRepository.objectStore.existingSecret to its name." $name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* NVIDIA's Triton looks at no files while it runs, and nobody proves what it reads when it is started again. Takes the root. */}}
{{- define "tandem.guardFollowed" -}}
{{- if .Values.modelRepository.objectStore.follow }}
{{- if .Values.modelRepository.nodeCache.path }}
{{- fail "modelRepository.objectStore.follow keeps a folder of each pod like the bucket, and modelRepository.nodeCache.path is one of the node's. Leave one of them out." }}
{{- end }}
{{- range $name, $pool := fromYaml (include "tandem.ownPools" .) }}
{{- if eq $pool.server "nvidia" }}
{{- fail (printf "modelRepository.objectStore.follow takes new models while a pool runs, which pools.%s does not: its server is nvidia. Set pools.%s.server=tandem, or leave `follow` out." $name $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The API server drops the field where the gate is off, and then refuses the pod for a volume that is nothing. Takes the root. */}}
{{- define "tandem.guardImageVolume" -}}
{{- $volume := .Values.modelRepository.imageVolume }}
{{- if not $volume.reference }}
{{- fail "modelRepository.source is imageVolume, but no image is named. Set modelRepository.imageVolume.reference to an image whose root is the model repository." }}
{{- end }}
{{- $version := .Capabilities.KubeVersion.Version }}
{{- if or (semverCompare "<1.33.0-0" $version) (and (not $volume.gateEnabled) (semverCompare "<1.35.0-0" $version)) }}
{{- fail (printf "modelRepository.source is imageVolume, which Kubernetes %s does not mount: the feature gate ImageVolume is on from 1.35, and in 1.33 and 1.34 if somebody turned it on (say so with modelRepository.imageVolume.gateEnabled=true). Take another source." $version) }}
{{- end }}
{{- end }}
