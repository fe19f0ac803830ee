"""What is made from the chart is fresh, and values.yaml, its schema and its table know the same names."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import helm_python
import pytest
import yaml

from .conftest import ROOT

SCRIPT = ROOT / "scripts" / "chart.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["chart_script"] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_the_table_and_the_plain_rendering_are_fresh() -> None:
    check = subprocess.run([sys.executable, SCRIPT, "check"], capture_output=True, text=True, timeout=60)
    assert check.returncode == 0, check.stderr


def test_a_stale_missing_or_stray_file_is_named(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RENDERED", tmp_path)
    script.write()
    assert script.stale() == []
    (tmp_path / "service-tandem-cpu.yaml").write_text("edited")
    (tmp_path / "kustomization.yaml").unlink()
    (tmp_path / "stray.yaml").touch()
    assert sorted(path.name for path in script.stale()) == [
        "kustomization.yaml",
        "service-tandem-cpu.yaml",
        "stray.yaml",
    ]


def test_a_value_without_a_sentence_is_an_error(script: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"gateway\.port has no sentence"):
        script.documented_values("# The gateway.\ngateway:\n  # How many.\n  replicas: 1\n\n  port: 80\n")


def test_the_schema_knows_every_value_and_nothing_else(chart: helm_python.Chart) -> None:
    values = yaml.safe_load((ROOT / "helm" / "tandem" / "values.yaml").read_text())
    schema = chart.schema
    assert schema is not None

    def compare(node: dict[str, Any], value: Any, path: str) -> None:
        if "$ref" in node:
            node = schema["definitions"][node["$ref"].rpartition("/")[2]]
        if not isinstance(value, dict) or path.endswith(".affinity"):  # the members of an affinity are Kubernetes' own
            return
        if "properties" in node:
            known = set(node["properties"]) - {"global"}
            # A pool says only what differs from poolDefaults; everything else has a default, which is its documentation.
            assert set(value) <= known if path.startswith("pools.") else set(value) == known, path
        for member, of_member in value.items():
            of_node = node.get("properties", {}).get(member, node.get("additionalProperties", {}))
            compare(of_node, of_member, f"{path}.{member}".removeprefix("."))

    compare(schema, values, "")


def test_the_plain_rendering_does_not_say_that_helm_made_it() -> None:
    for file in (ROOT / "k8s" / "rendered").glob("*.yaml"):
        assert "helm.sh/" not in file.read_text()
        assert "managed-by" not in file.read_text()


def test_kustomize_lists_every_rendered_file() -> None:
    rendered = ROOT / "k8s" / "rendered"
    listed = yaml.safe_load((rendered / "kustomization.yaml").read_text())["resources"]
    assert sorted([*listed, "kustomization.yaml"]) == sorted(path.name for path in rendered.iterdir())
