"""That no test can see what the user's home holds, whatever it holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.local import environments, frameworks
from serving.local.folders import cache_dir, state_dir
from tests import home

ROOT = Path(__file__).parents[1]
# A pytest of its own for a file with one test, in the home of a user who has everything.
PROBE = """
from pathlib import Path
from serving.local import environments, frameworks
from serving.local.folders import cache_dir
def test_a_test():
    assert not frameworks.frameworks("export").is_complete
    assert not [*cache_dir().glob("environments/*")] and not (cache_dir() / "speeds").exists()
    assert not (Path.home() / ".kube").exists()
"""


def test_the_home_is_empty_but_for_what_is_named_by_its_content() -> None:
    users = [Path(os.environ[home.USERS_HOME]), Path(os.environ[home.USERS_CACHE])]
    for folder in (Path.home(), cache_dir(), state_dir()):
        assert not any(folder.is_relative_to(place) for place in users)
    assert {path.name for path in cache_dir().iterdir()} <= {"environments", *home.KEPT_OF_TANDEM}
    assert not any(environments.find(engine) for engine in environments.ENGINES.values())


@pytest.mark.triton
def test_a_test_that_starts_triton_finds_the_cpu_engine_and_no_other() -> None:
    assert [name for name, engine in environments.ENGINES.items() if environments.find(engine)] == ["cpu"]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("how", ["HOME", "XDG_CACHE_HOME", "TANDEM_CACHE"])
def test_a_full_cache_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    users = tmp_path / "user"
    cache = {"HOME": users / ".cache" / "tandem", "XDG_CACHE_HOME": users / "tandem", "TANDEM_CACHE": users}[how]
    with monkeypatch.context() as patch:
        patch.setenv("TANDEM_CACHE", str(cache))
        full = frameworks.frameworks("export")
        (full.folder / "bin").mkdir(parents=True)
        (full.venv.python).symlink_to(sys.executable)
        (full.folder / "complete.json").write_text(json.dumps({"version": 1}))
        assert full.is_complete
    for folder in (cache / "speeds", users / ".kube"):
        folder.mkdir(parents=True)
    outside = {k: v for k, v in os.environ.items() if k not in (home.USERS_HOME, home.USERS_CACHE)}
    outside |= {"HOME": str(users), how: str(users)}
    probe = tmp_path / "test_probe.py"
    probe.write_text(PROBE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.conftest",
        "--rootdir",
        str(ROOT),
    ]
    command += ["-c", str(ROOT / "pyproject.toml"), str(probe)]
    done = subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
