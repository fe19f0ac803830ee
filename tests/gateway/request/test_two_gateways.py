"""Two gateways that do not talk to each other, before one Triton: what waits, waits in them and not there."""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from serving.local.environments import Environment
from tests.gateway.conftest import emulated_triton, gateway_before
from tests.gateway.fleet.test_faults import load_on
from tests.gateway.request.test_admission import MODEL, POINTS, POOL, batch, metric
from tests.local.harness import LIMIT_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.triton, pytest.mark.campaigns]  # servers that fail or wait under load

QUARTER = batch(8)  # of a full batch
NUM_CLIENTS = 24  # of each gateway: six full batches


def triton_times(url: str) -> tuple[float, float, int]:
    """Seconds that requests waited in Triton, seconds that they were worked on, and how many there were."""
    with urllib.request.urlopen(f"{url}/v2/models/{MODEL}/stats", timeout=LIMIT_S) as answer:
        [stats] = json.load(answer)["model_stats"]
    times = stats["inference_stats"]
    return times["queue"]["ns"] / 1e9, times["compute_infer"]["ns"] / 1e9, times["success"]["count"]


@pytest.mark.thorough
def test_what_waits_does_so_in_the_gateways_and_not_in_triton(environment: Environment, tmp_path: Path) -> None:
    with ExitStack() as stack:
        _, url = stack.enter_context(emulated_triton(tmp_path, POOL, POINTS))
        gateways = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            gateways.append(stack.enter_context(gateway_before(tmp_path / name, {POOL: [url]})))
        loads = [
            stack.enter_context(load_on(gateway.port, MODEL, clients=NUM_CLIENTS, body=QUARTER)) for gateway in gateways
        ]
        settled = [load.count(200) + 100 for load in loads]
        wait_until(lambda: all(load.count(200) > n for load, n in zip(loads, settled, strict=True)), "it settles")
        before = triton_times(url)
        wait_until(lambda: triton_times(url)[2] > before[2] + 300, "much more is done")
        waited_s, worked_s, num = (now - then for now, then in zip(triton_times(url), before, strict=True))
        assert min(metric(gateway, "tandem_queued", pool=POOL) for gateway in gateways) > 0
        for load in loads:
            load.stop.set()
    print(f"of {num} requests each waited {waited_s / worked_s:.2f} times as long in Triton as it was worked on")
    # One more execution is there when one ends, so 1 to 1.3; with bounds that do not adapt it is 2, and without any 11.
    assert waited_s / worked_s < 1.7
    assert {status for load in loads for status in load.statuses()} == {200}
    shares = [load.count(200) for load in loads]
    assert min(shares) > max(shares) / 3
