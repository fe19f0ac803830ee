"""A Python in which ONNX Runtime's CPU provider goes by the name of CUDA's: what rehearsals use in place of a card.

    PYTHON stand_in.py [-I] SCRIPT …    runs the script so

Like CUDA it refuses options that it does not know, computes TF32 with 10 bits unless told otherwise, says float16 for what an FP16 file
computes, and captures graphs in memory of its own (`stand_in_card.py`). STAND_IN_FAULT has it do wrong on purpose: `falls_back`,
`computes_fp32`, `keeps_tf32`, `answers_wrong`, `does_not_start`, `replays_nothing`: a check that does not see
them checks nothing. Rule: nothing that serves or gates imports this.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]

sys.path.insert(0, str(Path(__file__).parents[2]))
from loadtest.gpu.stand_in_card import Binding, CapturingSession, Card, graph_of

del sys.path[0]

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
FAULTS = ("falls_back", "computes_fp32", "keeps_tf32", "answers_wrong", "does_not_start", "replays_nothing")
FAULT = os.environ.get("STAND_IN_FAULT", "")
OPTIONS = {"use_tf32", "device_id", "prefer_nhwc", "fuse_conv_bias", "cudnn_conv_algo_search", "enable_cuda_graph"}
OPTIONS |= {"use_ep_level_unified_stream"}
CARD = Card()
_Session = ort.InferenceSession


class Session(_Session):  # type: ignore[misc, valid-type, unused-ignore]
    """`providers` as the worker gives them: pairs of name and options."""

    def __init__(
        self, file: str, options: Any = None, providers: Sequence[tuple[str, dict[str, str]]] = (), **_: Any
    ) -> None:
        given = dict(providers)
        if unknown := sorted(given.get(CUDA, {}).keys() - OPTIONS):
            raise RuntimeError(f"unknown provider option: {unknown[0]}")
        self._has_tf32 = CUDA in given and (given[CUDA].get("use_tf32", "1") == "1" or FAULT == "keeps_tf32")
        weights = onnx.load(file).graph.initializer if CUDA in given else ()
        self._is_half = any(weight.data_type == onnx.TensorProto.FLOAT16 for weight in weights)
        self._says_cuda = CUDA in given and FAULT != "does_not_start"
        super().__init__(file, options, providers=[CPU])
        captures = given.get(CUDA, {}).get("enable_cuda_graph") == "1"
        self._capturing = CapturingSession(super(), CARD, enable_cuda_graph=captures) if CUDA in given else None

    def io_binding(self) -> Any:
        return self._capturing.io_binding() if self._capturing else super().io_binding()

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        if not isinstance(binding, Binding) or self._capturing is None:
            super().run_with_iobinding(binding, options)
        elif FAULT != "replays_nothing" or graph_of(options) not in self._capturing.graphs:
            self._capturing.run_with_iobinding(binding, options)

    def get_providers(self) -> list[str]:
        return [CUDA, CPU] if self._says_cuda else [CPU]

    def run(self, names: Any, fed: dict[str, Any], options: Any = None) -> list[Any]:
        if self._has_tf32:
            fed = {name: _tf32(values) for name, values in fed.items()}
        found = list(super().run(names, fed, options))
        return [values + 1 for values in found] if FAULT == "answers_wrong" and self._says_cuda else found

    def end_profiling(self) -> str:
        path = Path(str(super().end_profiling()))
        events = json.loads(path.read_text())
        ran = [event["args"] for event in events if event.get("name", "").endswith("_kernel_time")]
        for number, args in enumerate(ran):
            args["provider"] = CPU if FAULT == "falls_back" and not number else CUDA
            if self._is_half and FAULT != "computes_fp32":
                for side in ("input_type_shape", "output_type_shape"):
                    args[side] = [_half(one) for one in args.get(side) or ()]
        path.write_text(json.dumps(events))
        return str(path)


def _tf32(values: Any) -> Any:
    """Of floats the ten leading bits of the mantissa."""
    if values.dtype != np.float32:
        return values
    return (np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _half(types: dict[str, Any]) -> dict[str, Any]:
    return {"float16" if kind == "float" else kind: shape for kind, shape in types.items()}


_exec_module = importlib.machinery.SourceFileLoader.exec_module


def _with_runtime(loader: importlib.machinery.SourceFileLoader, module: Any) -> None:
    """Of our backend, whatever loads CUDA's runtime gets the stand-in's."""
    _exec_module(loader, module)
    if hasattr(module, "loaded_runtime"):
        module.loaded_runtime = lambda: CARD.runtime


def main(arguments: list[str]) -> None:
    if FAULT and FAULT not in FAULTS:
        sys.exit(f"STAND_IN_FAULT is {FAULT}, want one of {', '.join(FAULTS)}")
    rest = arguments[1:] if arguments[:1] == ["-I"] else arguments
    ort.InferenceSession = Session
    ort.get_available_providers = lambda: [CUDA, CPU]
    ort.preload_dlls = lambda: None
    ort.OrtValue = CARD.ort.OrtValue
    importlib.machinery.SourceFileLoader.exec_module = _with_runtime  # type: ignore[assignment, method-assign]
    sys.argv = rest
    sys.path[0] = str(Path(rest[0]).parent)
    runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
