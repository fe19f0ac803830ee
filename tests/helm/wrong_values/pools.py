"""Contradictions in what is said of pools."""

from __future__ import annotations

from tests.helm.conftest import Names, Object

GPU_ON = {"enabled": True, "device": "gpu"}
AUTOSCALED = {"cpu": {"autoscaling": {"enabled": True}}}
CPU_USE = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
PODS_METRIC = {
    "type": "Pods",
    "pods": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "1"}},
}
FOLLOWS_CPU = (
    "pools.gpu.autoscaling would follow the use of CPU or memory, which says nothing about a GPU. Name what it is to follow in "
    "pools.gpu.autoscaling.metrics, or set pools.gpu.autoscaling.enabled=false."
)
NEVER_WAKES = (
    "pools.cpu.autoscaling.minReplicas is 0, but without a Triton nothing would tell it to start one. Name a metric of type "
    "External or Object in pools.cpu.autoscaling.metrics, or set minReplicas=1."
)

# (values, what the sentence names)
CONTRADICTIONS: dict[str, tuple[Object, Names]] = {
    "BF16 on NVIDIA's server": (
        {"pools": {"cpu": {"server": "nvidia", "models": ["minilm-fp32", "minilm-bf16"]}}},
        ("pools.cpu.models", "minilm-bf16", "OpenVINO", "BF16", "FP32", "pools.cpu.server=tandem"),
    ),
    "a pool that is killed while it drains": (
        {"pools": {"cpu": {"terminationGracePeriodSeconds": 60, "drain": {"exitTimeoutSeconds": 90}}}},
        ("pools.cpu.terminationGracePeriodSeconds", "60", "100", "5", "90"),
    ),
    "shared memory that takes all memory": (
        {"pools": {"cpu": {"shmSize": "2Gi", "resources": {"limits": {"memory": "2048Mi"}}}}},
        ("pools.cpu.shmSize", "2Gi", "pools.cpu.resources.limits.memory", "2048Mi", "shmSize"),
    ),
    "tolerations that took the place of the chart's": (
        {"pools": {"gpu": {**GPU_ON, "tolerations": [{"key": "spot", "operator": "Exists"}]}}},
        ("pools.gpu.tolerations", "nvidia.com/gpu", "NoSchedule}"),
    ),
    "tolerations for all pools that the chart's own would have hidden": (
        {"poolDefaults": {"tolerations": [{"key": "spot", "operator": "Exists"}]}, "pools": {"gpu": GPU_ON}},
        ("pools.gpu.tolerations", "nvidia.com/gpu", "NoSchedule}"),
    ),
    "pools without an account": (
        {"triton": {"serviceAccount": {"create": False}}},
        ("triton.serviceAccount.create", "triton.serviceAccount.name"),
    ),
    "a pool without models": (
        {"pools": {"extra": {}}},
        ("pools.extra.models", "digits-fp32"),
    ),
    "how NVIDIA's server is to run a model": (
        {"pools": {"cpu": {"server": "nvidia", "queueDelayUs": 0}}},
        ("pools.cpu.queueDelayUs", "pools.cpu.server=tandem"),
    ),
    "versions beside each other on NVIDIA's server": (
        {"pools": {"cpu": {"server": "nvidia", "versions": 2}}},
        ("pools.cpu.versions", "pools.cpu.server=tandem"),
    ),
    "buffers on NVIDIA's server": (
        {"pools": {"cpu": {"server": "nvidia", "batchBuckets": "auto"}}},
        ("pools.cpu.batchBuckets", "pools.cpu.server=tandem"),
    ),
    "options of a card on NVIDIA's server": (
        {"pools": {"gpu": {**GPU_ON, "cuda": {"prefer_nhwc": True}}}},
        ("pools.gpu.cuda", "pools.gpu.server=tandem"),
    ),
    "options of a card on CPU nodes": (
        {"pools": {"cpu": {"server": "tandem", "cuda": {"prefer_nhwc": True}}}},
        ("pools.cpu.cuda", "pools.cpu.device", "pools.cpu.device=gpu"),
    ),
    "an option of a card with letters swapped": (
        {"pools": {"gpu": {**GPU_ON, "server": "tandem", "cuda": {"prefer_nhcw": True}}}},
        ("pools.gpu.cuda", "prefer_nhcw", "prefer_nhwc?"),
    ),
    "an option of a card as the chart's other names are written": (
        {"pools": {"gpu": {**GPU_ON, "server": "tandem", "batchBuckets": "auto", "cuda": {"enableCudaGraph": True}}}},
        ("pools.gpu.cuda", "enableCudaGraph", "enable_cuda_graph?"),
    ),
    "an option of a card that is a variant's": (
        {"pools": {"gpu": {**GPU_ON, "server": "tandem", "cuda": {"use_tf32": True}}}},
        (
            "pools.gpu.cuda",
            "use_tf32",
            "arena_extend_strategy",
            "cudnn_conv1d_pad_to_nc1d",
            "cudnn_conv_algo_search",
            "cudnn_conv_use_max_workspace",
            "do_copy_in_default_stream",
            "enable_cuda_graph",
            "enable_cudnn",
            "fuse_conv_bias",
            "gpu_mem_limit",
            "prefer_nhwc",
            "sdpa_kernel",
            "tunable_op_enable",
            "tunable_op_tuning_enable",
            "use_ep_level_unified_stream",
        ),
    ),
    "graphs without sizes": (
        {"pools": {"gpu": {**GPU_ON, "server": "tandem", "cuda": {"enable_cuda_graph": True}}}},
        ("pools.gpu.cuda.enable_cuda_graph", "batchBuckets", "pools.gpu.batchBuckets=auto"),
    ),
    "lengths without sizes": (
        {"pools": {"cpu": {"server": "tandem", "bucketLengths": [16]}}},
        ("pools.cpu.bucketLengths", "batchBuckets", "pools.cpu.batchBuckets=auto"),
    ),
    "an image of the slim server for NVIDIA's": (
        {"pools": {"cpu": {"image": "tritonCpuOpenvino"}}},
        ("pools.cpu.image", "pools.cpu.server", "images.nvidia", "pools.cpu.server=tandem"),
    ),
    "a GPU image on CPU nodes": (
        {"pools": {"cpu": {"server": "tandem", "image": "tritonGpu"}}},
        ("pools.cpu.image", "tritonGpu", "pools.cpu.device"),
    ),
    "a CPU image on GPU nodes": (
        {"pools": {"gpu": {**GPU_ON, "server": "tandem", "image": "tritonCpuOpenvino"}}},
        ("pools.gpu.image", "tritonCpuOpenvino", "pools.gpu.device"),
    ),
    "FP16 on a CPU": (
        {"pools": {"cpu": {"models": ["digits-fp32", "digits-fp16"]}}},
        ("pools.cpu.models", "digits-fp16", "FP16", "pools.cpu.device=gpu"),
    ),
    "INT8 on a GPU": (
        {"pools": {"gpu": {**GPU_ON, "models": ["digits-int8"]}}},
        ("pools.gpu.models", "digits-int8", "FP32", "TF32", "FP16", "pools.gpu.device=cpu"),
    ),
    "TF32 on a CPU": (
        {"pools": {"cpu": {"models": ["minilm-fp32", "minilm-tf32"]}}},
        ("pools.cpu.models", "minilm-tf32", "TF32", "pools.cpu.device=gpu"),
    ),
    "BF16 on a GPU": (
        {"pools": {"gpu": {**GPU_ON, "models": ["minilm-bf16"]}}},
        ("pools.gpu.models", "minilm-bf16", "FP32", "TF32", "FP16", "pools.gpu.device=cpu"),
    ),
    "BF16 without OpenVINO": (
        {"pools": {"cpu": {"server": "tandem", "models": ["minilm-fp32", "minilm-bf16"]}}},
        ("pools.cpu.models", "minilm-bf16", "OpenVINO", "BF16", "pools.cpu.image=tritonCpuOpenvino"),
    ),
    "an argument of NVIDIA's server twice": (
        {"pools": {"cpu": {"extraArgs": ["--log-verbose=1", "--load-model=*"]}}},
        ("pools.cpu.extraArgs", "--load-model"),
    ),
    "an argument of tandem triton twice": (
        {"pools": {"cpu": {"server": "tandem", "extraArgs": ["--http-port", "9000"]}}},
        ("pools.cpu.extraArgs", "--http-port"),
    ),
    "a label by which pods are found": (
        {"pools": {"cpu": {"podLabels": {"tandem-pool": "other"}}}},
        ("pools.cpu.podLabels",),
    ),
    "an open Triton with known holes": (
        {"pools": {"cpu": {"server": "tandem"}}, "networkPolicy": {"enabled": False}},
        ("pools.cpu.server", "2.51", "networkPolicy.enabled=true", "pools.cpu.server=nvidia"),
    ),
    "a GPU pool that follows CPU use": (
        {"pools": {"gpu": {**GPU_ON, "autoscaling": {"enabled": True, "by": "metrics"}}}},
        FOLLOWS_CPU,
    ),
    "a GPU pool that follows CPU use in other words": (
        {"pools": {"gpu": {**GPU_ON, "autoscaling": {"enabled": True, "metrics": [CPU_USE]}}}},
        FOLLOWS_CPU,
    ),
    "an autoscaler that would never wake": (
        {"pools": {"cpu": {"autoscaling": {"enabled": True, "minReplicas": 0}}}},
        NEVER_WAKES,
    ),
    "an autoscaler that follows what is not there": (
        {"pools": {"cpu": {"autoscaling": {"enabled": True, "minReplicas": 0, "metrics": [PODS_METRIC]}}}},
        NEVER_WAKES,
    ),
    "a share of no CPU": (
        {"poolDefaults": {"resources": {"requests": {"cpu": None}, "limits": {"cpu": None}}}, "pools": AUTOSCALED},
        ("pools.cpu.autoscaling.targetCpuPercent", "pools.cpu.resources", "pools.cpu.resources.requests.cpu"),
    ),
    "an autoscaler upside down": (
        {"pools": {"cpu": {"autoscaling": {"minReplicas": 5}}}},
        ("pools.cpu.autoscaling.minReplicas", "5", "maxReplicas", "4"),
    ),
    "a card asked for twice": (
        {"pools": {"gpu": {**GPU_ON, "resources": {"limits": {"nvidia.com/gpu": 1}}}}},
        (
            "pools.gpu.resources.limits",
            "nvidia.com/gpu",
            "pools.gpu.gpu",
            "pools.gpu.device=gpu",
            "gpu.resource",
            "gpu.count",
        ),
    ),
    "a card for a CPU pool": (
        {"pools": {"cpu": {"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}}},
        (
            "pools.cpu.resources.limits",
            "nvidia.com/mig-1g.10gb",
            "pools.cpu.gpu",
            "pools.cpu.device=gpu",
            "gpu.resource",
            "gpu.count",
        ),
    ),
    "several slices of a card": (
        {"pools": {"gpu": {**GPU_ON, "gpu": {"resource": "nvidia.com/mig-1g.10gb", "count": 2}}}},
        ("pools.gpu.gpu.count", "2", "nvidia.com/mig-1g.10gb", "1", "pools.gpu.replicas"),
    ),
    "several shares of a card": (
        {"pools": {"gpu": {**GPU_ON, "gpu": {"resource": "nvidia.com/gpu.shared", "count": 3}}}},
        ("pools.gpu.gpu.count", "3", "nvidia.com/gpu.shared", "1", "pools.gpu.replicas"),
    ),
    "a kind of card for a CPU pool": (
        {"pools": {"cpu": {"gpu": {"resource": "nvidia.com/gpu.shared"}}}},
        ("pools.cpu.gpu", "pools.cpu.device", "pools.cpu.device=gpu"),
    ),
    "a large image on every node": (
        {"pools": {"gpu": {**GPU_ON, "prePull": {"enabled": True}}}},
        ("pools.gpu.prePull.enabled", "pools.gpu.nodeSelector", "{nvidia.com/gpu.present"),
    ),
    "a price that was forgotten": (
        {"pools": {"gpu": {**GPU_ON, "pricePerHour": 1.2}}},
        ("pools.cpu.pricePerHour", "pools.gpu"),
    ),
    "fewest above most": (
        {"pools": {"cpu": {"minReplicas": 3, "maxReplicas": 2}}},
        ("pools.cpu.minReplicas", "3", "maxReplicas", "2"),
    ),
    "more kept than there are": (
        {"pools": {"cpu": {"replicas": 2, "minReplicas": 3}}},
        ("pools.cpu.minReplicas", "3", "2", "pools.cpu.replicas", "pools.cpu.replicas=null"),
    ),
    "fewer to be had than there are": (
        {"pools": {"cpu": {"replicas": 3, "minReplicas": 2, "maxReplicas": 2}}},
        ("pools.cpu.maxReplicas", "2", "3", "pools.cpu.replicas", "pools.cpu.replicas=null"),
    ),
    "two autoscalers' numbers": (
        {"pools": {"cpu": {"maxReplicas": 9, "autoscaling": {"enabled": True}}}},
        ("pools.cpu.minReplicas", "maxReplicas", "pools.cpu.autoscaling"),
    ),
}
