"""`tandem cluster scaler`: publishes how many servers of each pool are wanted, summed over all gateways, for whoever starts and stops them.

The deciding is in `serving/decisions/`; here is what it needs to know and who is told. `discovery` looks up the gateways, `reports` reads
what they publish, `liveness` notices restarts and silences, `cluster_state` reads Deployments and pods on a thread. `reconcile` puts them
together every second, `state` holds the newest result, and `http_server`, `metrics` and `keda` serve it; `command` builds all of it. Rule:
it changes nothing anywhere, and waits for nobody.
"""
