"""Runs batches in buffers that never move, a set of them for each size of batch: what a card needs to be fast.

Answers: in which buffers does this batch run, and which captured CUDA graph computes it? Small copies to and from a card are fastest in
memory that the system may not move (pinned), large ones are best made once; a graph replays one shape at one set of addresses. So a batch
is padded to the next size that has buffers.
The same code runs on ONNX Runtime's CPU provider, where a device's memory is memory. NumPy only: ONNX Runtime is handed in.
Keep: what runs without buffers never captures (`NO_GRAPH`), and no row of one batch is left in a buffer for the next.
"""

import ctypes
import pathlib
import weakref

import numpy as np

GRAPH_ID = "gpu_graph_id"  # of ONNX Runtime's run options: which captured graph a run replays
NO_GRAPH = "-1"  # neither captures nor replays; without it ONNX Runtime takes graph 0
# A tensor of so many bytes and more is copied once, between the card and where it lies: a second copy, through pinned memory, costs more
# than pinning gains (ResNet-50, batch 32, 19 MB, an H200: buffers lost 5 to 18 % to plain runs). Where it turns is a guess, not measured.
DIRECT_BYTES = 2**20
MAX_BUCKETS = 256  # each holds buffers and perhaps a graph, and takes three runs at the load (guess, not measured)

DTYPES = {
    "tensor(bool)": np.bool_,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
    "tensor(int8)": np.int8,
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
}


def batch_sizes(text, max_batch_size):
    """Ascending: those of "1,4,16", or by "auto" the powers of two and the largest batch. Raises ValueError."""
    if max_batch_size < 1:
        raise ValueError("batch_buckets are for models with batches, and max_batch_size is 0")
    if text.strip() == "auto":
        return [
            *(2**power for power in range(max_batch_size.bit_length()) if 2**power < max_batch_size),
            max_batch_size,
        ]
    return whole_numbers("batch_buckets", text, max_batch_size, " or 'auto'")


def whole_numbers(what, text, largest, otherwise=""):
    """Ascending, each once. Raises ValueError."""
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1 or numbers[-1] > largest:
        raise ValueError(f"{what} is '{text}'; it must be whole numbers from 1 to {largest}, as 1,8,32{otherwise}")
    return numbers


# -- memory -----------------------------------------------------------------------------------------------------------


class PlainMemory:
    """Of ONNX Runtime's CPU provider."""

    kind, number, words = "cpu", 0, "memory"

    def array(self, shape, dtype):
        return np.empty(shape, dtype)

    def upload(self, array, value):
        value.update_inplace(array)

    def download(self, value, array):
        np.copyto(array, value.numpy()[: len(array)])


class CardMemory:
    """Of one card. Arrays are pinned; they are given back when nobody holds them any more."""

    kind, words = "cuda", "pinned memory"
    TO_DEVICE, TO_HOST = 1, 2  # cudaMemcpyKind

    def __init__(self, number, runtime=None):
        self.number = number
        self.runtime = runtime or loaded_runtime()
        for name in ("cudaHostAlloc", "cudaFreeHost", "cudaMemcpy", "cudaSetDevice"):
            getattr(self.runtime, name).restype = ctypes.c_int
        self.runtime.cudaGetErrorString.restype = ctypes.c_char_p
        self.check(self.runtime.cudaSetDevice(number), "choosing the card")

    def check(self, code, doing):
        if code:
            raise RuntimeError(f"CUDA: {doing} failed: {self.runtime.cudaGetErrorString(code).decode()}")

    def array(self, shape, dtype):
        num_bytes = max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        address = ctypes.c_void_p()
        self.check(self.runtime.cudaHostAlloc(ctypes.byref(address), ctypes.c_size_t(num_bytes), 0), "pinning memory")
        memory = (ctypes.c_ubyte * num_bytes).from_address(address.value)
        weakref.finalize(memory, self.runtime.cudaFreeHost, address)
        return np.frombuffer(memory, dtype, count=int(np.prod(shape))).reshape(shape)

    def upload(self, array, value):
        self.copy(value.data_ptr(), array.ctypes.data, array.nbytes, self.TO_DEVICE)

    def download(self, value, array):
        self.copy(array.ctypes.data, value.data_ptr(), array.nbytes, self.TO_HOST)

    def copy(self, target, source, num_bytes, kind):
        sides = ctypes.c_void_p(target), ctypes.c_void_p(source)
        self.check(self.runtime.cudaMemcpy(*sides, ctypes.c_size_t(num_bytes), kind), "copying")


def loaded_runtime(maps=pathlib.Path("/proc/self/maps")):
    """CUDA's runtime library, the very one that ONNX Runtime's provider has loaded."""
    for line in maps.read_text().splitlines():
        path = line.partition("/")[2]
        if pathlib.PurePath(path).name.startswith("libcudart.so"):
            return ctypes.CDLL(f"/{path}")
    raise RuntimeError("CUDA's runtime library (libcudart.so) is not loaded in this process")


# -- buckets ----------------------------------------------------------------------------------------------------------


class Bucket:
    """The buffers of one size of batch, bound to a session once and for all. `options`: of its runs."""

    def __init__(self, session, ort, memory, inputs, first_options, options):
        """`inputs`: {name: (shape, dtype)}. Runs twice: outputs have no size before, and the second run captures where `options` say so."""
        self.session, self.memory, self.options = session, memory, options
        self.binding = session.io_binding()

        def on_device(shape, dtype):
            return ort.OrtValue.ortvalue_from_shape_and_type(list(shape), dtype, memory.kind, memory.number)

        self.inputs, self.outputs = {}, {}
        for name, (shape, dtype) in inputs.items():
            self.inputs[name] = memory.array(shape, dtype), on_device(shape, dtype)
            self.binding.bind_ortvalue_input(name, self.inputs[name][1])
            self.inputs[name][0][...] = 1  # a valid token id, a mask that hides nothing
            memory.upload(*self.inputs[name])
        size = next(iter(inputs.values()))[0][0]
        names = [node.name for node in session.get_outputs()]
        for name in names:
            self.binding.bind_output(name, memory.kind, memory.number)
        session.run_with_iobinding(self.binding, first_options)
        found = [(list(value.shape()), value.data_type()) for value in self.binding.get_outputs()]
        self.binding.clear_binding_outputs()
        for name, (shape, kind) in zip(names, found, strict=True):
            if kind not in DTYPES:
                raise ValueError(f"batch_buckets are for numbers, and output '{name}' is {kind}")
            if shape[:1] != [size]:
                raise ValueError(f"output '{name}' has shape {shape}: its first dimension is not the batch of {size}")
            self.outputs[name] = memory.array(shape, DTYPES[kind]), on_device(shape, DTYPES[kind])
            self.binding.bind_ortvalue_output(name, self.outputs[name][1])
        session.run_with_iobinding(self.binding, options)

    def run(self, feeds, num_rows, names):
        """{name: the first `num_rows` rows}; outputs that nobody asks for stay on the device."""
        for name, (array, value) in self.inputs.items():
            given = feeds[0][name]
            if given.nbytes >= DIRECT_BYTES and len(given) == len(array) and given.flags.c_contiguous:  # it is all
                self.memory.upload(given, value)
                continue
            np.concatenate([feed[name] for feed in feeds], out=array[:num_rows])
            array[num_rows:] = array[0]
            self.memory.upload(array, value)
        self.session.run_with_iobinding(self.binding, self.options)
        found = {}
        for name in names:
            array, value = self.outputs[name]
            if array.nbytes >= DIRECT_BYTES:
                found[name] = np.empty((num_rows, *array.shape[1:]), array.dtype)
                self.memory.download(value, found[name])
                continue
            self.memory.download(value, array)
            found[name] = array[:num_rows].copy()  # the next run writes over it before Triton has sent it
        return found


class Buckets:
    """All the buffers of a session, made at its load, and what happens to a batch that fits into none."""

    def __init__(self, session, ort, memory, sizes, lengths=(), *, captures=False, entries=None, first_graph=1):
        """`lengths`: of dimensions that the file leaves open beside the batch, all of them at once. `captures`: a CUDA graph for each.

        `entries`: run options of every run. `first_graph`: a number that no graph of this session has yet, nor any after it.
        Raises ValueError for what no buffer can hold.
        """
        self.session, self.ort, self.entries = session, ort, dict(entries or {})
        self.plain = self.options(NO_GRAPH) if captures or self.entries else None
        self.of = {}  # what `shapes_of` tells of a row -> [(size, Bucket)], ascending
        shapes = [dict(rows) for rows in open_shapes(session.get_inputs(), lengths)]
        if len(shapes) * len(sizes) > MAX_BUCKETS:
            raise ValueError(f"{len(sizes)} batch_buckets × {len(shapes)} bucket_lengths are more than {MAX_BUCKETS}")
        graph = first_graph - 1
        for size in reversed(sizes):  # the largest first: what the provider takes for it is enough for all others
            for rows in reversed(shapes):
                graph += 1
                options = self.options(str(graph)) if captures else self.plain
                inputs = {name: ((size, *shape), dtype) for name, (shape, dtype) in rows.items()}
                bucket = Bucket(session, ort, memory, inputs, self.plain, options)
                key = tuple(sorted((name, np.dtype(dtype).str, shape) for name, (shape, dtype) in rows.items()))
                self.of.setdefault(key, []).insert(0, (size, bucket))

    def options(self, graph_id):
        options = self.ort.RunOptions()
        for key, value in {**self.entries, GRAPH_ID: graph_id}.items():
            options.add_run_config_entry(key, value)
        return options

    def run(self, feeds, names):
        """{name: rows of all feeds, one after the other}, or None where no buffers have room for this shape.

        `feeds`: of each request {input: rows}, alike but for their number.
        """
        sizes = self.of.get(shapes_of(feeds[0]))
        num_rows = sum(len(next(iter(feed.values()))) for feed in feeds)
        bucket = next((bucket for size, bucket in sizes or () if size >= num_rows), None)
        return None if bucket is None or num_rows == 0 else bucket.run(feeds, num_rows, names)


def shapes_of(feed):
    """What one request's tensors must have in common with another's: names, types and all but the first dimension."""
    return tuple(sorted((name, value.dtype.str, value.shape[1:]) for name, value in feed.items()))


def open_shapes(nodes, lengths):
    """{input: (shape of a row, dtype)} for each of the lengths, or once where the file fixes all dimensions but the batch."""
    is_open = any(not isinstance(size, int) for node in nodes for size in node.shape[1:])
    if is_open and not lengths:
        raise ValueError("the model has dimensions of any length: say for which of them with bucket_lengths, as 32,128")
    for node in nodes:
        if node.type not in DTYPES:
            raise ValueError(f"batch_buckets are for numbers, and input '{node.name}' is {node.type}")
        if not node.shape or isinstance(node.shape[0], int):
            raise ValueError(f"input '{node.name}' of the model has no batch dimension of any size")
    for length in lengths if is_open else [0]:
        yield {
            node.name: (tuple(size if isinstance(size, int) else length for size in node.shape[1:]), DTYPES[node.type])
            for node in nodes
        }
