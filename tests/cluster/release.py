"""One release of the chart on the bed, by real Helm: what it is given, and what the API server then holds of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.bed.api import Object, until
from tests.cluster.bed.cluster import Bed, is_true
from tests.cluster.conftest import CHART

PROFILES = {
    "default": None,
    **{path.stem.removeprefix("values-"): path for path in sorted(CHART.glob("values-*.yaml"))},
}
WAIT_S = 180  # a pod of the bed is ready after 2 to 3 s and gone after 1; the rest is for a busy machine


@dataclass(frozen=True)
class Release:
    bed: Bed
    namespace: str
    values: Path | None = None  # a profile
    more: Object = field(default_factory=dict)  # laid over it
    name: str = "tandem"

    # -- Helm ------------------------------------------------------------------------------------------------------------

    def install(self, *words: str) -> str:
        return self._helm("install", self.name, str(CHART), *self._given(), "--wait", f"--timeout={WAIT_S}s", *words)

    def upgrade(self, *words: str) -> str:
        return self._helm("upgrade", self.name, str(CHART), *self._given(), "--wait", f"--timeout={WAIT_S}s", *words)

    def rollback(self, revision: int) -> str:
        return self._helm("rollback", self.name, str(revision), "--wait", f"--timeout={WAIT_S}s")

    def test(self) -> str:
        return self._helm("test", self.name, f"--timeout={WAIT_S}s")

    def uninstall(self) -> str:
        return self._helm("uninstall", self.name, "--wait", f"--timeout={WAIT_S}s")

    def lint(self) -> str:
        return self.bed.helm("lint", "--strict", str(CHART), *self._given())

    def rendered(self) -> str:
        """With what this server offers: its version and kinds."""
        return self._helm("template", self.name, str(CHART), *self._given(), "--validate")

    def _given(self) -> Iterator[str]:
        if self.values:
            yield f"--values={self.values}"
        for key, value in {"auth.insecureNoAuth": "auth" not in self.more, **self.more}.items():
            yield f"--set-json={key}={json.dumps(value)}"

    def _helm(self, *words: str) -> str:
        return self.bed.helm(*words, f"--namespace={self.namespace}")

    # -- what is there ---------------------------------------------------------------------------------------------------

    def objects(self, kind: str, group: str = "api/v1") -> list[Object]:
        return self.bed.api.items(f"/{group}/namespaces/{self.namespace}/{kind}")

    def deployments(self) -> dict[str, Object]:
        """By name without the release's."""
        found = self.objects("deployments", "apis/apps/v1")
        return {it["metadata"]["name"].removeprefix(f"{self.name}-"): it for it in found}

    def pods(self, component: str = "") -> list[Object]:
        """Those that are not leaving."""
        return [
            it
            for it in self.objects("pods")
            if "deletionTimestamp" not in it["metadata"]
            and component in ("", it["metadata"].get("labels", {}).get("app.kubernetes.io/component"))
        ]

    def settle(self) -> None:
        """Until every pod that is wanted is there and ready, whatever Helm had waited for."""
        until(self._is_settled, f"{self.namespace}: deployments complete", WAIT_S)

    def _is_settled(self) -> bool:
        wanted = {it["metadata"]["name"]: it["spec"].get("replicas", 1) for it in self.deployments().values()}
        ready = [it for it in self.pods() if is_true(it, "Ready")]
        return all(is_true(it, "Available") for it in self.deployments().values()) and len(ready) >= sum(
            wanted.values()
        )


def stack(rendered: str) -> list[Object]:
    return [it for it in yaml.load_all(rendered, yaml.CSafeLoader) if it]


def pod_specs(objects: list[Object]) -> Iterator[Any]:
    for it in objects:
        if it["kind"] == "Pod":
            yield it["spec"]
        elif "template" in it.get("spec", {}):
            yield it["spec"]["template"]["spec"]


def extended_resources(objects: list[Object]) -> set[str]:
    """nvidia.com/gpu and the like, of whatever the pods ask for."""
    return {
        resource
        for pod in pod_specs(objects)
        for container in pod["containers"]
        for resource in container.get("resources", {}).get("limits", {})
        if "/" in resource
    }


def node_labels(objects: list[Object]) -> dict[str, str]:
    """That a node needs so that every pod with a nodeSelector finds one."""
    return {key: value for pod in pod_specs(objects) for key, value in pod.get("nodeSelector", {}).items()}
