"""Is a photograph of 224 × 224 in JSON at least as fast through the gateway as sent to Triton directly?

The gateway reads the numbers and hands them on as bytes where that is faster than Triton's reading; keys are on. The binary body is
beside it: what a client would gain who did not send JSON at all; and a batch of 32 images in binary, 19 MB, of which nothing is read but
everything is moved. The net does almost nothing, three means, so that what is measured is
how a request of 150,528 numbers is read or moved. Its record says that nothing proves it; a bench serves it to itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from loadtest.bench import made_models, wrk
from loadtest.bench.surfaces.part import KeyedStack, Part, Plan, Setting, served
from loadtest.bench.verdicts import AtMost, Reach, Verdict, ends_text, spread_text
from loadtest.sending.bodies import Body, Signature, encode_binary, encode_json
from loadtest.sending.bodies import Tensor as Taken
from serving.measure.rounds import Spread, ratio, rounds, spread
from serving.repository import OTHER, Tensor

MODEL = "pixels"
SHAPE = (3, 224, 224)
MAX_BATCH_SIZE = 32
SIGNATURE = Signature((Taken("image", "FP32", SHAPE),), "means")


def write(repository: Path) -> None:
    """The one variant."""
    record = replace(
        made_models.BASE,
        model=MODEL,
        task=OTHER,
        max_batch_size=MAX_BATCH_SIZE,
        warmup_batch_sizes=(1,),
        inputs=(Tensor("image", "FP32", SHAPE),),
        outputs=(Tensor("means", "FP32", (3,)),),
        preprocessing=None,
        space=None,
    )
    made_models.write(repository, (record, _graph(), {}))


def photograph() -> NDArray[np.float32]:
    """float32 [1, 3, 224, 224]: 8-bit values, scaled as nets want them, so that JSON has as many digits as in earnest."""
    values = np.random.default_rng(1).integers(0, 256, (1, *SHAPE)).astype(np.float32)
    return (values / np.float32(255) - np.float32(0.485)) / np.float32(0.229)


def json_body() -> Body:
    return encode_json(SIGNATURE, {"image": photograph()}, ())


def nested_json_body() -> Body:
    """The same as lists in lists, as `array.tolist()` gives them."""
    flat = orjson.loads(json_body().data)
    flat["inputs"][0]["data"] = photograph().astype(np.float64).tolist()
    return Body(orjson.dumps(flat), None, ())


def binary_body() -> Body:
    return encode_binary(SIGNATURE, {"image": photograph()}, ())


def large_body() -> Body:
    """As many as the net takes."""
    return encode_binary(SIGNATURE, {"image": photograph().repeat(MAX_BATCH_SIZE, axis=0)}, ())


def _graph() -> bytes:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["image", "along"], ["means"], keepdims=0)],
        MODEL,
        [info("image", TensorProto.FLOAT, ["n", *SHAPE])],
        [info("means", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(np.array([2, 3]), "along")],
    )
    model: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    ).SerializeToString()
    return model


LARGE = "32 in binary"
BODIES = {"JSON": json_body, "nested JSON": nested_json_body, "binary": binary_body, LARGE: large_body}
JUDGED = ("JSON", "nested JSON", LARGE)
NUM_CONNECTIONS = 4  # more would only wait: two cores read 3 MB each for some 10 ms
RATE_AIM = 1.0
LATENCY_AIM = 1.0


SeriesByRun = Mapping[tuple[str, str], wrk.Series]  # body, target


def measure(setting: Setting) -> Part:
    """Raises CannotMeasure."""
    generator, repository = wrk.find(), setting.folder / "repository"
    write(repository)
    bodies = {name: make() for name, make in BODIES.items()}
    with served(repository, setting.folder) as running:
        scripts = {
            name: wrk.write_script(
                setting.folder / f"{name.replace(' ', '-')}.lua", body.data, body.headers | running.key_header
            )
            for name, body in bodies.items()
        }
        measured = _measure(setting.plan, generator, scripts, running)
    return _part(measured, bodies)


def _measure(plan: Plan, generator: str, scripts: Mapping[str, Path], running: KeyedStack) -> SeriesByRun:
    gateway, triton = running.stack.gateway, running.stack.triton
    urls = {
        "gateway": f"{gateway.url}/v2/models/{MODEL}/infer",
        "Triton direct": f"{triton.url}/v2/models/{MODEL}-fp32/infer",
    }
    measured: dict[tuple[str, str], wrk.Series] = defaultdict(wrk.Series)
    for order in rounds(list(urls), plan.num_rounds):
        for body, script in scripts.items():
            for target in order:
                fire = wrk.firing(generator, script, urls[target], busy_s=plan.burst_s)
                measured[body, target].take_turn(fire, NUM_CONNECTIONS, running.cpu_s)
    return measured


def _part(measured: SeriesByRun, bodies: Mapping[str, Body]) -> Part:
    rows = [("body", f"req/s at {NUM_CONNECTIONS}", "p50 ms at 1", "CPU ms/request", "target")]
    for (body, target), series in sorted(measured.items()):
        figures = (
            spread_text(spread(series.rate_rps)),
            spread_text(spread(series.latency_p50_s), 2, 1000),
            spread_text(spread(series.cpu_us), 2, 0.001),
        )
        rows.append((body, *figures, target))
    verdicts = []
    for body in JUDGED:
        rate, latency = _ratios(measured, body)
        verdicts.append(
            Verdict(f"gateway ÷ direct throughput, image as {body}", rate.median, Reach(RATE_AIM), ends_text(rate))
        )
        verdicts.append(
            Verdict(f"gateway ÷ direct p50, image as {body}", latency.median, AtMost(LATENCY_AIM), ends_text(latency))
        )
    sizes = ", ".join(f"{name} {len(body.data) / 1e6:.1f} MB" for name, body in bodies.items())
    values = {
        f"{body}, {target}": series.to_json("cpu_ms_per_request", 0.001) for (body, target), series in measured.items()
    }
    return Part(
        "JSON image", rows, verdicts, [f"float32 [1, 3, 224, 224] to a net of three means, keys on: {sizes}"], values
    )


def _ratios(measured: SeriesByRun, body: str) -> tuple[Spread, Spread]:
    """(throughput, p50)"""
    gateway, direct = measured[body, "gateway"], measured[body, "Triton direct"]
    return ratio(gateway.rate_rps, direct.rate_rps), ratio(gateway.latency_p50_s, direct.latency_p50_s)
