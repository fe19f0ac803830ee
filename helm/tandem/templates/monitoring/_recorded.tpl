{{/*
What alerts and dashboard compute more than once. Names are LEVEL:METRIC:OPERATION, as Prometheus' users write them.
*/}}

{{/* A request counts against the objective when Tandem could have answered it in time and did not. What the client got wrong, took back or
     sent beyond its quota counts neither way. */}}
{{- define "tandem.recordingRules" -}}
{{- $it := include "tandem.matchers" . }}
{{- range $window := list "5m" "30m" "1h" "6h" "3d" }}
- record: tandem:objective_errors:ratio_rate{{ $window }}
  expr: |
    sum by (namespace, tandem) (rate(tandem_requests_total{ {{- $it }},outcome=~"shed|expired|backend_error"}[{{ $window }}]))
    /
    sum by (namespace, tandem) (rate(tandem_requests_total{ {{- $it }},outcome=~"ok|shed|expired|backend_error"}[{{ $window }}]))
{{- end }}
- record: tandem:requests:rate5m
  expr: sum by (namespace, tandem, outcome) (rate(tandem_requests_total{ {{- $it }}}[5m]))
- record: tandem_pool:demand_replicas:sum
  expr: sum by (namespace, tandem, pool) (tandem_demand_replicas{ {{- $it }}})
# Gateways see the same servers, so the one that sees most.
- record: tandem_pool:ready_servers:max
  expr: max by (namespace, tandem, pool) (tandem_ready_servers{ {{- $it }}})
# Tritons with an address, started or not: their nodes are paid for.
- record: tandem_pool:replicas:count
  expr: count by (namespace, tandem, pool) (up{ {{- $it }},job="tandem-triton"})
{{- range $name, $pool := fromYaml (include "tandem.pools" .) }}
{{- if not (kindIs "invalid" $pool.pricePerHour) }}
- record: tandem_pool:price_per_hour
  expr: vector({{ toJson $pool.pricePerHour }}{{ if ne (int64 $pool.serversPerCard) 1 }} / {{ int64 $pool.serversPerCard }}{{ end }})
  labels:
    {{- include "tandem.ruleLabels" $ | nindent 4 }}
    pool: {{ $name }}
{{- end }}
{{- end }}
{{- end }}
