"""How `tandem cluster campaign` goes: check, create, follow, bring home, tidy up; or with `--attach` the same from a Job that is there.

`--attach` takes a Job's name, or the only one. Rule: only a Job that this verb made is followed, because it is deleted at its end; the
chart's own load tests are not.
The exit code is the campaign's own where there was one; 3 where it never came to an end, 130 after Ctrl-C.
"""

from __future__ import annotations

import re
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from serving.cluster.api import Connection, Right, connect
from serving.cluster.campaign import manifests
from serving.cluster.campaign.ending import Delivery, JobCommands, delete, line_of_the_pod, say, to_the_end
from serving.cluster.campaign.follow import AWAY_S, JobFollower
from serving.cluster.campaign.manifests import KEPT_S, MANAGER, CampaignFile
from serving.cluster.campaign.target import KeyReference, Target, target
from serving.cluster.client import ApiError, WriteError
from serving.cluster.objects.fields import COMPONENT, LOADTEST, MANAGED_BY, Object, there_are
from serving.cluster.objects.pods import Job
from serving.cluster.snapshot import look
from serving.errors import EnvironmentFault, TandemError, UserError

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
    named = [f"{it.name} ({'over' if it.is_over else 'goes on'})" for it in jobs]
    are = there_are(named) if jobs else "there is none; another --namespace?"
    if is_another:
        raise UserError(f"Job '{name}' {inside} is not one of `tandem cluster campaign`; {are}")
    if not name and jobs:
        raise UserError(f"several campaign Jobs {inside}: give --attach JOB; {are}")
    raise UserError(f"{none}; {are}")


START_S = 900  # for a node to be bought and an image to be pulled; a guess, not measured
RUN_S = 30  # for each run beside its own seconds: a generator starts, and the report is written; a guess
LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' own for such names: no word comes of them
TO_MAKE = (Right("", "configmaps"), Right("batch", "jobs"))
TO_FOLLOW = (Right("batch", "jobs", "get"), Right("", "pods", "list"), Right("", "pods", "get", "log"))
TO_DELETE = Right("batch", "jobs", "delete")


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


def run(options: Options, given: CampaignFile) -> int:
    """Raises TandemError."""
    key = _key(options.key_secret)
    given.check()
    timeout_s = _timeout_s(options.timeout_s, given)
    with _folder(options.output or _default_folder(given.name)) as folder:
        connection = connect(options.context, options.namespace)
        with connection.api, _sigterm_as_ctrl_c():
            to = _target(connection, options, key)
            name = manifests.job_name(to.release, given.name, "".join(secrets.choice(LETTERS) for _ in range(5)))
            commands = JobCommands(name, connection.namespace, options.context)
            say(str(connection))
            say(f"Job {name}: {to.image} against {to.url}, {given.num_runs} runs, at most {timeout_s} s in all")
            say(f"should this end before the Job does: {commands.to_attach}")
            create(connection, commands, to, given, timeout_s)
            follower = JobFollower(connection, name, time.monotonic() + timeout_s + AWAY_S, line_of_the_pod)
            return to_the_end(follower, Delivery(folder, timeout_s, options.keep, commands))


def attach(options: Options, job: str) -> int:
    """As `run` from where the Job is made: follows one that goes on, or brings home what one that is over did. Raises TandemError."""
    with ExitStack() as until_the_end:
        folder = until_the_end.enter_context(_folder(options.output)) if options.output else None
        connection = connect(options.context, options.namespace)
        until_the_end.enter_context(connection.api)
        until_the_end.enter_context(_sigterm_as_ctrl_c())
        it = find_job(connection, job)
        _check_rights(connection, TO_FOLLOW if options.keep else (*TO_FOLLOW, TO_DELETE))
        folder = folder or until_the_end.enter_context(_folder(_default_folder(it.campaign)))
        say(str(connection))
        say(f"Job {it.name} {'is over' if it.is_over else f'goes on, for at most {it.rest_s:.0f} s'}")
        follower = JobFollower(connection, it.name, time.monotonic() + it.rest_s + AWAY_S, line_of_the_pod)
        commands = JobCommands(it.name, connection.namespace, options.context)
        return to_the_end(follower, Delivery(folder, it.timeout_s, options.keep, commands))


def _timeout_s(option_s: float | None, given: CampaignFile) -> int:
    if option_s is None:
        return int(2 * given.planned_s + RUN_S * given.num_runs + START_S)
    if option_s < given.planned_s:
        raise UserError(
            f"--timeout {option_s:g} is less than the {given.planned_s:g} s that the runs of {given.file} last, and a node, an image and "
            f"{given.num_runs} starts come to that; give more, or shorter runs"
        )
    return int(option_s)


def create(connection: Connection, commands: JobCommands, to: Target, given: CampaignFile, timeout_s: int) -> None:
    """The Job first, because it owns the rest, whose absence a kubelet waits out. Raises WriteError, Unreachable."""
    inside, name = f"/namespaces/{connection.namespace}", commands.job
    made: Object = {}
    try:
        job = manifests.job(name, to, given, timeout_s)
        made = connection.create(f"/apis/batch/v1{inside}/jobs", f"Job {name}", job)
        owner = manifests.owner(made)
        rest = [(f"/api/v1{inside}/configmaps", manifests.config_map(name, to, given, owner))]
        if to.needs_policy:
            path = f"/apis/networking.k8s.io/v1{inside}/networkpolicies"
            rest.append((path, manifests.network_policy(name, to, owner)))
        for path, it in rest:
            connection.create(path, f"{it['kind']} {name}", it)
    except BaseException as error:
        if made or not isinstance(error, WriteError):  # without an answer it may have been made for all that
            _undo(connection, commands)
        raise


def _undo(connection: Connection, commands: JobCommands) -> None:
    try:
        delete(connection, commands.job)
    except TandemError:
        say(f"Job {commands.job} may be there without its files; to delete it: {commands.to_delete}")


def _target(connection: Connection, options: Options, key: KeyReference | None) -> Target:
    found = look(connection, "deployments", "services", "jobs", "network_policies")
    if found.deployments is None:
        raise ApiError(connection.server, 403, f"the deployments of namespace '{connection.namespace}'")
    it = target(found, options.release, options.image, key)
    _check_rights(connection, (*TO_MAKE, *TO_FOLLOW, TO_DELETE))
    return it


def _check_rights(connection: Connection, needed: tuple[Right, ...]) -> None:
    if missing := [str(it) for it in needed if not connection.may(it)]:
        raise EnvironmentFault(
            f"this user may not {', '.join(missing)} in namespace '{connection.namespace}': have an administrator grant it; "
            "the role edit is enough"
        )


def _key(text: str | None) -> KeyReference | None:
    if text is None:
        return None
    name, _, key = text.partition("/")
    if not name or not key:
        raise UserError(f"--key-secret {text} is not NAME/KEY: a secret's name, and the key in it")
    return KeyReference(name, key)


def _default_folder(name: str) -> Path:
    return Path("results") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


@contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """Made at once, because nobody wants to hear after an hour that it cannot be; taken away where nothing came into it."""
    is_new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UserError(f"{path} is not empty; name a new directory with --output")
    except OSError as error:
        raise UserError(f"{path} cannot be made: {error.strerror}; name another directory with --output") from None
    try:
        yield path
    finally:
        if is_new:
            with suppress(OSError):  # it holds something
                path.rmdir()


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
