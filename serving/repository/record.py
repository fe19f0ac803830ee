"""What is known about a variant: tandem.json, the gate record, as values.

Reading is strict: an unknown key, a missing one or a wrong type is an error that names the place and the nearest
known name, because a record decides what gets traffic. Nothing here looks at other files. Rule: a new fact is a field
here, never a loose dictionary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from typing import Self

from serving.documents.nearest import nearest
from serving.documents.reader import parse_document
from serving.errors import UserError

VERSION = 1
MODEL_NAME = "model.onnx"
WARMUP_FOLDER = "warmup"  # Triton's name for it: a row of each input lies there as its bytes

PASSED = "passed"
REFUSED = "refused"  # accuracy failed: never loaded
NOT_USEFUL = "not_useful"  # right answers, but no gain over FP32 where measured: can be pinned, gets no default traffic
NOT_ALLOWED = "not_allowed"  # this precision must not run on this kind of pool
UNGATED = "ungated"  # served because somebody accepted it without any proof; every receipt says so
STATUSES = (PASSED, REFUSED, NOT_USEFUL, NOT_ALLOWED, UNGATED)

# What a gate's numbers rest on
LABELS = "labels"  # right answers that came with the data
AGREEMENT = "agreement"  # the reference's own answers on the given inputs; nobody said which are right
NOTHING = "nothing"  # no data: whoever exported it accepted it ungated
STAND_IN = "answers judged on a CPU stand-in, not timed"  # a GPU pool's files, where no card is
UNTRAINED = "untrained: speed only"  # random weights: there is nothing to be right about
BASES = (LABELS, AGREEMENT, NOTHING, UNTRAINED)

CLASSIFICATION = "classification"
MULTI_LABEL = "multi-label"
REGRESSION = "regression"
EMBEDDING = "embedding"
RERANKING = "reranking"
TOKEN_CLASSIFICATION = "token-classification"
QUESTION_ANSWERING = "question-answering"
DETECTION = "detection"
SEGMENTATION = "segmentation"
ANOMALY = "anomaly"
OTHER = "other"
TASKS = (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    EMBEDDING,
    RERANKING,
    TOKEN_CLASSIFICATION,
    QUESTION_ANSWERING,
    DETECTION,
    SEGMENTATION,
    ANOMALY,
    OTHER,
)

CPU_ENGINES = ("cpu", "openvino")
GPU_ENGINES = ("cuda", "tensorrt")

# Open Inference Protocol v2 datatype -> Triton's name in config.pbtxt
TRITON_TYPES = {
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "UINT16": "TYPE_UINT16",
    "UINT32": "TYPE_UINT32",
    "UINT64": "TYPE_UINT64",
    "INT8": "TYPE_INT8",
    "INT16": "TYPE_INT16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "FP16": "TYPE_FP16",
    "BF16": "TYPE_BF16",
    "FP32": "TYPE_FP32",
    "FP64": "TYPE_FP64",
    "BYTES": "TYPE_STRING",
}


class RecordError(UserError):
    """A tandem.json that cannot be trusted: which place in it, and what is wrong there."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output. `shape` leaves out the batch dimension; -1 is a dimension of any length.

    `layout`: of an input of images, three dimensions, "NCHW" or "NHWC"; None where nobody said.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    layout: str | None = None

    def __post_init__(self) -> None:
        _known(self.datatype, TRITON_TYPES, "datatype")
        if self.layout is not None:
            _known(self.layout, ("NCHW", "NHWC"), "layout")
            if len(self.shape) != 3:
                raise ValueError(f"shape {list(self.shape)} is no image's, which has a layout of three dimensions")
        if any(size == 0 or size < -1 for size in self.shape):
            raise ValueError(f"shape {list(self.shape)} holds a size that is neither positive nor -1")


@dataclass(frozen=True, slots=True)
class Check:
    """One number of a gate with its limit. `limit` None: told, not judged. `reference` is the same metric of FP32."""

    metric: str
    value: float
    limit: float | None
    is_minimum: bool  # True: value >= limit passes; False: value <= limit
    reference: float | None
    is_default_limit: bool  # False: the limit was chosen on the command line

    @property
    def has_passed(self) -> bool:
        """NaN never passes."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.is_minimum else self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Previous:
    """A new FP32 beside the version before it, on the same rows. A check's `reference` is the old version's value."""

    version: int
    digest: str  # SHA-256 of the old file
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Gate:
    """The proof that a variant answers as it should. The first check is the one that tables show."""

    basis: str
    reference: str  # whose answers it was compared with: "fp32", or the framework that FP32 was exported from
    checks: tuple[Check, ...]
    num_samples: int
    dataset: str
    dataset_digest: str
    batch_sizes: tuple[int, ...]  # whose rows were compared with the rows computed alone
    judged_on: str = ""  # the library that computed the answers, and the processor
    calibration: str = ""  # the rows that set the file's ranges, which are none of those that judged it
    previous: Previous | None = None  # of a model's new version

    def __post_init__(self) -> None:
        _known(self.basis, BASES, "basis")

    @property
    def headline(self) -> Check | None:
        return self.checks[0] if self.checks else None

    def check(self, metric: str) -> Check | None:
        return next((check for check in self.checks if check.metric == metric), None)


@dataclass(frozen=True, slots=True)
class PoolGate:
    """May this variant run on this kind of pool, and with which engine?"""

    status: str
    engine: str
    reason: str

    def __post_init__(self) -> None:
        _known(self.status, STATUSES, "status")
        _known(self.engine, CPU_ENGINES + GPU_ENGINES, "engine")

    @property
    def is_loadable(self) -> bool:
        return self.status in (PASSED, NOT_USEFUL, UNGATED)


@dataclass(frozen=True, slots=True)
class Speed:
    """Time beside FP32, measured in turns on one processor. ratio = FP32's latency / this one's: above 1 is faster.

    FP32 ran on `baseline_engine`: on `cpu`, ONNX Runtime's own, in one entry, and where another engine runs FP32
    faster there, on that one in a second entry, because a gain over an engine that is used badly is no gain.
    """

    processor: str
    engine: str
    engine_version: str
    baseline_engine: str
    batch_size: int
    num_threads: int
    ratio: float
    ratio_low: float
    ratio_high: float
    latency_s: float
    fp32_latency_s: float
    measured: str  # ISO date

    def __post_init__(self) -> None:
        _known(self.engine, CPU_ENGINES + GPU_ENGINES, "engine")
        _known(self.baseline_engine, CPU_ENGINES + GPU_ENGINES, "engine")
        if not 0 < self.ratio_low <= self.ratio <= self.ratio_high:
            raise ValueError(f"ratio {self.ratio} is not inside its interval {self.ratio_low}..{self.ratio_high}")


@dataclass(frozen=True, slots=True)
class Sample:
    """A request body that can be sent as it is, and the right answer to it where one is known."""

    file: str
    label: str | None
    index: int | None  # of that label in the labels file, and so in the output


@dataclass(frozen=True, slots=True)
class Record:
    """tandem.json. `files` maps every other file's path in the directory to its SHA-256."""

    model: str
    variant: str
    model_version: int  # of the source, shared by its variants; also the name of the folder that holds model.onnx
    created: str
    source: str
    task: str
    toolchain: Mapping[str, str]
    max_batch_size: int  # 0: the model has no batch dimension
    queue_delay_us: int  # how long Triton's batcher waits for more; 0: batches form from what waits anyway
    warmup_batch_sizes: tuple[int, ...]  # run before the model is ready
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    labels: str | None  # file
    preprocessing: str | None  # file
    needs: tuple[str, ...]  # instruction sets without which its answers would be wrong: "vnni"
    space: str | None  # of an embedding: vectors of different spaces must not be compared
    sample: Sample | None
    gate: Gate
    pools: Mapping[str, PoolGate]
    speed: tuple[Speed, ...]
    not_made: Mapping[str, str]  # on FP32's record: variant -> why the export that made this made none of it
    files: Mapping[str, str]
    warmup: tuple[
        Tensor, ...
    ] = ()  # the row, of those that the gate ran, that a server runs first; its length stands for -1
    load_check: str = (
        ""  # which server loaded it before it was published, and answered as the gate saw; or why none did
    )
    fused: Mapping[str, int] = field(
        default_factory=dict
    )  # ONNX Runtime's own operators that the export put in, and how many of each; its version is in the toolchain

    def __post_init__(self) -> None:
        _known(self.task, TASKS, "task")
        if self.model_version < 1:
            raise ValueError(f"model_version {self.model_version} is not 1 or more")
        for name in ("max_batch_size", "queue_delay_us"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is negative")
        if any(not 1 <= size <= max(1, self.max_batch_size) for size in self.warmup_batch_sizes):
            raise ValueError(f"warmup_batch_sizes {list(self.warmup_batch_sizes)} are not within 1..max_batch_size")
        for path, digest in self.files.items():
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise ValueError(f"file {path!r} is outside the variant's directory")
            if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
                raise ValueError(f"file {path!r} has no SHA-256 in lower-case hex beside it")

    @staticmethod
    def warmup_file(index: int) -> str:
        """Path inside the variant's directory of the row of input `index` in `warmup`: numbered, because any name is an input's."""
        return f"{WARMUP_FOLDER}/{index}.bin"

    @property
    def name(self) -> str:
        """The name of the directory, and of the model in Triton."""
        return f"{self.model}-{self.variant}"

    @property
    def model_file(self) -> str:
        """Path of the ONNX file inside the variant's directory."""
        return f"{self.model_version}/{MODEL_NAME}"

    @property
    def digest(self) -> str:
        """SHA-256 of the ONNX file."""
        return self.files[self.model_file]

    @property
    def is_untrained(self) -> bool:
        return self.gate.basis == UNTRAINED

    @classmethod
    def from_json(cls, text: str, where: str = "tandem.json") -> Self:
        document = parse_document(text, where, is_json=True, error=RecordError)
        document.version(VERSION, "a gate record", "export the model again with this Tandem")
        facts = {name: value for name, value in document.data.items() if name != "version"}
        made: Self = replace(document, data=facts).values(cls)
        return made

    def to_json(self) -> str:
        data = {"version": VERSION, **asdict(self)}
        for tensor in (*data["inputs"], *data["outputs"], *data["warmup"]):
            if tensor["layout"] is None:  # most are no images
                del tensor["layout"]
        if not data["fused"]:  # most are no transformers
            del data["fused"]
        for name in ("judged_on", "calibration", "previous"):
            if not data["gate"][name]:  # of a record that an earlier Tandem wrote
                del data["gate"][name]
        return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _known(value: str, known: Mapping[str, object] | tuple[str, ...], what: str) -> None:
    if value not in known:
        raise ValueError(f"unknown {what} {value!r}{nearest(value, known)}")
