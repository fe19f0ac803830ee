{{/*
Alerts: what somebody should know, with what to look at. Rules: severity `critical` is for what clients feel now; each has a section of
docs/monitoring.md; a number is a reason or says that it is a guess.
*/}}

{{/* Burn rates over a long and a short window: 14.4 over an hour uses up 2 % of what a 30-day objective allows, 6 over six hours 5 %, 1 over
     three days 10 %. The short window, a twelfth of the long one, ends the alert soon after the trouble. */}}
{{- define "tandem.objectiveAlerts" -}}
{{- $it := include "tandem.matchers" . }}
{{- $allowed := subf 1.0 .Values.monitoring.prometheusRule.objectiveRatio }}
{{- range list (list "14.4" "1h" "5m" "2m" "critical") (list "6" "6h" "30m" "15m" "critical") (list "1" "3d" "6h" "1h" "warning") }}
{{- $factor := index . 0 }}
- alert: TandemObjectiveBurns
  expr: |
    tandem:objective_errors:ratio_rate{{ index . 1 }}{ {{- $it }}} > {{ $factor }} * {{ printf "%.6f" $allowed }}
    and
    tandem:objective_errors:ratio_rate{{ index . 2 }}{ {{- $it }}} > {{ $factor }} * {{ printf "%.6f" $allowed }}
  for: {{ index . 3 }}
  labels:
    severity: {{ index . 4 }}
    window: {{ index . 1 }}
  annotations:
    summary: Too many requests are not answered in time.
    description: {{ printf "Of the requests of the last %s {{ $value | humanizePercentage }} were shed, expired or failed; the objective allows %s." (index . 1) (include "tandem.percent" $allowed) | quote }}
{{- end }}
{{- end }}

{{/* 0.005 as 0.5 %. */}}
{{- define "tandem.percent" -}}
{{- printf "%.4f" (mulf 100.0 .) | trimSuffix "0" | trimSuffix "0" | trimSuffix "0" | trimSuffix "0" | trimSuffix "." }} %
{{- end }}

{{- define "tandem.poolAlerts" -}}
{{- $it := include "tandem.matchers" . }}
{{- $cpu := list }}
{{- $gpu := list }}
{{- range $name, $pool := fromYaml (include "tandem.pools" .) }}
{{- if eq $pool.device "gpu" }}{{ $gpu = append $gpu $name }}{{ else }}{{ $cpu = append $cpu $name }}{{ end }}
{{- end }}
{{- range $name, $pool := fromYaml (include "tandem.pools" .) }}
{{- if eq $pool.device "gpu" }}
{{- $least := ternary $pool.autoscaling.minReplicas $pool.replicas $pool.autoscaling.enabled | int }}
- alert: TandemGpuCold
  {{- if gt $least 0 }}
  # The pool always has a Triton, so it is always wanted.
  expr: max by (namespace, tandem, pool) (tandem_pool_state{ {{- $it }},pool="{{ $name }}",state="ready"}) == 0
  {{- else if and $pool.autoscaling.enabled (ne $pool.autoscaling.by "metrics") }}
  # It may be at zero: the scaler says whether it is wanted.
  expr: |
    max by (namespace, tandem, pool) (tandem_pool_state{ {{- $it }},pool="{{ $name }}",state="ready"}) == 0
    and
    max by (namespace, tandem, pool) (tandem_wanted_replicas{ {{- $it }},pool="{{ $name }}"}) > 0
  {{- else }}
  # It may be at zero: wanted is half a server's work, a guess. Whoever scales may ask for more before it wakes one.
  expr: |
    max by (namespace, tandem, pool) (tandem_pool_state{ {{- $it }},pool="{{ $name }}",state="ready"}) == 0
    and
    sum by (namespace, tandem, pool) (tandem_demand_replicas{ {{- $it }},pool="{{ $name }}"}) > 0.5
  {{- end }}
  for: {{ $.Values.monitoring.prometheusRule.coldFor }}
  labels:
    severity: warning
  annotations:
    summary: "Pool {{ $name }} is wanted and does not come up; other pools answer for it, if there are any."
    description: "It has been wanted for {{ $.Values.monitoring.prometheusRule.coldFor }}. `tandem cluster status` says why: no GPU node, no quota, an image that is still pulled, models that do not load."
{{- end }}
{{- end }}
{{- if and $cpu $gpu }}
- alert: TandemBridgeSaturated
  # More waits than is worked on, or requests are refused, and no GPU pool is ready. Five minutes are a guess.
  expr: |
    (
      sum by (namespace, tandem) (avg_over_time(tandem_queued{ {{- $it }},pool=~"{{ join "|" $cpu }}"}[5m]))
      > sum by (namespace, tandem) (avg_over_time(tandem_in_flight{ {{- $it }},pool=~"{{ join "|" $cpu }}"}[5m]))
      or
      sum by (namespace, tandem) (rate(tandem_requests_total{ {{- $it }},outcome="shed"}[5m])) > 0
    )
    and
    max by (namespace, tandem) (tandem_pool_state{ {{- $it }},pool=~"{{ join "|" $gpu }}",state="ready"}) == 0
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: "While the GPU is cold the CPU pool has more to do than it can."
    description: "Requests wait or are refused until a GPU Triton is ready. Give the CPU pool more replicas, or keep a GPU Triton warm."
{{- end }}
- alert: TandemPoolDown
  # No Triton of the pool answers any gateway. A GPU pool that is away is cold, not down, and told by TandemGpuCold.
  expr: min by (namespace, tandem, pool) (tandem_pool_state{ {{- $it }},state="down"}) == 1
  for: 5m
  labels:
    severity: critical
  annotations:
    summary: "No Triton of pool {{ `{{ $labels.pool }}` }} answers."
    description: "Look at its pods: models that do not load, a verify-models container that found a changed file, memory."
- alert: TandemDigestConflict
  # A roll-out passes through it. That it is over by then is a guess.
  expr: max by (namespace, tandem, pool, model, variant) (tandem_digest_conflict{ {{- $it }}}) == 1
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: "Tritons of pool {{ `{{ $labels.pool }}` }} serve different files as {{ `{{ $labels.model }}` }} {{ `{{ $labels.variant }}` }}."
    description: "One digest gets the requests, the servers of the other none of them. A roll-out that stands still, or a volume that differs: `/admin/status` names the servers."
- alert: TandemQuarantined
  expr: max by (namespace, tandem, pool, model, variant) (tandem_quarantined_servers{ {{- $it }}}) > 0
  for: 0s
  labels:
    severity: warning
  annotations:
    summary: "Answers of {{ `{{ $labels.model }}` }} {{ `{{ $labels.variant }}` }} in pool {{ `{{ $labels.pool }}` }} are off; a server gets no more requests for it."
    description: "Others gave other answers to the same requests, beyond what its gate allows. `/admin/status` names the server and says by how much: a changed file, another processor, a broken card."
- alert: TandemTritonUnreachable
  expr: up{ {{- $it }},job="tandem-triton"} == 0
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: "Prometheus does not reach Triton {{ `{{ $labels.pod }}` }} of pool {{ `{{ $labels.pool }}` }}."
    description: "It does not start, has died, or networkPolicy.metricsFrom does not name this Prometheus."
- alert: TandemTritonFails
  # CANCELED is left out: that is a client who left.
  expr: sum by (namespace, tandem, pool, model, reason) (rate(nv_inference_request_failure{ {{- $it }},reason!="CANCELED"}[5m])) > 0
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: "Triton fails requests to {{ `{{ $labels.model }}` }} in pool {{ `{{ $labels.pool }}` }}: {{ `{{ $labels.reason }}` }}."
    description: "{{ `{{ $value | humanize }}` }} a second. BACKEND: the model's computation failed, Triton's log says how. REJECTED: its own queue was full. OTHER: a bad request that got past the gateway."
{{- end }}

{{- define "tandem.gatewayAlerts" -}}
{{- $it := include "tandem.matchers" . }}
- alert: TandemTritonStuck
  # More than two in half an hour, a guess: one may be a client's mistake. Gateways count the same restarts.
  expr: max by (namespace, tandem, pool) (increase(tandem_contained_restarts_total{ {{- $it }}}[30m])) > 2
  for: 1m
  labels:
    severity: warning
  annotations:
    summary: "Tritons of pool {{ `{{ $labels.pool }}` }} are restarted again and again because they work on for nobody."
    description: "Some request keeps them busy after everybody who asked has hung up: their logs and the gateways' say when, docs/security.md what is done about it."
- alert: TandemGatewayDown
  expr: absent(up{ {{- $it }},job="tandem-gateway"} == 1)
  for: 2m
  labels:
    severity: critical
    {{- include "tandem.ruleLabels" . | nindent 4 }}
  annotations:
    summary: "Prometheus reaches no gateway."
    description: "Clients get no answer, or Prometheus is kept out: its key (auth.client, scope metrics), networkPolicy.metricsFrom, the port of the admin listener."
- alert: TandemGatewayUnreachable
  expr: up{ {{- $it }},job="tandem-gateway"} == 0
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: "Prometheus does not reach gateway {{ `{{ $labels.pod }}` }}."
    description: "It does not start, has died, or refuses Prometheus' key."
- alert: TandemSheds
  # One request in twenty, a guess: load that comes for a moment is shed by design.
  expr: |
    sum by (namespace, tandem) (tandem:requests:rate5m{ {{- $it }},outcome="shed"})
    / sum by (namespace, tandem) (tandem:requests:rate5m{ {{- $it }},outcome=~"ok|shed|expired|backend_error"}) > 0.05
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: "{{ `{{ $value | humanizePercentage }}` }} of requests are refused for load."
    description: "The pools have more to do than they can in time. More replicas, a cheaper variant, or a longer deadline."
- alert: TandemMeetsLimits
  # One in ten seconds, a guess: now and then a client opens too much, and is told so.
  expr: |
    sum by (namespace, tandem) (rate(tandem_buffer_refusals_total{ {{- $it }}}[5m]))
    + sum by (namespace, tandem) (rate(tandem_connection_refusals_total{ {{- $it }}}[5m])) > 0.1
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: "{{ `{{ $value | humanize }}` }} requests or connections a second are refused at a gateway's own limits."
    description: "A client with too many connections, large bodies, or more clients than the gateways were made for: look at the dashboard's limits, then more gateways, or gateway.limits."
- alert: TandemExpires
  # One in a hundred, a guess: a request is only taken when it should be in time, so many that are not mean that something slowed down.
  expr: |
    sum by (namespace, tandem) (tandem:requests:rate5m{ {{- $it }},outcome="expired"})
    / sum by (namespace, tandem) (tandem:requests:rate5m{ {{- $it }},outcome=~"ok|shed|expired|backend_error"}) > 0.01
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: "{{ `{{ $value | humanizePercentage }}` }} of requests were taken and not answered in time."
    description: "Pools are slower than they were measured: look at nodes that throttle, neighbours, larger inputs."
- alert: TandemControlStale
  expr: |
    min by (namespace, tandem) (tandem_control_current{ {{- $it }}}) == 0
    or
    count by (namespace, tandem) (count by (namespace, tandem, digest) (tandem_control_revision{ {{- $it }}})) > 1
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: "A gateway does not follow the control document, or gateways have different revisions of it."
    description: "What it has stays in force; new pins, splits, rollouts and quotas do not count there. `problem` in its /admin/status says why."
{{- include "tandem.tenantAlerts" . }}
- alert: TandemTracesLost
  expr: |
    sum by (namespace, tandem) (rate(tandem_traces_total{ {{- $it }},outcome="lost"}[10m]))
    / sum by (namespace, tandem) (rate(tandem_traces_total{ {{- $it }}}[10m])) > 0.05
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: "{{ `{{ $value | humanizePercentage }}` }} of the traces do not get to the OpenTelemetry collector."
    description: "Requests are answered all the same. A gateway's log says why: the collector at otel.endpoint is away or refuses them, a NetworkPolicy is in between (networkPolicy.collectorTo), or more is traced than it takes."
- alert: TandemModelSource
  expr: |
    min by (namespace, tandem) (tandem_model_source_current{ {{- $it }}}) == 0
    or
    max by (namespace, tandem) (tandem_model_source_refused{ {{- $it }}}) > 0
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: "New models are not taken from the bucket or registry of the model repository."
    description: "What was taken before is served. `model_source` in a gateway's /admin/status says why: it cannot be read, or a variant is not what its gate recorded."
{{- with include "tandem.keysSecret" . }}
- alert: TandemKeysUnreadable
  expr: min by (namespace, tandem) (tandem_keys_readable{ {{- $it }}}) == 0
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: "A gateway cannot read its file of API keys."
    description: "The keys that it read last stay in force; added and revoked ones do not count. The gateway's log says what is wrong with the file in secret {{ . }}."
{{- end }}
{{- end }}

{{/* By tenant. All thresholds are guesses. */}}
{{- define "tandem.tenantAlerts" -}}
{{- $it := include "tandem.matchers" . }}
{{- $by := "by (namespace, tandem, tenant)" }}
{{- $refused := printf "sum %s (rate(tandem_tenant_refusals_total{%s,outcome=~\"shed|expired\"}[10m]))" $by $it }}
- alert: TandemQuotaNear
  expr: max by (namespace, tandem, tenant, what, per) (tandem_tenant_quota_ratio{ {{- $it }},per=~"hour|month"}) > 0.9
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: "Tenant {{ `{{ $labels.tenant }}` }} has used {{ `{{ $value | humanizePercentage }}` }} of its {{ `{{ $labels.what }}` }} per {{ `{{ $labels.per }}` }}."
    description: "Beyond it its requests are 429 until the {{ `{{ $labels.per }}` }} ends: a larger quota in the control document, or less of what it sends."
- alert: TandemBudgetBurns
  # At the pace of the last six hours the dollars of the month are gone before its end, in UTC.
  expr: |
    max {{ $by }} (tandem_tenant_quota_ratio{ {{- $it }},what="dollars",per="month"})
    + max {{ $by }} (deriv(tandem_tenant_quota_ratio{ {{- $it }},what="dollars",per="month"}[6h]))
    * scalar((days_in_month() - day_of_month()) * 86400 + (24 - hour()) * 3600) > 1
  for: 1h
  labels:
    severity: warning
  annotations:
    summary: "Tenant {{ `{{ $labels.tenant }}` }} will have spent its dollars before the month ends."
    description: "At its pace of the last six hours {{ `{{ $value | humanizePercentage }}` }} of them by the month's end. `tandem cost --by tenant,model` says on which models."
- alert: TandemTenantStarved
  # One in five, of a tenant that gets less than half of what the mean tenant gets: who stays within a share is answered.
  expr: |
    {{ $refused }}
    / ({{ $refused }} + (sum {{ $by }} (rate(tandem_tenant_requests_total{ {{- $it }}}[10m])) or 0 * {{ $refused }})) > 0.2
    and
    (sum {{ $by }} (rate(tandem_tenant_device_seconds_total{ {{- $it }}}[10m])) or 0 * {{ $refused }})
    < on (namespace, tandem) group_left () 0.5 * avg by (namespace, tandem) (sum {{ $by }} (rate(tandem_tenant_device_seconds_total{ {{- $it }}}[10m])))
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: "{{ `{{ $value | humanizePercentage }}` }} of tenant {{ `{{ $labels.tenant }}` }}'s requests are refused or late, though it uses less than others."
    description: "Others have larger weights or reserved shares, its deadlines are shorter than an execution, or its models have no room: docs/tenants.md says who goes first."
- alert: TandemMispredicts
  expr: |
    max by (namespace, tandem, pool) (tandem_time_ratio{ {{- $it }}}) > 1.5
    or
    max by (namespace, tandem, pool) (tandem_time_ratio{ {{- $it }}}) < 0.5
  for: 30m
  labels:
    severity: warning
  annotations:
    summary: "Work in pool {{ `{{ $labels.pool }}` }} takes {{ `{{ $value | humanize }}` }} times what its curves say."
    description: "Gateways correct what they admit; plans, shares and bills go by the curves. Neighbours on the nodes, a clock that throttles, other inputs: profile anew with `tandem profile`."
- alert: TandemUsageStale
  expr: min by (namespace, tandem) (tandem_usage_current{ {{- $it }}}) == 0
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: "A gateway does not reach the place that keeps what tenants use."
    description: "Quotas hold by its own counts, or requests are 503 (gateway.usage.ifAway). Counts wait for it; those of a gateway that ends meanwhile are lost."
{{- end }}

{{/* Nothing breaks at once: without the scaler's number everything stays as large as it is. Five and ten minutes are guesses; a gateway that is silent is
     weighed out of the sum after 80 s, and one that has left is forgotten. */}}
{{- define "tandem.scalerAlerts" -}}
{{- $it := include "tandem.matchers" . }}
- alert: TandemScalerDown
  expr: absent(up{ {{- $it }},job="tandem-scaler"} == 1)
  for: 5m
  labels:
    severity: warning
    {{- include "tandem.ruleLabels" . | nindent 4 }}
  annotations:
    summary: "Prometheus does not reach the scaler, so pools that follow it stay as they are."
    description: "A rising demand starts no Triton and a GPU that is idle stays. Look at the scaler's pod; or Prometheus is kept out (networkPolicy.metricsFrom)."
- alert: TandemScalerHolds
  expr: |
    max by (namespace, tandem) (tandem_scaler_holds{ {{- $it }}}) == 1
    or
    max by (namespace, tandem) (tandem_scaler_keeps{ {{- $it }}}) == 1
    or
    max by (namespace, tandem) (tandem_scaler_gateway_heard_seconds{ {{- $it }}}) > 120
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: "The scaler does not hear every gateway, so pools that follow it are held, or sized without some of the traffic."
    description: "Its log and its page /status name the gateways and why: they are down, its key lacks the scope metrics, DNS, a NetworkPolicy."
{{- if include "tandem.poolsScaledByUs" . }}
- alert: TandemScalerCannotScale
  expr: |
    max by (namespace, tandem) (tandem_scaler_leads{ {{- $it }}}) == 0
    or
    max by (namespace, tandem) (tandem_scaler_leads{ {{- $it }}} * tandem_scaler_cannot_apply{ {{- $it }}}) == 1
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: "The scaler decides, but does not get its numbers to the pools, so they stay as they are."
    description: "Its log and its page /status (applies) say why: the API server is not reached or refuses it, or a pool's Deployment is not there."
{{- end }}
{{- end }}
