"""What does `tandem up` print: its progress, its welcome, and then a line whenever a pool's state, its wanted servers or a model changes?

Asks the gateway for its status once a second. How many servers would pay is decided by `serving/decisions/demand.py`; nothing is started or
stopped here. Requests of clients never come this way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.status import Status

from serving import http_client
from serving.decisions.demand import Demand, Demands, Gateways, total_of, update
from serving.decisions.sizes import FleetTarget, fleet_changes, next_fleet, sizes_of
from serving.repository import Variant
from serving.repository.record import CLASSIFICATION, REGRESSION
from serving.settings import GatewaySettings

EVERY_S = 1.0  # how often `sizes.next_fleet` is to be called
GIVE_UP_S = 5.0  # a gateway that is so busy has other news
MAX_INLINE_BYTES = 4096  # a longer body makes a command that nobody wants in a terminal; it is sent from its file then
CURL_PROXIES = ("http_proxy", "all_proxy", "ALL_PROXY")  # that curl would ask for an http:// address
MAX_BYTES = 2**20  # of what a probe is answered; a status of the gateway has some KB
PROBE_TIMEOUT_S = 5.0  # a healthy server answers in milliseconds; on a busy machine in a second (guess, not measured)


class Terminal(Console):
    """What `tandem up` prints to. Once nobody reads it any more what is printed is lost, and nothing ends for that: clients are served."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # so that what was not written does not fail again at the end
        os.close(nowhere)


class Progress:
    """A live line on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.done()

    def say(self, line: str) -> None:
        if self._status is not None:
            self._status.update(line)
        else:
            self._console.print(f"tandem: {line}", markup=False)

    def waiting(self, line: str) -> None:
        """Something that may change many times: only worth a live line."""
        if self._status is not None:
            self._status.update(line)

    @property
    def is_live(self) -> bool:
        return self._status is not None

    def done(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


# -- the welcome --------------------------------------------------------------------------------------------------------


def base_url(host: str, port: int) -> str:
    """An address that can be opened on this machine: where it listens on all, loopback does."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def curl_command(url: str, variants: Iterable[Variant], *, wants_key: bool = False) -> str:
    """A real input of the first model that has one; else a question that every server answers."""
    direct = " --noproxy '*'" if any(os.environ.get(name) for name in CURL_PROXIES) else ""
    key = ' -H "Authorization: Bearer $TANDEM_API_KEY"' if wants_key else ""
    for variant in variants:
        sample = variant.record.sample
        if sample is None:
            continue
        file = variant.directory / sample.file
        body = file.read_text(encoding="utf-8")
        compact = json.dumps(json.loads(body), separators=(",", ":"))
        data = compact if len(compact) <= MAX_INLINE_BYTES else f"@{file}"
        target = f"{url}/v2/models/{variant.record.model}/infer"
        return f"curl -s{direct} {target}{key} -H 'Content-Type: application/json' -d {shlex.quote(data)}"
    return f"curl -s{direct} {url}/v2{key}"


def expected_answer(variants: Iterable[Variant]) -> str | None:
    """What is right, so that whoever tries it can tell; None where nobody labelled the sample."""
    record = next((variant.record for variant in variants if variant.record.sample), None)
    if record is None or record.sample is None:
        return None
    sample = record.sample
    if record.task == REGRESSION and sample.index is None:
        return None if sample.label is None else f"right is about {sample.label}"
    if record.task != CLASSIFICATION or sample.index is None:
        return None
    name = "" if sample.label is None else f"'{sample.label}': "
    return f"right is {name}the largest score is number {sample.index}, counted from 0"


def welcome(
    url: str,
    pools: Iterable[tuple[str, str]],
    variants: list[Variant],
    logs: Path,
    took_s: float,
    *,
    grpc: str = "",
    pages: Iterable[str] = (),
    wants_key: bool = False,
    is_ready: bool = True,
    not_loaded: Iterable[str] = (),
    end: str = "Ctrl-C stops it",
) -> list[str]:
    """`grpc`: where it is spoken, or why it is not. `pages`: one for each gateway. `not_loaded`: a line for each. `end`: how it ends."""
    lines = [
        f"ready in {took_s:.1f} s: {url}" if is_ready else f"not ready: {url}",
        *(f"  {line}" for line in not_loaded),
    ]
    lines += (
        []
        if is_ready
        else ["  the others are served; export what is missing again, or be ready without it: --allow-missing"]
    )
    lines += [f"  {grpc}"] if grpc else []
    lines += [f"  page: {page}" for page in pages]
    lines += [f"  {name} pool: {what}" for name, what in pools]
    lines += ["", "try it, with an API key in TANDEM_API_KEY:" if wants_key else "try it:"]
    lines.append(f"  {curl_command(url, variants, wants_key=wants_key)}")
    if right := expected_answer(variants):
        lines += [f"  ({right})"]
    return [*lines, "", f"logs: {logs}", end]


# -- what changes later -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A variant that no Triton of a pool could load, from a gateway's status."""

    name: str
    model: str
    reason: str
    is_missed: bool  # no other variant or pool serves the model

    def __str__(self) -> str:
        return f"not served: {self.name}: {self.reason}" + ("" if self.is_missed else f" ({self.model} is served)")


def not_loaded(status: Mapping[str, Any]) -> list[LoadFailure]:
    """Each once, however many pools it failed in."""
    found = {
        entry["name"]: LoadFailure(entry["name"], model, entry["reason"], of_model["public"] is None)
        for model, of_model in status["models"].items()
        for entry in of_model["account"]
        if entry["state"] == "not_loaded"
    }
    return list(found.values())


class PoolChanges:
    """What was said last, so that only changes are said."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._sizes, self._rules = sizes_of(settings), settings.scaling
        self._states: dict[str, str] = {}
        self._wanted: FleetTarget | None = None
        self._served: dict[str, str] | None = None
        self._problems: dict[str, str] = {}

    def lines(self, status: Mapping[str, Any], now: float, others: Iterable[Mapping[str, Any]] = ()) -> list[str]:
        """From a gateway's status; `others` are of those that share its clients. At the first look problems alone are said."""
        pools: Mapping[str, Any] = status["pools"]
        states = {name: str(pool["state"]) for name, pool in pools.items()}
        changes = [f"{name}: {state}" for name, state in states.items() if self._states.get(name, state) != state]
        self._states = states
        others = list(others)
        changes += self._of_models(status) + self._of_places([status, *others])
        if len(self._sizes.coming) in (0, len(self._sizes.supplies)):
            return changes  # pools of one kind have nothing to weigh
        demands = _demands([status, *others], now)
        old = self._wanted
        if old is None:
            self._wanted = FleetTarget({name: demands[name].num_ready for name in self._sizes.supplies}, now)
            return changes
        self._wanted = next_fleet(old, now, demands, self._sizes, self._rules)
        return changes + [it.sentence for it in fleet_changes(old, self._wanted, demands, self._sizes, self._rules)]

    def _of_places(self, statuses: Iterable[Mapping[str, Any]]) -> list[str]:
        """What gateways read and keep elsewhere, and do not reach."""
        old, self._problems = self._problems, {}
        for what in ("control", "usage"):
            for status in statuses:
                if (told := status.get(what)) is not None and told["problem"]:
                    self._problems.setdefault(what, told["problem"])
        changes = [f"{what}: {problem}" for what, problem in self._problems.items() if what not in old]
        return changes + [f"{what}: it is well again" for what in old if what not in self._problems]

    def _of_models(self, status: Mapping[str, Any]) -> list[str]:
        """Variants that came in another version or with other files, that could not be loaded, or that went, and why."""
        old = self._served
        new = {
            v["name"]: f"served: {v['name']} ({v['digest'][:19]})"
            for m in status["models"].values()
            for v in m["variants"]
        }
        new |= {failure.name: str(failure) for failure in not_loaded(status)}
        self._served = new
        if old is None:
            return []
        away = {entry["name"]: entry["reason"] for m in status["models"].values() for entry in m["account"]}
        no_more = "in no repository any more, and not expected"
        gone = [f"no longer served: {name}: {away.get(name, no_more)}" for name in sorted(old.keys() - new.keys())]
        return [line for name, line in sorted(new.items()) if old.get(name) != line] + gone


def _demands(statuses: Iterable[Mapping[str, Any]], now: float) -> Demands:
    heard = {
        str(number): {name: _demand(pool) for name, pool in status["pools"].items()}
        for number, status in enumerate(statuses)
    }
    return total_of(update(Gateways(), now, heard, heard), now).demands or {}


def _demand(pool: Mapping[str, Any]) -> Demand:
    num_ready = sum(bool(server["alive"] and server["variants"]) for server in pool["servers"])
    return Demand(
        pool["demand_replicas"],
        pool["demand_only_replicas"],
        num_ready,
        pool["demand_unseen_replicas"],
        pool["demand_shared_replicas"],
    )


async def print_changes(
    urls: Callable[[], Iterable[str]],
    settings: GatewaySettings,
    say: Callable[[str], None],
    key: str | None = None,
) -> None:
    """Until it is cancelled. `urls`: of the gateways that run now. `key`: an API key, if they want one, which is sent to those alone."""
    changes = PoolChanges(settings)
    while True:
        with contextlib.suppress(OSError, ValueError):  # their end is told by others
            statuses = [await asyncio.to_thread(read_status, url, key) for url in urls()]
            for line in changes.lines(statuses[0], time.monotonic(), statuses[1:]) if statuses else ():
                say(line)
        await asyncio.sleep(EVERY_S)


# -- what servers say of themselves -------------------------------------------------------------------------------------


async def http_status(url: str, key: str | None = None) -> int | None:
    """HTTP status of a GET request, with an API key if there is one, None where nothing answers."""
    parts = urlsplit(url)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            answer = await http_client.get(
                parts.hostname or "", parts.port or 80, parts.path or "/", headers, MAX_BYTES
            )
    except (OSError, ValueError):  # TimeoutError is one
        return None
    return answer.status


def read_status(url: str, key: str | None) -> dict[str, Any]:
    """The status of a gateway, with an API key if it wants one. Raises OSError or ValueError where it does not answer."""
    status: dict[str, Any] = _answer("GET", url, "/admin/status", {} if key is None else {"X-API-Key": key})
    return status


def read_decisions(url: str, key: str | None, request_id: str) -> list[dict[str, Any]]:
    """What a gateway decided of a request, whose id has letters and digits alone. Raises as `read_status`."""
    path = f"/admin/decisions?id={request_id}"
    decisions: list[dict[str, Any]] = _answer("GET", url, path, {} if key is None else {"X-API-Key": key})["decisions"]
    return decisions


def read_rollouts(url: str, key: str | None) -> list[dict[str, Any]]:
    """What a gateway judged of candidates, and by what. Raises as `read_status`."""
    headers = {} if key is None else {"X-API-Key": key}
    rollouts: list[dict[str, Any]] = _answer("GET", url, "/admin/rollouts", headers)["rollouts"]
    return rollouts


def read_index(triton: str) -> list[dict[str, Any]]:
    """A Triton's own. Raises OSError or ValueError where it does not answer."""
    index: list[dict[str, Any]] = _answer("POST", triton, "/v2/repository/index", {})
    return index


def _answer(method: str, url: str, path: str, headers: dict[str, str]) -> Any:
    with contextlib.closing(http_client.Connection(url, GIVE_UP_S)) as connection:
        answer = connection.send(http_client.request_bytes(method, url, path, headers))
    if answer.status != 200:
        raise ConnectionError(f"{url}{path} answered {answer.status}")
    return json.loads(answer.body)
