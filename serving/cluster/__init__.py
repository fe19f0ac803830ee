"""Kubernetes: can Tandem be installed, what serves, what waits, how many servers are wanted? `tandem cluster …`.

`client` is what can be asked of an API server, and asks it from inside a pod; `api` asks with a kubeconfig. `objects/` parses the answers
(pure), and a `snapshot` holds one reading of a cluster. `preflight/` and `status/` judge it, `scaler/` publishes numbers for autoscalers,
`campaign/` runs a load test as a Job. Nothing but a campaign changes a cluster. Rule: only `api` imports `kubernetes` and catches its
errors.
"""
