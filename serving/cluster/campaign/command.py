"""How `tandem cluster campaign` goes: check, create, follow, bring home, tidy up; its exit codes.

The exit code is the campaign's own where there was one; 3 where it never came to an end, 130 after Ctrl-C.
"""

from __future__ import annotations

import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from serving.cluster.asking import Object, items
from serving.cluster.campaign import framing, objects
from serving.cluster.campaign.finding import Key, Objects, Target, target
from serving.cluster.campaign.following import Followed
from serving.cluster.campaign.objects import Given
from serving.cluster.campaign.requests import NotTaken, missing_rights, send
from serving.cluster.campaign.standing import Standing
from serving.cluster.connection import Connection, Refused, connect
from serving.cluster.status.collect import OURS
from serving.errors import EnvironmentFault, TandemError, UserError

INTERRUPTED = 130
START_S = 900  # for a node to be bought and an image to be pulled; a guess, not measured
RUN_S = 30  # for each run beside its own seconds: a generator starts, and the report is written; a guess
AWAY_S = 120  # for a Job that is over time and an API server that does not say so
LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' own for such names: no word comes of them


@dataclass(frozen=True, slots=True)
class Options:
    context: str | None
    namespace: str | None
    release: str | None
    output: Path | None
    timeout_s: float | None
    image: str | None
    key_secret: str | None
    keep: bool


def run(options: Options, given: Given) -> int:
    """Raises TandemError."""
    key = _key(options.key_secret)
    given.check()
    folder = _folder(options.output or Path("results") / f"{given.name}-{datetime.now():%Y%m%d-%H%M%S}")
    timeout_s = int(options.timeout_s or 2 * given.planned_s + RUN_S * given.num_runs + START_S)
    connection = connect(options.context, options.namespace)
    with connection.api, _sigterm_as_ctrl_c():
        to = _target(connection, options, key)
        name = objects.job_name(to.release, given.name, "".join(secrets.choice(LETTERS) for _ in range(5)))
        _say(f"context {connection.context}, namespace {connection.namespace}, {connection.server}")
        _say(f"Job {name}: {to.image} against {to.url}, {given.num_runs} runs, at most {timeout_s} s in all")
        create(connection, name, to, given, timeout_s)
        followed = Followed(connection, name, time.monotonic() + timeout_s + AWAY_S, _line)
        return _to_the_end(followed, folder, timeout_s, keep=options.keep)


def create(connection: Connection, name: str, to: Target, given: Given, timeout_s: int) -> None:
    """The Job first, because it owns the rest, whose absence a kubelet waits out. Raises NotTaken, Unreachable."""
    inside = f"/namespaces/{connection.namespace}"
    job = objects.job(name, to, given, timeout_s)
    made = send(connection, "POST", f"/apis/batch/v1{inside}/jobs", f"to create Job {name}", job)
    owner = objects.owner(made)
    rest = [(f"/api/v1{inside}/configmaps", objects.config_map(name, to, given, owner))]
    if to.needs_policy:
        path = f"/apis/networking.k8s.io/v1{inside}/networkpolicies"
        rest.append((path, objects.network_policy(name, to, owner)))
    try:
        for path, it in rest:
            send(connection, "POST", path, f"to create {it['kind']} {name}", it)
    except BaseException:
        with suppress(TandemError):
            delete(connection, name)
        raise


def delete(connection: Connection, name: str) -> None:
    """The Job with its pod and its files. Raises NotTaken, Unreachable."""
    path = f"/apis/batch/v1/namespaces/{connection.namespace}/jobs/{name}"
    try:
        send(connection, "DELETE", path, f"to delete Job {name}", {"propagationPolicy": "Background"})
    except NotTaken as error:
        if error.status != 404:
            raise


def _to_the_end(it: Followed, folder: Path, timeout_s: int, *, keep: bool) -> int:
    by_hand = f"kubectl --namespace {it.connection.namespace} delete job {it.job}"
    try:
        found = it.to_the_end()
    except KeyboardInterrupt:
        if keep:
            _say(f"Job {it.job} goes on, and ends by itself after {timeout_s} s; to end it: {by_hand}")
            return INTERRUPTED
        return _interrupted(it, folder, by_hand)
    except TandemError as error:
        # Whether it waits for nothing or cannot be seen any more: nobody will fetch what it does.
        gone = _gone(it, keep=keep)
        raise EnvironmentFault(f"{error}; Job {it.job} {'is deleted' if gone else f'is left: {by_hand}'}") from None
    return _concluded(it, found, folder, timeout_s, by_hand, keep=keep)


def _concluded(it: Followed, found: Standing, folder: Path, timeout_s: int, by_hand: str, *, keep: bool) -> int:
    try:
        code = bring_home(it.frames, folder)
    except framing.Incomplete as error:
        why = found.says or (f"it was not over after {timeout_s} s (--timeout)" if found.is_timeout else "")
        told = f"{why}; {error}" if why else f"the campaign ended{_with(found.code)}; {error}"
        raise EnvironmentFault(
            f"{told}; what is left of Job {it.job}: kubectl --namespace {it.connection.namespace} logs job/{it.job}"
        ) from None
    if not _gone(it, keep=keep):
        _say(f"Job {it.job} is kept for a day; to delete it: {by_hand}")
    if found.is_timeout:
        raise EnvironmentFault(f"it was not over after {timeout_s} s (--timeout); what ran is in {folder}")
    if found.says:
        raise EnvironmentFault(f"{found.says}; what ran is in {folder}")
    return code


def _with(code: int | None) -> str:
    return "" if code is None else f" with exit code {code}"


def _interrupted(it: Followed, folder: Path, by_hand: str) -> int:
    """The pod is told to stop, writes the report of what ran, and is heard to its end; a second Ctrl-C leaves at once."""
    _say("stopping: waiting for what ran until now; Ctrl-C again leaves without it")
    try:
        delete(it.connection, it.job)
        it.give_up = time.monotonic() + objects.GRACE_S
        it.to_the_end()
        bring_home(it.frames, folder)
    except KeyboardInterrupt:
        _say(f"left; if Job {it.job} is still there: {by_hand}")
    except TandemError as error:
        _say(f"no partial results: {error}")
    return INTERRUPTED


def _gone(it: Followed, *, keep: bool) -> bool:
    if keep:
        return False
    try:
        delete(it.connection, it.job)
    except TandemError:
        return False
    return True


def bring_home(frames: framing.Frames, folder: Path) -> int:
    """Writes the results and says where the report is; the campaign's exit code. Raises Incomplete, EnvironmentFault."""
    archive = frames.archive()
    assert frames.head is not None  # or there would be no archive
    try:
        names = framing.unpack(archive, folder)
    except OSError as error:
        raise EnvironmentFault(f"the results cannot be written to {folder}: {error.strerror or error}") from None
    if frames.head.left_out:
        rest = f"{len(frames.head.left_out)} files were too large for a log and went with the pod"
        _say(
            f"{rest}: {', '.join(frames.head.left_out[:5])}{' …' if len(frames.head.left_out) > 5 else ''}; the report was made with them"
        )
    if "report.html" in names:
        print(f"report: {folder / 'report.html'}")
    return frames.head.code


def _target(connection: Connection, options: Options, key: Key | None) -> Target:
    inside = f"/namespaces/{connection.namespace}"

    def ours(path: str, what: str) -> tuple[Object, ...] | None:
        return items(connection, path, what, {"labelSelector": OURS})

    deployments = ours(f"/apis/apps/v1{inside}/deployments", "its deployments")
    if deployments is None:
        raise Refused(connection.server, 403, f"the deployments of namespace '{connection.namespace}'")
    seen = Objects(
        deployments=deployments,
        services=ours(f"/api/v1{inside}/services", "its services"),
        jobs=ours(f"/apis/batch/v1{inside}/jobs", "its jobs"),
        policies=ours(f"/apis/networking.k8s.io/v1{inside}/networkpolicies", "its network policies"),
    )
    with connection.asking("its objects"):
        found = target(seen, connection.namespace, options.release, options.image, key)
    if missing := missing_rights(connection):
        raise EnvironmentFault(
            f"this user may not {', '.join(missing)} in namespace '{connection.namespace}': have an administrator grant it; "
            "the role edit is enough"
        )
    return found


def _key(text: str | None) -> Key | None:
    if text is None:
        return None
    name, _, key = text.partition("/")
    if not name or not key:
        raise UserError(f"--key-secret {text} is not NAME/KEY: a secret's name, and the key in it")
    return Key(name, key)


def _folder(path: Path) -> Path:
    """Made now, because nobody wants to hear after an hour that it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UserError(f"{path} is not empty; name a new directory with --output")
    except OSError as error:
        raise UserError(f"{path} cannot be made: {error.strerror}; name another directory with --output") from None
    return path


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(line: str) -> None:
    print(f"tandem: {line}", file=sys.stderr, flush=True)


def _line(line: str) -> None:
    """Of the pod; its own report lies in a place of its own."""
    if not line.startswith(f"report: {objects.RESULTS}/"):
        print(line, file=sys.stderr, flush=True)
