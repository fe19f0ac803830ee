"""Stage 1: is there a card that computes right, in the precision that it was asked for, and nothing on the processor instead?

Whatever fails here would make every later number one of something else, so nothing is measured after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from loadtest.claims import bandwidth
from loadtest.claims.values import Findings
from loadtest.errors import CannotMeasure
from loadtest.gpu.card import DRIVER, loaded
from loadtest.gpu.ledger import Check
from loadtest.gpu.libraries import NEEDED
from loadtest.gpu.unit import Setup, Unit, UnitResult
from serving.decisions.engines import EnginePython
from serving.errors import TandemError
from serving.export.exported_model import Arrays
from serving.export.speed.kernels import problems, summary
from serving.export.speed.process import profiled, running
from serving.export.speed_nets.graph import SEED, Floats, NetBuilder
from serving.repository import Tensor

WIDTH = 1024  # of a product: long enough for the bits that TF32 lacks to show
NUM_ROWS = 64
# Of the largest answer; a guess between two orders of magnitude: rounding makes about 1e-6 of a sum of 1,024 products, factors that have
# the bits of TF32 about 3e-4 (the stand-in's: 3.7e-4).
FP32_ERROR = 2e-5
PROBABILITY_ERROR = 1e-4
MODEL = "digits"
PROVIDER = "CUDAExecutionProvider"


def units(setup: Setup) -> Iterator[Unit]:
    yield Unit("card", partial(_card, setup))
    yield Unit("libraries", partial(_libraries, setup))
    yield Unit("inference", partial(_inference, setup))
    for variant in ("fp32", "fp16"):
        yield Unit(f"kernels of {variant}", partial(_kernels, setup, variant))
    for variant in ("fp32", "tf32"):
        yield Unit(f"bits of {variant}", partial(_bits, setup, variant))
    yield Unit("bandwidth", partial(_bandwidth, setup))


def _card(setup: Setup) -> UnitResult:
    return UnitResult((Check("card", bool(setup.card.name), setup.card.facts),))


def _libraries(setup: Setup) -> UnitResult:
    if setup.card.is_stand_in:
        return UnitResult((Check("libraries", True, "a stand-in needs none"),))
    reasons = loaded(setup.card.engines["cuda"].python)
    return UnitResult(tuple(Check(name, reasons[name] is None, reasons[name] or "loads") for name in (DRIVER, *NEEDED)))


def _inference(setup: Setup) -> UnitResult:
    """The same digits on the card and on the processor."""
    model = (setup.trained / f"{MODEL}-fp32" / "1" / "model.onnx").read_bytes()
    card, cpu = (_answer(setup.card.engines[engine], model, "fp32", {"image": _digits()}) for engine in ("cuda", "cpu"))
    error, spread = float(np.abs(card - cpu).max()), float(np.ptp(cpu))
    text = f"{NUM_ROWS} digits: at most {error:.1e} beside the processor, of answers that span {spread:.2g}"
    return UnitResult((Check("inference", error <= PROBABILITY_ERROR < spread, text),))


def _kernels(setup: Setup, variant: str) -> UnitResult:
    model = (setup.trained / f"{MODEL}-{variant}" / "1" / "model.onnx").read_bytes()
    ran = profiled(setup.card.engines["cuda"], model, variant, {"image": _digits()})
    wrong = problems(ran, variant, PROVIDER)
    return UnitResult(
        (Check(f"{variant} computes in {variant} on the card", not wrong, "; ".join(wrong) or summary(ran)),)
    )


def _digits() -> Floats:
    return np.random.default_rng(SEED).random((NUM_ROWS, 1, 8, 8), np.float32) * 16


def _bits(setup: Setup, variant: str) -> UnitResult:
    """FP32 must not be TF32, which is the provider's own default; and TF32 must be another arm than FP32."""
    model, given = product(), {"x": np.random.default_rng(SEED).standard_normal((NUM_ROWS, WIDTH), np.float32)}
    card = _answer(setup.card.engines["cuda"], model, variant, given)
    exact = _answer(setup.card.engines["cpu"], model, "fp32", given)
    error = float(np.abs(card - exact).max() / np.abs(exact).max())
    is_good = error <= FP32_ERROR if variant == "fp32" else FP32_ERROR < error < 1e-2
    return UnitResult(
        (Check(f"{variant} has its bits", is_good, f"largest error {error:.1e}, FP32's bound is {FP32_ERROR:.0e}"),)
    )


def product() -> bytes:
    graph = NetBuilder("product", [Tensor("x", "FP32", (WIDTH,))], seed=SEED, opset=18)
    graph.linear("product", "x", WIDTH, WIDTH, output="y")
    return graph.model([Tensor("y", "FP32", (WIDTH,))])


def _answer(
    engine: EnginePython, model: bytes, precision: str, given: Arrays
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    try:
        with running(engine, model, precision) as run:
            return np.asarray(run(given)[0], np.float64)
    except TandemError as error:
        raise CannotMeasure(str(error)) from None


def _bandwidth(setup: Setup) -> UnitResult:
    device, rows = ("cpu", 16) if setup.card.is_stand_in else ("cuda", 256)
    engine = setup.card.engines["cpu" if setup.card.is_stand_in else "cuda"]
    found = bandwidth.card(engine, 5 if setup.is_quick else 15, device, rows)
    if not found.copy:
        raise CannotMeasure(found.reason or "the copy gave nothing")
    text = f"{float(np.median(found.copy)) / 1e9:,.0f} GB/s read and written"
    return UnitResult((Check("copies on the card", True, text),), Findings(bandwidths=(found,)))
