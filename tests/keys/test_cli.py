"""`tandem keys` as a user meets it: what is printed where, and with which exit code it ends."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from serving.cli.keys import read_expiry
from serving.errors import UserError
from serving.keys.key import id_of
from tests.command import tandem

Run = Callable[..., "subprocess.CompletedProcess[str]"]
ADD = ("add", "--name", "me", "--scope", "infer")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`tandem keys VERB --keys FILE …`."""

    def run(*words: str, file: str | None = "keys.json", **environment: str) -> subprocess.CompletedProcess[str]:
        keys = [] if file is None else ["--keys", str(tmp_path / file)]
        return tandem("keys", words[0], *keys, *words[1:], **environment)

    return run


def test_add_prints_the_key_alone_on_stdout_and_list_and_revoke_never_do(run: Run, tmp_path: Path) -> None:
    added = run(*ADD, "--scope", "metrics", "--model", "digits", "--expires", "90d", "--highest-priority", "1")
    key = added.stdout.removesuffix("\n")
    assert added.returncode == 0
    assert id_of(key) is not None
    assert key[17:] not in added.stderr
    assert "not shown again" in added.stderr
    (row,) = json.loads(run("list", "--json").stdout)["keys"]
    assert (row["id"], row["name"], row["scopes"], row["models"]) == (
        id_of(key),
        "me",
        ["infer", "metrics"],
        ["digits"],
    )
    assert (row["highest_priority"], row["state"], row["revoked"]) == (1, "valid", None)
    listed = run("list", file=None, TANDEM_KEYS=str(tmp_path / "keys.json"))
    assert [word for word in ("digits", "valid", row["id"]) if word not in listed.stdout] == []
    revoked = run("revoke", row["id"])
    assert revoked.returncode == 0
    again = run("list", "--json")
    assert json.loads(again.stdout)["version"] == 1
    assert json.loads(again.stdout)["keys"][0]["state"] == "revoked"
    said = listed.stdout + revoked.stdout + again.stdout + again.stderr
    assert key[17:] not in said
    assert "sha256" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("add", "--name", "me"), "--scope"),
        (("add", "--scope", "infer"), "--name"),
        (("add", "--name", "me", "--scope", "all"), "'all' is not one of"),
        ((*ADD, "--model", "digits-int8"), "leave it off"),
        ((*ADD, "--highest-priority", "6"), "6 is not in the range"),
        ((*ADD, "--expires", "yesterday"), "neither a time from now"),
        ((*ADD, "--expires", "2020-01-01"), "which is over"),
        (("list",), "No such file"),
        (("revoke",), "ID"),
        (("revoke", "0123456789ab"), "No such file"),
    ],
)
def test_mistakes_end_with_2_and_one_line_that_says_the_way_out(run: Run, words: tuple[str, ...], says: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_a_file_the_option_is_asked_for(run: Run) -> None:
    done = run("list", file=None)
    assert done.returncode == 2
    assert "--keys" in done.stderr


NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90d", "2027-02-20T12:00:00+00:00"),
        ("1h", "2026-11-22T13:00:00+00:00"),
        ("2027-01-31", "2027-01-31T00:00:00+00:00"),
        ("2027-01-31T10:00:00+02:00", "2027-01-31T08:00:00+00:00"),
    ],
)
def test_an_expiry_is_a_time_from_now_or_a_date(text: str, at: str) -> None:
    assert read_expiry(text, NOW) == datetime.fromisoformat(at)


@pytest.mark.parametrize("text", ["", "0d", "-1d", "90", "90 d", "2026-11-22", "2026-02-30", "9999-12-31", "d"])
def test_an_expiry_that_is_over_too_far_away_or_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--expires"):
        read_expiry(text, NOW)
