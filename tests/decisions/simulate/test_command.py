"""`tandem simulate`, as it is called: results, mistakes, the picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from serving.cli import cli
from serving.cli.decisions import SIMULATED
from serving.decisions.simulate.command import OF_MADE, SimulateOptions, draws
from serving.decisions.simulate.scenario import POLICIES
from serving.errors import UserError

ROOT = Path(__file__).parents[3]
SCENARIO = str(ROOT / "docs" / "scenarios" / "bert-large.yaml")


BURSTS = ("--arrivals", "bursts", "--burst-lasting", "5")


def simulate(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["simulate", SCENARIO, *words], standalone_mode=False)
    if isinstance(done.exception, UserError):
        raise done.exception
    return done.exit_code, done.stdout


def outcomes(*words: str) -> dict[str, Any]:
    code, text = simulate("--json", *words)
    assert code == 0
    found = json.loads(text)
    return {**found, "policies": {row["policy"]: row for row in found["policies"]}}


outcomes_once = cache(outcomes)


def test_the_command_line_offers_the_policies_there_are() -> None:
    assert tuple(policy.name for policy in POLICIES) == SIMULATED


def test_what_the_help_says_is_the_default_is() -> None:
    options = {option.name: option for option in cli.commands["simulate"].params}  # type: ignore[attr-defined]
    defaults = SimulateOptions(Path())
    for name in (*OF_MADE, "jitter_s"):
        default = getattr(defaults, name)
        said = default if isinstance(default, str) else f"{default:g}"
        assert options[name].help.endswith(f" Default: {said}."), name


def test_the_table_has_a_row_for_each_policy_and_says_that_it_is_a_what_if() -> None:
    code, text = simulate("--duration", "30")
    assert code == 0
    assert "what-if" in text
    answer, facts_and_table = text.split("\n\n")
    assert answer.count("\n") == 3
    assert [line.split()[0] for line in facts_and_table.splitlines()[3:]] == list(SIMULATED)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_table_says_how_often_traffic_was_handed_over_to_the_gpu() -> None:
    words = ("--rate", "200", "--duration", "900", "--policy", "tandem")
    head, _, row = simulate(*words)[1].splitlines()[-3:]
    assert head.split()[-1] == "handovers"
    assert int(row.split()[-1]) == 1


def test_one_object_of_json_has_a_version_and_says_that_it_is_a_what_if() -> None:
    found = outcomes("--duration", "60", "--policy", "tandem", "--policy", "hold")
    assert (found["version"], found["is_what_if"], list(found["policies"])) == (1, True, ["tandem", "hold"])
    assert "tandem" in found["sentence"]
    row = found["policies"]["tandem"]
    assert row["num_requests"] == row["num_in_time"] + row["num_violations"]


@pytest.mark.thorough
@pytest.mark.parametrize("more", [(), (*BURSTS, "--burst-every", "20"), ("--noise", "0.3"), ("--per-second", "20")])
def test_the_same_seed_gives_the_same_object_and_another_another(more: tuple[str, ...]) -> None:
    words = ("--duration", "40", "--rate", "100", "--policy", "tandem", "--policy", "hold", *more, "--seed")
    first, same, other = (outcomes(*words, seed) for seed in ("1", "1", "2"))
    assert first == same
    assert first["policies"] != other["policies"]


def test_chance_has_a_seed_and_one_kind_of_it_leaves_the_others_alone() -> None:
    first, same, other = draws(1), draws(1), draws(2)
    assert [first.cold_start() for _ in range(5)] == [same.cold_start() for _ in range(5)]
    assert same.stretch is not None
    same.stretch(0.2)
    assert first.cold_start() == same.cold_start() != other.cold_start()


@pytest.mark.parametrize("noise_ratio", [0.05, 0.3, 1.0])
def test_noise_has_the_mean_of_the_curve_and_the_variation_that_was_asked_for(noise_ratio: float) -> None:
    stretch = draws(1).stretch
    assert stretch is not None
    drawn = [stretch(noise_ratio) for _ in range(100_000)]
    mean = sum(drawn) / len(drawn)
    assert mean == pytest.approx(1.0, rel=0.02)
    assert (sum((x - mean) ** 2 for x in drawn) / len(drawn)) ** 0.5 == pytest.approx(noise_ratio, rel=0.05)


def test_noise_makes_latencies_spread() -> None:
    words = ("--duration", "120", "--rate", "1", "--policy", "cpu-only")
    plain, noisy = (outcomes(*words, *more)["policies"]["cpu-only"] for more in ((), ("--noise", "0.4")))
    assert noisy["latency_p99_s"] > 1.3 * plain["latency_p99_s"]


@pytest.mark.parametrize(
    "words",
    [
        ("--rate", "40"),
        ("--duration", "60"),
        (*BURSTS, "--burst-every", "20"),
        ("--arrivals", "daily"),
        ("--objective", "0.06"),
        ("--per-second", "3"),
        ("--noise", "0.5"),
    ],
)
def test_every_option_changes_something(words: tuple[str, ...]) -> None:
    plain = ("--duration", "30", "--policy", "cpu-only")
    assert outcomes(*plain, *words)["policies"] != outcomes_once(*plain)["policies"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [("--burst-times", "9"), ("--burst-every", "9"), ("--burst-lasting", "9"), ("--swing", "0.1")],
)
def test_every_option_of_made_arrivals_changes_something(words: tuple[str, ...]) -> None:
    kind = ("--arrivals", "daily") if words[0] == "--swing" else (*BURSTS, "--burst-every", "30")
    plain = (*kind, "--duration", "200", "--policy", "cpu-only")
    assert outcomes(*plain, *words)["policies"] != outcomes(*plain)["policies"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--swing", "0.5"), "--swing does nothing here: it is for --arrivals daily"),
        (("--swing", "0.8", *BURSTS), "--swing does nothing here"),  # its default, and yet asked for
        (("--burst-every", "9"), "--burst-every does nothing here: it is for --arrivals bursts"),
        (("--burst-times", "9", "--arrivals", "daily"), "--burst-times does nothing"),
        (("--burst-lasting", "9"), "--burst-lasting does nothing"),
        (("--jitter", "0.5"), "--jitter does nothing here: it is for --copies"),
        ((*BURSTS, "--burst-every", "5"), "a burst has at least the usual rate, and ends before the next one begins"),
        (("--picture", "no-such-folder/run.svg"), "--picture: there is no folder no-such-folder"),
        (("--picture", "."), "--picture: . is a folder"),
        (("--report", "."), "--report: . is a folder"),
        (("--report", "run.html", "--flow"), "--report is for requests one by one"),
    ],
)
def test_what_would_do_nothing_or_be_thrown_away_is_told_before_anything_is_simulated(
    words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError) as raised:
        simulate("--duration", "1e6", *words)
    assert said in str(raised.value)


NUMBERS = ("--objective", "--duration", "--rate", "--noise", "--jitter", "--burst-times", "--burst-every")


@pytest.mark.parametrize("option", [*NUMBERS, "--burst-lasting", "--swing"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_number_that_is_none_is_refused_by_its_option(option: str, number: str) -> None:
    done = CliRunner().invoke(cli, ["simulate", SCENARIO, option, number])
    assert (done.exit_code, done.stdout) == (2, "")
    assert option in done.stderr


@pytest.mark.parametrize(("option", "number"), [("--duration", "1e12"), ("--noise", "1e200"), ("--burst-times", "0.5")])
def test_a_number_beyond_all_sense_is_refused_by_its_option(option: str, number: str) -> None:
    done = CliRunner().invoke(cli, ["simulate", SCENARIO, option, number])
    assert done.exit_code == 2
    assert option in done.stderr


def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,x\n" + "".join(f"2031-05-04 10:00:{n:02}.5000000,1\n" for n in range(60)), encoding="utf-8"
    )
    return str(path)


def test_a_trace_is_replayed_and_copied(tmp_path: Path) -> None:
    found = outcomes("--trace", trace(tmp_path), "--policy", "cpu-only")
    assert found["policies"]["cpu-only"]["num_requests"] == 60
    assert "trace.csv" in found["traffic"]
    copied = outcomes("--trace", trace(tmp_path), "--policy", "cpu-only", "--copies", "3", "--jitter", "0.1")
    assert copied["policies"]["cpu-only"]["num_requests"] == 180
    later = outcomes("--trace", trace(tmp_path), "--policy", "cpu-only", "--copies", "3", "--jitter", "0.2")
    assert later["policies"] != copied["policies"]


def test_the_picture_is_one_file_that_needs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "run.svg"
    simulate("--duration", "30", "--rate", "60", "--picture", str(path))
    text = path.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert all(f"{name}: " in text for name in SIMULATED)
    assert "nan" not in text
    assert text.count("http") == 1  # the name of SVG itself


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trace", "x.csv", "--rate", "5"), "leave out --arrivals, --rate"),
        (("--trace", "x.csv", "--arrivals", "daily"), "leave out"),
        (("--trace", "x.csv", "--arrivals", "poisson"), "leave out"),
        (("--copies", "2"), "--copies is for a trace"),
        (("--trace", "no-such-trace.csv"), "no-such-trace.csv"),
    ],
)
def test_what_a_user_gets_wrong_says_the_way_out(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError) as raised:
        simulate(*words)
    assert said in str(raised.value)
