"""A file of claims is strict: a line and the nearest known key for whatever does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.claims.claims_file import NUMBERS, Suite, is_claims_file, read_suite
from loadtest.claims.speeds import ORDER
from loadtest.errors import CampaignFileError

CAMPAIGNS = Path(__file__).parents[3] / "loadtest" / "campaigns"
FILE = """version: 1
kind: claims
name: c
claims:
  - name: a
    says: "INT8 suits CPUs."
    source: "articles"
    number: speed_up
    models: mlp
    variant: int8
    at_least: 1
"""


def read(folder: Path, text: str) -> Suite:
    file = folder / "c.yaml"
    file.write_text(text)
    return read_suite(file)


def test_what_is_left_out_has_the_defaults(tmp_path: Path) -> None:
    suite = read(tmp_path, FILE)
    (claim,) = suite.claims
    assert (claim.models, claim.variant, claim.engine) == (("mlp",), "int8", "cpu")
    assert (claim.against_variant, claim.against_engine, claim.batch_sizes) == ("fp32", "cpu", ())
    assert claim.threshold == "at least 1"
    assert suite.experiments["speeds"]["batch_sizes"] == (1, 2, 4, 8, 16, 32)
    assert set(suite.experiments) == {"speeds", "bandwidth", "trees", "scaling", "served"}


def test_one_value_is_as_good_as_a_list_of_one(tmp_path: Path) -> None:
    text = FILE + "    batch_sizes: 4\nexperiments:\n  speeds: {batch_sizes: 8}\n"
    suite = read(tmp_path, text)
    assert (suite.claims[0].batch_sizes, suite.experiments["speeds"]["batch_sizes"]) == ((4,), (8,))


def test_the_committed_claims_have_sources_and_cover_every_kind_of_number() -> None:
    suite = read_suite(CAMPAIGNS / "claims.yaml")
    assert {claim.number for claim in suite.claims} == set(NUMBERS)
    assert all(claim.source and claim.threshold for claim in suite.claims)
    assert {model for claim in suite.claims for model in claim.models} == {*ORDER, "digits"}
    assert (suite.folder / suite.experiments["scaling"]["scenario"]).is_file()


def test_only_what_calls_itself_claims_is_a_file_of_claims(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- kind: claims\n")
    (tmp_path / "broken.yaml").write_text("kind: [claims\n")
    (tmp_path / "bytes.yaml").write_bytes(b"kind: \xff")
    others = [CAMPAIGNS / "digits.yaml", *tmp_path.iterdir(), tmp_path / "none.yaml", tmp_path]
    assert is_claims_file(CAMPAIGNS / "claims.yaml")
    assert not any(map(is_claims_file, others))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("number: speed_up", "number: speedup", "line 8: claims[0].number:"),
        ("number: speed_up", "nubmer: speed_up", "line 8: claims[0]: unknown key 'nubmer'; did you mean 'number'?"),
        ("name: c\n", "name: c\nexperiment: 1\n", "line 4: unknown key 'experiment'; did you mean 'experiments'?"),
        ("name: c\n", "name: c\nexperiments: {speed: {}}\n", "line 4: experiments: unknown key 'speed'; did you mean 'speeds'?"),
        ("name: c\n", "name: c\nexperiments: {speeds: {rounds: 1}}\n", "line 4: experiments.speeds.rounds:"),
        ("    at_least: 1\n", "", "line 5: claims[0]:"),
        ("at_least: 1\n", "at_least: 2\n    at_most: 1\n", "line 11: claims[0].at_least:"),
        ("at_least: 1\n", "at_least: .nan\n", "line 11: claims[0].at_least:"),
        ("    models: mlp\n", "", "line 5: claims[0]:"),
        ("models: mlp", "models: mpl", "line 9: claims[0].models:"),
        ("models: mlp", "models: [mlp, mlp]", "line 9: claims[0].models:"),
        ("models: mlp", "models: digits", "line 9: claims[0].models:"),
        ("variant: int8", "policies: tandem", "line 10: claims[0].policies:"),
        ("number: speed_up", "number: trees_latency", "line 9: claims[0].models:"),
        ("number: speed_up", "number: served_share", "line 9: claims[0].models:"),
        ('    source: "articles"\n', "", "line 5: claims[0]:"),
        ("kind: claims", "kind: load", "line 2: kind:"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_line_and_way_out(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in FILE
    with pytest.raises(CampaignFileError) as refused:
        read(tmp_path, FILE.replace(old, new))
    assert message in str(refused.value)


def test_two_claims_of_one_name_are_refused(tmp_path: Path) -> None:
    again = FILE[FILE.index("  - name") :]
    with pytest.raises(CampaignFileError, match=r"12.*claims\[1\].*claims.*'a'"):
        read(tmp_path, FILE + again)


def test_a_claim_that_is_not_there_is_refused_with_the_nearest() -> None:
    suite = read_suite(CAMPAIGNS / "claims.yaml")
    with pytest.raises(CampaignFileError, match=r"claim.*'int8-suits-cpu'.*'int8-suits-cpus'"):
        suite.only(("int8-suits-cpu",))
    assert [claim.name for claim in suite.only(("trees-suit-cpus",))] == ["trees-suit-cpus"]
