"""Converts a model of PaddlePaddle to ONNX and runs it, in an environment that has PaddlePaddle and nothing of ours.

    PYTHON paddle_worker.py     answers lines of JSON on standard input with lines of JSON on standard output, until its end

An answer is an object; one with "error" in it is a refusal. Commands, by "do": convert (a program and its weights to a file), run (arrays
of an .npz, answered in another). Rule: standard library, NumPy and PaddlePaddle only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import metadata
from inspect import signature
from typing import Any, TextIO

os.environ |= {
    "CUDA_VISIBLE_DEVICES": "-1",
    "GLOG_minloglevel": "3",
    "POLYGRAPHY_AUTOINSTALL_DEPS": "0",  # else the converter's optimiser runs pip
}

predictors: dict[str, Any] = {}


def convert(program: str, weights: str, opset: int, file: str) -> dict[str, Any]:
    import paddle2onnx  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from paddle2onnx import convert as converter

    said: list[str] = []
    converter.logging.error = lambda text=None, *_, **__: said.append(str(text))  # it tells why there alone
    plain = {"optimize_tool": None} if "optimize_tool" in signature(paddle2onnx.export).parameters else {}
    try:
        paddle2onnx.export(program, weights, file, opset_version=opset, verbose=False, **plain)
    except BaseException as error:  # it also exits
        raise RuntimeError(said[0] if said else f"{type(error).__name__}: {error}") from None
    if not os.path.exists(file) or not os.path.getsize(file):  # noqa: PTH110, PTH202
        raise RuntimeError(said[0] if said else "it gave nothing, and says nothing of it")
    return {package: metadata.version(package) for package in ("paddlepaddle", "paddle2onnx")}


def run(program: str, weights: str, inputs: str, outputs: str) -> dict[str, Any]:
    """Answers are named "0", "1", … in the order of the program's outputs."""
    import numpy as np

    predictor = _predictor(program, weights)
    with np.load(inputs) as given:
        for name in predictor.get_input_names():
            predictor.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(given[name]))
    predictor.run()
    found = [predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()]
    np.savez(outputs, **{str(place): values for place, values in enumerate(found)})
    return {}


def _predictor(program: str, weights: str) -> Any:
    if program not in predictors:
        from paddle import inference  # type: ignore[import-not-found, import-untyped, unused-ignore]

        config = inference.Config(program, weights)
        config.disable_glog_info()
        config.set_cpu_math_library_num_threads(1)
        predictors[program] = inference.create_predictor(config)
    return predictors[program]


COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {"convert": convert, "run": run}


def main(answers: TextIO) -> None:
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = COMMANDS[command.pop("do")](**command)
        except Exception as error:  # PaddlePaddle raises what it likes
            answer = {"error": " ".join(str(error).split())[-600:] or type(error).__name__}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # PaddlePaddle prints what it does
    main(pipe)
