"""From a model's configuration to a session of ONNX Runtime: threads, execution providers and their options.

Answers: which provider computes this model, with which options, or why is it refused? Not here: requests (`model.py`),
buffers (`bindings.py`) and what a machine lacks on which a provider does not start (`cuda_libraries.py`). Keep: an option that
cannot be honoured fails the load, because ONNX Runtime would only warn and compute elsewhere.
"""

import contextlib
import ctypes
import difflib
import json
import mmap
import os
import pathlib
import re
import sys

import bindings
import cuda_libraries
import sizes
import triton_python_backend_utils as pb

ort = None  # the build of ONNX Runtime that the model's configuration asks for, see import_engine

# optimization.graph.level as the C++ backend reads it; absent is 0.
GRAPH_LEVELS = {-1: "ORT_ENABLE_BASIC", 0: "ORT_ENABLE_ALL", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}

# The four CUDA options that stand at the top level of `parameters`; two of them are numbers that mean a word.
CUDA_WORDS = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
}
CUDA_PARAMETERS = ("cudnn_conv_algo_search", "gpu_mem_limit", "arena_extend_strategy", "do_copy_in_default_stream")

# Where a name in the tensorrt block is not the provider's own name.
TENSORRT_NAMES = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
TENSORRT_PRECISIONS = ("FP32", *cuda_libraries.TENSORRT_FLAGS)
TYPED = ("FP16", "INT8")  # variants whose files have their precision in their own types

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
# Provider -> its library, and an option whose name lies among those of the others there: a provider has no other list of its options.
LIBRARIES = {
    CUDA: ("libonnxruntime_providers_cuda.so", b"cudnn_conv_use_max_workspace"),
    TENSORRT: ("libonnxruntime_providers_tensorrt.so", b"trt_fp16_enable"),
}
NEIGHBOURHOOD = 4096  # bytes around it; 31 names of the 1.31.1 library lie within 2,000
COMPUTE_CAPABILITY_MAJOR, FIRST_WITH_TF32 = 75, 8  # cudaDevAttrComputeCapabilityMajor; Ampere

OPENVINO = "OpenVINOExecutionProvider"
OPENVINO_SITE = (
    "TANDEM_OPENVINO_SITE"  # the packages of OpenVINO's environment; `tandem triton` sets it where there is one
)
# precision in the openvino block -> OpenVINO's inference precision hint -> flags of /proc/cpuinfo of which it needs one: without
# any, OpenVINO would compute in FP32 and not say so.
OPENVINO_PRECISIONS = {"FP32": "f32", "BF16": "bf16", "FP16": "f16"}
HINT_FLAGS = {"bf16": ("amx_bf16", "avx512_bf16"), "f16": ("amx_fp16", "avx512_fp16")}
CPUINFO = pathlib.Path("/proc/cpuinfo")
ASSIGNMENT = "session.record_ep_graph_assignment_info"  # makes ONNX Runtime remember which provider computes which node

SHRINKAGE = "memory.enable_memory_arena_shrinkage"
BUCKETS, LENGTHS = "batch_buckets", "bucket_lengths"  # this backend's own: buffers for batches, see bindings.py
MAX_LENGTH = 65536
GRAPHS = "enable_cuda_graph"
KNOWN_PARAMETERS = (
    "intra_op_thread_count",
    "inter_op_thread_count",
    "execution_mode",
    "enable_mem_arena",
    "enable_mem_pattern",
    SHRINKAGE,
    BUCKETS,
    LENGTHS,
    *CUDA_PARAMETERS,
)


def refuse(reason):
    """The load fails, and this is the reason that Triton shows."""
    return pb.TritonModelException(reason)


# -- reading the configuration ----------------------------------------------------------------------------------------


class Parameters:
    """The string parameters of a configuration, read as what they stand for."""

    def __init__(self, config):
        self.values = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}

    def number(self, key, default, allowed=None):
        text = self.values.get(key, "").strip()
        if not text:
            return default
        try:
            value = int(text)
        except ValueError:
            value = -1
        if value < 0 or (allowed is not None and value not in allowed):
            choice = "a whole number, 0 or more" if allowed is None else "one of " + ", ".join(map(str, allowed))
            raise refuse(f"parameter '{key}' is '{text}'; it must be {choice}")
        return value

    def flag(self, key, default):
        text = self.values.get(key, "").strip().lower()
        if text not in ("", "0", "1", "false", "true"):
            raise refuse(f"parameter '{key}' is '{text}'; it must be 0 or 1")
        return text in ("1", "true") if text else default

    def session_entries(self):
        return {key: value for key, value in self.values.items() if key.startswith("session.")}

    def suspects(self):
        """(misspelt, meant) of parameters that nobody reads but that look like one that is read."""
        strange = [k for k in self.values if k not in KNOWN_PARAMETERS and not k.startswith(("session.", "tandem_"))]
        near = ((k, difflib.get_close_matches(k, KNOWN_PARAMETERS, n=1)) for k in strange)
        return [(k, found[0]) for k, found in near if found]


def session_options(config):
    parameters, options = Parameters(config), ort.SessionOptions()
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    if level not in GRAPH_LEVELS:
        raise refuse(f"optimization.graph.level is {level}; it must be one of {', '.join(map(str, GRAPH_LEVELS))}")
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, GRAPH_LEVELS[level])
    options.intra_op_num_threads = parameters.number("intra_op_thread_count", 0)  # 0: ONNX Runtime's own default
    options.inter_op_num_threads = parameters.number("inter_op_thread_count", 0)
    parallel = parameters.number("execution_mode", 0, allowed=(0, 1))
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if parallel else ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = parameters.flag("enable_mem_arena", True)
    options.enable_mem_pattern = parameters.flag("enable_mem_pattern", True)
    for key, value in parameters.session_entries().items():
        options.add_session_config_entry(key, value)
    for library in config.get("model_operations", {}).get("op_library_filename", []):
        options.register_custom_ops_library(library)
    return options


def run_options(config):
    """Options of each run, or None where there are none."""
    value = Parameters(config).values.get(SHRINKAGE)
    if not value:
        return None
    options = ort.RunOptions()
    options.add_run_config_entry(SHRINKAGE, value)
    return options


def open_buckets(session, config, kind, device):
    """Buffers for the batches that the configuration names, or None where it names none."""
    parameters, captures = Parameters(config), captures_graphs(config, kind)
    text = parameters.values.get(BUCKETS, "").strip()
    if not text:
        if captures:
            raise refuse(f"{GRAPHS} needs {BUCKETS}, because a graph replays batches of one size: as {BUCKETS} 'auto'")
        return None
    entries = {SHRINKAGE: value} if (value := parameters.values.get(SHRINKAGE)) else {}
    try:
        sizes = bindings.batch_sizes(text, config["max_batch_size"])
        lengths = parameters.values.get(LENGTHS, "").strip()
        lengths = bindings.whole_numbers(LENGTHS, lengths, MAX_LENGTH) if lengths else []
        memory = bindings.CardMemory(int(device)) if kind == "GPU" else bindings.PlainMemory()
        return bindings.Buckets(session, ort, memory, sizes, lengths, captures=captures, entries=entries)
    except (ValueError, RuntimeError) as e:
        raise refuse(str(e)) from None


def identity(path):
    """Of the model's file and what lies beside it, where large weights are: another one once any of them has been replaced."""
    found = ((file.name, file.stat()) for file in path.parent.iterdir())
    return sorted((name, at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns) for name, at in found)


def open_sizes(session, path, loaded, config, kind, device, told):
    """A session for each size of batch where the provider would plan convolutions anew, or None: see sizes.py.

    `loaded`: the `identity` of what `session` has: a file that was replaced since answers nobody. `told`: is told what went wrong.
    """
    shapes = [node.shape for node in session.get_inputs()]
    is_batched = config["max_batch_size"] > 0 and all(shape and not isinstance(shape[0], int) for shape in shapes)
    if not is_batched or session.get_providers()[0] != CUDA or not sizes.has_convolutions(path):
        return None
    if any(
        not isinstance(size, int) for shape in shapes for size in shape[1:]
    ):  # lengths would change beside the size of the batch
        return None
    if "gpu_mem_limit" in cuda_options(accelerators(config, kind).get("cuda", {}), Parameters(config), device):
        return None  # it is a limit of the whole model

    def opened():
        found = open_session(path, config, kind, device) if identity(path) == loaded else None
        if found is None or identity(path) != loaded:
            raise RuntimeError("the model's file has been replaced since it was loaded")
        return found

    return sizes.Sizes(session, opened, told, config["max_batch_size"])


def captures_graphs(config, kind):
    return kind == "GPU" and accelerators(config, kind).get("cuda", {}).get(GRAPHS, "0").lower() in ("1", "true")


def model_file(directory, config):
    """The file to load. A directory of that name holds model.onnx and its external data."""
    path = pathlib.Path(directory, config.get("default_model_filename") or "model.onnx")
    return path / "model.onnx" if path.is_dir() else path


# -- execution providers ----------------------------------------------------------------------------------------------


def import_engine(config, kind):
    """The ONNX Runtime that can do what the configuration asks for: OpenVINO's is a build in an environment of its own."""
    global ort
    if "openvino" in accelerators(config, kind):
        site = os.environ.get(OPENVINO_SITE, "")
        if not site or not pathlib.Path(site, "onnxruntime").is_dir():
            raise refuse("the model asks for openvino, which is not installed here: tandem environment openvino")
        sys.path.insert(0, site)  # before the server's own packages; NumPy is loaded already and the same there
    import onnxruntime

    ort = onnxruntime


def accelerators(config, kind):
    """{name: parameters} of the accelerator blocks that count for an instance of this kind."""
    group = "gpu_execution_accelerator" if kind == "GPU" else "cpu_execution_accelerator"
    known = ("tensorrt", "cuda") if kind == "GPU" else ("openvino",)
    blocks = config.get("optimization", {}).get("execution_accelerators", {}).get(group, [])
    for block in blocks:
        if block["name"] not in known:
            raise refuse(f"{group} '{block['name']}' is not known here; known: {', '.join(known)}")
    return {block["name"]: dict(block.get("parameters", {})) for block in blocks}


def tensorrt_options(block, parameters, device):
    """A precision flag where the TensorRT that the provider is linked with has such flags; a newer one would ignore it and compute in FP32.

    Files that Tandem exported as `fp16` or `int8` have that precision in their own types, and need none there.
    """
    options = {TENSORRT_NAMES.get(key, key): value for key, value in block.items() if key != "precision_mode"}
    precision = block.get("precision_mode", "FP32")
    if precision not in TENSORRT_PRECISIONS:
        raise refuse(f"tensorrt precision_mode '{precision}' is none of {', '.join(TENSORRT_PRECISIONS)}")
    is_typed = precision in TYPED and parameters.values.get("tandem_variant", "").upper() == precision
    try:
        flag = cuda_libraries.tensorrt_flag(
            precision, cuda_libraries.tensorrt_version(provider_library(TENSORRT)), is_typed
        )
    except ValueError as e:
        raise refuse(str(e)) from None
    if flag:
        options[flag] = "1"
    return {**options, "device_id": device}


def provider_library(provider):
    """Its shared library; None where it is in none of its own."""
    path = pathlib.Path(ort.__file__).parent / "capi" / LIBRARIES[provider][0]
    return path if path.is_file() else None


@contextlib.contextmanager
def bytes_of(path):
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


def require_known(provider, options):
    """Refuses options that this build of the provider does not have: it would say so only among its other words, or not at all."""
    library = provider_library(provider)
    if library is None:
        return
    with bytes_of(library) as content:
        for name in options:
            if content.find(b"\0" + name.encode() + b"\0") < 0:
                at = content.find(b"\0" + LIBRARIES[provider][1] + b"\0")
                around = content[max(0, at - NEIGHBOURHOOD) : at + NEIGHBOURHOOD] if at >= 0 else b""
                known = {word.decode() for word in re.findall(rb"(?<=\0)[a-z][a-z0-9_]{4,63}(?=\0)", around)}
                near = difflib.get_close_matches(name, sorted(known), n=1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                raise refuse(f"the {provider} of ONNX Runtime {ort.__version__} has no option '{name}'{hint}")


def cuda_options(block, parameters, device):
    """The four top-level parameters win over the block, as they do in the C++ backend."""
    top = {key: parameters.values[key] for key in CUDA_PARAMETERS if key in parameters.values}
    for key, words in CUDA_WORDS.items():
        if key in top:
            top[key] = words[parameters.number(key, 0, allowed=range(len(words)))]
    return {**block, **top, "device_id": device}


def openvino_options(block, parameters):
    """The C++ backend passes the device alone. Here the precision, OpenVINO's own settings and the threads pass too."""
    options = {key: value for key, value in block.items() if key not in ("precision", "load_config")}
    try:
        settings = json.loads(block.get("load_config") or "{}")
    except ValueError as e:
        raise refuse(f"openvino load_config is not JSON text: {e}") from None
    precision = block.get("precision", "FP32")
    if precision not in OPENVINO_PRECISIONS:
        raise refuse(f"openvino precision '{precision}' is none of {', '.join(OPENVINO_PRECISIONS)}")
    cpu = settings.setdefault("CPU", {})
    # FP32 is said as well: OpenVINO by itself would compute FP32 models in BF16 where the processor has it, unproven
    check_hint(cpu.setdefault("INFERENCE_PRECISION_HINT", OPENVINO_PRECISIONS[precision]))
    threads = parameters.number("intra_op_thread_count", 0)
    if threads:
        cpu.setdefault("INFERENCE_NUM_THREADS", str(threads))
    return {**options, "device_type": "CPU", "load_config": json.dumps(settings)}


def check_hint(hint):
    flags = HINT_FLAGS.get(str(hint).lower(), ())
    if flags and not processor_flags().intersection(flags):
        needs = " or ".join(flags)
        raise refuse(f"openvino precision {hint} needs a processor with {needs}; on this one it would compute in FP32")


def processor_flags():
    """What the first processor of /proc/cpuinfo can do; nothing where there is no such file."""
    with contextlib.suppress(OSError):
        for line in CPUINFO.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                return set(value.split())
    return set()


def providers(config, kind, device):
    """[(provider, options)] in order of preference; the first is the one that the configuration asks for."""
    parameters, blocks, wanted = Parameters(config), accelerators(config, kind), []
    if "tensorrt" in blocks:
        wanted.append((TENSORRT, tensorrt_options(blocks["tensorrt"], parameters, device)))
    if kind == "GPU":
        wanted.append((CUDA, cuda_options(blocks.get("cuda", {}), parameters, device)))
    if "openvino" in blocks:
        wanted.append((OPENVINO, openvino_options(blocks["openvino"], parameters)))
    built = ort.get_available_providers()
    for name, _ in wanted:
        if name not in built:
            raise refuse(f"{name} is asked for, but this ONNX Runtime {ort.__version__} has only {', '.join(built)}")
    for name, options in wanted:
        if name in LIBRARIES:
            require_known(name, options)
    return [*wanted, ("CPUExecutionProvider", {})]


def open_session(path, config, kind, device):
    """A session whose first provider is the one asked for, or a refusal: never quietly another device."""
    wanted = providers(config, kind, device)
    if kind == "GPU":
        if why := cuda_libraries.no_driver(ort):
            raise refuse(why)
        cuda_libraries.preload(ort)
    options = session_options(config)
    if wanted[0][0] == OPENVINO:
        options.add_session_config_entry(ASSIGNMENT, "1")
    # without fallback: a provider that fails, now or later, must not be replaced by the CPU
    try:
        session = ort.InferenceSession(str(path), options, providers=wanted, enable_fallback=0)
    except Exception as e:
        if kind == "GPU" and (why := cuda_libraries.why_failed(ort, str(e))):
            raise refuse(f"{wanted[0][0]} did not start on device {device}: {why}") from None
        raise
    got = session.get_providers()
    if got[0] != wanted[0][0]:
        why = f": {found}" if (found := why_not_loaded(wanted[0][0])) else ""
        raise refuse(f"{wanted[0][0]} did not start on device {device}{why}; the model would have run on {got[0]}")
    if kind == "GPU" and dict(wanted).get(CUDA, {}).get("use_tf32") == "1":
        require_tf32(device)
    if got[0] == OPENVINO and not any(
        part.ep_name == OPENVINO for part in session.get_provider_graph_assignment_info()
    ):
        raise refuse("OpenVINO computes no node of this model; it would have run on ONNX Runtime's own provider")
    return session


def require_tf32(device, runtime=None):
    """Refuses a card that would compute TF32 in FP32 and not say so."""
    runtime, major = runtime or bindings.loaded_runtime(), ctypes.c_int()
    if (
        runtime.cudaDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, int(device))
        or major.value < FIRST_WITH_TF32
    ):
        raise refuse(
            f"use_tf32 is asked for, but device {device} has compute capability {major.value}.x, and TF32 begins with 8.0"
        )


def why_not_loaded(provider):
    """Why a provider did not start, with what to do, as far as its library shows it."""
    library = provider_library(provider) if provider in LIBRARIES else None
    return cuda_libraries.why_not_started(ort, library) if library else None
