"""Kubernetes: can Tandem be installed, what serves, what waits, how many servers are wanted? `tandem cluster …`.

`client` is what is asked of an API server; `api` asks with a sign-in that `kubeconfig` finds. `objects/` parses the answers (pure) and
`snapshot` holds one look at a cluster. `preflight/` and `status/` judge it, `scaler/` tells autoscalers, `campaign/` runs a load test as a
Job. Nothing but a campaign changes a cluster. Rule: only this room imports `kubernetes`, and only `api` and `kubeconfig` catch its errors.
"""
