"""Is a file good enough to serve? Measured, with the limits beside the values.

    file       could servers load it          graph      is it the model that it was exported from
    accuracy   are its answers good enough     limits     how far they may go

Speed is `speed`'s, writing `publish`'s. Rule: a gate passes with its record or refuses with an exception of `refusals`, and a
comparison with NaN in it refuses.
"""

from serving.export.gates.accuracy import judge, ungated, untrained
from serving.export.gates.custom import Metric, load_metric
from serving.export.gates.file import Interface, check_file
from serving.export.gates.graph import check_graph
from serving.export.gates.limits import Limits
from serving.export.gates.refusals import (
    AccuracyLost,
    AnswersDiffer,
    AnswersMoved,
    Degenerate,
    FrameworkDiffers,
    NonFinite,
    NotDynamic,
    RowsDiffer,
    ShapesDiffer,
)
from serving.export.gates.session import CannotRun, answers, in_batches

__all__ = [
    "AccuracyLost",
    "AnswersDiffer",
    "AnswersMoved",
    "CannotRun",
    "Degenerate",
    "FrameworkDiffers",
    "Interface",
    "Limits",
    "Metric",
    "NonFinite",
    "NotDynamic",
    "RowsDiffer",
    "ShapesDiffer",
    "answers",
    "check_file",
    "check_graph",
    "in_batches",
    "judge",
    "load_metric",
    "ungated",
    "untrained",
]
