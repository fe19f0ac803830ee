"""A pool's containers on this machine: paths and program replaced, the arguments as the chart wrote them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

from tests.command import tandem
from tests.helm.conftest import ROOT, Object

IN_THE_GATEWAYS_IMAGE = "/opt/tandem/model_repo"


def run_init_containers(pod: Object, models: Path, secret: Mapping[str, str] | None = None) -> int:
    """Runs a pod's init containers, one after the other; the exit code of the first that fails, else 0.

    `models` is the volume. `secret` holds the variables of whatever secret a container takes its own from.
    """
    for container in pod["initContainers"]:
        if code := run(container, models, secret or {}).returncode:
            return code
    return 0


def run(container: Object, models: Path, secret: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """With the variables that the pod would have and no others: there is no home to keep settings in. `tandem` runs in this process."""
    command = [_here(word, models) for word in container["command"]]
    variables = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    if "envFrom" in container:
        variables |= secret
    variables |= {it["name"]: it["value"] for it in container.get("env", [])}
    if command[0] == "tandem":
        with patch.dict(os.environ, variables, clear=True):
            return tandem(*command[1:])
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)


def _here(word: str, models: Path) -> str:
    if word == "/models":
        return str(models)
    return word.replace("=/models", f"={models}").replace(IN_THE_GATEWAYS_IMAGE, str(ROOT / "model_repo"))
