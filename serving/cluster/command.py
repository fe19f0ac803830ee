"""How `tandem cluster …` looks on a terminal, and as JSON; its exit codes."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import yaml

from serving.cluster.connection import Connection, connect
from serving.cluster.gpus import is_gpu, told
from serving.cluster.preflight.checks import findings
from serving.cluster.preflight.collect import collect
from serving.cluster.preflight.default import DEFAULT
from serving.cluster.preflight.finding import Finding, exit_status
from serving.cluster.preflight.requirements import Wanted, wanted, with_gpu_pool
from serving.cluster.status.cold_starts import as_line
from serving.cluster.status.collect import collect as see
from serving.cluster.status.judge import NodeLine, Part, Release, Status, Waiting, judge
from serving.cluster.status.scheduling import duration
from serving.cluster.status.snapshot import Seen
from serving.errors import UserError


def status(*, context: str | None, namespace: str | None, release: str | None, as_json: bool) -> int:
    """0 every release shown serves, 1 one does not."""
    connection = connect(context, namespace)
    with connection.api:
        seen = see(connection)
    if not seen.workloads:
        raise _nothing_installed(connection, seen)
    releases = sorted({it.release for it in seen.workloads})
    if release is not None and release not in releases:
        raise UserError(
            f"no release '{release}' in namespace '{seen.namespace}'; there {'is' if len(releases) == 1 else 'are'} "
            f"{', '.join(releases)}"
        )
    found = judge(seen, datetime.now(UTC), release)
    print(_status_json(connection, found) if as_json else f"{_head(connection)}\n{as_text(found)}")
    return 0 if found.is_serving else 1


def _nothing_installed(connection: Connection, seen: Seen) -> UserError:
    where = f"no Tandem in namespace '{seen.namespace}' of context '{connection.context}'"
    if seen.elsewhere:
        return UserError(f"{where}, but in {', '.join(seen.elsewhere)}: give --namespace")
    return UserError(f"{where}: give another --namespace, or install it (docs/kubernetes.md)")


def _status_json(connection: Connection, found: Status) -> str:
    return _json(connection, {"is_serving": found.is_serving, **dataclasses.asdict(found)})


def preflight(
    *,
    context: str | None,
    namespace: str | None,
    rendered: Path | None,
    gpu: str | None,
    image_pull_secret: tuple[str, ...],
    as_json: bool,
) -> int:
    asked = _wanted(rendered, gpu, image_pull_secret)
    connection = connect(context, namespace)
    with connection.api:
        found = findings(collect(connection, asked), asked)
    head = f"{_head(connection)}, for {asked.source}"
    print(_preflight_json(connection, asked, found) if as_json else "\n".join([head, *map(_line, found)]))
    return exit_status(found)


def _wanted(rendered: Path | None, gpu: str | None, pull_secrets: tuple[str, ...]) -> Wanted:
    found = DEFAULT if rendered is None else _read(rendered)
    if gpu is not None:
        if not is_gpu(gpu):
            raise UserError(f"--gpu {gpu} is no resource of NVIDIA's device plugin; nvidia.com/gpu is the usual one")
        found = with_gpu_pool(found, gpu)
    return dataclasses.replace(found, pull_secrets=found.pull_secrets | set(pull_secrets))


def _read(path: Path) -> Wanted:
    """The objects of a file, or of standard input, as `helm template` prints them."""
    name = "standard input" if str(path) == "-" else str(path)
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        documents = list(yaml.safe_load_all(text))
        if not any(documents):
            raise UserError(f"--rendered {name} holds no objects; give it what `helm template` prints")
        return wanted(documents, name)
    except OSError as error:
        raise UserError(f"--rendered {name} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        said = " ".join(str(error).split())[:200]
        raise UserError(f"--rendered {name} is not what `helm template` prints: {said}") from None


def _line(finding: Finding) -> str:
    name = finding.name if finding.is_required else f"{finding.name} (optional)"
    return f"{finding.state:<9}{name}: {finding.found}" + (f"; {finding.fix}" if finding.fix else "")


def _preflight_json(connection: Connection, asked: Wanted, found: tuple[Finding, ...]) -> str:
    judged = {"is_good": exit_status(found) == 0, "findings": [dataclasses.asdict(it) for it in found]}
    return _json(connection, {"for": asked.source, **judged})


def _head(connection: Connection) -> str:
    return f"context {connection.context}, namespace {connection.namespace}, {connection.server}"


def _json(connection: Connection, told: dict[str, object]) -> str:
    of = {"context": connection.context, "server": connection.server, "namespace": connection.namespace}
    return json.dumps({"version": 1, **of, **told}, indent=2)


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
