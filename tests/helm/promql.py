"""Expressions of the chart's rules and dashboard, and what they ask for: names, labels and values that somebody has to have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser

from .conftest import ROOT, Object, Rendering

DASHBOARD = ROOT / "helm" / "tandem" / "files" / "dashboard.json"
# What Grafana puts in before Prometheus sees it.
VARIABLES = {"$__rate_interval": "1m", "$namespace": "serving", "$tandem": "tandem"}


@dataclass(frozen=True, slots=True)
class Selector:
    """`name{label op "value", ...}` somewhere in an expression."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]


def rules(it: Rendering) -> list[Object]:
    (made,) = it.all("PrometheusRule")
    return [rule for group in made["spec"]["groups"] for rule in group["rules"]]


def panels() -> list[Object]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def dashboard_expressions() -> list[str]:
    return [filled(target["expr"]) for panel in panels() for target in panel["targets"]]


def filled(expression: str) -> str:
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression


def selectors(expression: str) -> list[Selector]:
    """Raises ValueError for what is no PromQL."""
    return [*_walk(promql_parser.parse(expression))]


def _walk(node: Any) -> Iterator[Selector]:
    if isinstance(node, promql_parser.MatrixSelector):
        node = node.vector_selector
    if isinstance(node, promql_parser.VectorSelector):
        matchers = tuple((m.name, str(m.op).rpartition(".")[2], m.value) for m in node.matchers.matchers)
        yield Selector(node.name, matchers)
        return
    for attribute in ("expr", "lhs", "rhs"):
        if (child := getattr(node, attribute, None)) is not None:
            yield from _walk(child)
    for child in getattr(node, "args", None) or ():
        yield from _walk(child)


@dataclass(frozen=True, slots=True)
class Scrape:
    """What an endpoint offers: metric -> label -> the values that it had."""

    labels: dict[str, dict[str, set[str]]]

    @classmethod
    def of(cls, text: str) -> Scrape:
        found: dict[str, dict[str, set[str]]] = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name = re.split(r"[{ ]", line, maxsplit=1)[0]
                labels = found.setdefault(name, {})
                for label, value in re.findall(r'([a-zA-Z_]+)="([^"]*)"', line):
                    labels.setdefault(label, set()).add(value)
        return cls(found)
