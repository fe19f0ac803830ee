"""Can Tandem be installed in this cluster, and what is the fix where it cannot? `tandem cluster preflight`.

`requirements` is what an installation asks of a cluster, `facts` what the cluster says of itself; `checks`, `gpus` and `quotas` hold one
against the other, purely; `command` prints. Rule: what could not be seen is `unknown`, never `ok`.
"""
