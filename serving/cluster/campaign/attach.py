"""Which Job does `--attach` mean, and how long may it still take? Found by its name, or as the only one; pure but for the asking.

Rule: only what `tandem cluster campaign` made is followed, because it is deleted at its end; the chart's own load tests are not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from serving.cluster.api import Connection
from serving.cluster.campaign.manifests import KEPT_S, MANAGER
from serving.cluster.objects.fields import COMPONENT, LOADTEST, MANAGED_BY
from serving.cluster.objects.pods import Job
from serving.cluster.snapshot import look
from serving.errors import UserError

NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")  # of any Job: what is asked for becomes part of an address


@dataclass(frozen=True, slots=True)
class CampaignJob:
    """`rest_s`: until it ends by itself, none for one that is over."""

    name: str
    campaign: str
    timeout_s: int
    rest_s: float
    is_over: bool

    @classmethod
    def of(cls, job: Job, now: datetime) -> CampaignJob:
        timeout_s = int(job.timeout_s or KEPT_S)
        spent_s = (now - (job.started_at or now)).total_seconds()
        # Between none and all of it, whatever the two clocks say.
        rest_s = 0.0 if job.is_over else min(max(0.0, timeout_s - spent_s), timeout_s)
        return cls(job.name, job.campaign or job.name, timeout_s, rest_s, job.is_over)


def find_job(connection: Connection, name: str) -> CampaignJob:
    """The campaign's Job of that name; `""`: the only one. Raises UserError, ApiError, Unreachable."""
    path = f"/apis/batch/v1/namespaces/{connection.namespace}/jobs/{name}"
    it = connection.find(path, f"job {name}", Job.parse) if NAME.fullmatch(name) else None
    if it is None or not is_ours(it):
        query = {"labelSelector": f"{MANAGED_BY}={MANAGER},{COMPONENT}={LOADTEST}"}
        jobs = look(connection, jobs=query).jobs
        it = only(jobs, connection.namespace, name, is_another=it is not None)
    return CampaignJob.of(it, datetime.now(UTC))


def is_ours(job: Job) -> bool:
    return (job.managed_by, job.component) == (MANAGER, LOADTEST)


def only(jobs: Sequence[Job] | None, namespace: str, name: str, *, is_another: bool) -> Job:
    """The only campaign's Job where none was named. Raises UserError with those that there are."""
    inside = f"in namespace '{namespace}'"
    none = f"no campaign Job{f' {name!r}' if name else ''} {inside}"
    if jobs is None:
        raise UserError(f"{none} that this user may see: give --attach JOB")
    if not name and len(jobs) == 1:
        return jobs[0]
    named = ", ".join(f"{it.name} ({'over' if it.is_over else 'goes on'})" for it in jobs)
    are = f"there {'is' if len(jobs) == 1 else 'are'} {named}" if jobs else "there is none; another --namespace?"
    if is_another:
        raise UserError(f"Job '{name}' {inside} is not one of `tandem cluster campaign`; {are}")
    if not name and jobs:
        raise UserError(f"several campaign Jobs {inside}: give --attach JOB; {are}")
    raise UserError(f"{none}; {are}")
