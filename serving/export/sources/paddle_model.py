"""paddle:PATH: a program of PaddlePaddle with its weights, by paddle2onnx; PaddlePaddle's own answers judge the graph.

What paddle2onnx writes is read like any other ONNX file (`onnx_file.py`). The converter wants another ONNX than ours, so that it runs, and
PaddlePaddle with it, in an environment of its own (`paddle_worker.py`), for as long as the export does.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from serving.decisions.engines import EnginePython
from serving.errors import EnvironmentFault, UserError
from serving.export.exported_model import Arrays, ExportedModel, Run, SourceOptions
from serving.export.progress import Progress
from serving.export.scratch import scratch, writing_into
from serving.export.sources import onnx_file
from serving.export.sources.checks import check_paddle, paddle_files
from serving.export.speed.process import WorkerLost, WorkerProcess, WorkerRefusal

MAX_OPSET = 16  # of what paddle2onnx 1.3 and 2.1 are asked for; the file is raised afterwards
WORKER = Path(__file__).with_name("paddle_worker.py")
TIMEOUT_S = 600.0  # of a conversion or a batch: importing PaddlePaddle included (guess, not measured)

Ask = Callable[..., dict[str, Any]]


def load(path: Path, options: SourceOptions, progress: Progress) -> ExportedModel:
    """Raises UserError for what PaddlePaddle cannot read and for operators that have no counterpart in ONNX."""
    check_paddle(path, options)
    program, weights = paddle_files(path)
    if options.framework_python is None:
        raise EnvironmentFault("paddle: needs an environment with PaddlePaddle, which only `tandem export` makes")
    step = f"converting {program.name}"
    progress(step, 0, 1)
    ask = partial(_ask, _started(options.framework_python), program.name)
    with scratch("paddle") as folder:
        file = folder / f"{program.stem}.onnx"
        files = {"program": str(program.resolve()), "weights": str(weights.resolve())}
        toolchain = ask("convert", **files, opset=min(options.opset, MAX_OPSET), file=str(file))
        progress(step, 1, 1)
        names = [output.name for output in onnx.load(file, load_external_data=False).graph.output]
        exported = onnx_file.load(file, options, progress)
    return replace(
        exported,
        source=exported.source.replace(f"onnx: {file.name}", f"paddle: {program.name}", 1),
        framework="paddlepaddle",
        run=_run(partial(ask, "run", **files), names, exported),
        toolchain={**exported.toolchain, **toolchain},
    )


def _started(python: Path) -> WorkerProcess:
    try:
        worker = WorkerProcess(EnginePython("paddle", python, ""), WORKER)
    except WorkerLost as loss:
        raise EnvironmentFault(f"PaddlePaddle {loss}") from None
    atexit.register(worker.end)
    return worker


def _ask(worker: WorkerProcess, name: str, do: str, **command: object) -> dict[str, Any]:
    try:
        return worker.ask(TIMEOUT_S, do, **command)
    except WorkerRefusal as refusal:
        what = "paddle2onnx cannot convert" if do == "convert" else "PaddlePaddle does not run"
        raise UserError(f"{what} {name}: {str(refusal)[:300]}; export the model as .onnx yourself") from None
    except WorkerLost as loss:
        if do == "convert":  # it aborts on what it does not know
            raise UserError(f"paddle2onnx, converting {name}, {loss}; export the model as .onnx yourself") from None
        raise EnvironmentFault(f"PaddlePaddle, running {name}, {loss}") from None


def _run(ask: Ask, names: list[str], exported: ExportedModel) -> Run:
    """`names`: of the program's outputs, in their order."""
    wanted = [(names.index(tensor.name), tensor) for tensor in exported.outputs]

    def run(inputs: Arrays) -> list[NDArray[Any]]:
        with scratch("paddle") as folder:
            given, answers = folder / "in.npz", folder / "out.npz"
            with writing_into(folder):
                np.savez(given, **inputs)  # type: ignore[arg-type]
            ask(inputs=str(given), outputs=str(answers))
            with np.load(answers) as found:
                return [found[str(place)] for place, _ in wanted]

    return run
