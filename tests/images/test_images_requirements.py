"""The lists that gateway and Triton images are installed from, without resolving: is what their commands import on them, and nothing missing?"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.import_statements import import_statements, without_types

from .pods import ROOT

# List -> the modules whose commands the image runs; what the command line imports at once comes on top.
STARTS = {
    "gateway.txt": (
        "serving.gateway.serve",
        "serving.export.verify",
        "serving.export.inventory",
        "serving.export.inventory_tables",
        "serving.keys.changes",
        "serving.cluster.scaler.command",
    ),
    "triton.txt": ("serving.local.triton", "serving.local.environments"),
}
# `tandem verify` asks the gates again with these, and says what is missing; the chart's init container verifies digests alone.
TO_GATE = {"onnx", "onnxruntime", "scikit-learn", "scipy"}
# The same code judges rows where they are served, one by one; only orders and rankings need these, and one row has no order.
OF_ORDERS = {"scikit-learn", "scipy"}
# Imported when a Redis is first asked; who reads the settings of one for gateways only looks at its URL.
OF_GATEWAYS = {"redis"}
# A scaler outside of a cluster reads a kubeconfig with these, and says what is missing; in a pod it has a token.
OUTSIDE = {"kubernetes"}
# Wanted by a distribution on the list, and left out: by whom, and why it is never imported.
LEFT_OUT = {
    ("gateway.txt", "huggingface-hub"): "tokenizers asks for it to load from a hub; ours load files",
    ("gateway.txt", "pygments"): "rich asks for it to colour source code; ours prints tables",
    ("gateway.txt", "markdown-it-py"): "rich asks for it to print Markdown; ours prints tables",
    ("triton.txt", "urllib3"): "tritonclient's HTTP client, which nothing here uses",
    ("triton.txt", "numpy"): "Triton's environment has the one that its stub reads, and lends it by triton.pth",
}
# Imported by what runs in a checkout only, or in an environment of its own.
ELSEWHERE = {"loadtest", "serving"}


def listed(name: str, **python: str) -> set[str]:
    """What is installed on this Python, or on one that markers are to see."""
    lines = (ROOT / "scripts" / "images" / name).read_text().splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {normal(it.name) for it in wanted if it.marker is None or it.marker.evaluate(dict(python))}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def file_of(module: str) -> Path | None:
    base = ROOT.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


@cache
def imported(path: Path) -> frozenset[str]:
    """Everything that a file imports, at once or later, but for types only."""
    names = set[str]()
    for node in import_statements(without_types(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif node.module:
            names |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return frozenset(names)


def reached(*starts: str) -> set[str]:
    """Top-level names of all that is imported from there, through this project's own modules."""
    wanted, seen, others = list(starts), set(), set()
    while wanted:
        module = wanted.pop()
        if module in seen:
            continue
        seen.add(module)
        top = module.partition(".")[0]
        if top not in ELSEWHERE:
            others.add(top)
        elif top == "serving" and (path := file_of(module)):
            parents = module.split(".")[:-1]
            wanted += [".".join(parents[:n]) for n in range(1, len(parents) + 1)]
            wanted += imported(path)
    return others - set(sys.stdlib_module_names)


def distributions(modules: set[str]) -> set[str]:
    known = providers()
    return {normal(name) for module in modules for name in known.get(module, [module])}


@cache
def providers() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


@pytest.mark.parametrize("name", STARTS)
def test_an_image_has_what_its_commands_import(name: str) -> None:
    lacking = distributions(reached("serving.cli.command", *STARTS[name])) - listed(name)
    assert {it for it in lacking if (name, it) not in LEFT_OUT} - (
        TO_GATE | OUTSIDE if name == "gateway.txt" else OF_ORDERS | OF_GATEWAYS
    ) == set()


@pytest.mark.parametrize("python", ["3.11.2", "3.12.0"])  # Debian 12's, and the newest
@pytest.mark.parametrize("name", STARTS)
def test_what_a_listed_distribution_wants_is_listed_or_left_out_for_a_reason(name: str, python: str) -> None:
    there = listed(name, python_full_version=python)
    wanted = {
        normal(requirement.name)
        for distribution in there & listed(name)
        for requirement in map(Requirement, metadata.requires(distribution) or [])
        if requirement.marker is None or requirement.marker.evaluate({"extra": "", "python_full_version": python})
    }
    assert wanted - there == {it for of, it in LEFT_OUT if of == name}


@pytest.mark.parametrize("name", STARTS)
def test_everything_listed_is_imported_or_wanted_by_what_is(name: str) -> None:
    needed = distributions(reached("serving.cli.command", *STARTS[name]))
    more = needed
    while more:
        wanted = {
            normal(requirement.name)
            for distribution in more & listed(name)
            for requirement in map(Requirement, metadata.requires(distribution) or [])
        }
        more = wanted - needed
        needed = needed | wanted
    assert listed(name) - needed == set()


@pytest.mark.parametrize("name", STARTS)
def test_every_listed_distribution_has_a_pinned_version(name: str) -> None:
    pinned = {normal(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert listed(name) - pinned == set()
