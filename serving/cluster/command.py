"""How `tandem cluster preflight` looks on a terminal, and as JSON; its exit code."""

from __future__ import annotations

import dataclasses
import json

from serving.cluster.connection import Connection, connect
from serving.cluster.facts import collect
from serving.cluster.preflight import Finding, exit_status, findings


def preflight(*, context: str | None, namespace: str | None, as_json: bool) -> int:
    connection = connect(context, namespace)
    with connection.api:
        found = findings(collect(connection))
    print(_as_json(connection, found) if as_json else _as_text(connection, found))
    return exit_status(found)


def _as_text(connection: Connection, found: tuple[Finding, ...]) -> str:
    head = f"context {connection.context}, namespace {connection.namespace}, {connection.server}"
    return "\n".join([head, *map(_line, found)])


def _line(finding: Finding) -> str:
    name = finding.name if finding.is_required else f"{finding.name} (optional)"
    return f"{finding.state:<9}{name}: {finding.found}" + (f"; {finding.fix}" if finding.fix else "")


def _as_json(connection: Connection, found: tuple[Finding, ...]) -> str:
    report = {
        "version": 1,
        "context": connection.context,
        "server": connection.server,
        "namespace": connection.namespace,
        "is_good": exit_status(found) == 0,
        "findings": [dataclasses.asdict(it) for it in found],
    }
    return json.dumps(report, indent=2)
