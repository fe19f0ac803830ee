"""Kubernetes, seen from a terminal: `tandem cluster …`. Can Tandem be installed in this cluster?

`connection` finds the API server and turns what goes wrong into our errors, `facts` asks it, `preflight` judges the answers (pure),
`command` prints. Nothing here changes a cluster. Rule: only this room imports `kubernetes`, and only `connection` catches its errors.
"""
