"""What resolve.py makes of the loader's words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .pods import ROOT
from .test_images_inventory import script

resolve = script("resolve")
LDD = """
\tlinux-vdso.so.1 (0x00007ffd)
\tlibcublas.so.13 => /opt/libcublas.so.13 (0x00007f)
\tlibcuda.so.1 => not found
\tlibcufft.so.12 => not found
"""


def test_only_what_the_loader_did_not_find_is_missing() -> None:
    assert resolve.missing(LDD) == {"libcuda.so.1", "libcufft.so.12"}


@pytest.mark.parametrize(
    ("misses", "fault"),
    [
        ({"libcuda.so.1"}, []),
        ({"libnvidia-ml.so.1"}, []),
        ({"libcuda.so.1", "libcufft.so.12"}, ["a.so needs libcufft.so.12"]),
        ({"libcuda.so"}, ["a.so needs libcuda.so"]),
    ],
)
def test_only_the_drivers_libraries_may_be_missing(misses: set[str], fault: list[str]) -> None:
    assert resolve.faults({"a.so": misses}, resolve.OPENED) == fault


def test_a_library_that_is_opened_by_name_has_to_be_there() -> None:
    assert resolve.faults({}, set(resolve.OPENED) - {"libcudnn_ops.so.9"}) == ["libcudnn_ops.so.9 is not there"]


def test_where_cudnn_is_left_out_none_of_it_is_there_and_the_rest_is() -> None:
    rest = {name for name in resolve.OPENED if not name.startswith("libcudnn")}
    assert resolve.faults({}, rest, has_cudnn=False) == []
    assert resolve.faults({}, rest - {"libnvrtc.so.13"}, has_cudnn=False) == ["libnvrtc.so.13 is not there"]
    found = resolve.faults({}, {*rest, "libcudnn_ops.so.9"}, has_cudnn=False)
    assert [it.split()[0] for it in found] == ["libcudnn_ops.so.9"]
    assert resolve.faults({"a.so": {"libcudnn.so.9"}}, rest, has_cudnn=False) == ["a.so needs libcudnn.so.9"]


def test_an_environment_without_cuda_does_not_pass(tmp_path: Path) -> None:
    (tmp_path / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    command = [sys.executable, str(ROOT / "scripts" / "images" / "resolve.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "libonnxruntime_providers_cuda.so " in done.stderr
