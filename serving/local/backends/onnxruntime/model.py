"""The Triton backend `onnxruntime`, in Python: the same config.pbtxt runs here and under the C++ backend of that name.

Answers: what does one instance of a model do with its configuration and with a batch of requests? It runs inside
Triton's stub, in an environment that has NumPy 1, ONNX Runtime and nothing else, so it imports no file of this project but those
beside it: `ort_session.py` opens the session, `bindings.py` has buffers for batches, `sizes.py` a session
for each size of them, `cuda_libraries.py` says what a machine
lacks. The stub is a process of this instance alone, so that each may have another build of ONNX Runtime. Not here: auto-completion of
configurations (ours state everything), decoupled models, BF16 tensors (NumPy has none). Keep: a request that fails never takes along those
that Triton put into its batch.
"""

import contextlib
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

sys.path.append(str(pathlib.Path(__file__).parent))  # of the files beside this one
import cuda_libraries
import ort_session
from bindings import shapes_of
from ort_session import Parameters, refuse

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

PARENT_POLL_S = 0.5  # a stub without its server holds 80 MB or more for at most this long (guess, not measured)


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
    client_errors = (ValueError, ort_session.ort.capi.onnxruntime_pybind11_state.InvalidArgument)
    code = pb.TritonError.INVALID_ARG if isinstance(error, client_errors) else pb.TritonError.INTERNAL
    reason = cuda_libraries.why_failed(ort_session.ort, str(error)) or str(error)
    return pb.InferenceResponse(error=pb.TritonError(reason, code))


def together(members, rooms):
    """{input name: the rows of all members, one after the other}

    `rooms`: {input name: memory of the largest batch so far}. Memory that is new for each batch costs more than the copy into it.
    """
    if len(members) == 1:
        return members[0].feed
    return {name: concatenated([m.feed[name] for m in members], name, rooms) for name in members[0].feed}


def concatenated(parts, name, rooms):
    first = parts[0]
    if first.dtype == np.object_ or not first.ndim:
        return np.concatenate(parts)
    size = sum(part.nbytes for part in parts)
    if name not in rooms or rooms[name].nbytes < size:
        rooms[name] = np.empty(size, np.uint8)
    shape = (sum(len(part) for part in parts), *first.shape[1:])
    return np.concatenate(parts, out=rooms[name][:size].view(first.dtype).reshape(shape))


class TritonPythonModel:
    """One instance of a model. Triton calls `initialize` once, then `execute` for every dynamic batch."""

    def initialize(self, args):
        threading.Thread(target=leave_with_parent, args=(os.getppid(),), daemon=True).start()
        config = json.loads(args["model_config"])
        path = ort_session.model_file(pb.get_model_dir(), config)
        kind, device = args["model_instance_kind"], args["model_instance_device_id"]
        ort_session.import_engine(config, kind)
        loaded = ort_session.identity(path)
        self.session = ort_session.open_session(path, config, kind, device)
        check_interface(config, self.session)
        self.buckets = ort_session.open_buckets(self.session, config, kind, device)
        self.sizes = None
        if not self.buckets:
            what = (self.session, path, loaded, config, kind, device)
            self.sizes = ort_session.open_sizes(
                *what, lambda said: pb.Logger.log_warn(f"{args['model_instance_name']}: {said}")
            )
        self.run_options = self.buckets.plain if self.buckets else ort_session.run_options(config)
        self.is_batched = config["max_batch_size"] > 0
        self.rooms = {}
        self.output_names = [entry["name"] for entry in config["output"]]
        for strange, meant in Parameters(config).suspects():
            pb.Logger.log_warn(f"{args['model_name']}: parameter '{strange}' is not read; did you mean '{meant}'?")
        using = ", ".join(self.session.get_providers())
        pb.Logger.log_info(
            f"{args['model_instance_name']}: {path.name}, ONNX Runtime {ort_session.ort.__version__} with {using}"
        )

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
            key = shapes_of(feed) if self.is_batched else index
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
        values = self.buckets.run([member.feed for member in members], names) if self.buckets else None
        if values is None:
            feed = together(members, self.rooms)
            if self.sizes:
                values = self.sizes.run(names, feed, self.run_options)
            else:
                values = dict(zip(names, self.session.run(names, feed, self.run_options), strict=True))
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
        self.buckets = self.sizes = self.session = None
        self.rooms = {}


def respond(values, member, rows):
    """The outputs that this member asked for, cut to its rows (a view: ONNX Runtime's arrays are contiguous)."""
    wanted = {name: value[rows] for name, value in values.items() if name in member.wanted}
    return pb.InferenceResponse([pb.Tensor(name, value) for name, value in wanted.items()])
