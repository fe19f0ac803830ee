{{/*
Guards of what concerns the gateway: who may ask it (auth), its listeners, and the ways to it from outside. As everywhere, each sentence
tells what is wrong and the way out, and has a test in tests/helm.
*/}}

{{- define "tandem.guardAuth" -}}
{{- $auth := .Values.auth }}
{{- if and $auth.existingSecret $auth.insecureNoAuth }}
{{- fail "auth.existingSecret and auth.insecureNoAuth contradict each other. Leave one of them out." }}
{{- end }}
{{- if and $auth.client.existingSecret (not $auth.existingSecret) }}
{{- fail (ternary "auth.client.existingSecret is set, but no keys are asked for. Leave out auth.insecureNoAuth and set auth.existingSecret, or leave it out." "auth.client.existingSecret is set, but the keys are made by the chart, which knows that one already. Set auth.existingSecret to the secret with its digest, or leave it out." $auth.insecureNoAuth) }}
{{- end }}
{{- if include "tandem.keysAreMade" . }}
{{- range $path, $pair := dict "key" (list $auth.key "keys.json") "client.key" (list $auth.client.key "api-key") }}
{{- if ne (first $pair) (last $pair) }}
{{- fail (printf "auth.%s is %s, but the keys are made by the chart, which calls it %s. Leave it out, or name a secret of yours in auth.existingSecret." $path (first $pair) (last $pair)) }}
{{- end }}
{{- end }}
{{- else }}
{{- range $key, $said := $auth.job }}
{{- if $said }}
{{- fail (printf "auth.job.%s would be ignored, because the chart makes no keys. Leave it out, or auth.existingSecret and auth.insecureNoAuth." $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.gateway.allowedOrigins $auth.insecureNoAuth }}
{{- fail "gateway.allowedOrigins lets pages of other sites ask with an API key, and none is asked for. Leave out auth.insecureNoAuth, or leave it out." }}
{{- end }}
{{- range $client := list
  (list "test.enabled" .Values.test.enabled "`helm test`" "infer")
  (list "scaler.enabled" .Values.scaler.enabled "the scaler" "metrics")
  (list "loadTest.enabled" .Values.loadTest.enabled "the load test" "infer")
  (list "monitoring.serviceMonitor.enabled" .Values.monitoring.serviceMonitor.enabled "Prometheus" "metrics") }}
{{- if and $auth.existingSecret (index $client 1) (not $auth.client.existingSecret) }}
{{- fail (printf "%s is true and the gateway asks for keys, so %s needs one. Put a key with the scope %s into a secret and set auth.client.existingSecret to its name, or set %s=false." (index $client 0) (index $client 2) (index $client 3) (index $client 0)) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Takes (dict "root" $ "pools" $pools), the pools that are on. */}}
{{- define "tandem.guardGateway" -}}
{{- $values := .root.Values }}
{{- $gateway := $values.gateway }}
{{- include "tandem.guardDrain" (dict "path" "gateway" "values" $gateway) }}
{{- if and $gateway.autoscaling.enabled (gt (int $gateway.autoscaling.minReplicas) (int $gateway.autoscaling.maxReplicas)) }}
{{- fail (printf "gateway.autoscaling.minReplicas is %d, more than its maxReplicas of %d. Make them agree." (int $gateway.autoscaling.minReplicas) (int $gateway.autoscaling.maxReplicas)) }}
{{- end }}
{{- $cpu := merge (dict) (default dict $gateway.resources.requests) (default dict $gateway.resources.limits) }}
{{- if and $gateway.control.rollouts.enabled (not $gateway.control.configMap) }}
{{- fail "gateway.control.rollouts lets gateways write their ConfigMap, and there is none. Set gateway.control.configMap, or leave it out: in Redis and files they may write anyway." }}
{{- end }}
{{- if and $gateway.autoscaling.enabled (not $cpu.cpu) }}
{{- fail "gateway.autoscaling.targetCpuPercent is a share of the CPU that a gateway requests, and gateway.resources requests none. Set gateway.resources.requests.cpu." }}
{{- end }}
{{- if and $gateway.admin.enabled $values.auth.insecureNoAuth (not $values.networkPolicy.enabled) }}
{{- fail "gateway.admin.enabled is true without keys and without a NetworkPolicy, so every pod of the cluster could unload models and read what is served. Leave out auth.insecureNoAuth, keep networkPolicy.enabled=true, or set gateway.admin.enabled=false." }}
{{- end }}
{{- if and $gateway.grpc.enabled (eq (int $gateway.service.port) (int $gateway.service.grpcPort)) }}
{{- fail (printf "gateway.service.port and gateway.service.grpcPort are both %d. Give each its own, or set gateway.grpc.enabled=false." (int $gateway.service.port)) }}
{{- end }}
{{- include "tandem.guardService" $gateway.service }}
{{- include "tandem.guardPodExtras" (dict "path" "gateway" "values" $gateway "volumes" (list "config" "keys" "models" "tmp") "containers" (list "copy-models" "gateway")) }}
{{- if hasKey $gateway.podAnnotations "checksum/config" }}
{{- fail "gateway.podAnnotations has checksum/config, which the chart sets itself, so that gateways are replaced when their configuration changes. Leave it out." }}
{{- end }}
{{- range $variable := $gateway.env }}
{{- if regexMatch "^TANDEM_(CONFIG|HOST|PORT|ADMIN_HOST|ADMIN_PORT|GRPC_PORT|KEYS|OWN_KEY|MODEL_REPOSITORY)$" $variable.name }}
{{- fail (printf "gateway.env has %s, which the chart decides: by auth, gateway.grpc, gateway.admin, gateway.preprocessing and the ports of its Services. Leave it out." $variable.name) }}
{{- end }}
{{- end }}
{{- range $model, $variants := $gateway.variants }}
{{- range $name, $_ := $variants }}
{{- if not (hasKey $.pools $name) }}
{{- fail (printf "gateway.variants.%s names pool %s, which is not on. Pools that are on: %s." $model $name (keys $.pools | sortAlpha | join ", ")) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tandem.guardService" -}}
{{- range $key := list "loadBalancerClass" "loadBalancerSourceRanges" }}
{{- if and (index $ $key) (ne $.type "LoadBalancer") }}
{{- fail (printf "gateway.service.%s would be ignored, because gateway.service.type is %s. Leave it out, or set gateway.service.type=LoadBalancer." $key $.type) }}
{{- end }}
{{- end }}
{{- if and .externalTrafficPolicy (eq .type "ClusterIP") }}
{{- fail "gateway.service.externalTrafficPolicy would be ignored, because gateway.service.type is ClusterIP, which nobody reaches from outside. Leave it out, or set gateway.service.type." }}
{{- end }}
{{- if and (gt (len .ipFamilies) 1) (eq .ipFamilyPolicy "SingleStack") }}
{{- fail (printf "gateway.service.ipFamilies are %s, and gateway.service.ipFamilyPolicy is SingleStack. Name one family, or set ipFamilyPolicy=PreferDualStack." (join " and " .ipFamilies)) }}
{{- end }}
{{- end }}

{{/* What makes the gateway reachable from outside its namespace. */}}
{{- define "tandem.guardWaysIn" -}}
{{- $service := printf "gateway.service.type=%s" .Values.gateway.service.type }}
{{- $inside := list (dict "podSelector" dict) }}
{{- range $way, $on := dict $service (ne .Values.gateway.service.type "ClusterIP") "ingress.enabled=true" .Values.ingress.enabled "httpRoute.enabled=true" .Values.httpRoute.enabled }}
{{- if and $on $.Values.auth.insecureNoAuth }}
{{- fail (printf "%s opens the gateway to others, and auth.insecureNoAuth lets everybody use it. Leave that out: the chart makes keys, or takes those of auth.existingSecret." $way) }}
{{- end }}
{{- if and $on $.Values.networkPolicy.enabled (or (not $.Values.networkPolicy.gatewayFrom) (deepEqual $inside $.Values.networkPolicy.gatewayFrom)) }}
{{- fail (printf "%s brings requests from outside this namespace, which the NetworkPolicy keeps out. Name where they come from in networkPolicy.gatewayFrom, such as {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}} or {ipBlock: {cidr: 10.0.0.0/8}}." $way) }}
{{- end }}
{{- end }}
{{- if .Values.ingress.enabled }}{{ include "tandem.guardIngress" .Values.ingress }}{{ end }}
{{- include "tandem.guardRoutes" . }}
{{- end }}

{{- define "tandem.guardIngress" -}}
{{- if not .hosts }}
{{- fail "ingress.hosts is empty. Name the hosts that clients ask, for example [tandem.example.com]." }}
{{- end }}
{{- if not .insecureNoTls }}
{{- range $host := .hosts }}
{{- $covered := false }}
{{- range $tls := $.tls }}
{{- range $name := default $.hosts $tls.hosts }}
{{- if or (eq $name $host) (eq $name (regexReplaceAll "^[^.]+" $host "*")) }}{{ $covered = true }}{{ end }}
{{- end }}
{{- end }}
{{- if not $covered }}
{{- fail (printf "ingress.tls has no certificate for %s, so keys would travel in the clear. Add {secretName, hosts}, or set ingress.insecureNoTls=true where TLS ends before the Ingress." $host) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The Gateway API lets a listener have a host name for routes of one kind only: of an HTTPRoute and a GRPCRoute it rejects the younger. */}}
{{- define "tandem.guardRoutes" -}}
{{- $route := .Values.httpRoute }}
{{- if and $route.grpc.enabled (not $route.enabled) }}
{{- fail "httpRoute.grpc.enabled would be ignored, because httpRoute.enabled is false. Set httpRoute.enabled=true, or leave it out." }}
{{- end }}
{{- if $route.enabled }}
{{- if not $route.parentRefs }}
{{- fail "httpRoute.parentRefs is empty, so the route would hang on no Gateway. Name one, for example [{name: public, namespace: gateways}]." }}
{{- end }}
{{- if not $route.hostnames }}
{{- fail "httpRoute.hostnames is empty, so the route would take every name of its Gateway. Name the hosts that clients ask, for example [tandem.example.com]." }}
{{- end }}
{{- if $route.grpc.enabled }}
{{- if not .Values.gateway.grpc.enabled }}
{{- fail "httpRoute.grpc.enabled is true, but the gateway does not listen for gRPC. Set gateway.grpc.enabled=true, or leave it out." }}
{{- end }}
{{- if not $route.grpc.hostnames }}
{{- fail "httpRoute.grpc.hostnames is empty, so the route would take every name of its Gateway. Name the hosts that gRPC clients ask, for example [grpc.tandem.example.com]." }}
{{- end }}
{{- range $host := $route.grpc.hostnames }}
{{- if and (has $host $route.hostnames) (or (not $route.grpc.parentRefs) (deepEqual $route.parentRefs $route.grpc.parentRefs)) }}
{{- fail (printf "httpRoute.hostnames and httpRoute.grpc.hostnames both have %s on the same Gateway, which accepts one kind of route for a name. Give gRPC a name of its own, or another listener by httpRoute.grpc.parentRefs." $host) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
