"""The bench of the surfaces: what a part says of its rounds, what it says where something is missing, and how its load is counted.

The parts themselves start servers and take minutes: `make bench ARGS=--quick` shows that they work.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest

from loadtest.bench.surfaces import __main__ as surfaces
from loadtest.bench.surfaces import items, json_image
from loadtest.bench.surfaces.items import Comparison, Side
from loadtest.bench.surfaces.part import QUICK, Part, Setting
from loadtest.bench.verdicts import Outcome, spread_text
from loadtest.bench.wrk import Series
from loadtest.errors import CannotMeasure
from loadtest.processes import running
from loadtest.stack import answers
from serving.measure.rounds import Spread
from serving.ports import free_ports
from serving.repository import Repository

INFER = "/v2/models/digits/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Answers every request at once."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "loadtest.bench.quick_server", "--port", str(port)]
    log = tmp_path_factory.mktemp("quick") / "log"
    with running(command, log, lambda: answers(f"127.0.0.1:{port}", "/v2"), 30.0):
        yield f"http://127.0.0.1:{port}"


def compared(served: list[float], alone: list[float]) -> Comparison:
    return Comparison(Side(served, [12.0] * len(served)), Side(alone, [9.0, 10.0, 11.0]), [1.0, 1.5, 2.0], [0.1] * 3)


def test_a_part_divides_what_was_measured_in_one_round() -> None:
    part = items.part("embeddings", "texts", compared([90.0, 180.0, 100.0], [100.0, 200.0, 100.0]), ["as said"])
    (verdict,) = part.verdicts
    assert verdict.value == pytest.approx(0.9)
    assert verdict.outcome is Outcome.MET
    assert part.values["added_cpu_ms_each"] == {"median": 2.0, "min": 1.0, "max": 3.0}
    said = part.describe()
    assert re.search(r"added CPU: 2\.00 \(1\.00\.\.3\.00\) ms", said)
    assert "as said" in said


def test_a_surface_that_costs_a_fifth_misses_and_one_that_costs_a_half_fails() -> None:
    def outcome(rate: float) -> Outcome:
        return items.part("x", "texts", compared([rate] * 3, [100.0] * 3), []).verdicts[0].outcome

    assert [outcome(85.0), outcome(50.0)] == [Outcome.MISSED, Outcome.FAILED]


def test_an_image_is_judged_by_throughput_and_by_latency() -> None:
    fast, slow = Series([20.0, 30.0], [0.02, 0.02], [9.0, 9.0]), Series([10.0, 10.0], [0.01, 0.01], [9.0, 9.0])
    measured = {(body, target): made for body in json_image.BODIES for target, made in
                (("gateway", fast), ("Triton direct", slow))}  # fmt: skip
    part = json_image._part(measured, {"JSON": json_image.json_body()})
    values = {verdict.name: (verdict.value, verdict.outcome) for verdict in part.verdicts}
    assert values["gateway ÷ direct throughput, image as JSON"] == (2.5, Outcome.MET)
    assert values["gateway ÷ direct p50, image as nested JSON"] == (2.0, Outcome.MISSED)
    assert len(values) == 6


def test_figures_are_told_with_their_ends() -> None:
    assert spread_text(Spread(1234.5, 1000.0, 2000.0), 0) == "1,234 (1,000..2,000)"
    assert spread_text(Spread(0.00123, 0.001, 0.002), 2, 1000) == "1.23 (1.00..2.00)"


@pytest.mark.parametrize("name", ["embeddings", "classify"])
def test_a_model_that_nobody_made_is_told_with_the_command_that_makes_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    code = surfaces.main(["--quick", "--only", name, "--models", str(tmp_path), "--json", str(file)])
    assert code == 3
    assert 'make models ARGS="--only' in capsys.readouterr().out
    (part,) = json.loads(file.read_text())["parts"]
    assert part["verdicts"] == []


def test_a_part_that_cannot_be_measured_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(_: object) -> Part:
        raise CannotMeasure("there is no model")

    made = items.part("embeddings", "texts", compared([10.0] * 3, [100.0] * 3), [])
    monkeypatch.setattr(surfaces, "PARTS", {"classify": gone, "embeddings": lambda _: made})
    assert surfaces.main(["--quick", "--only", "classify", "embeddings"]) == 0
    assert surfaces.main(["--only", "classify", "embeddings"]) == 1
    said = capsys.readouterr().out
    assert "there is no model" in said
    assert Outcome.FAILED.value in said


def test_the_net_of_three_means_is_a_model_like_any_other(tmp_path: Path) -> None:
    json_image.write(tmp_path)
    (variant,) = Repository(tmp_path).variants()
    variant.verify()
    assert variant.loadable_pools == ("cpu",)
    assert variant.record.is_untrained


def test_an_image_is_the_same_numbers_in_every_body() -> None:
    flat, nested = (
        orjson.loads(make().data)["inputs"][0] for make in (json_image.json_body, json_image.nested_json_body)
    )
    binary = json_image.binary_body()
    raw = np.frombuffer(binary.data[binary.header_length :], np.float32)
    assert np.array_equal(np.array(flat["data"], np.float32), raw)
    assert np.array_equal(np.array(nested["data"], np.float32).ravel(), raw)
    assert raw.size == 3 * 224 * 224


@pytest.mark.triton
@pytest.mark.campaigns
@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk: apt-get install wrk")
def test_the_image_is_measured_through_gateway_and_triton(tmp_path: Path) -> None:
    part = json_image.measure(Setting(QUICK, tmp_path, tmp_path))
    assert len(part.verdicts) == 6
    assert set(part.values) == {f"{body}, {at}" for body in json_image.BODIES for at in ("gateway", "Triton direct")}
