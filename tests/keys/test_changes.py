"""Adding and revoking keys: nothing is lost when two do it at once, and nothing is left half written."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from serving.errors import UserError
from serving.keys.changes import add, revoke
from serving.keys.key import INFER, digest_of
from serving.keys.key_file import read

NOW = datetime(2026, 11, 22, tzinfo=UTC)
ONE = frozenset({INFER})


def test_a_new_file_is_its_owners_alone_and_holds_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    added = add(file, "one", ONE, NOW)
    assert file.stat().st_mode & 0o777 == 0o600
    assert read(file).keys == (added.key,)
    assert added.key.digest == digest_of(added.text)
    assert added.text[17:] not in file.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".keys.json.lock", "keys.json"]


def test_who_could_read_the_file_can_read_the_new_one_and_a_link_stays_one(tmp_path: Path) -> None:
    file, link = tmp_path / "real.json", tmp_path / "keys.json"
    add(file, "one", ONE, NOW)
    file.chmod(0o644)
    link.symlink_to(file.name)
    key = add(link, "two", ONE, NOW).key
    revoke(link, key.id, NOW)
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in read(file).keys] == ["one", "two"]


def test_a_revoked_key_stays_in_the_file_with_the_first_time_it_was(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = [add(file, name, ONE, NOW) for name in "ab"]
    assert revoke(file, keys[0].key.id, NOW).revoked == NOW
    assert revoke(file, keys[0].text, NOW.replace(year=2027)).revoked == NOW  # by the key itself, again
    assert [key.revoked for key in read(file).keys] == [NOW, None]


def test_an_unknown_id_is_told_with_the_nearest_and_a_key_is_not_told(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = add(file, "one", ONE, NOW)
    almost = key.key.id[:-1] + ("0" if key.key.id[-1] != "0" else "1")
    with pytest.raises(UserError, match=f"did you mean '{key.key.id}'"):
        revoke(file, almost, NOW)
    other = f"tdm_{'f' * 12}_{'7' * 64}"
    for unknown in ("x", other, other[:-1]):
        with pytest.raises(UserError, match=r"key.*id") as refused:
            revoke(file, unknown, NOW)
        assert "7" * 20 not in str(refused.value)
    with pytest.raises(UserError, match="No such file"):
        revoke(tmp_path / "none.json", almost, NOW)


@pytest.mark.parametrize(("name", "model"), [("", "digits"), ("a\n", "digits"), ("a", "digits-int8"), ("a", "../x")])
def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, name: str, model: str) -> None:
    file = tmp_path / "keys.json"
    with pytest.raises(UserError):
        add(file, name, ONE, NOW, models=frozenset({model}))
    assert not file.exists()


def test_a_broken_file_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text("{}")
    with pytest.raises(UserError, match=r"file.*API"):
        add(file, "one", ONE, NOW)
    assert file.read_text() == "{}"


def test_a_folder_that_is_not_there_is_told_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"folder.*exists"):
        add(tmp_path / "none" / "keys.json", "one", ONE, NOW)


def test_a_link_to_itself_is_told(tmp_path: Path) -> None:
    (tmp_path / "keys.json").symlink_to("keys.json")
    with pytest.raises(UserError, match="leads to itself"):
        add(tmp_path / "keys.json", "one", ONE, NOW)


def test_what_a_killed_one_left_behind_hinders_nobody(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    (tmp_path / ".keys.json.new").write_text("half")
    (tmp_path / ".keys.json.lock").write_text("")
    add(file, "one", ONE, NOW)
    assert len(read(file).keys) == 1


MANY = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from serving.keys.changes import add, revoke
for number in range(12):
    key = add(Path(sys.argv[1]), f"{sys.argv[2]}-{number}", frozenset({"infer"}), datetime.now(UTC)).key
    revoke(Path(sys.argv[1]), key.id, datetime.now(UTC))
"""


def test_several_at_once_lose_nothing_and_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    add(file, "first", ONE, NOW)
    programs = [subprocess.Popen([sys.executable, "-c", MANY, str(file), str(number)]) for number in range(2)]
    while any(program.poll() is None for program in programs):
        read(file)
    assert [program.returncode for program in programs] == [0, 0]
    keys = read(file).keys
    assert len({key.id for key in keys}) == 25
    assert sum(key.revoked is not None for key in keys) == 24
