"""Contests of real files on real engines: who takes part, who is left out and why, and how long it may take."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from serving.export.speed import EnginePython, Entrant, contest
from serving.export.speed.results import Results
from serving.measure.machine import card_name, processor_key
from tests.export import spoil
from tests.local.harness import wait_until

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`

Engines = dict[str, EnginePython]


def test_every_entrant_is_timed_beside_fp32_at_every_batch_size(
    both: Engines, fp32_file: Path, int8_file: Path
) -> None:
    entrants = [Entrant(v, e, f) for v, f in (("fp32", fp32_file), ("int8", int8_file)) for e in ("cpu", "openvino")]
    steps: list[tuple[str, int, int]] = []
    found = contest(
        entrants,
        engines=both,
        batch_sizes=(3, 1),
        num_threads=2,
        seconds=0.02,
        progress=lambda *step: steps.append(step),
    )
    assert found.left_out == {}
    assert found.warnings == ()
    assert set(found.entrants) == {entrant.key for entrant in entrants}
    for entrant in entrants:
        speeds = [s for s in found.speeds(*entrant.key) if s.baseline_engine == "cpu"]
        assert [s.batch_size for s in speeds] == [1, 3]
        for s in speeds:
            assert (s.processor, s.num_threads) == (processor_key(), 2)
            assert s.engine_version == both[entrant.engine].version
            assert 0 < s.ratio_low <= s.ratio <= s.ratio_high
    assert found.verdict("int8").engine in both
    assert steps[-1][1:] == (5, 5)


def test_real_redundant_work_is_seen_as_slower_and_its_absence_as_faster(
    here: EnginePython, fp32_file: Path, tmp_path: Path
) -> None:
    slowed = tmp_path / "slowed.onnx"
    slowed.write_bytes(spoil.slowed(fp32_file.read_bytes()))
    for base, other, is_faster in ((fp32_file, slowed, False), (slowed, fp32_file, True)):
        entrants = [Entrant("fp32", "cpu", base), Entrant("int8", "cpu", other)]

        def clear(entrants: list[Entrant] = entrants, is_faster: bool = is_faster) -> Results | None:
            """What else this machine does may blur a contest."""
            found = contest(entrants, engines={"cpu": here}, batch_sizes=(1,), seconds=0.2)
            [speed] = found.speeds("int8", "cpu")
            return found if (speed.ratio_low > 1 if is_faster else speed.ratio_high < 1) else None

        found = wait_until(clear, "the difference is seen")
        assert (found.verdict("int8").status == "passed") == is_faster


def test_what_noise_leaves_undecided_is_timed_again_twice_at_most(
    here: EnginePython, fp32_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entrants = [Entrant("fp32", "cpu", fp32_file), Entrant("int8", "cpu", fp32_file)]

    def num_rounds(settle_s: float, undecided: list[str]) -> int:
        monkeypatch.setattr(Results, "undecided", lambda _: undecided)
        engines = {"cpu": here}
        found = contest(entrants, engines=engines, batch_sizes=(1,), seconds=0.01, num_rounds=3, settle_s=settle_s)
        return len(found.times[1])

    assert num_rounds(600, ["int8 on cpu"]) == 3 * 2 * 2
    assert num_rounds(600, []) == 3
    assert num_rounds(0, ["int8 on cpu"]) == 3


def test_given_inputs_are_what_runs(here: EnginePython, fp32_file: Path, tmp_path: Path) -> None:
    inputs = {"image": np.zeros((5, 1, 8, 8), np.float32)}
    np.savez(tmp_path / "rows.npz", labels=np.zeros(5), **inputs)
    for given in (inputs, tmp_path / "rows.npz"):
        found = contest(
            [Entrant("fp32", "cpu", fp32_file)], engines={"cpu": here}, batch_sizes=(2,), inputs=given, seconds=0.02
        )
        assert len(found.speeds("fp32", "cpu")) == 1
    wrong = {"image": np.zeros((5, 1, 9, 9), np.float32)}
    found = contest([Entrant("fp32", "cpu", fp32_file)], engines={"cpu": here}, inputs=wrong, seconds=0.02)
    assert "image" in found.left_out["fp32", "cpu"]


# -- who is left out --------------------------------------------------------------------------------------------------


def test_an_entrant_on_an_engine_that_is_not_installed_is_left_out(here: EnginePython, fp32_file: Path) -> None:
    entrants = [Entrant("fp32", "cpu", fp32_file), Entrant("fp16", "cuda", fp32_file)]
    found = contest(entrants, engines={"cpu": here}, batch_sizes=(1,), seconds=0.02)
    assert list(found.left_out) == [("fp16", "cuda")]
    assert len(found.speeds("fp32", "cpu")) == 1


def test_a_file_that_does_not_load_is_left_out_with_a_reason_and_the_others_go_on(
    here: EnginePython, fp32_file: Path, int8_file: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    entrants = [Entrant("fp32", "cpu", fp32_file), Entrant("fp16", "cpu", broken), Entrant("int8", "cpu", int8_file)]
    found = contest(entrants, engines={"cpu": here}, batch_sizes=(1,), seconds=0.05)
    assert set(found.left_out) == {("fp16", "cpu")}
    assert found.crashed == frozenset()
    assert found.verdict("fp16").reason.startswith("not timed (cpu: ")
    assert len(found.speeds("int8", "cpu")) == 1


# Stands between the contest and a real worker, and dies instead of passing on the ninth command: hello, then for each round open,
# prepare, two turns and close make it the first turn of the second round.
DIES = """#!{python}
import os, signal, subprocess, sys
worker = subprocess.Popen(["{worker}", *sys.argv[1:]], stdin=subprocess.PIPE)
for number, line in enumerate(sys.stdin.buffer):
    if number == 8:
        os.kill(os.getpid(), signal.SIGSEGV)
    worker.stdin.write(line)
    worker.stdin.flush()
"""


def test_an_engine_whose_process_dies_in_the_middle_is_left_out_and_the_others_go_on(
    both: Engines, fp32_file: Path, tmp_path: Path
) -> None:
    dying = tmp_path / "python"
    dying.write_text(DIES.format(python=sys.executable, worker=both["openvino"].python))
    dying.chmod(0o755)
    engines = {**both, "openvino": EnginePython("openvino", dying, "0")}
    entrants = [Entrant("fp32", "cpu", fp32_file), Entrant("fp32", "openvino", fp32_file)]
    found = contest(entrants, engines=engines, batch_sizes=(1,), seconds=1e-6)
    assert found.left_out == {("fp32", "openvino"): "a run crashed (SIGSEGV)"}
    assert found.crashed == {("fp32", "openvino")}
    assert found.verdict("fp32").engine == "cpu"
    assert len(found.speeds("fp32", "cpu")) == 1


def test_a_python_that_cannot_be_started_leaves_all_of_its_entrants_out(fp32_file: Path, int8_file: Path) -> None:
    engines = {"cpu": EnginePython("cpu", Path("/nowhere/python"), "0")}
    entrants = [Entrant("fp32", "cpu", fp32_file), Entrant("int8", "cpu", int8_file)]
    found = contest(entrants, engines=engines, batch_sizes=(1,))
    assert set(found.left_out) == {("fp32", "cpu"), ("int8", "cpu")}
    assert found.verdict("fp32").engine == "cpu"
    assert found.verdict("int8").status == "not_useful"


def test_nobody_takes_part_twice(here: EnginePython, fp32_file: Path) -> None:
    with pytest.raises(ValueError, match=r"fp32.*twice"):
        contest([Entrant("fp32", "cpu", fp32_file)] * 2, engines={"cpu": here})


def test_a_bf16_that_the_processor_lacks_is_left_out(both: Engines, fp32_file: Path) -> None:
    entrants = [Entrant("fp32", "cpu", fp32_file), Entrant("bf16", "openvino", fp32_file)]
    found = contest(entrants, engines=both, batch_sizes=(1,), seconds=0.05)
    flags = Path("/proc/cpuinfo").read_text().split()
    assert (("bf16", "openvino") in found.left_out) != bool({"amx_bf16", "avx512_bf16"} & set(flags))


# -- how long it may take ---------------------------------------------------------------------------------------------


def test_a_batch_size_that_would_take_too_long_is_not_tried(here: EnginePython, fp32_file: Path) -> None:
    began_s = time.monotonic()
    found = contest(
        [Entrant("fp32", "cpu", fp32_file)],
        engines={"cpu": here},
        batch_sizes=(1, 1_000_000_000),
        seconds=0.05,
        max_seconds=10.0,
    )
    assert time.monotonic() - began_s < 30
    assert [s.batch_size for s in found.speeds("fp32", "cpu")] == [1]
    assert found.warnings[0].startswith("batch 1000000000 ")


@pytest.mark.parametrize(
    ("seconds", "max_seconds"),
    [
        (50.0, 0.5),
        *(pytest.param(*how, marks=pytest.mark.thorough) for how in ((0.1, 0.5), (0.1, 2.0), (50.0, 2.0))),
    ],
)
def test_a_batch_size_without_a_speed_is_told_and_the_time_is_kept(
    here: EnginePython, fp32_file: Path, seconds: float, max_seconds: float
) -> None:
    entrants = [Entrant("fp32", "cpu", fp32_file), Entrant("int8", "cpu", fp32_file)]
    began_s = time.monotonic()
    found = contest(entrants, engines={"cpu": here}, batch_sizes=(1, 8000), seconds=seconds, max_seconds=max_seconds)
    assert time.monotonic() - began_s < 2 * max_seconds + 25
    timed = {speed.batch_size for speed in found.speeds("int8", "cpu")}
    for size in {1, 8000} - timed:
        assert any(f"batch {size} " in warning or f"batch {size}:" in warning for warning in found.warnings)


def test_without_a_card_its_name_is_none_in_particular() -> None:
    assert card_name()
