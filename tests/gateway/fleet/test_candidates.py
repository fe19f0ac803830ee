"""What is measured of real models when a server appears, beside the traffic."""

from __future__ import annotations

import asyncio

import pytest

from serving.gateway.fleet import curves
from serving.gateway.fleet.candidates import Candidates
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.curves import DEFAULT
from serving.scheduling.choice import Candidate
from serving.settings import GatewaySettings
from tests.local.harness import Served

pytestmark = pytest.mark.triton


def measured(pools: dict[str, str], *names: tuple[str, str]) -> list[Candidate]:
    """The candidates of (pool, Triton's model name) once all that is measured has been."""

    async def run() -> list[Candidate]:
        described = {name: {"urls": [url], "device": "cpu"} for name, url in pools.items()}
        settings = GatewaySettings.model_validate({"version": 1, "pools": described})
        changed = asyncio.Event()
        catalogue = Catalogue(settings, changed.set)
        candidates = Candidates(settings, catalogue)
        catalogue.start()
        try:
            async with asyncio.timeout(60):
                while not all(pool.ready for pool in catalogue.fleet.pools):
                    await changed.wait()
                    changed.clear()
                candidates.update()
                while candidates.num_measuring:
                    await asyncio.sleep(0.01)
            return [candidates.of(*name) for name in names]
        finally:
            await candidates.stop()
            await catalogue.stop()

    return asyncio.run(run())


def test_a_digit_and_many_are_timed(digits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "LONGEST_S", 60.0)  # on a busy machine, too, all sizes are
    [candidate] = measured({"cpu": digits}, ("cpu", "digits-fp32"))
    assert [rows for rows, _ in candidate.service.curve.points] == [1, 8, 32]
    assert candidate.service.max_batch == 32
    assert candidate.service.curve.seconds(1) > 0.0001


def test_strings_and_sizes_that_are_not_told_are_made_up(kinds: Served) -> None:
    types, unbatched = measured({"kinds": f"http://{kinds.url}"}, ("kinds", "types"), ("kinds", "unbatched"))
    assert types.service.curve != DEFAULT
    assert unbatched.service.curve != DEFAULT
    assert unbatched.service.max_batch == 1
