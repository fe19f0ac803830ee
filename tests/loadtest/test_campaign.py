"""What a campaign plans, and which arms it leaves out: pure."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadtest.campaign import CampaignOptions, plan, report, run
from loadtest.campaign_file import Arm
from loadtest.errors import ResultsError
from loadtest.records import Load
from loadtest.target import not_run_reason, triton_names
from serving.http_client import address

ARMS = tuple(Arm(name, name, "cpu") for name in "abc")


def load(repeats: int, seed: int = 1, points: tuple[int, ...] = (8,)) -> Load:
    return Load(1.0, 4.0, repeats, seed, users=points)


def test_arms_take_turns_and_each_repeat_begins_with_another() -> None:
    runs = plan(ARMS, load(4))
    assert ["".join(p.arm.name for p in runs if p.repeat == n) for n in (1, 2, 3, 4)] == [
        "abc",
        "bca",
        "cab",
        "abc",
    ]


@pytest.mark.parametrize("repeats", [1, 2, 7])
def test_every_arm_runs_once_per_repeat_with_the_same_seed_as_the_others(repeats: int) -> None:
    runs = plan(ARMS, load(repeats, seed=10))
    assert Counter((p.arm.name, p.repeat) for p in runs) == {(a, n): 1 for a in "abc" for n in range(1, repeats + 1)}
    assert all(p.seed == 9 + p.repeat for p in runs)
    assert len({p.rows for p in runs}) == len(runs)


def test_every_point_of_the_load_is_run_in_every_repeat() -> None:
    runs = plan(ARMS, load(2, points=(1, 8)))
    assert Counter((p.arm.name, p.point, p.repeat) for p in runs) == {
        (a, n, r): 1 for a in "abc" for n in (1, 8) for r in (1, 2)
    }
    assert [p.point for p in runs] == [1, 1, 1, 8, 8, 8] * 2
    assert len({p.rows for p in runs}) == len(runs)


def test_no_arms_are_no_runs() -> None:
    assert plan((), load(3)) == []


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (CampaignOptions(Path("c.yaml")), "tandem campaign run c.yaml"),
        (
            CampaignOptions(Path("my c.yaml"), "http://h:1", Path("o"), 2.0, 0.0, 5),
            "tandem campaign run 'my c.yaml' --url http://h:1 --output o --duration 2.0 --warmup 0.0 --repeats 5",
        ),
    ],
)
def test_the_command_in_the_report_can_be_typed_again(options: CampaignOptions, command: str) -> None:
    assert options.command == command


STATUS: dict[str, Any] = {
    "version": 1,
    "pools": {
        "cpu": {"state": "ready", "servers": [{"variants": ["digits-fp32", "digits-int8"], "refused": {"digits-fp16": "its gate refused it"}}]},
        "spare": {"state": "down", "servers": []},
        "second": {"state": "ready", "servers": [{"variants": ["digits-fp32"], "refused": {}}]},
    },
    "models": {
        "digits": {
            "variants": [
                {"name": "digits-fp32", "variant": "fp32", "pool": "cpu"},
                {"name": "digits-int8", "variant": "int8", "pool": "cpu"},
                {"name": "digits-fp32", "variant": "fp32", "pool": "second"},
            ]
        }
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "variant", "pool", "reason"),
    [
        ("digits", "fp32", "cpu", None),
        ("digits", "fp32", "gpu", "no GPU on this machine"),
        ("digits", "fp32", "tpu", "the gateway has no pool named tpu; it has cpu, second, spare"),
        ("digits", "fp32", "spare", "the spare pool is down"),
        ("digits", "fp16", "cpu", "fp16 is not served on the cpu pool: its gate refused it"),
        ("digits", "bf16", "cpu", "bf16 is not served on the cpu pool"),
        ("digits", "int8", "second", "int8 is not served on the second pool"),
        ("cats", "fp32", "cpu", "the gateway serves no model named cats; it serves digits"),
    ],
)
def test_an_arm_that_cannot_run_says_why(model: str, variant: str, pool: str, reason: str | None) -> None:
    assert not_run_reason(STATUS, model, variant, pool) == reason


def test_a_gateway_that_keeps_its_status_to_itself_is_asked_by_a_request_instead() -> None:
    assert not_run_reason(None, "digits", "fp32", "gpu") is None


def test_the_servers_that_hold_a_variant_are_all_found() -> None:
    assert triton_names(STATUS, "digits", "fp32") == ("digits-fp32", "digits-fp32")
    assert triton_names(STATUS, "digits", "int8") == ("digits-int8",)
    assert triton_names(STATUS, "cats", "fp32") == triton_names(None, "digits", "fp32") == ()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"file": "gone.yaml"}, 2, "gone.yaml: No such file"),
        ({"url": "http://127.0.0.1:9"}, 3, "no ready Tandem gateway answers at http://127.0.0.1:9"),
        ({"url": "https://127.0.0.1:9"}, 2, "is not of the form http://HOST:PORT"),
    ],
)
def test_what_stops_a_campaign_is_one_line_and_an_exit_code(
    options: dict[str, Any], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("{version: 1, name: c, model: digits, arms: [{variant: fp32, pool: cpu}]}")
    given = {"file": file, "output": tmp_path / "out"} | options
    assert run(CampaignOptions(**(given | {"file": Path(given["file"])}))) == code
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"manifest\.json.*directory.*`tandem.*run`"):
        report(tmp_path)


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "https://h", "http://", "http://h/path", "ftp://h", "http://h?x=1"])
def test_only_plain_http_addresses_are_taken(url: str) -> None:
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        address(url)
