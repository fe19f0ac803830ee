"""The Triton backend `onnxruntime`, in Python: the same config.pbtxt runs here and under the C++ backend of that name.

Answers: what does one instance of a model do with its configuration and with a batch of requests? It runs inside
Triton's stub, in an environment that has NumPy 1, ONNX Runtime and nothing else, so it imports no file of this project.
The stub is a process of this instance alone, so that each may have another build of ONNX Runtime: `import_engine` chooses.
Not here: auto-completion of configurations (ours state everything), decoupled models, BF16 tensors (NumPy has none).
Keep: an option that cannot be honoured fails the load, because ONNX Runtime would only warn and compute elsewhere.
"""

import contextlib
import difflib
import json
import os
import pathlib
import sys
import threading
import time

import numpy as np

if not np.__version__.startswith("1."):
    # The stub of Triton 2.51 was built before NumPy 2: it would hand over wrong values without an error.
    raise ImportError(
        f"Triton's stub needs NumPy 1, but its environment has {np.__version__}: install numpy==1.26.4 there"
    )

import triton_python_backend_utils as pb

ort = None  # the build of ONNX Runtime that the model's configuration asks for, see import_engine

# What ONNX Runtime calls a tensor's type -> what Triton calls it.
TRITON_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}

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
TENSORRT_PRECISIONS = {"FP32": None, "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}

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
KNOWN_PARAMETERS = (
    "intra_op_thread_count",
    "inter_op_thread_count",
    "execution_mode",
    "enable_mem_arena",
    "enable_mem_pattern",
    SHRINKAGE,
    *CUDA_PARAMETERS,
)

PARENT_POLL_S = 0.5  # a stub without its server holds 80 MB or more for at most this long (guess, not measured)


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


def tensorrt_options(block, device):
    options = {TENSORRT_NAMES.get(key, key): value for key, value in block.items() if key != "precision_mode"}
    precision = block.get("precision_mode", "FP32")
    if precision not in TENSORRT_PRECISIONS:
        raise refuse(f"tensorrt precision_mode '{precision}' is none of {', '.join(TENSORRT_PRECISIONS)}")
    if TENSORRT_PRECISIONS[precision]:
        options[TENSORRT_PRECISIONS[precision]] = "1"
    return {**options, "device_id": device}


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
        wanted.append(("TensorrtExecutionProvider", tensorrt_options(blocks["tensorrt"], device)))
    if kind == "GPU":
        wanted.append(("CUDAExecutionProvider", cuda_options(blocks.get("cuda", {}), parameters, device)))
    if "openvino" in blocks:
        wanted.append((OPENVINO, openvino_options(blocks["openvino"], parameters)))
    built = ort.get_available_providers()
    for name, _ in wanted:
        if name not in built:
            raise refuse(f"{name} is asked for, but this ONNX Runtime {ort.__version__} has only {', '.join(built)}")
    return [*wanted, ("CPUExecutionProvider", {})]


def open_session(path, config, kind, device):
    """A session whose first provider is the one asked for, or a refusal: never quietly another device."""
    wanted = providers(config, kind, device)
    if kind == "GPU" and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # finds CUDA's and cuDNN's libraries in the nvidia-* wheels of this environment
    options = session_options(config)
    if wanted[0][0] == OPENVINO:
        options.add_session_config_entry(ASSIGNMENT, "1")
    session = ort.InferenceSession(str(path), options, providers=wanted)
    session.disable_fallback()  # a provider that fails later must not be replaced by the CPU
    got = session.get_providers()
    if got[0] != wanted[0][0]:
        raise refuse(f"{wanted[0][0]} did not start on device {device}; the model would have run on {got[0]}")
    if got[0] == OPENVINO and not any(
        part.ep_name == OPENVINO for part in session.get_provider_graph_assignment_info()
    ):
        raise refuse("OpenVINO computes no node of this model; it would have run on ONNX Runtime's own provider")
    return session


# -- does the file offer what the configuration promises? ------------------------------------------------------------


def check_entry(what, entry, node, batch):
    """One configured tensor against the file's: same type, and dimensions equal where the file fixes them."""
    name = entry["name"]
    found = TRITON_TYPES.get(node.type)
    if found is None:
        raise refuse(f"{what} '{name}' has type {node.type}, which this backend cannot carry")
    if entry["data_type"] != found:
        raise refuse(f"{what} '{name}' is {found} in the model but {entry['data_type']} in the configuration")
    dims = entry["reshape"]["shape"] if entry.get("reshape") else entry["dims"]
    given = batch + [int(d) for d in dims]
    actual = [d if isinstance(d, int) else -1 for d in node.shape]
    if len(given) != len(actual) or any(a not in (-1, g) for a, g in zip(actual, given, strict=True)):
        where = "in the configuration, batch dimension included"
        raise refuse(f"{what} '{name}' has shape {actual} in the model but {given} {where}")


def check_interface(config, session):
    batch = [-1] if config["max_batch_size"] > 0 else []
    defaulted = session.get_overridable_initializers()  # inputs that have a value of their own: optional
    sides = (("input", [*session.get_inputs(), *defaulted]), ("output", session.get_outputs()))
    for what, nodes in sides:
        by_name = {node.name: node for node in nodes}
        for entry in config[what]:
            if entry["name"] not in by_name:
                raise refuse(f"the model has no {what} '{entry['name']}'; it has {', '.join(by_name)}")
            check_entry(what, entry, by_name[entry["name"]], batch)
    missing = {node.name for node in session.get_inputs()} - {entry["name"] for entry in config["input"]}
    if missing:
        raise refuse(f"the configuration lacks input '{min(missing)}' of the model")


# -- a stub without its server ----------------------------------------------------------------------------------------


def leave_with_parent(parent):
    """Ends this process when tritonserver has died, as Triton's stub does not, and removes its shared memory."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    with contextlib.suppress(OSError, IndexError):
        region = pathlib.Path("/proc/self/cmdline").read_text().split("\0")[2]
        pathlib.Path("/dev/shm", region.lstrip("/")).unlink(missing_ok=True)
    os._exit(1)


# -- requests ---------------------------------------------------------------------------------------------------------


class Member:
    """One request of a group that runs together: where its answer goes, what it gives, what it wants."""

    __slots__ = ("feed", "index", "rows", "wanted")

    def __init__(self, index, feed, wanted):
        self.index, self.feed, self.wanted = index, feed, wanted
        first = next(iter(feed.values()), None)
        self.rows = (
            first.shape[0] if first is not None and first.ndim else 0
        )  # a scalar has no rows, and is never batched


def to_array(tensor):
    """A Triton input as ONNX Runtime takes it; BYTES become text, which is all that its Python interface carries."""
    value = tensor.as_numpy()
    if value.dtype != np.object_:
        return value
    text = np.empty(value.shape, np.object_)
    try:
        text.ravel()[:] = [item.decode() for item in value.ravel()]
    except UnicodeDecodeError as e:
        raise ValueError(f"input '{tensor.name()}' holds bytes that are not UTF-8: {e}") from None
    return text


def failure(error):
    client_errors = (ValueError, ort.capi.onnxruntime_pybind11_state.InvalidArgument)
    code = pb.TritonError.INVALID_ARG if isinstance(error, client_errors) else pb.TritonError.INTERNAL
    return pb.InferenceResponse(error=pb.TritonError(str(error), code))


def together(members):
    """{input name: the rows of all members, one after the other}"""
    if len(members) == 1:
        return members[0].feed
    return {name: np.concatenate([m.feed[name] for m in members]) for name in members[0].feed}


class TritonPythonModel:
    """One instance of a model. Triton calls `initialize` once, then `execute` for every dynamic batch."""

    def initialize(self, args):
        threading.Thread(target=leave_with_parent, args=(os.getppid(),), daemon=True).start()
        config = json.loads(args["model_config"])
        path = model_file(pb.get_model_dir(), config)
        import_engine(config, args["model_instance_kind"])
        self.session = open_session(path, config, args["model_instance_kind"], args["model_instance_device_id"])
        check_interface(config, self.session)
        self.run_options = run_options(config)
        self.is_batched = config["max_batch_size"] > 0
        self.output_names = [entry["name"] for entry in config["output"]]
        for strange, meant in Parameters(config).suspects():
            pb.Logger.log_warn(f"{args['model_name']}: parameter '{strange}' is not read; did you mean '{meant}'?")
        using = ", ".join(self.session.get_providers())
        pb.Logger.log_info(f"{args['model_instance_name']}: {path.name}, ONNX Runtime {ort.__version__} with {using}")

    def execute(self, requests):
        """One response per request, in their order."""
        responses = [None] * len(requests)
        for members in self.groups(requests, responses):
            self.answer(members, responses)
        return responses

    def groups(self, requests, responses):
        """Requests whose tensors agree in names, types and all but the first dimension can be concatenated."""
        groups = {}
        for index, request in enumerate(requests):
            try:
                feed = {tensor.name(): to_array(tensor) for tensor in request.inputs()}
            except Exception as e:
                responses[index] = failure(e)
                continue
            alike = tuple(sorted((name, value.dtype.str, value.shape[1:]) for name, value in feed.items()))
            key = alike if self.is_batched else index
            groups.setdefault(key, []).append(Member(index, feed, request.requested_output_names()))
        return groups.values()

    def answer(self, members, responses):
        """Answers every member; when the whole group fails, each runs alone, so that only the bad one fails."""
        try:
            answers = self.run(members)
        except Exception as e:
            if len(members) == 1:
                responses[members[0].index] = failure(e)
                return
            for member in members:
                self.answer([member], responses)
            return
        for member, answer in zip(members, answers, strict=True):
            responses[member.index] = answer

    def run(self, members):
        names = [name for name in self.output_names if any(name in m.wanted for m in members)]
        values = dict(zip(names, self.session.run(names, together(members), self.run_options), strict=True))
        if not self.is_batched:
            return [respond(values, members[0], ...)]
        total = sum(m.rows for m in members)
        for name, value in values.items():
            if value.shape[:1] != (total,):
                shape = list(value.shape)
                raise RuntimeError(
                    f"output '{name}' has shape {shape}: its first dimension is not the batch of {total}"
                )
        answers, start = [], 0
        for member in members:
            answers.append(respond(values, member, slice(start, start + member.rows)))
            start += member.rows
        return answers

    def finalize(self):
        self.session = None


def respond(values, member, rows):
    """The outputs that this member asked for, cut to its rows (a view: ONNX Runtime's arrays are contiguous)."""
    wanted = {name: value[rows] for name, value in values.items() if name in member.wanted}
    return pb.InferenceResponse([pb.Tensor(name, value) for name, value in wanted.items()])
