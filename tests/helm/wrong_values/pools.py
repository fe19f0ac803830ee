"""Contradictions in what is said of pools."""

from __future__ import annotations

from tests.helm.conftest import Object

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

# (values, the whole sentence)
CONTRADICTIONS: dict[str, tuple[Object, str]] = {
    "BF16 on NVIDIA's server": (
        {"pools": {"cpu": {"server": "nvidia", "models": ["minilm-fp32", "minilm-bf16"]}}},
        "pools.cpu.models names minilm-bf16, but NVIDIA's server cannot ask OpenVINO for BF16 and would compute in FP32 without "
        "a word. Leave it out, or set pools.cpu.server=tandem.",
    ),
    "a pool that is killed while it drains": (
        {"pools": {"cpu": {"terminationGracePeriodSeconds": 60, "drain": {"exitTimeoutSeconds": 90}}}},
        "pools.cpu.terminationGracePeriodSeconds is 60, but its drain takes 100 s (5 before SIGTERM, 90 to finish, 5 margin), "
        "so requests would be cut off. Raise it to 100, shorten the drain, or leave it unset.",
    ),
    "shared memory that takes all memory": (
        {"pools": {"cpu": {"shmSize": "2Gi", "resources": {"limits": {"memory": "2048Mi"}}}}},
        "pools.cpu.shmSize is 2Gi, all of pools.cpu.resources.limits.memory of 2048Mi, which it counts for. Raise the limit, or lower "
        "shmSize.",
    ),
    "tolerations that took the place of the chart's": (
        {"pools": {"gpu": {**GPU_ON, "tolerations": [{"key": "spot", "operator": "Exists"}]}}},
        "pools.gpu.tolerations replaces the chart's own, and has lost nvidia.com/gpu, the taint by which GPU nodes keep others out. Add "
        "{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}.",
    ),
    "pools without an account": (
        {"triton": {"serviceAccount": {"create": False}}},
        "triton.serviceAccount.create is false and no name is given. Set triton.serviceAccount.name to an account that exists.",
    ),
    "a pool without models": (
        {"pools": {"extra": {}}},
        "pools.extra.models is empty, so its Triton would serve nothing. Name the variants to load, for example digits-fp32.",
    ),
    "how NVIDIA's server is to run a model": (
        {"pools": {"cpu": {"server": "nvidia", "queueDelayUs": 0}}},
        "pools.cpu.queueDelayUs would be ignored, because NVIDIA's server reads it from the model repository. "
        "Leave it out, or set pools.cpu.server=tandem.",
    ),
    "versions beside each other on NVIDIA's server": (
        {"pools": {"cpu": {"server": "nvidia", "versions": 2}}},
        "pools.cpu.versions would be ignored, because NVIDIA's server reads it from the model repository. "
        "Leave it out, or set pools.cpu.server=tandem.",
    ),
    "buffers on NVIDIA's server": (
        {"pools": {"cpu": {"server": "nvidia", "batchBuckets": "auto"}}},
        "pools.cpu.batchBuckets would be ignored, because NVIDIA's server reads it from the model repository. "
        "Leave it out, or set pools.cpu.server=tandem.",
    ),
    "options of a card on NVIDIA's server": (
        {"pools": {"gpu": {**GPU_ON, "cuda": {"prefer_nhwc": True}}}},
        "pools.gpu.cuda would be ignored, because NVIDIA's server reads it from the model repository. "
        "Leave it out, or set pools.gpu.server=tandem.",
    ),
    "options of a card on CPU nodes": (
        {"pools": {"cpu": {"server": "tandem", "cuda": {"prefer_nhwc": True}}}},
        "pools.cpu.cuda would be ignored, because pools.cpu.device is cpu. Leave it out, or set pools.cpu.device=gpu.",
    ),
    "an option of a card with letters swapped": (
        {"pools": {"gpu": {**GPU_ON, "server": "tandem", "cuda": {"prefer_nhcw": True}}}},
        "pools.gpu.cuda has no option prefer_nhcw; did you mean prefer_nhwc?",
    ),
    "an option of a card as the chart's other names are written": (
        {"pools": {"gpu": {**GPU_ON, "server": "tandem", "batchBuckets": "auto", "cuda": {"enableCudaGraph": True}}}},
        "pools.gpu.cuda has no option enableCudaGraph; did you mean enable_cuda_graph?",
    ),
    "an option of a card that is a variant's": (
        {"pools": {"gpu": {**GPU_ON, "server": "tandem", "cuda": {"use_tf32": True}}}},
        "pools.gpu.cuda has no option use_tf32; known: arena_extend_strategy, cudnn_conv1d_pad_to_nc1d, cudnn_conv_algo_search, "
        "cudnn_conv_use_max_workspace, do_copy_in_default_stream, enable_cuda_graph, enable_cudnn, fuse_conv_bias, gpu_mem_limit, "
        "prefer_nhwc, sdpa_kernel, tunable_op_enable, tunable_op_tuning_enable, use_ep_level_unified_stream.",
    ),
    "graphs without sizes": (
        {"pools": {"gpu": {**GPU_ON, "server": "tandem", "cuda": {"enable_cuda_graph": True}}}},
        "pools.gpu.cuda.enable_cuda_graph needs batchBuckets, because a graph replays batches of one size. "
        "Set pools.gpu.batchBuckets=auto, or leave it out.",
    ),
    "lengths without sizes": (
        {"pools": {"cpu": {"server": "tandem", "bucketLengths": [16]}}},
        "pools.cpu.bucketLengths are of batchBuckets, and there are none. Set pools.cpu.batchBuckets=auto, or leave them out.",
    ),
    "an image of the slim server for NVIDIA's": (
        {"pools": {"cpu": {"image": "tritonCpuOpenvino"}}},
        "pools.cpu.image would be ignored, because pools.cpu.server is nvidia, whose image is images.nvidia. "
        "Leave it out, or set pools.cpu.server=tandem.",
    ),
    "a GPU image on CPU nodes": (
        {"pools": {"cpu": {"server": "tandem", "image": "tritonGpu"}}},
        "pools.cpu.image is tritonGpu, but pools.cpu.device is cpu. Leave the image out, which takes the device's own, "
        "or change the device.",
    ),
    "a CPU image on GPU nodes": (
        {"pools": {"gpu": {**GPU_ON, "server": "tandem", "image": "tritonCpuOpenvino"}}},
        "pools.gpu.image is tritonCpuOpenvino, but pools.gpu.device is gpu. Leave the image out, which takes the device's own, "
        "or change the device.",
    ),
    "FP16 on a CPU": (
        {"pools": {"cpu": {"models": ["digits-fp32", "digits-fp16"]}}},
        "pools.cpu.models names digits-fp16, but FP16 never runs on a CPU. Leave it out, or set pools.cpu.device=gpu.",
    ),
    "INT8 on a GPU": (
        {"pools": {"gpu": {**GPU_ON, "models": ["digits-int8"]}}},
        "pools.gpu.models names digits-int8, but of a model's variants only FP32, TF32 and FP16 run on a GPU. Leave it out, "
        "or set pools.gpu.device=cpu.",
    ),
    "TF32 on a CPU": (
        {"pools": {"cpu": {"models": ["minilm-fp32", "minilm-tf32"]}}},
        "pools.cpu.models names minilm-tf32, but processors have no TF32. Leave it out, or set pools.cpu.device=gpu.",
    ),
    "BF16 on a GPU": (
        {"pools": {"gpu": {**GPU_ON, "models": ["minilm-bf16"]}}},
        "pools.gpu.models names minilm-bf16, but of a model's variants only FP32, TF32 and FP16 run on a GPU. Leave it out, "
        "or set pools.gpu.device=cpu.",
    ),
    "BF16 without OpenVINO": (
        {"pools": {"cpu": {"server": "tandem", "models": ["minilm-fp32", "minilm-bf16"]}}},
        "pools.cpu.models names minilm-bf16, but only OpenVINO computes in BF16. Leave it out, or set "
        "pools.cpu.image=tritonCpuOpenvino.",
    ),
    "an argument of NVIDIA's server twice": (
        {"pools": {"cpu": {"extraArgs": ["--log-verbose=1", "--load-model=*"]}}},
        "pools.cpu.extraArgs has --load-model, which the chart sets itself. Leave it out.",
    ),
    "an argument of tandem triton twice": (
        {"pools": {"cpu": {"server": "tandem", "extraArgs": ["--http-port", "9000"]}}},
        "pools.cpu.extraArgs has --http-port, which the chart sets itself. Leave it out.",
    ),
    "a label by which pods are found": (
        {"pools": {"cpu": {"podLabels": {"tandem-pool": "other"}}}},
        "pools.cpu.podLabels has tandem-pool, which the chart sets itself and finds its pods by. Leave it out.",
    ),
    "an open Triton with known holes": (
        {"pools": {"cpu": {"server": "tandem"}}, "networkPolicy": {"enabled": False}},
        "pools.cpu.server is tandem, whose Triton 2.51 has known security holes and may only be reached by the gateway. "
        "Keep networkPolicy.enabled=true, or set pools.cpu.server=nvidia.",
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
        "pools.cpu.autoscaling.targetCpuPercent is a share of the CPU that a Triton requests, and pools.cpu.resources requests "
        "none. Set pools.cpu.resources.requests.cpu.",
    ),
    "an autoscaler upside down": (
        {"pools": {"cpu": {"autoscaling": {"minReplicas": 5}}}},
        "pools.cpu.autoscaling.minReplicas is 5, more than its maxReplicas of 4. Make them agree.",
    ),
    "a card asked for twice": (
        {"pools": {"gpu": {**GPU_ON, "resources": {"limits": {"nvidia.com/gpu": 1}}}}},
        "pools.gpu.resources.limits names nvidia.com/gpu, which pools.gpu.gpu sets. Use pools.gpu.device=gpu with gpu.resource "
        "and gpu.count.",
    ),
    "a card for a CPU pool": (
        {"pools": {"cpu": {"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}}},
        "pools.cpu.resources.limits names nvidia.com/mig-1g.10gb, which pools.cpu.gpu sets. Use pools.cpu.device=gpu with "
        "gpu.resource and gpu.count.",
    ),
    "several slices of a card": (
        {"pools": {"gpu": {**GPU_ON, "gpu": {"resource": "nvidia.com/mig-1g.10gb", "count": 2}}}},
        "pools.gpu.gpu.count is 2, but a Triton gains nothing by more than one nvidia.com/mig-1g.10gb. Set it to 1 and raise "
        "pools.gpu.replicas, or take a larger part of the card.",
    ),
    "several shares of a card": (
        {"pools": {"gpu": {**GPU_ON, "gpu": {"resource": "nvidia.com/gpu.shared", "count": 3}}}},
        "pools.gpu.gpu.count is 3, but a Triton gains nothing by more than one nvidia.com/gpu.shared. Set it to 1 and raise "
        "pools.gpu.replicas, or take a larger part of the card.",
    ),
    "a kind of card for a CPU pool": (
        {"pools": {"cpu": {"gpu": {"resource": "nvidia.com/gpu.shared"}}}},
        "pools.cpu.gpu would be ignored, because pools.cpu.device is cpu. Leave it out, or set pools.cpu.device=gpu.",
    ),
    "a large image on every node": (
        {"pools": {"gpu": {**GPU_ON, "prePull": {"enabled": True}}}},
        "pools.gpu.prePull.enabled is true, but nothing tells GPU nodes from others, so every node would pull the image. "
        'Set pools.gpu.nodeSelector, for example {nvidia.com/gpu.present: "true"}.',
    ),
    "a price that was forgotten": (
        {"pools": {"gpu": {**GPU_ON, "pricePerHour": 1.2}}},
        "pools.cpu.pricePerHour is not set and that of pools.gpu is. Give every pool that is on a price, or none (without prices "
        "all Tritons cost the same).",
    ),
    "fewest above most": (
        {"pools": {"cpu": {"minReplicas": 3, "maxReplicas": 2}}},
        "pools.cpu.minReplicas is 3, more than its maxReplicas of 2. Make them agree.",
    ),
    "more kept than there are": (
        {"pools": {"cpu": {"replicas": 2, "minReplicas": 3}}},
        "pools.cpu.minReplicas is 3, more than the 2 of pools.cpu.replicas, which nothing changes. Make them agree, or set "
        "pools.cpu.replicas=null where a scaler of yours owns the number.",
    ),
    "fewer to be had than there are": (
        {"pools": {"cpu": {"replicas": 3, "minReplicas": 2, "maxReplicas": 2}}},
        "pools.cpu.maxReplicas is 2, less than the 3 of pools.cpu.replicas, which nothing changes. Make them agree, or set "
        "pools.cpu.replicas=null where a scaler of yours owns the number.",
    ),
    "two autoscalers' numbers": (
        {"pools": {"cpu": {"maxReplicas": 9, "autoscaling": {"enabled": True}}}},
        "pools.cpu.minReplicas and maxReplicas would be ignored, because pools.cpu.autoscaling is on and has its own. "
        "Leave them out.",
    ),
}
