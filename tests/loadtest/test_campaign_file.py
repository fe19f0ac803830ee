"""A campaign file says exactly what it means, or is refused with its line and the nearest word."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.campaign_file import parse_campaign, read_campaign
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


def test_a_good_file_is_read_with_its_defaults() -> None:
    campaign = parse_campaign(GOOD, "c.yaml")
    assert [arm.name for arm in campaign.arms] == ["fp32-cpu", "small"]
    assert campaign.baseline == "fp32-cpu"
    assert (campaign.load.users, campaign.load.repeats, campaign.load.kind) == (4, 2, "closed")
    assert (campaign.payload.encoding, campaign.payload.batch_size, campaign.payload.data) == ("binary", 1, "digits")


@pytest.mark.parametrize("file", sorted(CAMPAIGNS.glob("*.yaml")), ids=lambda p: p.name)
def test_the_committed_campaigns_are_good(file: Path) -> None:
    assert {arm.pool for arm in read_campaign(file).arms} == {"cpu", "gpu"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("users: 4", "user: 4", "c.yaml, line 9: unknown key 'user' in 'load'; did you mean 'users'?"),
        ("load:", "loads:", "c.yaml, line 8: unknown key 'loads' in the campaign; did you mean 'load'?"),
        ("variant: fp32", "varient: fp32", "c.yaml, line 5: unknown key 'varient' in an entry of 'arms'; did you mean 'variant'?"),
        ("encoding: binary", "qqq: 1", "c.yaml, line 12: unknown key 'qqq' in 'payload'; known are data, encoding, batch_size."),
        ("repeats: 2", "users: 5", "c.yaml, line 10: 'users' is given twice in 'load'."),
        ("users: 4", "users: 0", "c.yaml, line 9: 'users' must be a whole number from 1 to 4096, not 0."),
        ("users: 4", "users: true", "c.yaml, line 9: 'users' must be a whole number from 1 to 4096, not True."),
        ("users: 4", "users: 2.5", "c.yaml, line 9: 'users' must be a whole number from 1 to 4096, not 2.5."),
        ("users: 4", "warmup_s: long", "c.yaml, line 9: 'warmup_s' must be a number from 0 to 3600, not 'long'."),
        ("users: 4", "duration_s: .nan", "c.yaml, line 9: 'duration_s' must be a number from 0.2 to 86400, not nan."),
        ("encoding: binary", "encoding: xml", "c.yaml, line 12: 'encoding' must be one of json, binary, not 'xml'."),
        ("encoding: binary", "data: cats", "c.yaml, line 12: 'data' must be one of digits, random, not 'cats'."),
        ("name: mine", "name: ../mine", "c.yaml, line 2: 'name' must be a name of letters, digits, '.', '_' and '-', not '../mine'."),
        ("name: mine\n", "", "c.yaml, line 1: 'name' is missing in the campaign."),
        ("version: 1", "version: 2", "c.yaml, line 1: 'version' must be a whole number from 1 to 1, not 2."),
        ("name: small, ", "name: fp32-cpu, ", "c.yaml, line 7: two arms are named 'fp32-cpu'; give one a 'name' of its own."),
        ("model: digits", "model: digits\nbaseline: smal", "c.yaml, line 4: no arm is named 'smal'; did you mean 'small'?"),
        ("load:", "load: [", "c.yaml, line 10: not YAML: "),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_line_and_way_out(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(CampaignFileError) as error:
        parse_campaign(GOOD.replace(old, new, 1), "c.yaml")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "# only words\n", "- a list\n", "arms: 3\n", "just text\n", "&a [*a]\n"])
def test_what_is_no_campaign_at_all_is_refused(text: str) -> None:
    with pytest.raises(CampaignFileError):
        parse_campaign(text, "c.yaml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CampaignFileError, match=r"gone\.yaml cannot be read: No such file"):
        read_campaign(tmp_path / "gone.yaml")
