"""How a Status looks on a terminal: one line for each part, what waits indented under it, pods with the same reason in one."""

from __future__ import annotations

from collections.abc import Iterator

from serving.cluster.gpus import told
from serving.cluster.status.cold_starts import as_line
from serving.cluster.status.judging import NodeLine, Part, Release, Status, Waiting
from serving.cluster.status.waiting_for_nodes import duration

COLUMN = 8  # of the first word; "serves" is the longest there


def as_text(status: Status) -> str:
    lines = [line for it in status.releases for line in _release(it)]
    if status.nodes:
        lines += ["", "nodes", *map(_node, status.nodes)]
    if status.unseen:
        lines += ["", f"unknown: this user may not see {', '.join(status.unseen)}"]
    return "\n".join(lines)


def _release(it: Release) -> Iterator[str]:
    yield f"release {it.name}{f' ({it.version})' if it.version else ''}: {it.now}"
    for part in it.parts:
        yield from _part(part)
    for warning in it.warnings:
        yield f"  {'warning':<{COLUMN}}{warning}"


def _part(it: Part) -> Iterator[str]:
    name = f"pool {it.name} ({it.device})" if it.is_pool else it.name
    told_of = [f"{it.num_ready} of {it.num_wanted} ready", it.image]
    if it.is_pool:
        told_of.append(f"loads {', '.join(it.models) if it.models else 'all that its repository holds'}")
    if it.nodes:
        told_of.append(f"on {', '.join(it.nodes)}")
    if it.autoscaler:
        told_of.append(it.autoscaler)
    yield f"  {it.standing:<{COLUMN}}{name}: {'; '.join(told_of)}"
    alike: dict[str, list[Waiting]] = {}
    for waiting in it.waiting:
        alike.setdefault(waiting.why, []).append(waiting)
    for first, *others in alike.values():
        who = f"{first.pod}{f' and {len(others)} more' if others else ''}: " if first.pod else ""
        yield f"  {'':<{COLUMN}}- {who}{first.why}{f'; {first.way_out}' if first.way_out else ''}"
    for cold in it.cold_starts:
        yield f"  {'':<{COLUMN}}- {as_line(cold, duration)}"


def _node(it: NodeLine) -> str:
    told_of = [
        it.instance_type,
        told(it.gpus),
        f"{it.num_pods} pod{'' if it.num_pods == 1 else 's'} of Tandem",
        it.note,
    ]
    return f"  {it.standing:<{COLUMN + 2}}{it.name}: {', '.join(filter(None, told_of))}"
