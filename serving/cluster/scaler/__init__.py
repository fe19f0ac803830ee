"""`tandem cluster scaler`: how many servers of each pool are wanted, summed over all gateways; it says so, or sets their number itself.

`serving/decisions/` decides; here is what it needs to know, and how the result is published. `gateways` looks up the gateways and reads
their demand, `cluster_state` reads Deployments and pods on a thread. `reconcile` puts them together every second, `state` holds the newest
result, and `http_server`, `metrics` and `keda` serve it; in the one scaler that is `leader`, `apply` sets it. `command` builds all of it.
Rule: only `apply` changes anything, and nothing waits for anybody.
"""
