"""`tandem status`, `logs`, `stop`: what `tandem up` started on this machine, in a terminal or in the background."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from serving.cli.help import Verb
from serving.cli.lazy import room
from serving.cli.options import JSON, JSON_OR_WIDE, PORT, is_wide
from serving.errors import UserError

OF_PORT = click.option("--port", type=PORT, help="Only the one whose clients come to this port. Default: all of them.")
LOG_POLL_S = 0.2  # nobody reads faster


@click.command(cls=Verb)
@OF_PORT
@JSON_OR_WIDE
def status(port: int | None, as_json: bool) -> None:
    """Show each `tandem up` of this machine: address, gateways, pools, models, logs. Exit code 1 if none serves, or one is not ready.

    Of several gateways one is enough to be ready. Also 1 where a model is to be answered by what nothing serves.

    With API keys, TANDEM_API_KEY holds one that may read the status.
    """
    states = [_state(run) for run in _found(port)]
    if as_json:
        click.echo(json.dumps({"version": 1, "runs": states}, indent=1))
    else:
        for state in states:
            for line in _lines(state, is_wide=is_wide()):
                click.echo(line)
        if not states:
            click.echo("no `tandem up` runs here; start one: tandem up --detach")
    sys.exit(0 if states and all(map(_is_good, states)) else 1)


@click.command(cls=Verb)
@click.argument("names", metavar="[NAME…]", nargs=-1)
@OF_PORT
@click.option("--tail", default=100, show_default=True, type=click.IntRange(0), help="Last lines of each.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C or the end of the `tandem up`.")
@JSON
def logs(names: tuple[str, ...], port: int | None, tail: int, follow: bool, as_json: bool) -> None:
    """Print what a `tandem up` and its processes said: of the one that runs, else of the last one, whatever ended it.

    NAME is up, gateway (gateway-1, … where there are several), triton-cpu or triton-gpu. Default: all of them.
    """
    runs = room("serving.local.runs")
    alive = [it for it in _found(port) if it.is_alive]
    if len(alive) > 1:
        raise UserError(f"{len(alive)} `tandem up` run here: choose one with --port {_ports(alive)}")
    folder = alive[0].folder if alive else _found(port)[-1].folder if port is not None else runs.latest_folder()
    files = {file.stem: file for file in sorted(folder.glob("*.log"))} if folder else {}
    if not files:
        raise UserError("no `tandem up` of this machine has left logs")
    if unknown := [name for name in names if name not in files]:
        raise UserError(f"there is no log {unknown[0]!r} in {folder}: choose of {', '.join(files)}")
    chosen = {name: file for name, file in files.items() if not names or name in names}
    if as_json:
        if follow:
            raise UserError("--json prints one object, so it does not --follow")
        told = {name: _last(file, tail) for name, file in chosen.items()}
        click.echo(json.dumps({"version": 1, "folder": str(folder), "logs": told}, indent=1))
        return
    width = max(map(len, chosen))
    for name, file in chosen.items():
        for line in _last(file, tail):
            click.echo(f"{name:{width}} | {line}")
    if follow and alive:
        for name, line in _following(chosen, lambda: alive[0].run.process.is_alive):
            click.echo(f"{name:{width}} | {line}")


@click.command(cls=Verb)
@OF_PORT
@click.option("--all", "is_all", is_flag=True, help="All of them, where several run.")
@JSON
def stop(port: int | None, is_all: bool, as_json: bool) -> None:
    """End a `tandem up`: requests in flight are answered first, then all that it started ends, and nothing else does."""
    runs = room("serving.local.runs")
    found = _found(port)
    alive = [it for it in found if it.is_alive]
    killed = [it for it in found if not it.is_alive]
    if len(alive) > 1 and not is_all:
        raise UserError(f"{len(alive)} `tandem up` run here: say --all, or choose one with --port {_ports(alive)}")
    for run in killed:
        runs.forget(run)
    if not alive:
        gone = "".join(f"; that on {it.run.public_url} was killed (logs: {it.folder})" for it in killed)
        raise UserError(f"no `tandem up` runs {'here' if port is None else f'on port {port}'}{gone}")
    ended = []
    for run in alive:
        began_s = time.monotonic()
        runs.stop(run)
        took_s = time.monotonic() - began_s
        ended.append({"url": run.run.public_url, "pid": run.run.process.pid, "took_s": round(took_s, 2)})
        if not as_json:
            click.echo(f"ended {run.run.public_url} (process {run.run.process.pid}) in {took_s:.1f} s")
    if as_json:
        click.echo(json.dumps({"version": 1, "ended": ended}, indent=1))


def _found(port: int | None) -> list[Any]:
    """Raises UserError where a port is named that none has."""
    found: list[Any] = room("serving.local.runs").found()
    chosen = [it for it in found if port is None or it.run.port == port]
    if not chosen and port is not None:
        others = f"; there is one on {_ports(found)}" if found else ""
        raise UserError(f"no `tandem up` runs on port {port}{others}")
    return chosen


def _ports(runs: list[Any]) -> str:
    return " or ".join(str(it.run.port) for it in runs)


def _state(found: Any) -> dict[str, Any]:
    """Of one run; what its gateways tell is null where none tells anything."""
    console, run = room("serving.local.console"), found.run
    said: dict[str, Any] | None = None
    why = ""
    health = [run.public_url] if len(run.urls) == 1 else run.urls
    are_ready = [
        found.is_alive and room("asyncio").run(console.http_status(f"{url}/health/ready")) == 200 for url in health
    ]
    is_ready = any(are_ready)
    for url in run.urls if found.is_alive else ():
        try:
            said = console.read_status(url, os.environ.get("TANDEM_API_KEY"))
            break
        except (OSError, ValueError) as error:
            why = str(error)
    models = {} if said is None else said["models"]
    return {
        "url": run.public_url,
        "page": f"{run.url}/",
        "state": "ready" if is_ready else "not ready" if found.is_alive else "killed",
        "pid": run.process.pid,
        "began": datetime.fromtimestamp(run.began_s, UTC).isoformat(timespec="seconds"),
        "repository": run.repository,
        "model_source": None if said is None else said["model_source"],
        "logs": str(found.folder),
        "gateways": [{"url": url, "is_ready": it} for url, it in zip(run.urls, are_ready, strict=True)],
        "pools": None
        if said is None
        else {
            name: {
                "state": pool["state"],
                "num_servers": len(pool["servers"]),
                "num_alive": sum(bool(server["alive"]) for server in pool["servers"]),
                "servers": [
                    {
                        key: server.get(key)
                        for key in (
                            "url",
                            "alive",
                            "triton",
                            "in_flight",
                            "variants",
                            "short_of_memory",
                            "without_repository",
                        )
                    }
                    for server in pool["servers"]
                ],
            }
            for name, pool in said["pools"].items()
        },
        "models": None
        if said is None
        else {name: [variant["name"] for variant in model["variants"]] for name, model in models.items()},
        "not_loaded": None if said is None else {it.name: it.reason for it in console.not_loaded(said)},
        "control": None if said is None else said["control"],
        "untold": why if said is None and why else None,
    }


def _is_good(state: dict[str, Any]) -> bool:
    return state["state"] == "ready" and not (state["control"] or {}).get("unanswered")


def _lines(state: dict[str, Any], *, is_wide: bool) -> Iterator[str]:
    colour = {"ready": "green", "not ready": "yellow", "killed": "red"}[state["state"]]
    yield f"{state['url']}  {click.style(state['state'], fg=colour)}  (process {state['pid']}, since {state['began']})"
    source = state["model_source"]
    like = f", kept like {source['source']}" if source else ""
    yield f"  repository: {state['repository']}{like}"
    if source and source["problem"]:
        yield f"    {source['problem']}; what was taken before stays"
    for name, reason in source["refused"].items() if source else ():
        yield f"    not taken: {name}: {reason}"
    for number, gateway in enumerate(state["gateways"] if len(state["gateways"]) > 1 else (), 1):
        yield f"  gateway {number}: {'ready' if gateway['is_ready'] else 'not ready'}, metrics and page: {gateway['url']}"
    for name, pool in (state["pools"] or {}).items():
        yield f"  {name} pool: {pool['state']}, {pool['num_alive']} of {pool['num_servers']} servers answer"
        for server in pool["servers"] if is_wide else ():
            said = (
                f"Triton {server['triton']}, {server['in_flight']} in flight" if server["alive"] else "does not answer"
            )
            yield f"    {server['url']}: {said}: {', '.join(server['variants'])}"
        for server in pool["servers"]:
            if server["short_of_memory"]:
                yield f"    {server['url']}: {server['short_of_memory']}"
            if server["without_repository"]:
                yield f"    {server['url']} serves on without its model repository: {server['without_repository']}"
    for name, variants in (state["models"] or {}).items():
        yield f"  model {name}: {', '.join(variants) or 'not served'}"
    for name, reason in (state["not_loaded"] or {}).items():
        yield f"    not served: {name}: {reason}"
    if (control := state["control"]) is not None:
        revision = control["revision"]
        named = (
            "none yet"
            if revision is None
            else f"{revision['number']}-{revision['digest'].removeprefix('sha256:')[:12]}"
        )
        problem = f" ({control['problem']})" if control["problem"] else ""
        yield f"  revision in force: {named}{problem}"
        for name, shares in control["models"].items():
            if shares:
                is_unanswered = name in control.get("unanswered", ())
                gap = "503: nothing serves it now" if is_unanswered else control["lacks"].get(name)
                gap = gap or ("" if name in state["models"] else "no server has this model")
                yield f"    {name}: {', '.join(map(_share, shares))}{f' ({gap})' if gap else ''}"
    if state["untold"]:
        yield f"  pools and models are not told ({state['untold']}); TANDEM_API_KEY may hold a key"
    if state["state"] != "killed":
        yield f"  page: {state['page']}"
    yield f"  logs: {state['logs']}"
    if state["state"] == "killed":
        yield "  it was killed, and serves nothing; `tandem stop` forgets it"


def _share(it: dict[str, Any]) -> str:
    """`version 2 canary 30 %`."""
    target = room("serving.control.document").target_of(it["version"], it["variant"])
    return f"{target} {it['arm']}" if it["ratio"] in (0, 1) else f"{target} {it['arm']} {100 * it['ratio']:.3g} %"


def _last(file: Path, count: int) -> list[str]:
    """Without those of a file that was rotated away."""
    return file.read_text(errors="replace").splitlines()[-count:] if count else []


def _following(files: dict[str, Path], is_alive: Callable[[], bool]) -> Iterator[tuple[str, str]]:
    """Whole lines as they come, until what writes them has ended. A file that is rotated is followed into its successor."""
    ends = {name: (file.stat().st_ino, file.stat().st_size) for name, file in files.items()}
    while True:
        is_over = not is_alive()  # looked at before the files, so that the last words are read
        for name, file in files.items():
            inode, position = ends[name]
            try:
                with file.open("rb") as now:
                    found = os.fstat(now.fileno())
                    now.seek(position if found.st_ino == inode and position <= found.st_size else 0)
                    begin = now.tell()
                    text = now.read()
            except OSError:  # between two of a rotation
                continue
            whole = text[: text.rfind(b"\n") + 1]
            ends[name] = (found.st_ino, begin + len(whole))
            yield from ((name, line) for line in whole.decode(errors="replace").splitlines())
        if is_over:
            return
        time.sleep(LOG_POLL_S)
