"""Nets that really compute, for a wanted time: an execution costs the same whatever its rows, or each row costs the same.

A chain of matrix products on a grid of numbers. Where rows cost, each has a grid; where they do not, all rows together have one as large
as the grids of a full execution, which is the case of a GPU that is not full. Both kinds take the same for a full execution. Random
weights: what they answer means nothing. Their weights stay in the processor's cache, so that gateways do not compete for its memory.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from loadtest.bench import made_models
from serving.export import onnx_session
from serving.export.speed_nets.graph import OPSETS, SEED, NetBuilder
from serving.repository import OTHER, Tensor
from serving.repository.record import Record

MAX_BATCH = 8
WIDTH = 256
GRID = 64  # a row's, times WIDTH
INPUT, OUTPUT = Tensor("x", "FP32", (WIDTH,)), Tensor("y", "FP32", (WIDTH,))
NUM_TIMED_LAYERS, NUM_RUNS = 8, 10


def layers_for(execution_s: float) -> int:
    """How many layers a full execution computes in that time, by the quickest of some runs on the cores that this process may use."""
    session = onnx_session.opened(chain(NUM_TIMED_LAYERS, SEED, is_fixed=False))
    rows = {INPUT.name: np.ones((MAX_BATCH, WIDTH), np.float32)}
    took = []
    for _ in range(NUM_RUNS):
        began_s = time.perf_counter()
        session.run(None, rows)
        took.append(time.perf_counter() - began_s)
    return max(1, round(execution_s / min(took) * NUM_TIMED_LAYERS))


def chain(num_layers: int, seed: int, *, is_fixed: bool) -> bytes:
    """The file: float32 [n, WIDTH] in and out."""
    graph = NetBuilder("chain", [INPUT], seed=seed, opset=OPSETS[0])
    x, height = INPUT.name, GRID
    if is_fixed:
        x, height = (
            graph.node("ReduceMean", [x, graph.constant("rows", [0], np.int64)], "mean", keepdims=1),
            GRID * MAX_BATCH,
        )
    wide = graph.node("Unsqueeze", [x, graph.constant("grid", [1], np.int64)], "wide")
    x = graph.node("Add", [wide, graph.weight("places", (1, height, WIDTH), 1.0)], "start")
    for number in range(num_layers):
        weight = graph.weight(f"weight{number}", (WIDTH, WIDTH), float(np.sqrt(2 / WIDTH)))  # He's, for ReLU
        x = graph.node("Relu", [graph.node("MatMul", [x, weight], f"product{number}")], f"layer{number}")
    mean = graph.node("ReduceMean", [x, "grid"], "answer", keepdims=0)
    graph.node("Add", [INPUT.name, mean], OUTPUT.name)
    return graph.model([OUTPUT])


def write(repository: Path, models: tuple[str, ...], num_layers: int, *, is_fixed: bool) -> None:
    """FP32 each, of one form and with weights of its own."""
    for seed, model in enumerate(models, SEED):
        made_models.write(repository, (record_of(model), chain(num_layers, seed, is_fixed=is_fixed), {}))


def record_of(model: str) -> Record:
    """Of a net with this name."""
    return replace(
        made_models.BASE,
        model=model,
        task=OTHER,
        max_batch_size=MAX_BATCH,
        inputs=(INPUT,),
        outputs=(OUTPUT,),
        preprocessing=None,
        space=None,
    )
