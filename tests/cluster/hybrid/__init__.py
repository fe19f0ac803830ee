"""Real gateways and real Tritons at the addresses of simulated pods, while a real control plane schedules, scales and rolls them.

`python -m tests.cluster.hybrid --report FILE` plays the whole story alone in a network of its own (`alone`): a bed (tests/cluster/bed),
names that resolve as in a cluster (`names`), a stand-in for the kubelet that runs what the API server stored (`kubelet`, `container`),
and clients under open-loop load (`load`). Not here: container images, network policies, kube-proxy, NVIDIA's server, a card. A GPU pool
is played by an emulated one (docs/emulated.md), so no time of it says anything about a device.
"""
