"""What the chart refuses, and with which sentence: misspelt names and wrong types by the schema, contradictions by the guards."""

from __future__ import annotations

from typing import Any

import helm_python
import pytest

from . import checks
from .conftest import accepted
from .wrong_values import CONTRADICTIONS, UNKNOWN_OR_WRONG


@pytest.mark.parametrize("case", UNKNOWN_OR_WRONG)
def test_the_schema_refuses(case: str, chart: helm_python.Chart) -> None:
    values, message = UNKNOWN_OR_WRONG[case]
    with pytest.raises(helm_python.HelmValuesError) as refusal:
        chart.render(accepted(values), name="tandem")
    assert message in str(refusal.value)


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_guard_refuses_and_names_what_contradicts_and_the_way_out(case: str, chart: helm_python.Chart) -> None:
    values, names = CONTRADICTIONS[case]
    with pytest.raises(helm_python.HelmRenderError) as refusal:
        chart.render(accepted(values), name="tandem")
    assert checks.lacks(str(refusal.value), names) == []


def test_every_object_in_the_schema_refuses_unknown_names_or_says_what_its_members_are(
    chart: helm_python.Chart,
) -> None:
    assert chart.schema is not None
    foreign = {
        "global",
        "podAffinity",
        "podAntiAffinity",
        "nodeAffinity",
        "podSelector",
        "namespaceSelector",
        "ipBlock",
        "valueFrom",
        "scaleUp",
        "scaleDown",
        "metrics[]",
        "parentRefs[]",
        "extraObjects[]",
        "volumes[]",
        "triggers[]",
        "containers[]",
    }
    loose: list[str] = []

    def walk(node: Any, name: str) -> None:
        if not isinstance(node, dict):
            return
        if node.get("type") == "object" and "additionalProperties" not in node and name not in foreign:
            loose.append(name)
        for key in ("properties", "definitions"):
            for member, of_member in node.get(key, {}).items():
                walk(of_member, member)
        walk(node.get("items"), f"{name}[]")
        walk(node.get("additionalProperties"), f"{name}.*")

    walk(chart.schema, "")
    assert loose == []
