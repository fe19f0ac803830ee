"""ONNX Runtime sends usage data to its maker unless told otherwise when it is imported: `tandem export` and `verify` tell it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .conftest import ROOT

NAME = "ORT_DISABLE_TELEMETRY"
LOOK = """
import os, sys, importlib.abc

class Look(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "onnxruntime":
            print(os.environ.get("ORT_DISABLE_TELEMETRY"))
            sys.meta_path.remove(self)

sys.meta_path.insert(0, Look())
import importlib
importlib.import_module(sys.argv[1])
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("inherited", "said"), [({}, "1"), ({NAME: "0"}, "0")])
@pytest.mark.parametrize(
    "module",
    [
        "serving.export.gate_rerun",
        "serving.export.command",
        "serving.export.speed.__main__",
        "serving.export.speed_nets",
    ],
)
def test_whatever_imports_onnx_runtime_for_a_gate_told_it_before_unless_somebody_said_otherwise(
    module: str, inherited: dict[str, str], said: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != NAME} | inherited
    done = subprocess.run(
        [sys.executable, "-c", LOOK, module],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [said]


def test_the_command_line_alone_imports_no_onnx_runtime() -> None:
    script = "import sys, serving.cli; print('onnxruntime' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
