"""Collects the profiles of a verdict: given ones, what is measured here, and without one of a card what others published of cards.

Rule: what this machine has is measured unless a given profile is of this very machine and knows the objective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from loadtest.errors import CannotMeasure
from loadtest.profile.measure import Interrupted, measure
from loadtest.profile.options import ProfileOptions
from loadtest.profile.selection import variants_of
from loadtest.progress import Progress
from loadtest.verdict.options import VerdictOptions
from loadtest.verdict.report import Source
from serving.decisions.plan.result import Objective
from serving.decisions.prices import pool_of
from serving.decisions.profile import Profile, read_profile, write_profile
from serving.decisions.published import PUBLISHED
from serving.errors import UserError
from serving.measure.machine import Machine, this_machine

Say = Callable[[str], None]
MANY_ROWS = 8  # beside the batch size asked for, so that the ladder shows what batches bring


def gather(
    options: VerdictOptions, objective: Objective, output: Path, say: Say, progress: Progress
) -> tuple[list[Source], list[str]]:
    """Profiles, and what a reader must know of those that are missing. Raises UserError, CannotMeasure, Interrupted."""
    machine = this_machine()
    sources = list(given(options.profiles, options.model, machine))
    asides = []
    if options.may_measure:
        for pool in missing_here(sources, machine, objective):
            try:
                sources.insert(0, _measured(options, objective, pool, output, say, progress))
            except (CannotMeasure, UserError) as error:
                if pool == "cpu":
                    raise
                asides.append(f"This machine's card was not measured: {error}")
                say(asides[-1])
    if not any("gpu" in _pools(source.profile) for source in sources):
        sources += [
            Source(profile, "shipped", PUBLISHED.name) for profile in options.published(options.model, objective)
        ]
    if not sources:
        raise UserError("--no-measure without a --profile: there is nothing to judge by")
    return sources, asides


def given(paths: Iterable[Path], model: str, machine: Machine) -> Iterable[Source]:
    """Raises UserError for one of another model."""
    for path in paths:
        profile = read_profile(path)
        if profile.model != model:
            raise UserError(f"--profile {path}: it is of {profile.model}, not of {model}")
        yield Source(profile, "here" if is_of(profile, machine) else "given", path.name)


def is_of(profile: Profile, machine: Machine) -> bool:
    """Whether it was measured on this machine, or on its twin."""
    mine, other = ((m.processor, m.num_cores, m.instruction_sets, m.cards) for m in (machine, profile.machine))
    return profile.provenance == "measured" and mine == other


def missing_here(sources: Sequence[Source], machine: Machine, objective: Objective) -> list[str]:
    """Pools of this machine whose rates at the objective nobody has measured on it."""
    pools = ["cpu", "gpu"] if machine.cards else ["cpu"]
    known = {
        pool_of(server)
        for source in sources
        if source.origin == "here"
        for server in source.profile.servers
        if server.max_rate_rps(objective.latency_p99_s, objective.batch_size) is not None
    }
    return [pool for pool in pools if pool not in known]


def profile_options(options: VerdictOptions, objective: Objective, pool: str) -> ProfileOptions:
    """Raises UserError."""
    plain = ProfileOptions(options.model, options.model_repository, data=options.data, pool=pool)
    rows = objective.batch_size
    most = min(variant.record.max_batch_size for variant in variants_of(plain))
    return ProfileOptions(
        options.model,
        options.model_repository,
        objectives_s=(objective.latency_p99_s,),
        batch_sizes=tuple(sorted({rows, max(rows, min(MANY_ROWS, most))})),
        rate_batch_sizes=(rows,),
        data=options.data,
        pool=pool,
        is_quick=options.is_quick,
    )


def _measured(
    options: VerdictOptions, objective: Objective, pool: str, output: Path, say: Say, progress: Progress
) -> Source:
    """Keeps what was measured before an interruption, too."""
    file = output / f"profile-{pool}.json"
    try:
        profile = measure(profile_options(options, objective, pool), say, progress)
    except Interrupted as stopped:
        if stopped.profile is not None:
            write_profile(file, stopped.profile)
        raise
    write_profile(file, profile)
    return Source(profile, "here", file.name)


def _pools(profile: Profile) -> set[str]:
    return {pool_of(server) for server in profile.servers}
