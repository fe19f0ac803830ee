"""A Triton that a request keeps busy after its deadline is back in seconds, that request goes nowhere else, and others' work is left alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from serving.local.containment import cpu_s
from serving.local.environments import Environment
from tests.gateway.conftest import Running, gateway_before
from tests.local import models, poison
from tests.local.harness import Served, served, wait_until

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("environment")]

CONTAINED = "tritonserver works on though everybody who asked has hung up"
SHORT = {"Tandem-Deadline-Ms": "1500"}
LONG = {"Tandem-Deadline-Ms": "170000"}


@contextlib.contextmanager
def looping(folder: Path, *names: str) -> Iterator[Served]:
    """Serves `loop`, or the same under these names, as a gate would have let it."""
    folder.mkdir()
    configs = {}
    for name in names or ("loop",):
        gate = {"model": name, "variant": "fp32", "engine": "cpu", "digest": "00" * 32, "gate": "passed"}
        parameters = {f"tandem_{key}": value for key, value in gate.items()}
        configs[f"{name}-fp32"] = models.loop(folder, f"{name}-fp32", parameters=parameters)
    with served(folder, configs) as running:
        yield running


PATIENCE_S = 150.0  # what computes for ever takes the cores of whoever is to see it


def worked_s(pid: int) -> float:
    """Processor time of a process since it began."""
    return cpu_s(pid)[pid]


def num_restarts(gateway: Running, pool: str) -> float:
    lines = gateway.ask("/metrics").body.decode().splitlines()
    return next(
        float(one.split()[1]) for one in lines if one.startswith(f'tandem_contained_restarts_total{{pool="{pool}"}}')
    )


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_what_a_server_was_stuck_with_is_tried_on_no_second_pool_and_then_refused(
    environment: Environment, tmp_path: Path
) -> None:
    with looping(tmp_path / "cheap") as cheap, looping(tmp_path / "dear") as dear:
        pools = {"cheap": [f"http://{cheap.url}"], "dear": [f"http://{dear.url}"]}
        with gateway_before(tmp_path, pools, prices={"cheap": 1.0, "dear": 50.0}) as gateway:
            wait_until(
                lambda: gateway.infer(poison.rounds(3), "loop").headers.get("Tandem-Pool") == "cheap",
                "the cheap one serves",
            )
            assert gateway.infer(poison.rounds(poison.FOREVER), "loop", SHORT).status == 504
            wait_until(lambda: num_restarts(gateway, "cheap") == 1, "it is restarted, and says so", PATIENCE_S)
            wait_until(
                lambda: gateway.infer(poison.rounds(3), "loop").headers.get("Tandem-Pool") == "cheap",
                "it serves again",
                PATIENCE_S,
            )
            assert gateway.infer(poison.rounds(poison.FOREVER), "loop", SHORT).status == 504
            wait_until(lambda: num_restarts(gateway, "cheap") == 2, "it is restarted again", PATIENCE_S)
            again = gateway.infer(poison.rounds(poison.FOREVER), "loop", SHORT)
            assert (again.status, again.headers["Tandem-Error"]) == (503, "upstream_lost")
            wait_until(
                lambda: gateway.infer(poison.rounds(3), "loop").headers.get("Tandem-Pool") == "cheap",
                "it serves again",
                PATIENCE_S,
            )
            assert num_restarts(gateway, "dear") == 0
            statistics = dear.http.get_inference_statistics("loop-fp32")["model_stats"][0]
            assert statistics["inference_count"] == statistics["inference_stats"]["success"]["count"]
            assert dear.infer("loop-fp32", {"x": np.array([3])})["y"] == 3


@pytest.mark.thorough  # beside a Triton: tests/local/test_containment.py
def test_a_long_execution_for_another_gateway_is_never_killed(environment: Environment, tmp_path: Path) -> None:
    with looping(tmp_path / "loop") as triton, contextlib.ExitStack() as stack:
        gateways = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            limits = {"upstream_timeout_s": 180.0}
            gateways.append(
                stack.enter_context(gateway_before(tmp_path / name, {"cpu": [f"http://{triton.url}"]}, limits=limits))
            )
        one, other = gateways
        with ThreadPoolExecutor(1) as batch:
            [stub] = triton.stubs("loop-fp32")
            before_s = worked_s(stub.pid)
            long = batch.submit(poison.answer, other.url, "loop", poison.rounds(4_000_000), LONG)
            wait_until(lambda: worked_s(stub.pid) > before_s + 0.5, "it is under way")
            assert one.infer(poison.rounds(2), "loop", SHORT).status == 504  # waits behind it, and is given up
            assert long.result() == 200
        assert not triton.program.says(CONTAINED)


@pytest.mark.thorough  # a core for a quarter of a minute
def test_a_model_that_works_long_leaves_the_others_of_its_server_available(
    environment: Environment, tmp_path: Path
) -> None:
    limits = {"upstream_timeout_s": 180.0}
    with (
        looping(tmp_path / "both", "loop", "quick") as triton,
        gateway_before(tmp_path, {"cpu": [f"http://{triton.url}"]}, limits=limits) as gateway,
    ):
        assert gateway.infer(poison.rounds(poison.FOREVER), "loop", SHORT).status == 504
        with contextlib.closing(poison.send(gateway.url, "loop", poison.rounds(3), LONG)):  # somebody waits behind it
            wait_until(lambda: gateway.program.says("does not answer what has long expired"), "it is given up")
            assert gateway.infer(poison.rounds(3), "quick").status == 200
            assert gateway.infer(poison.rounds(3), "loop").status == 503
        assert num_restarts(gateway, "cpu") == 0


@pytest.mark.thorough
def test_a_model_that_is_stuck_is_restarted_though_it_is_asked_on_and_another_of_its_server_answers(
    environment: Environment, tmp_path: Path
) -> None:
    with (
        looping(tmp_path / "both", "loop", "quick") as triton,
        gateway_before(tmp_path, {"cpu": [f"http://{triton.url}"]}) as gateway,
        ThreadPoolExecutor(3) as clients,
    ):
        assert gateway.infer(poison.rounds(poison.FOREVER), "loop", SHORT).status == 504
        is_over = threading.Event()

        def ask(model: str) -> None:
            while not is_over.wait(0.1):
                gateway.infer(poison.rounds(3), model, SHORT)

        asking = [clients.submit(ask, model) for model in ("loop", "loop", "quick")]
        try:
            wait_until(lambda: num_restarts(gateway, "cpu") == 1, "it is restarted")
            wait_until(lambda: gateway.infer(poison.rounds(3), "loop").status == 200, "it serves again")
        finally:
            is_over.set()
        for each in asking:
            each.result()
