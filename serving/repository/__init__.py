"""The model repository on disk: which variants there are, what proves them, and what Triton is told about each.

`record` reads and writes tandem.json, `triton_config` renders config.pbtxt, `layout` is directories and digests, and
`processor` names this machine's instruction set. Nothing here makes a model or talks to Triton. Rule: standard library
only, because every room uses it.
"""

from serving.repository.layout import (
    CONFIG_FILE,
    LABELS_FILE,
    MODEL_FILE,
    PRECISIONS,
    RECORD_FILE,
    SAMPLE_FILE,
    DigestMismatch,
    Repository,
    Variant,
    check_model_name,
    default_repository,
    digests_of,
    file_digest,
    pool_config_file,
)
from serving.repository.processor import processor_key
from serving.repository.record import (
    NOT_ALLOWED,
    NOT_USEFUL,
    PASSED,
    REFUSED,
    Gate,
    PoolGate,
    Record,
    RecordError,
    Sample,
    Speed,
    Tensor,
)
from serving.repository.triton_config import ModelConfig

__all__ = [
    "CONFIG_FILE",
    "LABELS_FILE",
    "MODEL_FILE",
    "NOT_ALLOWED",
    "NOT_USEFUL",
    "PASSED",
    "PRECISIONS",
    "RECORD_FILE",
    "REFUSED",
    "SAMPLE_FILE",
    "DigestMismatch",
    "Gate",
    "ModelConfig",
    "PoolGate",
    "Record",
    "RecordError",
    "Repository",
    "Sample",
    "Speed",
    "Tensor",
    "Variant",
    "check_model_name",
    "default_repository",
    "digests_of",
    "file_digest",
    "pool_config_file",
    "processor_key",
]
