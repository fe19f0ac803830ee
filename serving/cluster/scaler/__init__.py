"""`tandem cluster scaler`: how many servers of each pool are wanted, summed over all gateways, for whoever starts and stops them.

What is decided is in `serving/planning/` (`scaling`, `gateways`, `wanted`, `cold_start`); here is the asking and the telling. `names` looks
gateways up, `asking` reads what they publish, `published` makes values of it, `starts` tells which began anew. `cluster_look` with `api`
and `objects` reads Deployments and pods (by `in_pod` or `kubeconfig`). `looking` puts them together, `silences` tells what is worth a line.
`told` holds the newest answer, `ended` counts, `pages`, `metrics` and `external` serve it; `command` builds all. Rule: it changes nothing
anywhere, and waits for nobody.
"""
