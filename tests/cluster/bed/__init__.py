"""A real Kubernetes control plane with simulated nodes, on loopback, in seconds: no containers, no root, no cloud.

`cluster.Bed` starts and stops it, `build` compiles what it runs, `python -m tests.cluster.bed` keeps one up for looking around.
What it proves and what it cannot is in docs/cluster-tests.md.
"""
