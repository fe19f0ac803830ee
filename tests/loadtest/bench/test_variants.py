"""The bench of served variants: what is judged where, what its report says, and once everything real, briefly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.bench.variants import Plan, Result
from loadtest.bench.verdicts import Outcome, Reach, Verdict

ROOT = Path(__file__).parents[3]


def result(*sets: str, net: str = "resnet50", int8: float = 31.0, bf16: float = 52.0) -> Result:
    rates = {("fp32", "cpu"): [10.0, 10.0], ("int8", "cpu"): [int8, int8], ("bf16", "openvino"): [bf16, bf16]}
    plan = Plan(net, batch_size=8, num_rounds=2, round_s=1.0, export_s=0.1)
    return Result(sets, plan, rates, {})


@pytest.mark.parametrize(
    ("value", "outcome"),
    [(3.0, Outcome.MET), (2.9, Outcome.MISSED), (1.5, Outcome.MISSED), (1.4, Outcome.FAILED)],
)
def test_a_gain_fails_below_half_of_its_aim(value: float, outcome: Outcome) -> None:
    assert Verdict("x", value, Reach(3.0, "times")).outcome is outcome


@pytest.mark.parametrize(
    ("sets", "net", "values"),
    [
        (("avx512f",), "resnet50", []),
        (("avx512f", "avx512_vnni"), "resnet50", [3.1]),
        (("avx_vnni",), "resnet50", [3.1]),
        (("avx512_vnni", "amx_int8"), "resnet50", [3.1, 5.2]),
        (("avx512_vnni", "amx_int8"), "mlp", []),
    ],
)
def test_aims_hold_where_the_processor_has_the_instructions_that_they_are_about(
    sets: tuple[str, ...], net: str, values: list[float]
) -> None:
    assert [verdict.value for verdict in result(*sets, net=net).verdicts] == pytest.approx(values)


def test_the_report_shows_variants_that_lost_and_says_that_the_weights_are_random() -> None:
    found = result("avx512_vnni", int8=8.0).report()
    assert "speed only" in found.conditions[0]
    assert "0.80 (0.80..0.80)" in found.parts[0]
    assert [verdict.outcome for verdict in found.verdicts] == [Outcome.FAILED]


@pytest.mark.models
@pytest.mark.thorough  # a minute and a half of exporting, on every engine
@pytest.mark.timeout(300)
def test_a_net_is_exported_and_served_with_every_engine_that_is_here(tmp_path: Path) -> None:
    file = tmp_path / "variants.json"
    command = [
        sys.executable,
        "-m",
        "loadtest.bench.variants",
        "--net",
        "mlp",
        "--rounds",
        "1",
        "--round-s",
        "0.2",
        "--export-s",
        "0.02",
    ]
    done = subprocess.run(
        [*command, "--json", str(file)], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(file.read_text())
    assert {"fp32 on cpu", "int8 on cpu"} <= set(measured["images_per_s"])
    assert all(min(rates) > 0 for rates in measured["images_per_s"].values())
    assert measured["date"] in done.stdout
