"""Follows a Job until it is over: its state, its log as it grows, its results. Continues after the API server was away.

`job_status` says what a state means, `framing` what results are. Rule: nothing here knows a campaign, and an interrupt keeps what has
come.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from serving.cluster.api import Connection
from serving.cluster.campaign.framing import Frames
from serving.cluster.campaign.job_status import JobStatus, Phase, job_status
from serving.cluster.campaign.manifests import CONTAINER
from serving.cluster.client import ApiError, Unreachable
from serving.cluster.objects.pods import Job
from serving.cluster.snapshot import look
from serving.errors import EnvironmentFault, TandemError

LOOK_S = 1.0  # between two readings of a Job that does not run yet, or an API server that is away
STUCK_S = 60.0  # for a problem that needs somebody to act, though a registry may have a bad minute; a guess
AWAY_S = 120.0  # beyond a Job's own end, for an API server that does not say that it has ended
REREADS = 3  # of a log that ended before the results did
Value = TypeVar("Value")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[-+]\d\d:\d\d)$")


class Stuck(EnvironmentFault):
    """The Job waits for something that only somebody's action will bring."""


class OutOfTime(EnvironmentFault):
    """The Job's time is over."""


@dataclass(slots=True)
class JobFollower:
    """One Job. `say` is told each line for the user once."""

    connection: Connection
    job: str
    give_up: float  # of time.monotonic
    say: Callable[[str], None]
    frames: Frames = field(default_factory=Frames)
    pod: str | None = None
    last: tuple[int, str] | None = None  # the stamp of the newest line that was read
    is_over: bool = False
    _said: str = ""
    _is_away: bool = False
    _stuck_since: float | None = None

    def to_the_end(self) -> JobStatus:
        """Raises Stuck, OutOfTime, ApiError (a token that ran out, rights that were taken)."""
        while True:
            found = self._kept(self._look)
            if found is not None:
                self._tell(found)
                self.pod = found.pod or self.pod
                if found.phase is Phase.RUNS:
                    self._kept(lambda: self.read(follow=True))
                if found.phase is Phase.OVER:
                    self.is_over = True
                    self._read_the_rest()
                    return found
            if time.monotonic() > self.give_up:
                raise OutOfTime("nothing was heard of its end until its time (--timeout) was over")
            if found is None or found.phase is not Phase.RUNS:
                time.sleep(LOOK_S)

    def read(self, *, follow: bool) -> None:
        """What the log holds beyond the last line that was read; `follow`: and what is written from now on."""
        if self.pod is None:
            return
        query: dict[str, str] = {"container": CONTAINER, "timestamps": "true", "follow": str(follow).lower()}
        if self.last is not None and follow:
            query["sinceTime"] = datetime.fromtimestamp(self.last[0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        path = f"/api/v1/namespaces/{self.connection.namespace}/pods/{self.pod}/log"
        before = self.last
        try:
            for line in self.connection.log_lines(path, query):
                self._take(line, before)
        except ApiError as error:
            if error.status not in (400, 404):  # not begun, or gone with its node
                raise

    def _take(self, line: str, before: tuple[int, str] | None) -> None:
        at, text = stamped(line)
        is_new = at is None or before is None or at > before
        if at is not None and (self.last is None or at > self.last):
            self.last = at
        if not self.frames.take(text) and is_new:
            self.say(text)

    def _read_the_rest(self) -> None:
        """Reads the log from the beginning, because following it may have lost a piece."""
        for _ in range(REREADS):
            if self.frames.is_complete or self.pod is None:
                return
            self._kept(lambda: self.read(follow=False))
            if not self.frames.is_complete:
                time.sleep(LOOK_S)

    def _look(self) -> JobStatus:
        connection, namespace = self.connection, self.connection.namespace
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{self.job}"
        job = connection.find(path, "its job", Job.parse)
        found = look(connection, pods={"labelSelector": f"batch.kubernetes.io/job-name={self.job}"})
        if found.pods is None:
            raise ApiError(connection.server, 403, "the job's pod")
        if not any(it.phase == "Running" or it.has_ended for it in found.pods):  # why does it wait?
            about = found.pods[-1].name if found.pods else self.job
            lists = ["nodes"] if found.pods else []
            beside = look(connection, *lists, events={"fieldSelector": f"involvedObject.name={about}"})
            found = replace(found, events=beside.events, nodes=beside.nodes)
        return job_status(job, found, datetime.now(UTC))

    def _tell(self, found: JobStatus) -> None:
        if found.says and found.says != self._said:
            self._said = found.says
            self.say(f"tandem: {found.says}")
        if found.phase is not Phase.STUCK:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = time.monotonic()
        elif time.monotonic() - self._stuck_since > STUCK_S:
            raise Stuck(found.says)

    def _kept(self, request: Callable[[], Value]) -> Value | None:
        """None while the API server is away, which is reported once."""
        try:
            answer = request()
        except TandemError as error:
            if not _will_pass(error):
                raise
            if not self._is_away:
                self.say(f"tandem: {error}; the campaign goes on, and is followed when it answers again")
            self._is_away = True
            return None
        if self._is_away:
            self.say("tandem: the API server answers again")
            self._is_away = False
        return answer


def _will_pass(error: TandemError) -> bool:
    return isinstance(error, Unreachable) or (
        isinstance(error, ApiError) and (error.status >= 500 or error.status == 429)
    )


def stamped(line: str) -> tuple[tuple[int, str] | None, str]:
    """When a line of a log was written, in seconds of 1970 and nine digits behind, and the line itself."""
    head, _, text = line.partition(" ")
    found = _STAMP.match(head)
    if found is None:
        return None, line
    second = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00"))
    return (int(second.timestamp()), (found[2] or "").ljust(9, "0")), text
