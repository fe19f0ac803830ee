"""The control document: what is wanted of models and tenants while gateways run, in revisions that all of them agree on.

`document` says what may stand in it, `revisions` which one is in force and which were before, `stores` where they are kept (a file, Redis;
a ConfigMap is `cluster/control_map.py`). How a gateway follows them is `gateway/control_watch.py`.
"""
