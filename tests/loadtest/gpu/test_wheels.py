"""Wheels for a narrow link: what is left out is the code for other cards alone, and pip installs what remains."""

from __future__ import annotations

import base64
import csv
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from loadtest.gpu import wheels

PTX = 1


def container(*entries: tuple[int, int, bytes]) -> bytes:
    """A fat binary of (kind, architecture, code)."""
    body = b"".join(wheels.ENTRY.pack(kind, 257, 64, len(code), of) + bytes(32) + code for kind, of, code in entries)
    return wheels.HEADER.pack(wheels.MAGIC, 1, 16, len(body)) + body


BOTH = container((wheels.BINARY, 80, b"a" * 24), (wheels.BINARY, 90, b"b" * 40), (PTX, 90, b"c" * 8))
OTHERS = container((wheels.BINARY, 80, b"d" * 16), (PTX, 80, b"e" * 8))  # which the driver compiles for a 90
NO_CONTAINER = wheels.HEADER.pack(wheels.MAGIC, 1, 16, 10**9) + b"f" * 20
CUT_OFF = wheels.MAGIC
LIBRARY = b"host code" * 5 + BOTH + b"between" + OTHERS + NO_CONTAINER + b"more" + BOTH + CUT_OFF


def test_code_for_other_cards_becomes_zeros_and_nothing_else_changes() -> None:
    library = bytearray(LIBRARY)
    assert wheels.without_others(library, 90) == {80, 90}
    assert bytes(library) == LIBRARY.replace(b"a" * 24, bytes(24)).replace(b"c" * 8, bytes(8))


@pytest.mark.parametrize("architecture", [75, 89])
def test_where_there_is_no_code_for_the_card_everything_stays(architecture: int) -> None:
    library = bytearray(LIBRARY)
    assert wheels.without_others(library, architecture) == {80, 90}
    assert bytes(library) == LIBRARY


def digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def wheel(folder: Path, name: str = "onnxruntime_gpu") -> Path:
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}/__init__.py": b"",
        f"{name}/code.so": LIBRARY + bytes(wheels.LARGE),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},{digest(data)},{len(data)}\n" for path, data in files.items()) + f"{info}/RECORD,,\n"
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr(f"{info}/RECORD", record)
        for path, data in files.items():
            made.writestr(path, data)
    return file


def zeroed() -> bytes:
    return LIBRARY.replace(b"a" * 24, bytes(24)).replace(b"c" * 8, bytes(8))


@pytest.mark.thorough
def test_pip_installs_a_smaller_wheel(tmp_path: Path) -> None:
    file, other = wheel(tmp_path / "wheels"), wheel(tmp_path / "wheels", "another")
    assert wheels.main([str(tmp_path / "wheels"), "--architecture", "90"]) == 0
    there = tmp_path / "there"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(there)]
    subprocess.run([*command, str(file), str(other)], check=True, timeout=120)
    assert (there / "onnxruntime_gpu" / "code.so").read_bytes().startswith(zeroed())
    assert (there / "another" / "code.so").read_bytes().startswith(LIBRARY)


def test_a_smaller_wheel_has_true_digests(tmp_path: Path) -> None:
    file, other = wheel(tmp_path / "wheels"), wheel(tmp_path / "wheels", "another")
    before = file.stat().st_size
    assert wheels.main([str(tmp_path / "wheels"), "--architecture", "90"]) == 0
    assert file.stat().st_size < before / 10
    assert zipfile.ZipFile(other).read("another/code.so").startswith(LIBRARY)
    with zipfile.ZipFile(file) as made:
        assert made.read("onnxruntime_gpu/code.so").startswith(zeroed())
        rows = csv.reader(made.read("onnxruntime_gpu-1.0.dist-info/RECORD").decode().splitlines())
        for path, said, size in rows:
            if said:
                assert (said, int(size)) == (digest(made.read(path)), len(made.read(path)))


def test_an_architecture_that_no_library_has_is_refused_by_those_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(tmp_path / "wheels")
    assert wheels.main([str(tmp_path / "wheels"), "--architecture", "900"]) == 2
    assert "80, 90" in capsys.readouterr().err
