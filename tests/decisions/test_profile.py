"""A profile that was written is read back as it was; whatever is wrong with a file is one sentence with its name."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from serving.decisions.profile import (
    LoadPoint,
    MaxRate,
    Phase,
    Profile,
    ServerProfile,
    Settings,
    Timing,
    read_profile,
    write_profile,
)
from serving.documents.reader import path
from serving.errors import UserError
from serving.measure.machine import Machine

SERVER = ServerProfile(
    variant="int8",
    engine="cpu",
    device="cpu",
    device_name="a processor",
    digest="ab12",
    settings=Settings(1, 2, 32, 0),
    ladder=(Timing("triton_grpc", 1, 1000, 0.001, 0.002, 0.0009, 0.0011, 550, 1e-5, 1e-5, 4e-4, 1e-5),),
    load=(LoadPoint(100.0, 1, 1200, 99.5, 0.002, 0.004, 3, 0.02, True),),
    max_rates=(MaxRate(0.02, 1, 400.0, 390.0, 410.0, (390.0, 400.0, 410.0)),),
    cold_start=(Phase("process", 1.5), Phase("load", 0.25)),
)
PROFILE = Profile(
    model="digits",
    provenance="measured",
    date="2026-11-21T12:00:00+00:00",
    command="tandem profile digits",
    machine=Machine("a processor", ("avx2",), 2.0, "Linux"),
    servers=(SERVER,),
    versions={"python": "3.11.7"},
)


def test_what_was_written_is_read_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    write_profile(file, PROFILE)
    assert read_profile(file) == PROFILE
    assert json.loads(file.read_text())["version"] == 1


def test_a_profile_measured_for_a_stricter_objective_bounds_a_looser_one() -> None:
    assert SERVER.max_rate_rps(0.05) == SERVER.max_rates[0]
    assert SERVER.max_rate_rps(0.01) is None
    assert SERVER.max_rate_rps(0.05, batch_size=8) is None
    assert SERVER.cold_start_s == 1.75


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "not a profile of version 1"),
        ({"servres": []}, "servres"),
        ({"servers": [{"variant": "int8"}]}, r"servers\[0\]"),
        ({"provenance": "dreamt"}, "provenance"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_its_place(tmp_path: Path, change: dict[str, object], says: str) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({**asdict(PROFILE), **change}))
    with pytest.raises(UserError, match=says) as error:
        read_profile(file)
    assert str(file) in str(error.value)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -5.0])
@pytest.mark.parametrize(
    ("place", "word"),
    [
        ((), "others_ratio"),
        (("machine",), "num_cores"),
        (("servers", 0), "joules_per_request"),
        (("servers", 0, "settings"), "queue_delay_us"),
        (("servers", 0, "max_rates", 0), "rate_rps"),
        (("servers", 0, "max_rates", 0), "low_rps"),
        (("servers", 0, "max_rates", 0), "objective_s"),
        (("servers", 0, "cold_start", 0), "seconds"),
    ],
)
def test_a_number_that_cannot_be_is_one_sentence_and_no_traceback(
    tmp_path: Path, place: tuple[str | int, ...], word: str, number: float
) -> None:
    file = tmp_path / "profile.json"
    raw = json.loads(json.dumps(asdict(PROFILE)))
    inner = raw
    for key in place:
        inner = inner[key]
    inner[word] = number
    file.write_text(json.dumps(raw))
    with pytest.raises(UserError, match=re.escape(path(place) or "others_ratio")):
        read_profile(file)


def test_no_file_and_no_profile_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(UserError, match="not a profile"):
        read_profile(tmp_path / "list.json")


@pytest.mark.parametrize(
    ("how", "label"),
    [
        (Settings(1, 2, 32, 0), "int8 on cpu, 1 × 2"),
        (Settings(2, 1, 8, 0, is_batch_limited=True), "int8 on cpu, 2 × 1, batches of 8 at most"),
        (Settings(1, 2, 32, 500), "int8 on cpu, 1 × 2, waiting 500 µs for fuller ones"),
    ],
)
def test_servers_that_differ_in_any_setting_are_called_differently(how: Settings, label: str) -> None:
    server = replace(SERVER, settings=how)
    assert server.label == label
