"""Answers of another server, pool or variant beside the first: what is off is taken out, told, and comes back when it is right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.gateway.app import Gateway
from serving.gateway.request import parity
from serving.gateway.request.parity import Parity
from serving.local.environments import Environment
from serving.repository import GATE_DATA_FILE
from tests.gateway.conftest import Running, gateway_before, triton_of_its_own
from tests.gateway.odd_triton import Answer, OddTriton, ask, gateway_of, until
from tests.local.harness import ROOT, wait_until
from tests.local.repository import digits_of_other_labels, publish_digits

RIGHT, WRONG = [0.0, 5.0, 1.0], [9.0, 5.0, 1.0]  # scores of three classes


def says(*scores: list[float], name: str = "y") -> Answer:
    """One after the other, then the last for ever."""
    left = list(scores)

    async def infer(_: bytes) -> tuple[int, Any]:
        row = left.pop(0) if len(left) > 1 else left[0]
        return 200, {"outputs": [{"name": name, "datatype": "FP32", "shape": [1, len(row)], "data": row}]}

    return infer


def monitor(gateway: Gateway) -> Parity:
    assert gateway.parity is not None
    return gateway.parity


async def compared(gateway: Gateway, num: int) -> list[dict[str, str]]:
    """Headers of answers to `num` requests, each of which was compared or skipped before the next."""
    headers = []
    for _ in range(num):
        reply = await ask(gateway)
        assert reply.status == 200
        headers.append(reply.headers)
        task = monitor(gateway)._task
        if task is not None:
            await asyncio.wait([task])
    return headers


def classifiers(*answers: Answer, models: list[list[str]] | None = None) -> list[OddTriton]:
    names = models or [["m-fp32"]] * len(answers)
    return [OddTriton(infer, models=own, task="classification") for infer, own in zip(answers, names, strict=True)]


def test_without_the_setting_nothing_is_compared() -> None:
    async def run() -> None:
        servers = classifiers(says(RIGHT), says(WRONG))
        async with gateway_of({"cpu": servers}) as gateway:
            before = sum(server.asked for server in servers)
            for _ in range(20):
                assert (await ask(gateway)).status == 200
            assert sum(server.asked for server in servers) == before + 20
            assert gateway.parity is None
            assert b"tandem_parity" not in await gateway.metrics.text()

    asyncio.run(run())


def test_the_server_that_two_others_contradict_is_taken_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        servers = classifiers(says(RIGHT), says(WRONG), says(RIGHT))
        async with gateway_of({"cpu": servers}, parity_ratio=1.0) as gateway:
            wrong = gateway.catalogue.pools["cpu"][1]
            await compared(gateway, 30)
            assert [bool(server.quarantined) for server in gateway.catalogue.pools["cpu"]] == [False, True, False]
            asked = servers[1].asked
            num_compared = monitor(gateway).counts["m", "fp32", "cpu"].different
            await compared(gateway, 10)
            assert servers[1].asked - asked == monitor(gateway).counts["m", "fp32", "cpu"].different - num_compared
            text = (await gateway.metrics.text()).decode()
            assert 'tandem_quarantined_servers{model="m",pool="cpu",variant="fp32"} 1.0' in text
            assert 'tandem_parity_comparisons_total{model="m",outcome="different",pool="cpu",variant="fp32"}' in text
            told = {place["url"]: place["state"] for place in monitor(gateway).told()["places"]}  # type: ignore[attr-defined]
            assert told[wrong.target.url] == "quarantined"
            assert sorted(told.values()) == ["compared", "compared", "quarantined"]
            assert f"m-fp32 at {wrong.target.url} is quarantined" in caplog.text

    asyncio.run(run())


def test_it_comes_back_once_its_answers_are_right_or_its_file_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(*, by_file: bool) -> None:
        servers = classifiers(says(RIGHT), says(WRONG), says(RIGHT))
        async with gateway_of({"cpu": servers}, parity_ratio=1.0) as gateway:
            wrong = gateway.catalogue.pools["cpu"][1]
            await compared(gateway, 30)
            assert wrong.quarantined
            servers[1].infer = says(RIGHT)
            if by_file:
                for server in servers:
                    server.digest = "11"
                await until(lambda: not wrong.quarantined, "it serves another file")
            else:
                monkeypatch.setattr(parity, "RIGHT_AGAIN", 0.05)  # some twenty right answers instead of a thousand
                for _ in range(20):
                    await compared(gateway, 5)
                assert not wrong.quarantined
            await until(lambda: "m-fp32" in wrong.variants, "it is asked again")

    asyncio.run(run(by_file=True))
    asyncio.run(run(by_file=False))


def test_another_variant_is_held_against_fp32_where_nobody_else_can_say() -> None:
    async def run() -> None:
        servers = classifiers(says(RIGHT), says(WRONG), models=[["m-fp32"], ["m-int8"]])
        async with gateway_of({"cpu": servers[:1], "other": servers[1:]}, parity_ratio=1.0) as gateway:
            await compared(gateway, 30)
            [int8] = gateway.catalogue.pools["other"]
            assert "m-int8" in int8.quarantined
            assert not gateway.catalogue.pools["cpu"][0].quarantined
            assert {it["tandem-pool"] for it in await compared(gateway, 5)} == {"cpu"}
            assert int8.target.url in gateway.catalogue.quarantined("other")["m-int8"]

    asyncio.run(run())


def test_of_two_equals_nobody_is_taken_out_and_the_dispute_is_told() -> None:
    async def run() -> None:
        servers = classifiers(says(RIGHT), says(WRONG))
        async with gateway_of({"cpu": servers}, parity_ratio=1.0) as gateway:
            await compared(gateway, 40)
            assert not any(server.quarantined for server in gateway.catalogue.pools["cpu"])
            assert monitor(gateway).counts["m", "fp32", "cpu"].disputed >= 40

    asyncio.run(run())


def test_the_last_that_serves_a_model_is_told_and_stays() -> None:
    async def run() -> None:
        servers = classifiers(says(RIGHT), says(WRONG), models=[["m-fp32"], ["m-int8"]])
        async with gateway_of({"cpu": servers[:1], "other": servers[1:]}, parity_ratio=1.0) as gateway:
            fp32, int8 = gateway.catalogue.pools["cpu"][0], gateway.catalogue.pools["other"][0]
            gateway.catalogue.quarantine(fp32, "m-fp32", "by hand")
            await compared(gateway, 30)
            assert not int8.quarantined
            assert (await ask(gateway)).headers["tandem-pool"] == "other"
            states = {it["name"]: it["state"] for it in monitor(gateway).told()["places"]}  # type: ignore[attr-defined]
            assert states == {"m-fp32": "quarantined", "m-int8": "suspect"}

    asyncio.run(run())


def test_what_is_quarantined_answers_once_nobody_else_is_left(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        servers = classifiers(says(RIGHT), says(WRONG), models=[["m-fp32"], ["m-int8"]])
        async with gateway_of({"cpu": servers[:1], "other": servers[1:]}) as gateway:
            [fp32], [int8] = gateway.catalogue.pools["cpu"], gateway.catalogue.pools["other"]
            assert gateway.catalogue.quarantine(int8, "m-int8", "by hand")
            assert {(await ask(gateway)).headers["tandem-pool"] for _ in range(5)} == {"cpu"}
            servers[0].hangs = True
            gateway.catalogue.lost(fp32)
            reply = await ask(gateway)
            assert (reply.status, reply.headers["tandem-pool"]) == (200, "other")
            assert "answers: nothing else does" in caplog.text
            servers[0].hangs = False
            await until(lambda: fp32.alive, "it is back")
            assert {(await ask(gateway)).headers["tandem-pool"] for _ in range(5)} == {"cpu"}

    asyncio.run(run())


def test_rows_of_one_request_are_one_piece_of_evidence() -> None:
    def rows(row: list[float]) -> Answer:
        async def infer(_: bytes) -> tuple[int, Any]:
            return 200, {"outputs": [{"name": "y", "datatype": "FP32", "shape": [32, 3], "data": row * 32}]}

        return infer

    async def run() -> None:
        servers = classifiers(rows(RIGHT), rows(WRONG), models=[["m-fp32"], ["m-int8"]])
        async with gateway_of({"cpu": servers[:1], "other": servers[1:]}, parity_ratio=1.0) as gateway:
            [int8] = gateway.catalogue.pools["other"]
            await compared(gateway, 1)
            assert monitor(gateway).counts["m", "int8", "other"].different == 1
            assert not int8.quarantined
            await compared(gateway, 30)
            assert int8.quarantined

    asyncio.run(run())


def test_answers_without_outputs_are_not_compared_and_nobody_is_blamed_for_them() -> None:
    async def nothing(_: bytes) -> tuple[int, Any]:
        return 200, {"outputs": []}

    async def run() -> None:
        servers = classifiers(nothing, nothing, models=[["m-fp32"], ["m-fp32", "m-int8"]])
        async with gateway_of({"cpu": servers}, parity_ratio=1.0) as gateway:
            before = monitor(gateway).num_skipped
            await compared(gateway, 30)
            assert monitor(gateway).num_skipped == before + 30
            assert not monitor(gateway).records

    asyncio.run(run())


def test_a_model_whose_task_nobody_tells_is_not_compared() -> None:
    async def run() -> None:
        servers = [OddTriton(says(RIGHT)), OddTriton(says(WRONG))]
        async with gateway_of({"cpu": servers}, parity_ratio=1.0) as gateway:
            await compared(gateway, 10)
            assert monitor(gateway).counts == {}
            assert monitor(gateway).num_skipped == 10

    asyncio.run(run())


def test_rounding_is_no_drift() -> None:
    async def run() -> None:
        servers = classifiers(says(RIGHT), says([0.01, 4.99, 1.02]), says([0.0, 5.1, 0.9]))
        async with gateway_of({"cpu": servers}, parity_ratio=1.0) as gateway:
            await compared(gateway, 60)
            counts = monitor(gateway).counts["m", "fp32", "cpu"]
            assert (counts.different, counts.disputed) == (0, 0)
            assert counts.alike == 120

    asyncio.run(run())


def test_who_works_is_not_asked_for_nobody() -> None:
    async def run() -> None:
        gate = asyncio.Event()

        async def slow(_: bytes) -> tuple[int, Any]:
            await gate.wait()
            return await says(RIGHT)(b"")

        busy = OddTriton(says(RIGHT), models=["m-fp32"], task="classification")
        free = OddTriton(says(RIGHT), models=["m-fp32"], task="classification")
        async with gateway_of({"busy": [busy], "free": [free]}, parity_ratio=1.0) as gateway:
            busy.infer = slow
            works = asyncio.create_task(ask(gateway, tandem_pool="busy"))
            await until(lambda: gateway.catalogue.pools["busy"][0].replica.num_in_flight, "it works")
            asked = busy.asked
            for _ in range(5):
                assert (await ask(gateway, tandem_pool="free")).status == 200
            assert busy.asked == asked
            assert monitor(gateway).num_skipped == 5
            gate.set()
            assert (await works).status == 200

    asyncio.run(run())


# -- real servers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def planted(environment: Environment, tmp_path: Path) -> Iterator[Running]:
    """Two pools of real Tritons: `cpu` serves the digits; `spare` an FP32 whose file gives two of ten classes each other's score."""
    wrong = digits_of_other_labels()
    publish_digits(tmp_path / "repository", precisions=["fp32"], model_file=wrong, keeps_rows=False)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    other = ["--model-repository", str(tmp_path / "repository")]
    with (
        triton_of_its_own(tmp_path / "one", "--no-measure") as (_, good),
        triton_of_its_own(tmp_path / "two", "--no-measure", *other) as (_, bad),
        gateway_before(tmp_path, {"cpu": [good], "spare": [bad]}, parity_ratio=0.5) as gateway,
    ):
        wait_until(lambda: gateway.ask("/admin/status").json()["pools"]["spare"]["state"] == "ready", "both are seen")
        yield gateway


@pytest.mark.triton
@pytest.mark.slow
def test_a_real_pool_that_serves_a_wrong_file_is_found_and_answered_around(planted: Running) -> None:
    with np.load(ROOT / "model_repo" / "digits-fp32" / GATE_DATA_FILE) as kept:
        images = kept["image"]
    bodies = [
        json.dumps(
            {"inputs": [{"name": "image", "shape": [15, 1, 8, 8], "datatype": "FP32", "data": rows.ravel().tolist()}]}
        ).encode()
        for rows in np.split(images.reshape(-1, 1, 8, 8)[:450], 30)
    ]
    num_requests = 0

    def is_quarantined() -> Any:
        nonlocal num_requests
        for body in bodies[num_requests % 30 : num_requests % 30 + 5]:
            num_requests += 1
            assert planted.infer(body, headers={"Tandem-Pool": "cpu"}).status == 200
        return planted.ask("/admin/status").json()["pools"]["spare"]["quarantined"]

    found = wait_until(is_quarantined, "the wrong file is found")
    assert list(found) == ["digits-fp32"]
    assert num_requests <= 100
    assert planted.ask("/admin/status").json()["pools"]["cpu"]["quarantined"] == {}
    pools = {planted.infer(body).headers["Tandem-Pool"] for body in bodies}
    assert pools == {"cpu"}
    text = planted.ask("/metrics").body.decode()
    assert 'tandem_quarantined_servers{model="digits",pool="spare",variant="fp32"} 1.0' in text
    wait_until(
        lambda: any("digits-fp32 at" in line and "is quarantined" in line for line in planted.program.lines()), "told"
    )
    assert planted.ask("/health/ready").status == 200
