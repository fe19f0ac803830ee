"""What is made from the chart is fresh, and values.yaml, its schema and its table know the same names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import helm_python
import pytest
import yaml

from scripts import chart as chart_script
from scripts.chart_schema import schema

from .conftest import ROOT


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return chart_script


def test_the_table_and_the_plain_rendering_are_fresh(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["check"]) == 0, capsys.readouterr().err


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
    with pytest.raises(ValueError, match=r"gateway\.port.*sentence"):
        script.documented_values("# The gateway.\ngateway:\n  # How many.\n  replicas: 1\n\n  port: 80\n")


@pytest.mark.parametrize("default", ["[]", "{}", "null"])
def test_a_default_from_which_nothing_follows_needs_a_schema_line(default: str) -> None:
    with pytest.raises(ValueError, match=r"gateway\.port.*line.*schema:`"):
        schema(f"# The gateway.\ngateway:\n  # A port.\n  port: {default}\n", "{}")


def test_a_default_says_its_type_and_a_group_refuses_other_names() -> None:
    made = schema(
        "# The gateway.\ngateway:\n  # A port.\n  # schema: $port\n  port: 80\n  # On.\n  on: true\n",
        "port: {type: integer}",
    )
    assert made["properties"]["gateway"] == {
        "type": "object",
        "additionalProperties": False,
        "properties": {"port": {"$ref": "#/definitions/port"}, "on": {"type": "boolean"}},
    }
    assert made["definitions"] == {"port": {"type": "integer"}}


def test_every_shape_that_is_named_is_there(chart: helm_python.Chart) -> None:
    assert chart.schema is not None
    named = set(re.findall(r"#/definitions/([A-Za-z]+)", json.dumps(chart.schema)))
    assert named == set(chart.schema["definitions"])


def test_the_plain_rendering_does_not_say_that_helm_made_it() -> None:
    for file in (ROOT / "k8s" / "rendered").glob("*.yaml"):
        assert "helm.sh/" not in file.read_text()
        assert "managed-by" not in file.read_text()


def test_kustomize_lists_every_rendered_file() -> None:
    rendered = ROOT / "k8s" / "rendered"
    listed = yaml.safe_load((rendered / "kustomization.yaml").read_text())["resources"]
    assert sorted([*listed, "kustomization.yaml"]) == sorted(path.name for path in rendered.iterdir())
