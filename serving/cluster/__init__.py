"""Kubernetes, seen from a terminal: `tandem cluster …`. Can Tandem be installed, what serves, what waits; how many servers are wanted?

`connection` finds the API server and turns what goes wrong into our errors, `api` puts one question to it, `fields`, `gpus` and
`taints` read answers (pure). `preflight/` and `status/` judge, `scaler/` tells autoscalers, `campaign/` runs a load test as a Job,
`command` prints. Nothing but a campaign changes a cluster. Rule: only this room imports `kubernetes`, and only `connection` catches its
errors.
"""
