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
    "a pool whose name is the gateway's other Service": (
        {"pools": {"gateway-admin": {}}},
        "propertyName 'gateway-admin'",
    ),
    "a key of a secret with a path": ({"auth": {"key": "keys/keys.json"}}, "'/auth/key'"),
    "a misspelt listener": ({"gateway": {"grpc": {"enable": True}}}, "'/gateway/grpc': additional properties 'enable'"),
    "a port beyond the last": ({"gateway": {"service": {"grpcPort": 65536}}}, "'/gateway/service/grpcPort'"),
    "a service of an unknown kind": ({"gateway": {"service": {"type": "ExternalName"}}}, "'/gateway/service/type'"),
    "a misspelt limit": ({"gateway": {"limits": {"maxBody": 1}}}, "'/gateway/limits': additional properties 'maxBody'"),
    "a drain among the limits": ({"gateway": {"limits": {"drainS": 1}}}, "additional properties 'drainS'"),
    "a limit of nothing": ({"gateway": {"limits": {"maxHeaders": 0}}}, "'/gateway/limits/maxHeaders'"),
    "an autoscaler to zero": ({"gateway": {"autoscaling": {"minReplicas": 0}}}, "'/gateway/autoscaling/minReplicas'"),
    "a misspelt behaviour": ({"gateway": {"autoscaling": {"behavior": {"up": {}}}}}, "additional properties 'up'"),
    "a certificate without a secret": ({"ingress": {"tls": [{"hosts": []}]}}, "missing property 'secretName'"),
    "a route on a Gateway without a name": (
        {"httpRoute": {"parentRefs": [{"kind": "Gateway"}]}},
        "missing property 'name'",
    ),
    "gRPC routes as a switch": ({"httpRoute": {"grpc": True}}, "'/httpRoute/grpc': got boolean, want object"),
    "a priority of the system's": ({"priorityClass": {"value": 2000000000}}, "'/priorityClass/value': maximum"),
    "a priority class named like the system's": ({"priorityClass": {"name": "system-mine"}}, "'/priorityClass/name'"),
    "an image volume that moves": (
        {"modelRepository": {"imageVolume": {"reference": "registry.example.com/models:latest"}}},
        "'/modelRepository/imageVolume/reference'",
    ),
    "an object that is a number": ({"extraObjects": [1]}, "'/extraObjects/0'"),
    "a reading so rare that rules see nothing": (
        {"monitoring": {"serviceMonitor": {"interval": "3m"}}},
        "'/monitoring/serviceMonitor/interval'",
    ),
    "a reading without a unit": (
        {"monitoring": {"serviceMonitor": {"interval": "15"}}},
        "'/monitoring/serviceMonitor/interval'",
    ),
    "an objective of all": (
        {"monitoring": {"prometheusRule": {"objectiveRatio": 1}}},
        "'/monitoring/prometheusRule/objectiveRatio'",
    ),
    "an objective as a percentage": (
        {"monitoring": {"prometheusRule": {"objectiveRatio": 99.5}}},
        "'/monitoring/prometheusRule/objectiveRatio'",
    ),
    "a patience without a unit": (
        {"monitoring": {"prometheusRule": {"coldFor": "20"}}},
        "'/monitoring/prometheusRule/coldFor'",
    ),
    "a label that is no text": (
        {"monitoring": {"dashboard": {"labels": {"grafana_dashboard": 1}}}},
        "'/monitoring/dashboard/labels/grafana_dashboard'",
    ),
    "a test without patience": ({"test": {"timeoutSeconds": 0}}, "'/test/timeoutSeconds'"),
    "a load test of nobody": ({"loadTest": {"workers": 0}}, "'/loadTest/workers'"),
    "a load of nothing": ({"loadTest": {"rate": 0}}, "'/loadTest/rate'"),
    "a load for no time": ({"loadTest": {"seconds": 0}}, "'/loadTest/seconds'"),
    "a load of no model": ({"loadTest": {"model": ""}}, "'/loadTest/model'"),
    "a misspelt load": ({"loadTest": {"rps": 5}}, "'/loadTest': additional properties 'rps'"),
    "a number of Tritons as text": ({"pools": {"cpu": {"replicas": "2"}}}, "'/pools/cpu/replicas'"),
    "an image that is not the chart's": (
        {"pools": {"cpu": {"image": "nvidia"}}},
        "'/pools/cpu/image': value must be one of",
    ),
    "a bucket without a remote": (
        {"modelRepository": {"objectStore": {"from": "s3/bucket"}}},
        "'/modelRepository/objectStore/from'",
    ),
    "a remote that no variable can name": (
        {"modelRepository": {"objectStore": {"from": "my-remote:bucket"}}},
        "'/modelRepository/objectStore/from'",
    ),
    "a variable of a bucket that is no text": (
        {"modelRepository": {"objectStore": {"env": {"RCLONE_CONFIG_MODELS_ENV_AUTH": True}}}},
        "got boolean, want string",
    ),
    "a gate as text": ({"modelRepository": {"imageVolume": {"gateEnabled": "yes"}}}, "got string, want boolean"),
    "a relative path in an image": (
        {"modelRepository": {"image": {"path": "models"}}},
        "'/modelRepository/image/path'",
    ),
    "a size of models without sense": ({"modelRepository": {"sizeLimit": "2 GB"}}, "'/modelRepository/sizeLimit'"),
    "a misspelt behaviour of a pool": (
        {"pools": {"cpu": {"autoscaling": {"behavior": {"scaleup": {}}}}}},
        "additional properties 'scaleup'",
    ),
    "a metric of no type": (
        {"pools": {"cpu": {"autoscaling": {"metrics": [{"external": {}}]}}}},
        "missing property 'type'",
    ),
    "a pre-pull as a flag": ({"pools": {"cpu": {"prePull": True}}}, "'/pools/cpu/prePull': got boolean, want object"),
    "a misspelt spread": (
        {"pools": {"cpu": {"topologySpread": {"zones": 2}}}},
        "'/pools/cpu/topologySpread': additional properties 'zones'",
    ),
    "a toleration of a misspelt effect": (
        {"pools": {"cpu": {"tolerations": [{"key": "a", "effect": "NoSchedul"}]}}},
        "'/pools/cpu/tolerations/0/effect'",
    ),
}
