"""A campaign file says exactly what it means, or is refused with its line and the nearest word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.arrivals import schedule
from loadtest.campaign_file import Campaign, read_campaign
from loadtest.claims.claims_file import is_claims_file
from loadtest.errors import CampaignFileError

CAMPAIGNS = Path(__file__).parents[2] / "loadtest" / "campaigns"
GOOD = """\
version: 1
name: mine
model: digits
arms:
  - variant: fp32
    pool: cpu
  - {name: small, variant: int8, pool: cpu}
load:
  users: 4
  repeats: 2
payload:
  encoding: binary
"""


def read(folder: Path, text: str) -> Campaign:
    file = folder / "c.yaml"
    file.write_text(text)
    return read_campaign(file)


def test_a_good_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    campaign = read(tmp_path, GOOD)
    assert [arm.name for arm in campaign.arms] == ["fp32-cpu", "small"]
    assert campaign.baseline == "fp32-cpu"
    assert (campaign.load.users, campaign.load.repeats, campaign.load.kind) == ((4,), 2, "closed")
    assert (campaign.payload.encoding, campaign.payload.batch_size, campaign.payload.data) == ("binary", 1, "digits")


LOADS = sorted(path for path in CAMPAIGNS.glob("*.yaml") if not is_claims_file(path))


@pytest.mark.parametrize("file", LOADS, ids=lambda p: p.name)
def test_the_committed_campaigns_are_good(file: Path) -> None:
    assert {"cpu"} <= {arm.pool for arm in read_campaign(file).arms} <= {"cpu", "gpu"}


@pytest.mark.parametrize("name", ["digits-open", "minilm"])
def test_a_committed_open_campaign_sends_enough_for_its_99th_percentile_at_every_rate_and_in_every_repeat(
    name: str,
) -> None:
    load = read_campaign(CAMPAIGNS / f"{name}.yaml").load
    for rate in load.points:
        for repeat in range(load.repeats):
            due = schedule(load.at(rate), load.end_s, load.seed + repeat)
            assert sum(1 for at in due if at >= load.warmup_s) >= 1100  # a few may fail


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("users: 4", "user: 4", "c.yaml, line 9: load: unknown key 'user'; did you mean 'users'?"),
        ("load:", "loads:", "c.yaml, line 8: unknown key 'loads'; did you mean 'load'?"),
        ("users: 4", "rate: 9", "c.yaml, line 9: load: unknown key 'rate'; did you mean 'rate_rps'?"),
        ("variant: fp32", "varient: fp32", "c.yaml, line 5: arms[0]: unknown key 'varient'; did you mean 'variant'?"),
        ("encoding: binary", "qqq: 1", "c.yaml, line 12: payload: unknown key 'qqq'; known are data, encoding, batch_size, length, model_repository"),
        ("repeats: 2", "users: 5", "c.yaml, line 10: not valid YAML:"),
        ("users: 4", "users: 0", "c.yaml, line 9: load.users:"),
        ("users: 4", "users: true", "c.yaml, line 9: load.users:"),
        ("users: 4", "users: 2.5", "c.yaml, line 9: load.users:"),
        ("users: 4", "warmup_s: long", "c.yaml, line 9: load.warmup_s:"),
        ("users: 4", "duration_s: .nan", "c.yaml, line 9: load.duration_s:"),
        ("users: 4", "users: [1, 0]", "c.yaml, line 9: load.users[1]:"),
        ("users: 4", "users: [4, 4]", "c.yaml, line 9: load.users:"),
        ("users: 4", "rate_rps: 10", "c.yaml, line 9: load.rate_rps:"),
        ("encoding: binary", "encoding: xml", "c.yaml, line 12: payload.encoding:"),
        ("encoding: binary", "data: cats", "c.yaml, line 12: payload.data:"),
        ("encoding: binary", "data: photograph", "c.yaml, line 12: payload.data:"),
        ("encoding: binary", "data: 3", "c.yaml, line 12: payload.data:"),
        ("encoding: binary", "data: gone.npz", "c.yaml, line 12: payload.data:"),
        ("encoding: binary", "data: gone.txt", "c.yaml, line 12: payload.data:"),
        ("encoding: binary", "lenght: 5", "c.yaml, line 12: payload: unknown key 'lenght'; did you mean 'length'?"),
        ("encoding: binary", "length: 5", "c.yaml, line 12: payload.length:"),
        ("encoding: binary", "data: random\n  length: 0", "c.yaml, line 13: payload.length:"),
        ("encoding: binary", "model_repository: x", "c.yaml, line 12: payload.model_repository:"),
        ("encoding: binary", "data: texts\n  model_repository: /gone", "c.yaml, line 13: payload.model_repository:"),
        ("encoding: binary", "batch_size: 33", "c.yaml, line 12: payload.batch_size:"),
        ("name: mine", "name: ../mine", "c.yaml, line 2: name:"),
        ("name: mine\n", "", "c.yaml: 'name' is missing"),
        ("version: 1", "version: 2", "c.yaml, line 1: version:"),
        ("name: small, ", "name: fp32-cpu, ", "c.yaml, line 7: arms[1]:"),
        ("model: digits", "model: digits\nbaseline: smal", "c.yaml, line 4: baseline:"),
        ("load:", "load: [", "c.yaml, line 10: not valid YAML:"),
        ("name: mine", "name: mi\x07ne", "c.yaml, line 2: not valid YAML:"),
        ("name: mine", "name: !!python/name:os.system x", "c.yaml, line 2: not valid YAML:"),
        ("users: 4", "users: !mine 4", "c.yaml, line 9: not valid YAML:"),
        ("users: 4", "users: [!mine 4]", "c.yaml, line 9: not valid YAML:"),
        ("users: 4", "users: 2026-13-45", "c.yaml, line 9: load.users:"),
        ("users: 4", "users: !!int many", "c.yaml, line 9: not valid YAML:"),
        ("users: 4", "users: !!bool maybe", "c.yaml, line 9: not valid YAML:"),
        ("users: 4", "users: !!timestamp soon", "c.yaml, line 9: not valid YAML:"),
        ("users: 4", "users: !!int ''", "c.yaml, line 9: not valid YAML:"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_line_and_way_out(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(CampaignFileError) as error:
        read(tmp_path, GOOD.replace(old, new, 1))
    assert str(error.value).startswith(f"{tmp_path}/{message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "# only words\n", "- a list\n", "arms: 3\n", "just text\n", "&a [*a]\n"])
def test_what_is_no_campaign_at_all_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CampaignFileError):
        read(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CampaignFileError, match=r"gone\.yaml.*file"):
        read_campaign(tmp_path / "gone.yaml")


def test_a_file_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(GOOD.replace("name: mine", "name: m\xfcde").encode("latin-1"))
    with pytest.raises(CampaignFileError, match=r"c\.yaml.*text.*UTF-8.*18"):
        read_campaign(file)


OPEN = """\
version: 1
name: mine
model: digits
arms: [{variant: fp32, pool: cpu}]
load:
  kind: open
  rate_rps: [50, 100.5]
  objective_s: 0.02
"""


def test_an_open_loop_has_rates_and_an_objective(tmp_path: Path) -> None:
    load = read(tmp_path, OPEN).load
    assert (load.kind, load.points, load.users, load.arrivals) == ("open", (50.0, 100.5), (), "poisson")
    bursts = OPEN.replace("rate_rps: [50, 100.5]", "rate_rps: 50\n  arrivals: bursts\n  burst_times: 9")
    assert read(tmp_path, bursts).load.at(50.0).burst_times == 9


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  objective_s: 0.02\n", "", "line 6: load:"),
        ("  rate_rps: [50, 100.5]\n", "", "line 6: load:"),
        ("objective_s: 0.02", "users: 3", "line 8: load.users:"),
        ("objective_s: 0.02", "objective_s: 0.02\n  burst_times: 3", "line 9: load.burst_times:"),
        ("objective_s: 0.02", "objective_s: 0.02\n  arrivals: bursts\n  burst_every_s: 1", "ends before the next one begins"),
        ("objective_s: 0.02", "objective_s: 0.02\n  trace: t.csv", "line 7: load.rate_rps:"),
        ("rate_rps: [50, 100.5]", "trace: gone.csv", "cannot read the trace"),
    ],
)  # fmt: skip
def test_what_an_open_loop_cannot_use_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in OPEN
    with pytest.raises(CampaignFileError, match=r"/c\.yaml, line \d+: ") as error:
        read(tmp_path, OPEN.replace(old, new, 1))
    assert message in str(error.value)


def test_a_trace_is_looked_for_beside_the_campaign_and_has_a_mean_rate(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("seconds\n" + "".join(f"{n / 20}\n" for n in range(200)))
    file = tmp_path / "c.yaml"
    file.write_text(OPEN.replace("rate_rps: [50, 100.5]", "trace: t.csv"))
    campaign = read_campaign(file)
    assert campaign.load.arrivals == "trace"
    assert campaign.load.points[0] == pytest.approx(20.0, rel=0.05)
    assert len(campaign.recorded) == 200
    assert {rows for _, rows in campaign.recorded} == {campaign.payload.batch_size}


@pytest.mark.parametrize("load", ["rate_rps: [50, 100.5]", "arrivals: bursts\n  burst_times: 3\n  rate_rps: 5"])
def test_what_was_recorded_is_sent_in_the_place_of_the_files_load(tmp_path: Path, load: str) -> None:
    log = tmp_path / "elsewhere" / "access.jsonl"
    log.parent.mkdir()
    lines = [{"at": 7.0 + n / 4, "rows": 1 + n % 3, "model": "digits" if n % 2 else "other"} for n in range(40)]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    file = tmp_path / "c.yaml"
    file.write_text(OPEN.replace("rate_rps: [50, 100.5]", load))
    campaign = read_campaign(file, log)
    assert (campaign.load.arrivals, campaign.load.objective_s) == ("trace", read_campaign(file).load.objective_s)
    assert campaign.recorded[:3] == [(0.0, 2), (0.5, 1), (1.0, 3)]
    assert len(campaign.recorded) == 20
    log.write_text(json.dumps(lines[0]))
    with pytest.raises(CampaignFileError, match="of the model 'digits', but of other"):
        read_campaign(file, log)


def test_a_trace_that_is_sent_for_longer_or_shorter_has_the_rate_of_that_part(tmp_path: Path) -> None:
    """A second at 100 a second, then nine at 10."""
    times = [n / 100 for n in range(100)] + [1 + n / 10 for n in range(90)]
    (tmp_path / "t.csv").write_text("seconds\n" + "".join(f"{at}\n" for at in times))
    file = tmp_path / "c.yaml"
    file.write_text(OPEN.replace("rate_rps: [50, 100.5]", "trace: t.csv\n  warmup_s: 0\n  duration_s: 10"))
    campaign = read_campaign(file)
    assert campaign.load.rate_rps == (19.0,)
    short = campaign.lasting(1.0, None, 2)
    assert (short.load.rate_rps, short.load.repeats, short.load.duration_s) == ((100.0,), 2, 1.0)
    assert campaign.lasting(None, None, None) == campaign
    file.write_text(OPEN)
    assert read_campaign(file).lasting(1.0, 0.0, None).load.rate_rps == (50.0, 100.5)


AGAIN = "{version: 1, name: c, model: m, baseline_twice: TWICE, baseline: b, arms: [{name: a, variant: fp32, pool: cpu}, {name: b, variant: int8, pool: cpu}MORE]}"


def again(twice: str, more: str = "") -> str:
    return AGAIN.replace("TWICE", twice).replace("MORE", more)


def test_the_baseline_may_run_twice_as_an_arm_of_its_own(tmp_path: Path) -> None:
    campaign = read(tmp_path, again("true"))
    assert [(arm.name, arm.variant, arm.is_again) for arm in campaign.arms] == [
        ("a", "fp32", False),
        ("b", "int8", False),
        ("b-again", "int8", True),
    ]
    assert campaign.baseline == "b"
    assert [arm.name for arm in read(tmp_path, again("false")).arms] == ["a", "b"]


@pytest.mark.parametrize(
    ("twice", "more", "why"),
    [
        ("true", ", {name: b-again, variant: bf16, pool: cpu}", "line 1: baseline_twice: the baseline's second arm is named 'b-again'"),
        ("yes please", "", "baseline_twice: must be true or false"),
        ("2", "", "baseline_twice: must be true or false"),
    ],
)  # fmt: skip
def test_a_second_baseline_that_cannot_be_is_an_error(tmp_path: Path, twice: str, more: str, why: str) -> None:
    with pytest.raises(CampaignFileError) as error:
        read(tmp_path, again(twice, more))
    assert why in str(error.value)
