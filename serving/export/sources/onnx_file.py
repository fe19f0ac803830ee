"""FILE.onnx: a model that somebody exported, by any framework, becomes the FP32 baseline of a new one.

It is checked, upgraded, freed of a fixed batch of 1 where its answers prove that it can be, and run once on inputs that are
made up or given. How old frameworks export is for the docs. Rule: a graph is changed only where running it shows that the
answers stay.
"""

from __future__ import annotations

import re
from pathlib import Path

import onnx

from serving.export.exported import Exported, SourceOptions
from serving.export.progress import Progress
from serving.export.sources.graphs.answering import Answering, answering
from serving.export.sources.graphs.describing import check_preprocessing, described
from serving.export.sources.graphs.external_data import read_whole
from serving.export.sources.graphs.onnx_model import checked, opset_of, upgraded
from serving.export.sources.graphs.outputs import settled
from serving.export.sources.graphs.ports import ports
from serving.export.sources.onnx_path import check

_STEPS = 4


def load(path: Path, options: SourceOptions, progress: Progress) -> Exported:
    """Raises UserError for a file that cannot be read, raised to the opset, loaded or run."""
    check(path, options)
    name = path.name
    step = f"reading {name}"
    progress(step, 0, _STEPS)
    came = checked(read_whole(path), name)
    progress(step, 1, _STEPS)
    model = upgraded(came, options.opset, name)
    progress(step, 2, _STEPS)
    check_preprocessing(options.preprocessing, ports(model.graph.input, "input", name), name)
    graph = answering(model, options, name)
    progress(step, 3, _STEPS)
    exported = described(settled(graph, options, _source(came, graph, name), name), options, name)
    progress(step, _STEPS, _STEPS)
    return exported


def _source(came: onnx.ModelProto, graph: Answering, name: str) -> str:
    maker = f"{came.producer_name} {came.producer_version}".strip()
    before, after = opset_of(came), opset_of(graph.model)
    notes = (
        f"made by {maker}" if re.fullmatch(r"[\w .+-]{1,60}", maker) else "",
        f"opset {before} upgraded to {after}" if before and after and before < after else "",
        graph.change,
        f"already {graph.holds.already}, served as it came" if graph.holds.already else "",
        "for CPUs only" if graph.holds.is_cpu_only else "",
    )
    return "; ".join((f"onnx: {name}", *(note for note in notes if note)))
