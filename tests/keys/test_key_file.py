"""The file of keys: what is wrong with one is told with its place, its way out, and no value that may be a secret."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from serving.errors import UserError
from serving.keys.key import SCOPES, Key, digest_of, id_of, make_text
from serving.keys.key_file import Broken, look, parse, read, render

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
GOOD: dict[str, Any] = {
    "id": "0123456789ab",
    "name": "a service",
    "sha256": "ab" * 32,
    "scopes": ["infer"],
    "models": ["digits"],
    "highest_priority": 3,
    "created": "2026-11-22T12:00:00Z",
    "expires": None,
    "revoked": None,
}
SECRET = "tdm_0123456789ab_" + "5" * 64


def text(**changed: Any) -> bytes:
    return json.dumps({"version": 1, "keys": [GOOD | changed]}).encode()


def without(field: str) -> bytes:
    return json.dumps({"version": 1, "keys": [{k: v for k, v in GOOD.items() if k != field}]}).encode()


def test_what_is_written_is_read_again() -> None:
    keys = (
        Key("0123456789ab", "all", bytes(32), frozenset(SCOPES), NOW),
        Key("ffffffffffff", "Zoë", b"\1" * 32, frozenset({"infer"}), NOW, frozenset({"b", "a"}), 1, NOW, NOW),
        Key("fffffffffff0", "Zoë", bytes(32), frozenset({"infer"}), NOW, tenant="search"),
    )
    assert parse(render(keys), "here") == keys
    assert parse(b'{"version": 1, "keys": []}', "here") == ()


def test_a_key_belongs_to_its_tenant_or_to_one_of_its_own_name_and_old_files_have_none() -> None:
    alone, together = parse(without("tenant"), "here")[0], parse(text(tenant="search"), "here")[0]
    assert (alone.owner, together.owner) == (GOOD["name"], "search")
    assert b"tenant" not in render([alone])


def test_a_key_is_valid_until_the_moment_it_expires_or_is_revoked() -> None:
    key = Key("0123456789ab", "x", bytes(32), frozenset(SCOPES), NOW, expires=NOW)
    assert key.state(NOW - timedelta(microseconds=1)) == "valid"
    assert key.state(NOW) == "expired"
    assert Key("0123456789ab", "x", bytes(32), frozenset(SCOPES), NOW, revoked=NOW).state(NOW) == "revoked"


def test_keys_have_their_form_and_no_two_are_alike() -> None:
    made = [make_text() for _ in range(100)]
    assert len(set(made)) == len({id_of(one) for one in made}) == len({digest_of(one) for one in made}) == 100
    for no_key in ("", "tdm_", made[0][:-1], made[0] + "0", made[0].upper(), f" {made[0]}", f"{made[0]}\n"):
        assert id_of(no_key) is None


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (b"", "line 1: not valid JSON"),
        (b"\xff\xfe", "not in UTF-8"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"version": 1,\n "keys": [}', "line 2"),
        (b"[]", "not a file of API keys of version 1"),
        (b"{}", "with 'version' and 'keys'"),
        (b'{"version": 1}', "'keys' is missing"),
        (b'{"version": 2, "keys": [], "tenants": {}}', "use a newer Tandem"),
        (b'{"version": true, "keys": []}', "its version is"),
        (b'{"version": 0, "keys": []}', "its version is"),
        (b'{"version": 1, "keys": {}}', "keys: must be a list"),
        (b'{"version": 1, "key": []}', "did you mean 'keys'?"),
        (b'{"version": 1, "keys": [], "keys": []}', "'keys' is given twice"),
        (b'{"version": 1, "keys": [1]}', "keys[0]: must be a mapping"),
        (text(expire=None), "unknown key 'expire'; did you mean 'expires'?"),
        (text().replace(b'"name": "a service"', b'"name": "a", "name": "b"'), "'name' is given twice"),
        (json.dumps({"version": 1, "keys": [GOOD, GOOD]}).encode(), "keys[1].id: '0123456789ab' stands there twice"),
        (text(id="0123456789aB"), "keys[0].id: must be 12 lower-case"),
        (text(id=12), "keys[0].id"),
        (text(sha256="ab"), "keys[0].sha256: must be 64"),
        (text(sha256="AB" * 32), "keys[0].sha256"),
        (text(name=""), "a key's name is 1 to 100"),
        (text(name="a\nb"), "a key's name"),
        (text(name="x" * 101), "a key's name"),
        (text(name="(rollout)"), "a key's name cannot be (rollout)"),
        (text(tenant="(rollout)"), "a tenant's name cannot be (rollout)"),
        (text(name=1), "keys[0].name: must be text"),
        (text(scopes=[]), "keys[0].scopes: must be a list of at least one"),
        (text(scopes="infer"), "keys[0].scopes: must be a list"),
        (text(scopes=["inferr"]), "did you mean 'infer'?"),
        (text(scopes=[["infer"]]), "keys[0].scopes"),
        (text(models=[]), "keys[0].models: must be a list of at least one"),
        (text(models=["digits-int8"]), "names a variant; leave it off"),
        (text(models=["a/b"]), "keys[0]: model name"),
        (text(highest_priority=0), "keys[0].highest_priority: must be a number from 1 to 5"),
        (text(highest_priority=True), "highest_priority"),
        (text(highest_priority=2.0), "highest_priority"),
        (text(created=None), "keys[0].created"),
        (text(expires="2027-01-31"), "must be a time with its zone"),
        (text(expires="never"), "keys[0].expires"),
        (text(expires=1800000000), "keys[0].expires"),
        (text(revoked="0001-01-01T00:00:00+23:00"), "keys[0].revoked"),
        *((without(field), f"'{field}' is missing") for field in GOOD),
    ],
)
def test_a_wrong_file_is_told_with_its_place(tmp_path: Path, written: bytes, says: str) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(written)
    with pytest.raises(Broken) as refused:
        read(file)
    assert str(refused.value).startswith(str(file))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.stamp == look(file)


@pytest.mark.parametrize("field", [*GOOD, "other", SECRET])
def test_a_secret_in_a_wrong_place_is_not_told(tmp_path: Path, field: str) -> None:
    file = tmp_path / "keys.json"
    for value in (SECRET, [SECRET], {SECRET: SECRET}):
        file.write_bytes(text(**{field: value}))
        if (field, value) not in (("name", SECRET), ("models", [SECRET])):  # which are names as any other
            with pytest.raises(Broken) as refused:
                read(file)
            assert "5555" not in str(refused.value), field


def test_what_is_no_file_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, says in (("pipe", "no regular file"), ("none", "No such file"), (".", "no regular file")):
        with pytest.raises(UserError, match=says) as refused:
            read(tmp_path / name)
        assert "tandem keys add" in str(refused.value)


def secret(folder: Path) -> Path:
    """As Kubernetes mounts one."""
    (folder / "..2026").mkdir(mode=0o755)
    (folder / "..data").symlink_to("..2026")
    (folder / "keys.json").symlink_to("..data/keys.json")
    (folder / "..2026" / "keys.json").write_bytes(text())
    folder.chmod(0o3777)
    return folder / "keys.json"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o440, 0o400])
@pytest.mark.parametrize("folder_mode", [0o700, 0o755, 0o775, 0o1777])  # 0775: the user's own group
def test_a_file_that_its_owner_alone_may_write_is_read_through_links_too(
    tmp_path: Path, mode: int, folder_mode: int
) -> None:
    mounted = secret(tmp_path)
    mounted.chmod(mode)
    tmp_path.chmod(folder_mode)
    os.chown(tmp_path, -1, os.getegid())
    assert len(read(mounted).keys) == 1
    (tmp_path / "absolute").symlink_to(tmp_path / ".." / tmp_path.name / "keys.json")
    assert len(read(tmp_path / "absolute").keys) == 1


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646, 0o620, 0o602])
def test_a_file_that_others_may_write_is_refused_until_it_is_not(tmp_path: Path, mode: int) -> None:
    mounted = secret(tmp_path)
    mounted.chmod(mode)
    with pytest.raises(UserError, match=rf"write.*go-w {mounted.resolve()}") as refused:
        read(mounted)
    assert not isinstance(refused.value, Broken)  # of which a stamp says that it stays so
    mounted.chmod(0o644)
    assert len(read(mounted).keys) == 1


@pytest.mark.parametrize("place", [".", "..2026"])
def test_a_folder_on_the_way_that_others_may_write_into_is_refused(tmp_path: Path, place: str) -> None:
    mounted = secret(tmp_path)
    (tmp_path / place).chmod(0o777)
    with pytest.raises(UserError, match=r"folder.*g?o-w"):
        read(mounted)
    (tmp_path / place).chmod(0o1777)
    assert len(read(mounted).keys) == 1


@pytest.mark.parametrize("place", [".", "..2026", "..data", "keys.json", "..2026/keys.json"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    mounted = secret(tmp_path)
    if os.geteuid() == 0:
        os.chown(tmp_path / place, 12345, -1, follow_symlinks=False)
    else:  # then everything here is another's
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UserError, match=r"belongs.*chown"):
        read(mounted)


def test_a_stamp_is_another_for_a_turned_link_a_new_file_and_a_written_one(tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(text())
    (tmp_path / "2").write_bytes(text())
    link = tmp_path / "link"
    link.symlink_to("1")
    stamps = [look(link)]
    link.unlink()
    link.symlink_to("2")
    stamps.append(look(link))
    (tmp_path / "2").write_bytes(text(name="another"))
    stamps.append(look(link))
    os.utime(tmp_path / "2", ns=(stamps[-1].modified_ns, stamps[-1].modified_ns))
    stamps.append(look(link))
    assert len(set(stamps)) == 4
    assert look(link) == stamps[-1]
