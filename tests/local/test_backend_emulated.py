"""A real Triton whose times follow a curve: the answers are real, latency and throughput are the file's, no core is burnt.

The tolerances are those of docs/emulated.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tritonclient.utils import InferenceServerException

from serving.ports import free_ports
from tests.local import models
from tests.local.harness import LIMIT_S, ROOT, Program, Served, segments, served, still_there, undisturbed, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.triton]

COMMITTED = ROOT / "model_repo"
ONE_S, FULL_S = 0.010, 0.020  # of 1 and of 32 rows
HELD_S = 2.0  # a good answer, where a bad one comes at once
CURVES = {"version": 1, "name": "t4", "variants": {"*": [[1, ONE_S], [32, FULL_S]]}}


def rows(count: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    rng = np.random.default_rng(count)
    return {"image": rng.random((count, 1, 8, 8), np.float32)}


@contextlib.contextmanager
def emulated(folder: Path, curves: object = CURVES) -> Iterator[Served]:
    """`tandem triton` as an emulated pool on the committed repository."""
    file = folder / "curves.json"
    file.write_text(json.dumps(curves))
    ports = free_ports(3)
    options = ["--http-port", str(ports[0]), "--grpc-port", str(ports[1]), "--metrics-port", str(ports[2])]
    options += ["--model-repository", str(COMMITTED), "--exit-timeout-s", "5"]
    command = [sys.executable, "-m", "serving", "triton", "--pool", "emulated-gpu", "--emulate", str(file), *options]
    program = Program(command, folder / "log")
    try:
        program.wait_for("ready:")
        with contextlib.closing(Served(program, (ports[0], ports[1], ports[2]), COMMITTED)) as running:
            yield running
    finally:
        program.end()


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with emulated(tmp_path_factory.mktemp("emulated")) as running:
        yield running


def test_the_answer_is_the_models_own(triton: Served) -> None:
    session = onnxruntime.InferenceSession(COMMITTED / "digits-fp32" / "1" / "model.onnx")
    for count in (1, 5, 32):
        [right] = session.run(None, rows(count))
        assert np.allclose(triton.infer("digits-fp32", rows(count))["probabilities"], right, atol=1e-5)


@pytest.mark.parametrize(("count", "seconds"), [(1, ONE_S), (32, FULL_S), (16, ONE_S + (FULL_S - ONE_S) * 15 / 31)])
def test_a_request_alone_takes_what_the_curve_says(triton: Served, count: int, seconds: float) -> None:
    def took_s() -> float:
        began = time.perf_counter()
        triton.infer("digits-fp32", rows(count))
        return time.perf_counter() - began

    assert seconds <= undisturbed(took_s, seconds * 1.1 + 0.003)


def at_once(triton: Served, models: list[str], count: int) -> float:
    """Seconds for so many full batches of each model, four clients each."""

    def ask(model: str) -> None:
        triton.infer(model, rows(32))

    with ThreadPoolExecutor(4 * len(models)) as pool:
        list(pool.map(ask, models * 4))  # connections are made
        began = time.perf_counter()
        list(pool.map(ask, models * count))
        return time.perf_counter() - began


def test_throughput_is_what_the_curve_says(triton: Served) -> None:
    due_s = 25 * FULL_S
    assert undisturbed(lambda: at_once(triton, ["digits-fp32"], 25), due_s * 1.05) >= due_s * 0.95


def test_every_row_is_computed_and_the_processor_sleeps(triton: Served) -> None:
    stubs = [stub.pid for stub in triton.stubs("digits-fp32")]
    counted = num_inferences(triton)
    before = processor_s(stubs)
    took = at_once(triton, ["digits-fp32"], 50)
    assert processor_s(stubs) - before < 0.2 * took
    # Triton counts once it has answered, the batches of the test before as well.
    wait_until(lambda: num_inferences(triton) - counted >= 54 * 32, "every row is counted")


def test_all_models_of_a_server_share_its_one_device(triton: Served) -> None:
    due_s = 2 * 12 * FULL_S
    assert undisturbed(lambda: at_once(triton, ["digits-fp32", "digits-int8"], 12), due_s * 1.05) >= due_s * 0.95


def num_inferences(triton: Served) -> int:
    [stats] = triton.http.get_inference_statistics("digits-fp32")["model_stats"]
    assert stats["inference_stats"]["fail"].get("count", 0) == 0
    return int(stats["inference_count"])


def processor_s(pids: list[int]) -> float:
    """Seconds of processor time that these have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.thorough
def test_a_failed_run_is_an_error_at_once_and_the_next_request_is_answered(tmp_path: Path) -> None:
    config = models.write_all(tmp_path)["ragged"]
    curve = {"seconds": [HELD_S] * config["max_batch_size"], "check_rows": []}
    ours = {"tandem_emulated": "t4", "tandem_emulated_curve": json.dumps(curve)}
    config["parameters"] |= {key: {"string_value": value} for key, value in ours.items()}
    with served(tmp_path, {"ragged": {**config, "backend": "emulated"}}) as running:
        began = time.perf_counter()
        with pytest.raises(InferenceServerException, match="Reshape"):
            running.infer("ragged", {"x": np.ones((1, 7), np.float32)})
        assert time.perf_counter() - began < HELD_S
        assert running.infer("ragged", {"x": np.ones((1, 8), np.float32)})["y"].tolist() == [[2, 2, 2, 2]]
        assert time.perf_counter() - began > HELD_S


@pytest.mark.thorough
def test_a_device_that_this_machine_cannot_keep_up_with_is_refused(tmp_path: Path) -> None:
    too_fast = {**CURVES, "variants": {"*": [[1, 1e-6]], "int8": [[1, 0.010], [8, 1e-6]]}}
    with pytest.raises(AssertionError, match="ended with 3"), emulated(tmp_path, too_fast):
        pass
    said = (tmp_path / "log").read_text()
    assert re.search(r"\b1 rows.* 20% .* 0.00 ms", said)


def test_one_variant_that_is_too_fast_does_not_keep_the_others_out(tmp_path: Path) -> None:
    with emulated(tmp_path, {**CURVES, "variants": {"fp32": [[1, 0.010]], "int8": [[1, 0.010], [8, 1e-6]]}}) as running:
        running.program.wait_for("not served: Triton could not load digits-int8: the real run of 8 rows takes")
        running.infer("digits-fp32", rows(1))


def metrics(running: Served) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{running.ports[2]}/metrics", timeout=LIMIT_S) as answer:
        return str(answer.read().decode())


@pytest.mark.thorough
def test_an_answer_that_is_held_when_it_is_stopped_still_comes(tmp_path: Path) -> None:
    with emulated(tmp_path, {**CURVES, "variants": {"fp32": [[1, HELD_S], [32, HELD_S]]}}) as running:
        waiting = 'nv_inference_pending_request_count{model="digits-fp32",version="1"} 1'
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(running.infer, "digits-fp32", rows(32)) for _ in range(2)]  # full: in no common batch
            wait_until(lambda: waiting in metrics(running), "the first is with the device, the second waits")
            running.program.send(signal.SIGTERM)
            assert all(answer.result(LIMIT_S)["probabilities"].shape == (32, 10) for answer in asked)


@pytest.mark.thorough
def test_nothing_stays_behind_when_it_is_stopped_or_killed(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with emulated(tmp_path) as running:
            running.infer("digits-fp32", rows(1))
            running.close()
            family = running.program.family()
            assert any(name.endswith("device") for name in segments(family))
            running.program.end(number)
            wait_until(lambda left=family: not still_there(left), "all gone", LIMIT_S)
            wait_until(lambda left=family: not segments(left), "shared memory gone", LIMIT_S)
