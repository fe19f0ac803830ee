"""Names that the chart does not have and values of the wrong kind: what the schema refuses."""

from __future__ import annotations

from tests.helm.conftest import Object

# What the schema says: (values, part of the message)
UNKNOWN_OR_WRONG: dict[str, tuple[Object, str]] = {
    "a misspelt name at the top": ({"gatway": {}}, "additional properties 'gatway' not allowed"),
    "a misspelt name in the gateway": ({"gateway": {"replica": 2}}, "'/gateway': additional properties 'replica'"),
    "a misspelt name in a pool": ({"pools": {"cpu": {"modles": []}}}, "'/pools/cpu': additional properties 'modles'"),
    "a misspelt name in the defaults": ({"poolDefaults": {"shm": "1Mi"}}, "additional properties 'shm'"),
    "a misspelt name in a drain": ({"gateway": {"drain": {"prestop": 1}}}, "additional properties 'prestop'"),
    "a misspelt name in an image": ({"images": {"gateway": {"name": "x"}}}, "additional properties 'name'"),
    "a misspelt network peer": ({"networkPolicy": {"gatewayFrom": [{"pods": {}}]}}, "additional properties 'pods'"),
    "an unknown image": ({"images": {"tritonTpu": {}}}, "additional properties 'tritonTpu'"),
    "an unknown device": ({"pools": {"cpu": {"device": "tpu"}}}, "'/pools/cpu/device': value must be one of"),
    "an unknown server": ({"pools": {"cpu": {"server": "own"}}}, "'/pools/cpu/server': value must be one of"),
    "an unknown source of models": ({"modelRepository": {"source": "s3"}}, "value must be one of"),
    "a wildcard for models": ({"pools": {"cpu": {"models": ["*"]}}}, "'/pools/cpu/models/0'"),
    "a model twice": ({"pools": {"cpu": {"models": ["a", "a"]}}}, "'/pools/cpu/models'"),
    "a number as text": ({"gateway": {"replicas": "2"}}, "'/gateway/replicas': got string, want integer"),
    "no gateway at all": ({"gateway": {"replicas": 0}}, "'/gateway/replicas': minimum"),
    "a flag as text": ({"auth": {"insecureNoAuth": "true"}}, "got string, want boolean"),
    "a GPU pool without a card": ({"pools": {"gpu": {"gpu": {"count": 0}}}}, "minimum"),
    "a drain of nothing": ({"poolDefaults": {"drain": {"preStopSeconds": 0}}}, "minimum"),
    "a size without sense": ({"pools": {"cpu": {"shmSize": "large"}}}, "'/pools/cpu/shmSize'"),
    "an unknown precision": ({"gateway": {"variants": {"digits": {"cpu": "fp8"}}}}, "value must be one of"),
    "a price of nothing": ({"pools": {"cpu": {"pricePerHour": 0}}}, "'/pools/cpu/pricePerHour'"),
    "a pool that cannot be": ({"pools": {"cpu": {"maxReplicas": 0}}}, "'/pools/cpu/maxReplicas'"),
    "an instance of nothing": ({"pools": {"cpu": {"instances": 0}}}, "'/pools/cpu/instances'"),
    "a misspelt objective": (
        {"gateway": {"objectives": {"digits": {"latency": 1}}}},
        "additional properties 'latency'",
    ),
    "an objective without one": ({"gateway": {"objectives": {"digits": {}}}}, "missing property 'latencyS'"),
    "an objective of nothing": ({"gateway": {"objectives": {"digits": {"latencyS": 0}}}}, "latencyS"),
    "a pool named like the gateway": ({"pools": {"gateway": {}}}, "invalid propertyName 'gateway'"),
    "a pool name that no object may have": ({"pools": {"GPU_0": {}}}, "invalid propertyName 'GPU_0'"),
    "a pool name that is too long": ({"pools": {"a" * 21: {}}}, "invalid propertyName"),
    "an image with its tag in the name": ({"images": {"gateway": {"repository": "tandem:1"}}}, "repository"),
    "a short digest": ({"images": {"gateway": {"digest": "sha256:12"}}}, "'/images/gateway/digest'"),
    "a registry with a scheme": ({"imageRegistry": "https://registry.example.com"}, "'/imageRegistry'"),
    "a variable without a name": ({"gateway": {"env": [{"value": "1"}]}}, "missing property 'name'"),
}
