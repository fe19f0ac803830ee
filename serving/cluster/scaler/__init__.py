"""`tandem cluster scaler`: publishes how many servers of each pool are wanted, summed over all gateways, for whoever starts and stops them.

`serving/decisions/` decides; here is what it needs to know, and how the result is published. `gateways` looks up the gateways and reads
their demand, `cluster_state` reads Deployments and pods on a thread. `reconcile` puts them together every second, `state` holds the newest
result, and `http_server`, `metrics` and `keda` serve it; `command` builds all of it. Rule: it changes nothing, and waits for nobody.
"""
