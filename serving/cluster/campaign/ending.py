"""Ends a campaign that was followed: writes its results, deletes its Job or leaves it with the commands to get at it.

Rule: a Job is deleted when its results are home, when it waits for what nobody brings, and when its user ends it; never because it could
not be read for a while. Whatever else happens, the last line names the command that brings the results home.
"""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from serving.cluster.api import Connection
from serving.cluster.campaign import framing, manifests
from serving.cluster.campaign.follow import JobFollower, Stuck
from serving.cluster.campaign.job_status import JobStatus
from serving.errors import EnvironmentFault, TandemError

INTERRUPTED = 130  # the exit code after Ctrl-C


@dataclass(frozen=True, slots=True)
class JobCommands:
    """What a user types to get at a Job that is left in the cluster. `context`: as it was given, None for the kubeconfig's current one."""

    job: str
    namespace: str
    context: str | None

    @property
    def to_attach(self) -> str:
        return f"tandem cluster campaign --attach {self.job}{self._where}"

    @property
    def to_delete(self) -> str:
        return f"kubectl delete job {self.job}{self._where}"

    @property
    def to_read(self) -> str:
        return f"kubectl logs job/{self.job}{self._where}"

    @property
    def ways(self) -> str:
        return f"to bring its results home: {self.to_attach}; to delete it: {self.to_delete}"

    @property
    def _where(self) -> str:
        context = f" --context {shlex.quote(self.context)}" if self.context else ""
        return f" --namespace {self.namespace}{context}"


class WriteFailure(EnvironmentFault):
    """The results came and could not be written."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where a campaign's results go and what happens to its Job. `timeout_s`: of the Job, from its start."""

    folder: Path
    timeout_s: int
    keep: bool
    commands: JobCommands


def to_the_end(it: JobFollower, delivery: Delivery) -> int:
    """The exit code. Raises EnvironmentFault where the campaign never came to its end, or its results not home."""
    try:
        found = it.to_the_end()
    except KeyboardInterrupt:
        if it.is_over or it.frames.head is not None:  # deleted now, it would take its results along
            return _left_at_the_end(delivery)
        if not delivery.keep:
            return _stop(it, delivery)
        say(
            f"Job {it.job} goes on, and ends by itself {delivery.timeout_s} s after its start; {delivery.commands.ways}"
        )
        return INTERRUPTED
    except Stuck as error:
        is_gone = _tidy(it, delivery)
        job = "is deleted" if is_gone else f"is left; {delivery.commands.ways}"
        raise EnvironmentFault(f"{error}; Job {it.job} {job}") from None
    except TandemError as error:  # it cannot be seen any more, and may well go on
        raise EnvironmentFault(f"{error}; Job {it.job} is left; {delivery.commands.ways}") from None
    try:
        return _finish(it, found, delivery)
    except KeyboardInterrupt:
        return _left_at_the_end(delivery)


def _left_at_the_end(delivery: Delivery) -> int:
    say(
        f"left before its results were home; Job {delivery.commands.job} is over, and may be there still; {delivery.commands.ways}"
    )
    return INTERRUPTED


def _finish(it: JobFollower, found: JobStatus, delivery: Delivery) -> int:
    try:
        code = bring_home(it.frames, delivery.folder)
    except framing.Incomplete as error:
        raise EnvironmentFault(f"{_how_it_ended(found, delivery)}; {error}{_whats_left(it, found, delivery)}") from None
    except WriteFailure as error:
        with_room = "; to bring them home to a folder with room for them"
        raise EnvironmentFault(f"{error}{with_room}: {delivery.commands.to_attach} --output FOLDER") from None
    if not _tidy(it, delivery):
        say(f"Job {it.job} is kept for a day; {delivery.commands.ways}")
    if found.is_timeout:
        raise EnvironmentFault(f"{_how_it_ended(found, delivery)}; what ran is in {delivery.folder}")
    # Somebody who deletes a campaign that is over takes nothing from it.
    if found.says and not (found.is_gone and code < INTERRUPTED):
        raise EnvironmentFault(f"{found.says}; what ran is in {delivery.folder}")
    return code


def _how_it_ended(found: JobStatus, delivery: Delivery) -> str:
    if found.is_timeout:
        return f"it was not over after {delivery.timeout_s} s (--timeout): give it more"
    return found.says or f"the campaign ended{'' if found.code is None else f' with exit code {found.code}'}"


def _whats_left(it: JobFollower, found: JobStatus, delivery: Delivery) -> str:
    commands = delivery.commands
    if found.is_gone:
        return (
            ""
            if found.is_deleted
            else f", and went with its pod; Job {it.job} is left; to delete it: {commands.to_delete}"
        )
    return (
        f"; Job {it.job} is left; to read what it said: {commands.to_read}; to try again: {commands.to_attach}; "
        f"to delete it: {commands.to_delete}"
    )


def _stop(it: JobFollower, delivery: Delivery) -> int:
    """Stops the pod, which writes the report of what ran, and follows it to its end; a second Ctrl-C leaves at once."""
    say("stopping: waiting for what ran until now; Ctrl-C again leaves without it")
    is_deleted = False
    try:
        delete(it.connection, it.job)
        is_deleted = True
        it.give_up = time.monotonic() + manifests.GRACE_S
        it.to_the_end()
        bring_home(it.frames, delivery.folder)
    except KeyboardInterrupt:
        say(
            f"left; Job {it.job} {'is deleted, and what ran goes with it' if is_deleted else f'is left; {delivery.commands.ways}'}"
        )
    except TandemError as error:
        say(f"no partial results: {error}{'' if is_deleted else f'; Job {it.job} is left; {delivery.commands.ways}'}")
    return INTERRUPTED


def _tidy(it: JobFollower, delivery: Delivery) -> bool:
    if delivery.keep:
        return False
    with suppress(TandemError):
        delete(it.connection, it.job)
        return True
    return False


def delete(connection: Connection, name: str) -> None:
    """The Job with its pod and its files. Raises WriteError, Unreachable."""
    connection.delete(f"/apis/batch/v1/namespaces/{connection.namespace}/jobs/{name}", f"Job {name}")


def bring_home(frames: framing.Frames, folder: Path) -> int:
    """Writes the results and says where the report is; the campaign's exit code. Raises Incomplete, WriteFailure."""
    archive = frames.archive()
    assert frames.head is not None  # or there would be no archive
    try:
        names = framing.unpack(archive, folder)
    except OSError as error:
        raise WriteFailure(f"the results cannot be written to {folder}: {error.strerror or error}") from None
    if frames.head.left_out:
        rest = f"{len(frames.head.left_out)} files were too large for a log and went with the pod"
        named = f"{', '.join(frames.head.left_out[:5])}{' …' if len(frames.head.left_out) > 5 else ''}"
        say(f"{rest}: {named}; the report was made with them")
    if "report.html" in names:
        print(f"report: {folder / 'report.html'}")
    return frames.head.code


def say(line: str) -> None:
    print(f"tandem: {line}", file=sys.stderr, flush=True)


def line_of_the_pod(line: str) -> None:
    """Its own report lies in a place of its own."""
    if not line.startswith(f"report: {manifests.RESULTS}/"):
        print(line, file=sys.stderr, flush=True)
