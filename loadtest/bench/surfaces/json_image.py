"""Is a photograph of 224 × 224 in JSON at least as fast through the gateway as sent to Triton directly?

The gateway reads the numbers and hands them on as bytes where that is faster than Triton's reading; keys are on. The binary body is
beside it: what a client would gain who did not send JSON at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.bench import wrk
from loadtest.bench.surfaces import pixels
from loadtest.bench.surfaces.part import Part, Plan, Setting, ends, told
from loadtest.bench.surfaces.served import Served, served
from loadtest.bench.verdicts import AtMost, Reach, Verdict
from loadtest.sending.bodies import Body
from serving.measure.rounds import Spread, ratio, rounds, spread

BODIES = {"JSON": pixels.json_body, "nested JSON": pixels.nested_json_body, "binary": pixels.binary_body}
JUDGED = ("JSON", "nested JSON")
NUM_CONNECTIONS = 4  # more would only wait: two cores read 3 MB each for some 10 ms
RATE_AIM = 1.0
LATENCY_AIM = 1.0


@dataclass(slots=True)
class Series:
    rate_rps: list[float] = field(default_factory=list)
    latency_p50_s: list[float] = field(default_factory=list)  # at one connection
    cpu_ms: list[float] = field(default_factory=list)  # of all that serves, per request


Measured = Mapping[tuple[str, str], Series]  # body, target


def measure(setting: Setting) -> Part:
    """Raises CannotMeasure."""
    generator, repository = wrk.find(), setting.folder / "repository"
    pixels.write(repository)
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


def _measure(plan: Plan, generator: str, scripts: Mapping[str, Path], running: Served) -> Measured:
    gateway, triton = running.stack.gateway, running.stack.triton
    urls = {
        "gateway": f"{gateway.url}/v2/models/{pixels.MODEL}/infer",
        "Triton direct": f"{triton.url}/v2/models/{pixels.MODEL}-fp32/infer",
    }
    measured: dict[tuple[str, str], Series] = defaultdict(Series)
    for order in rounds(list(urls), plan.num_rounds):
        for body, script in scripts.items():
            for target in order:
                series, before_s = measured[body, target], running.cpu_s()
                busy = wrk.fire(
                    generator, script, urls[target], num_connections=NUM_CONNECTIONS, duration_s=plan.burst_s
                )
                series.cpu_ms.append((running.cpu_s() - before_s) * 1000 / busy.num_requests)
                series.rate_rps.append(busy.rate_rps)
                lone = wrk.fire(generator, script, urls[target], num_connections=1, duration_s=1)
                series.latency_p50_s.append(lone.latency_p50_s)
    return measured


def _part(measured: Measured, bodies: Mapping[str, Body]) -> Part:
    rows = [("body", f"req/s at {NUM_CONNECTIONS}", "p50 ms at 1", "CPU ms/request", "target")]
    for (body, target), series in sorted(measured.items()):
        figures = (
            told(spread(series.rate_rps)),
            told(spread(series.latency_p50_s), 2, 1000),
            told(spread(series.cpu_ms), 2),
        )
        rows.append((body, *figures, target))
    verdicts = []
    for body in JUDGED:
        rate, latency = _ratios(measured, body)
        verdicts.append(
            Verdict(f"gateway ÷ direct throughput, image as {body}", rate.median, Reach(RATE_AIM), ends(rate))
        )
        verdicts.append(
            Verdict(f"gateway ÷ direct p50, image as {body}", latency.median, AtMost(LATENCY_AIM), ends(latency))
        )
    sizes = ", ".join(f"{name} {len(body.data) / 1e6:.1f} MB" for name, body in bodies.items())
    values = {
        f"{body}, {target}": {"rate_rps": s.rate_rps, "latency_p50_s": s.latency_p50_s, "cpu_ms_per_request": s.cpu_ms}
        for (body, target), s in measured.items()
    }
    return Part(
        "JSON image", rows, verdicts, [f"float32 [1, 3, 224, 224] to a net of three means, keys on: {sizes}"], values
    )


def _ratios(measured: Measured, body: str) -> tuple[Spread, Spread]:
    """(throughput, p50)"""
    gateway, direct = measured[body, "gateway"], measured[body, "Triton direct"]
    return ratio(gateway.rate_rps, direct.rate_rps), ratio(gateway.latency_p50_s, direct.latency_p50_s)
