"""Which Job does `--attach` mean, and how long may it still take? Found by its name, or as the only one; pure but for the asking.

Rule: only what `tandem cluster campaign` made is followed, because it is deleted at its end; the chart's own load tests are not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from serving.cluster.api import Object, ask, items
from serving.cluster.campaign.manifests import CAMPAIGN, KEPT_S, MANAGED_BY, OURS
from serving.cluster.campaign.target import LOADTEST
from serving.cluster.connection import Connection, Refused
from serving.cluster.fields import at, condition, conditions, created, label, moment, name_of
from serving.cluster.status.reading import COMPONENT
from serving.errors import UserError

NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")  # of any Job: what is asked for becomes part of an address
ENDS = ("Complete", "Failed")


@dataclass(frozen=True, slots=True)
class Again:
    """A campaign's Job. `rest_s`: until it ends by itself, none for one that is over."""

    job: str
    campaign: str
    timeout_s: int
    rest_s: float
    is_over: bool


def found_again(connection: Connection, name: str) -> Again:
    """The campaign's Job of that name; `""`: the only one. Raises UserError, Refused, Unreachable."""
    inside = f"/apis/batch/v1/namespaces/{connection.namespace}/jobs"
    it = _named(connection, f"{inside}/{name}", name) if NAME.fullmatch(name) else None
    if it is None or not is_ours(it):
        query = {"labelSelector": f"{MANAGED_BY}={OURS},{COMPONENT}={LOADTEST}"}
        there = items(connection, inside, "its jobs", query)
        with connection.asking("its jobs"):
            it = only(there, connection.namespace, name, is_another=it is not None)
    with connection.asking("its job"):
        return again(it, datetime.now(UTC))


def _named(connection: Connection, path: str, name: str) -> Object | None:
    try:
        return ask(connection, path, f"job {name}")
    except Refused as error:
        if error.status == 404:
            return None
        raise


def is_ours(job: Object) -> bool:
    return (label(job, MANAGED_BY), label(job, COMPONENT)) == (OURS, LOADTEST)


def only(there: Sequence[Object] | None, namespace: str, name: str, *, is_another: bool) -> Object:
    """The only campaign's Job where none was named. Raises UserError with those that there are."""
    inside = f"in namespace '{namespace}'"
    none = f"no campaign Job{f' {name!r}' if name else ''} {inside}"
    if there is None:
        raise UserError(f"{none} that this user may see: give --attach JOB")
    if not name and len(there) == 1:
        return there[0]
    named = ", ".join(f"{name_of(it)} ({'over' if is_over(it) else 'goes on'})" for it in there)
    are = f"there {'is' if len(there) == 1 else 'are'} {named}" if there else "there is none; another --namespace?"
    if is_another:
        raise UserError(f"Job '{name}' {inside} is not one of `tandem cluster campaign`; {are}")
    if not name and there:
        raise UserError(f"several campaign Jobs {inside}: give --attach JOB; {are}")
    raise UserError(f"{none}; {are}")


def is_over(job: Object) -> bool:
    ends = (condition(conditions(job), kind) for kind in ENDS)
    return any(it is not None and it.is_true for it in ends)


def again(job: Object, now: datetime) -> Again:
    timeout_s = int(at(job, "spec", "activeDeadlineSeconds", default=KEPT_S))
    begun = moment(at(job, "status", "startTime")) or created(job) or now
    # Between none and all of it, whatever the two clocks say.
    rest_s = 0.0 if is_over(job) else min(max(0.0, timeout_s - (now - begun).total_seconds()), timeout_s)
    campaign = str(at(job, "metadata", "annotations", default={}).get(CAMPAIGN) or name_of(job))
    return Again(name_of(job), campaign, timeout_s, rest_s, is_over(job))
