"""The chart, rendered for a set of values, as plain objects. Values are laid over the one that an install always needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
Object = dict[str, Any]
Names = str | tuple[str, ...]  # what a refusal must hold: values, options, figures
Render = Callable[..., "Rendering"]


class Rendering:
    """What one render gave: the objects, hooks among them, and the notes."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.notes = next(text for path, text in texts.items() if path.endswith("NOTES.txt"))
        self.objects: list[Object] = [
            document
            for path, text in texts.items()
            if path.endswith(".yaml")
            for document in yaml.load_all(text, yaml.CSafeLoader)  # eight times as fast as SafeLoader
            if document
        ]

    def all(self, kind: str) -> list[Object]:
        return [it for it in self.objects if it["kind"] == kind]

    def one(self, kind: str, name: str) -> Object:
        (found,) = [it for it in self.all(kind) if it["metadata"]["name"] == name]
        return found

    def pods(self) -> Iterator[tuple[str, Object]]:
        """Name -> pod specification, of everything that becomes a pod."""
        for it in self.objects:
            if it["kind"] == "Pod":
                yield it["metadata"]["name"], it["spec"]
            elif "template" in it.get("spec", {}):
                yield it["metadata"]["name"], it["spec"]["template"]["spec"]

    def tolerations(self, deployment: str) -> list[Object]:
        """Without those of a lost node, which every pod has (test_chart_objects.py)."""
        spec = self.one("Deployment", deployment)["spec"]["template"]["spec"]
        return [it for it in spec.get("tolerations", []) if "tolerationSeconds" not in it]

    def container(self, deployment: str) -> Object:
        (found,) = self.one("Deployment", deployment)["spec"]["template"]["spec"]["containers"]
        assert isinstance(found, dict)
        return found


def accepted(values: Object | None = None) -> Object:
    """The values, with auth.insecureNoAuth said unless they say something about it."""
    values = dict(values or {})
    values["auth"] = {"insecureNoAuth": True, **values.get("auth", {})}
    return values


@pytest.fixture(scope="session")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(ROOT / "helm" / "tandem") as loaded:
        yield loaded


@pytest.fixture(scope="session")
def render(chart: helm_python.Chart) -> Render:
    made: dict[str, Rendering] = {}  # a render takes 0.1 s, and tests only read what it gave

    def with_values(values: Object | None = None, *, release: str = "tandem") -> Rendering:
        key = json.dumps([values, release])
        if key not in made:
            made[key] = Rendering(chart.render(accepted(values), name=release, namespace="serving"))
        return made[key]

    return with_values
