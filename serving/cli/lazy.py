"""How a verb gets the room that does its work, and what is said where it lacks a package or an error ends it.

A room is imported only when its verb runs, so that each installs alone. Errors are one line on stderr that says the way out.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from serving.children import held
from serving.errors import UserError
from serving.installation import how_to_add

EXTRAS = {  # package that may be missing -> extra that brings it
    "filelock": "local", "psutil": "local", "tritonclient": "local", "grpc": "local", "google": "local",
    "torch": "export", "transformers": "export", "onnxscript": "export", "keras": "keras",
    "onnx": "onnx", "onnxruntime": "onnx", "sklearn": "onnx", "numpy": "onnx", "PIL": "onnx", "tokenizers": "onnx",
    "skl2onnx": "onnx", "onnxmltools": "onnx", "sympy": "onnx",
    "locust": "loadtest", "kubernetes": "cluster",
}  # fmt: skip
LOADTEST_TOO = ("numpy", "psutil")  # of these, what that extra brings as well


def room(module: str) -> Any:
    """A module, or the message that names the extra which brings what it lacks."""
    try:
        with held():
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (fault := lacking(error, module)) is None:
            raise
        raise fault from None


def lacking(error: ModuleNotFoundError, module: str = "") -> UserError | None:
    """The message for a package that an extra brings; None for one that none does."""
    package = (error.name or "").split(".")[0]
    if package in ("jinja2", "markupsafe"):  # every installation has them, but for images that write no pages
        return UserError(f"this writes a page, which needs '{package}': it is not in this image")
    if package not in EXTRAS:
        return None
    extra = "loadtest" if module.startswith("loadtest") and package in LOADTEST_TOO else EXTRAS[package]
    return UserError(f"this needs '{package}', which is not installed: {how_to_add(extra)}")


LOAD_NEEDS = ("locust", "hdrh", "psutil", "filelock")  # modules of `tandem up` and of what sends load to it


def complete_for_load(*, is_yes: bool) -> None:
    """Goes on in an environment of its own, asked for on a terminal, where this one cannot serve and send load. Raises UserError."""
    if all(importlib.util.find_spec(module) for module in LOAD_NEEDS):
        return
    if importlib.util.find_spec("filelock") is None:  # without which none is made
        raise UserError(f"this measures here, which needs more packages: {how_to_add('quickstart')}")
    go_on_with("quickstart", is_yes=is_yes)


def go_on_with(extra: str, *, is_yes: bool) -> NoReturn:
    """Runs this very command in an environment that has the extra's packages, and ends as it does."""
    frameworks = room("serving.local.frameworks")
    python = frameworks.ensure(extra, is_yes=is_yes, say=lambda line: click.echo(line, err=True))
    sys.exit(frameworks.run_there(python, sys.argv[1:]))


def repository_at(given: Path | str | None, *, is_written: bool = False) -> Path:
    """Of another place than a folder, what was taken from there. Raises UserError where nothing was, or it is to be written."""
    if isinstance(given, str):
        if is_written:
            raise UserError(f"{given} is read alone: write into a folder, and copy that there")
        folder: Path = room("serving.export.mirror").local_folder(given, room("serving.local.folders").cache_dir())
        if not folder.is_dir():
            raise UserError(f"nothing was taken from {given} yet: `tandem up --model-repository {given}` does")
        return folder
    path: Path = given or room("serving.repository").default_repository()
    return path


def on_stderr(line: str) -> None:
    click.echo(f"tandem: {line}", err=True)


def followed(given: Path | str | None, say: Callable[[str], object] = on_stderr) -> Path | None:
    """Of another place than a folder, the folder that is kept like it from now on, as long as this process runs."""
    if not isinstance(given, str):
        return given
    mirror, cache = room("serving.export.mirror"), room("serving.local.folders").cache_dir()
    folder: Path = mirror.followed(given, cache, say)
    return folder


def loadtest(campaigns: Any, work: Callable[[], Any]) -> Any:
    """Runs a verb of the load test room, whose errors are its own because it shares nothing with the server."""
    try:
        return work()
    except campaigns.CampaignError as error:
        stop(str(error), error.exit_code)


def stop(message: str, code: int) -> NoReturn:
    click.echo(f"tandem: {message}", err=True)
    sys.exit(code)
