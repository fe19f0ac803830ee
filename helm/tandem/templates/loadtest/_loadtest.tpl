{{/*
Locust in the cluster. Both Jobs run files/loadtest.py in the load test's image and differ in a few of Locust's options. A run is never
repeated by itself: one that was cut off is void. Names end in a hash of all values, because a Job cannot be changed: other values, another
run; the last one goes with the upgrade.
*/}}

{{/* Waiting for gateway and master, in seconds: pulling NVIDIA's image takes minutes. A guess, not measured. */}}
{{- define "tandem.loadTestWait" -}}600{{- end }}

{{- define "tandem.loadTestHash" -}}
{{- toJson (dict "values" .Values "chart" .Chart.Version) | sha256sum | trunc 6 }}
{{- end }}

{{/* Where rows go: of each run its own folder, on a claim that several runs share. */}}
{{- define "tandem.loadTestFolder" -}}
/results{{ if .Values.loadTest.claimName }}/{{ include "tandem.loadTestHash" . }}{{ end }}
{{- end }}

{{- define "tandem.loadTestGateway" -}}
http://{{ include "tandem.fullname" . }}-gateway:{{ .Values.gateway.service.port }}
{{- end }}

{{/* Locust's options of the master; workers get all that is about the load from it. */}}
{{- define "tandem.loadTestOptions" -}}
{{- $test := .Values.loadTest -}}
- --headless
- --only-summary
- --master
- --expect-workers={{ $test.workers }}
- --expect-workers-max-wait={{ include "tandem.loadTestWait" . }}
- --users={{ $test.workers }}
- --spawn-rate={{ $test.workers }}
- --host={{ include "tandem.loadTestGateway" . }}
- {{ printf "--model=%s" $test.model | quote }}
- {{ printf "--data=%s" $test.data | quote }}
- --rate={{ toJson $test.rate }}
- --warmup={{ $test.warmupSeconds }}
- --measure={{ $test.seconds }}
- --rows={{ include "tandem.loadTestFolder" . }}/rows.csv
{{- end }}

{{/* A Job's specification. Takes (dict "root" $ "role" "master" "reach" "HOST:PORT" or "" "options" "- --master..."). */}}
{{- define "tandem.loadTestPod" -}}
{{- $root := .root }}
{{- $test := $root.Values.loadTest }}
{{- $labels := dict "root" $root "component" "loadtest" }}
backoffLimit: 0
# Waiting twice (for the gateway, for workers), the run, and two minutes to write down what came of it; a guess.
activeDeadlineSeconds: {{ add (mul 2 (include "tandem.loadTestWait" $root)) $test.warmupSeconds $test.seconds 120 }}
# A day to read the log.
ttlSecondsAfterFinished: 86400
template:
  metadata:
    labels:
      {{- include "tandem.labels" $labels | nindent 6 }}
      tandem-loadtest: {{ .role }}
      # A master of the run before may still be going.
      tandem-loadtest-run: {{ include "tandem.loadTestHash" $root | quote }}
    annotations:
      # Moved to another node it would be void.
      cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
      karpenter.sh/do-not-disrupt: "true"
      {{- with $test.podAnnotations }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  spec:
    {{- include "tandem.podSecurity" (dict "root" $root) | nindent 4 }}
    restartPolicy: Never
    {{- with $root.Values.imagePullSecrets }}
    imagePullSecrets:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with include "tandem.placement" $test | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    containers:
      - name: locust
        image: {{ include "tandem.image" (dict "root" $root "image" $root.Values.images.loadtest "registry" $root.Values.imageRegistry) | quote }}
        imagePullPolicy: {{ $root.Values.images.loadtest.pullPolicy }}
        command:
          - python
          - -c
          - |
            {{- $root.Files.Get "files/loadtest.py" | nindent 12 }}
          - {{ include "tandem.loadTestWait" $root | quote }}
          - {{ include "tandem.loadTestFolder" $root }}
          - {{ $test.warmupSeconds | quote }}
          {{- with .reach }}
          - --then-reach={{ . }}
          {{- end }}
          - {{ include "tandem.loadTestGateway" $root }}
          - {{ $test.model | quote }}
          - --
          {{- .options | nindent 10 }}
        {{- with include "tandem.clientKey" $root | trim }}
        env:
          {{- . | nindent 10 }}
        {{- end }}
        resources:
          {{- toYaml $test.resources | nindent 10 }}
        {{- include "tandem.containerSecurity" (dict "root" $root) | nindent 8 }}
        volumeMounts:
          - {name: results, mountPath: /results}
          - {name: tmp, mountPath: /tmp}
    volumes:
      - name: results
        {{- if $test.claimName }}
        persistentVolumeClaim: {claimName: {{ $test.claimName | quote }}}
        {{- else }}
        # About 100 bytes a request.
        emptyDir: {sizeLimit: 1Gi}
        {{- end }}
      - name: tmp
        emptyDir: {sizeLimit: 64Mi}
{{- end }}
