"""A card that is not there: CUDA's runtime and a session that captures graphs, on ONNX Runtime's CPU provider.

It refuses what CUDA refuses: memory that nobody allocated, copies and allocations while a graph is captured, and a replay with other shapes
or addresses than a graph was captured with.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]
from onnxruntime import OrtValue  # the real one, whatever stands in for it

OUT_OF_MEMORY, INVALID, STREAM_CAPTURE_UNSUPPORTED = 2, 1, 900


class CudaError(Exception):
    """What the provider would raise."""


@dataclass
class Card:
    """`replays` and `captured` hold graph numbers; `copied_to_host` the bytes of each copy from the card."""

    memory_bytes: int = 2**30
    captured: list[str] = field(default_factory=list)
    replays: list[str] = field(default_factory=list)
    copied_to_host: list[int] = field(default_factory=list)
    num_pageable: int = 0  # copies from or to memory that is not pinned, which CUDA takes, too
    pinned: dict[int, Any] = field(default_factory=dict)
    on_card: dict[int, int] = field(default_factory=dict)  # address -> bytes
    is_capturing: bool = False

    @property
    def runtime(self) -> Any:
        """libcudart.so."""
        calls: dict[str, Callable[..., Any]] = {
            "cudaSetDevice": lambda number: 0 if number == 0 else INVALID,
            "cudaHostAlloc": self._host_alloc,
            "cudaFreeHost": lambda address: self.pinned.pop(address.value, None) is None,
            "cudaMemcpy": self._copy,
            "cudaGetErrorString": lambda code: {OUT_OF_MEMORY: b"out of memory"}.get(code, b"invalid argument"),
        }
        return SimpleNamespace(**{name: _Function(call) for name, call in calls.items()})

    def _host_alloc(self, where: Any, num_bytes: Any, flags: int) -> int:
        if self.is_capturing:
            return STREAM_CAPTURE_UNSUPPORTED
        if num_bytes.value > self.memory_bytes:
            return OUT_OF_MEMORY
        memory = ctypes.create_string_buffer(num_bytes.value)
        where._obj.value = ctypes.addressof(memory)
        self.pinned[where._obj.value] = memory
        return flags

    def _copy(self, target: Any, source: Any, num_bytes: Any, kind: int) -> int:
        if self.is_capturing:
            return STREAM_CAPTURE_UNSUPPORTED
        host, device = (source, target) if kind == 1 else (target, source)
        if host.value in self.on_card or self.on_card.get(device.value, 0) < num_bytes.value:
            return INVALID
        self.num_pageable += host.value not in self.pinned
        if kind == 2:
            self.copied_to_host.append(num_bytes.value)
        ctypes.memmove(target, source, num_bytes.value)
        return 0

    @property
    def ort(self) -> Any:
        """The `onnxruntime` that allocates on this card."""

        def allocate(shape: list[int], dtype: Any, device: str, number: int) -> Any:
            assert (device, number) == ("cuda", 0)
            value = OrtValue.ortvalue_from_shape_and_type(shape, dtype)
            self.on_card[value.data_ptr()] = value.tensor_size_in_bytes()
            return value

        return SimpleNamespace(
            OrtValue=SimpleNamespace(ortvalue_from_shape_and_type=allocate), RunOptions=ort.RunOptions
        )

    @contextmanager
    def capture(self) -> Iterator[None]:
        self.is_capturing = True
        yield
        self.is_capturing = False


class _Function:
    """One function of a C library: ctypes lets its result's type be set."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.restype: object = None

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


class Binding:
    """An I/O binding whose bound values are remembered."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.bound: dict[str, Any] = {}  # None: the provider allocates it in the run

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.bound[name] = value
        self.real.bind_ortvalue_input(name, value)

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        self.bound[name] = value
        self.real.bind_ortvalue_output(name, value)

    def bind_output(self, name: str, device: str, number: int) -> None:
        assert (device, number) == ("cuda", 0)
        self.bound[name] = None
        self.real.bind_output(name, "cpu")

    def clear_binding_outputs(self) -> None:
        self.bound = {name: value for name, value in self.bound.items() if value is not None}
        self.real.clear_binding_outputs()

    def get_outputs(self) -> Any:
        return self.real.get_outputs()

    @property
    def signature(self) -> Mapping[str, tuple[tuple[int, ...], int]]:
        return {name: (tuple(value.shape()), value.data_ptr()) for name, value in self.bound.items()}


class CapturingSession:
    """`enable_cuda_graph`: a run without `gpu_graph_id` takes graph 0, and -1 leaves graphs alone."""

    def __init__(self, real: ort.InferenceSession, card: Card, *, enable_cuda_graph: bool) -> None:
        self.real, self.card, self.is_enabled = real, card, enable_cuda_graph
        self.graphs: dict[str, Binding] = {}
        self.get_inputs, self.get_outputs = real.get_inputs, real.get_outputs

    def io_binding(self) -> Binding:
        return Binding(self.real.io_binding())

    def run(self, names: list[str], feed: Mapping[str, Any], options: Any = None) -> Any:
        if self.is_enabled and graph_of(options) != "-1":
            raise CudaError("a run with arrays of the host would be captured: its copies are not allowed in a capture")
        return self.real.run(names, feed, options)

    def run_with_iobinding(self, binding: Binding, options: Any = None) -> None:
        graph = graph_of(options)
        if graph == "-1" or not self.is_enabled:
            self.real.run_with_iobinding(binding.real)
            return
        captured = self.graphs.get(graph)
        if captured is None:
            if None in binding.bound.values():
                raise CudaError("an output is allocated while a graph is captured")
            if any(address not in self.card.on_card for _, address in binding.signature.values()):
                raise CudaError("memory of the host is copied while a graph is captured")
            with self.card.capture():
                self.real.run_with_iobinding(binding.real)
            self.graphs[graph] = binding
            self.card.captured.append(graph)
            return
        if captured.signature != binding.signature:
            raise CudaError("a graph is replayed with other shapes or addresses than it was captured with")
        self.real.run_with_iobinding(captured.real)
        self.card.replays.append(graph)


def graph_of(options: Any) -> str:
    try:
        return str(options.get_run_config_entry("gpu_graph_id")) if options is not None else "0"
    except RuntimeError:
        return "0"


def on_host(shape: list[int]) -> Any:
    return OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
