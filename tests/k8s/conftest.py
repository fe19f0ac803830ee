"""The objects of k8s/, and the chart beside which they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.conftest import ROOT, Object, Render, chart, render

__all__ = ["K8S", "ROOT", "Object", "Render", "chart", "objects", "one", "render"]

K8S = ROOT / "k8s"


def objects(path: str) -> list[Object]:
    return [it for it in yaml.safe_load_all((K8S / path).read_text()) if it]


def one(path: str, kind: str, name: str | None = None) -> Object:
    (found,) = [it for it in objects(path) if it["kind"] == kind and name in (None, it["metadata"]["name"])]
    return found


@pytest.fixture(scope="session")
def gpu_pod(render: Render) -> Any:
    """The pod of the chart's GPU pool, with the tolerations by which it lives on a node; those for seconds, of a node that is lost, are left out."""
    pod = dict(render({"pools": {"gpu": {"enabled": True}}}).pods())["tandem-gpu"]
    return pod | {"tolerations": [it for it in pod["tolerations"] if "tolerationSeconds" not in it]}


def files() -> list[Path]:
    """Every file of objects that somebody wrote: not the plain rendering, and not the values of others' charts."""
    written = [path for path in sorted(K8S.rglob("*.yaml")) if path.parent.name != "rendered"]
    return [path for path in written if not path.name.endswith("-values.yaml")]
