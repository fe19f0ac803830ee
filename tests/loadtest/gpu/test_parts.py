"""What is carried in parts: any order, any subset, any damage."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.gpu import parts
from loadtest.gpu.libraries import NEEDED, CannotUse, Torch, libraries

FILES = {"1-measure/small": 10, "1-measure/engine": 2500, "2-serve/triton": 1300, "2-serve/empty": 0}
PART = 1000


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    made = random.Random(7)
    for name, size in FILES.items():
        file = tmp_path / "files" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(made.randbytes(size))
    parts.cut(tmp_path / "files", tmp_path / "parts", PART)
    return tmp_path


def joined(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "joined").iterdir()}


def test_all_parts_in_any_order_give_back_every_file_and_no_part_is_larger_than_it_may_be(packed: Path) -> None:
    names = [path.name for path in (packed / "parts").glob("part-*")]
    assert all((packed / "parts" / name).stat().st_size <= PART for name in names)
    (packed / "come").mkdir()
    shutil.copy(packed / "parts" / parts.INDEX, packed / "come")
    for name in random.Random(1).sample(names, len(names)):
        shutil.copy(packed / "parts" / name, packed / "come")
        result = parts.join(packed / "come", packed / "joined")
    assert not result.missing
    wanted = {Path(name).name: (packed / "files" / name).read_bytes() for name in FILES}
    assert joined(packed) == wanted


def test_the_first_parts_are_enough_for_the_first_group(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (packed / "parts" / "part-004").unlink()
    assert parts.main(["join", str(packed / "parts"), str(packed / "joined")]) == 1
    assert set(joined(packed)) == {"small", "engine", "empty"}
    said = capsys.readouterr().out.splitlines()
    assert [re.findall(r"^\w+|\bpart-\d+|\b\d\b", line) for line in said] == [["measure", "2"], ["serve", "part-004"]]


@pytest.mark.parametrize("place", [0, 500, 999])
def test_a_damaged_part_is_named_and_nothing_is_made_of_it(
    packed: Path, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = packed / "parts" / "part-002"
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    assert parts.main(["join", str(packed / "parts"), str(packed / "joined")]) == 1
    assert "engine" not in joined(packed)
    assert "part-002 is damaged" in capsys.readouterr().out


def test_what_is_joined_already_needs_its_parts_no_more(packed: Path) -> None:
    parts.join(packed / "parts", packed / "joined")
    for part in (packed / "parts").glob("part-*"):
        part.unlink()
    assert not parts.join(packed / "parts", packed / "joined").missing


@pytest.mark.parametrize("index", [None, "{", '{"version": 2}', '{"version": 1, "files": [{}], "parts": []}'])
def test_without_an_index_nothing_is_guessed(packed: Path, index: str | None) -> None:
    file = packed / "parts" / parts.INDEX
    file.unlink()
    if index is not None:
        file.write_text(index)
    done = subprocess.run(
        [str(Path(parts.__file__).with_name("unpack.sh")), str(packed / "parts"), str(packed / "joined")],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
    )
    assert done.returncode == 2
    assert "index.json" in done.stderr
    assert not (packed / "joined").exists()


def test_an_index_of_another_set_makes_nothing(packed: Path) -> None:
    file = packed / "parts" / parts.INDEX
    digest = hashlib.sha256((packed / "files" / "1-measure" / "engine").read_bytes()).hexdigest()
    file.write_text(file.read_text().replace(digest, "0" * 64))
    with pytest.raises(parts.NoIndex, match="engine"):
        parts.join(packed / "parts", packed / "joined")
    assert "engine" not in joined(packed)


# -- CUDA's libraries in an installed PyTorch ---------------------------------------------------------------------------


def torch(site: Path, version: str = "2.11.0+cu130", cuda: str | None = "13.0", lacks: str = "") -> Torch:
    """As its wheel and those of its libraries lie there."""
    (site / "torch" / "lib").mkdir(parents=True)
    word = "None" if cuda is None else f"'{cuda}'"
    (site / "torch" / "version.py").write_text(
        f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {word}\n"
    )
    for name in NEEDED:
        folder = site / "nvidia" / ("cudnn" if "cudnn" in name else "cu13") / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        if name != lacks:
            (folder / name).touch()
    return Torch.at(site / "torch")


def test_the_libraries_of_an_installed_pytorch_are_found(tmp_path: Path) -> None:
    assert libraries(torch(tmp_path)) == [tmp_path / "nvidia" / "cu13" / "lib", tmp_path / "nvidia" / "cudnn" / "lib"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": "2.8.0+cu129", "cuda": "13.0"}, "older than 2.9"),
        ({"cuda": "12.8"}, "CUDA 12.8, want 13"),
        ({"cuda": None, "version": "2.11.0+cpu"}, "no CUDA, want 13"),
        *(({"lacks": name}, f"has no {name}") for name in NEEDED),
    ],
)
def test_a_pytorch_that_lacks_one_of_them_is_not_used(tmp_path: Path, change: dict[str, str], says: str) -> None:
    with pytest.raises(CannotUse, match=says.replace(".", r"\.")):
        libraries(torch(tmp_path, **change))
