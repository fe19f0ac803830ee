"""Checks, before anything is written, that a real server loads each variant and answers the gate's rows as the gate saw.

The caller says which server that is, because nothing here may start one: `Load` comes from above. A variant that differs is
refused with the server's reason. Rule: what could not be tried is said in the record, and never taken for a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from serving.errors import EnvironmentFault, GateRefused
from serving.export.exported_model import Arrays, num_rows, spread
from serving.export.gates.rows import worst_difference
from serving.export.job import ExportJob
from serving.export.judge import Judge
from serving.export.publish import Publication, publish_all
from serving.export.scratch import scratch
from serving.export.variant_files import ProvenVariant
from serving.export.variants.candidate import Candidate

MAX_ROWS = 32  # of the gate's: one batch of them shows a wrong type, order, shape or engine (guess, not measured)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a server reported of a repository. `answers`: variant -> every output of all rows; `failed`: variant -> its reason."""

    server: str
    answers: Mapping[str, Sequence[NDArray[Any]]]
    failed: Mapping[str, str]


# (a repository that is not published, rows of every input) -> what became of it. EnvironmentFault: no server can run here.
Load = Callable[[Path, Arrays], LoadResult]


Publications = Callable[[Path, Sequence[ProvenVariant]], list[Publication]]  # as they are to lie in that repository


class NotServed(GateRefused):
    """A server does not load it, or gives other answers than the gate measured."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} refused: {reason}")
        self.name, self.reason = name, reason


@dataclass(frozen=True, slots=True)
class LoadCheck:
    """The result of the check. `variants`: those that may be published, each with the check in its record. `refused`: variant -> reason."""

    variants: list[ProvenVariant]
    refused: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()


def check(
    job: ExportJob, judge: Judge, proven: Sequence[ProvenVariant], load: Load | None, publications: Publications
) -> LoadCheck:
    """Has the server load all variants. Raises NotServed where FP32 is refused. `load` None: no server could be asked."""
    if load is None:
        return LoadCheck(
            [replace(one, load_check="not loaded by any server before it was published") for one in proven]
        )
    with job.step("loading it in Triton"):
        rows = some_rows(job.inputs, job.exported.max_batch_size)
        with scratch("load") as folder:
            try:
                publish_all(folder, publications(folder, proven))
                result = load(folder, rows)
            except EnvironmentFault as fault:
                unasked = [replace(one, load_check=f"no Triton could be asked: {fault}") for one in proven]
                return LoadCheck(unasked, warnings=[f"no Triton loaded it before it was published: {fault}"])
        served, refused = [], {}
        for one in proven:
            name, pool = job.name(one.variant), one.pools["cpu"]
            if not pool.is_loadable:
                why = "not loaded by any server before it was published: no pool for it was here"
                served.append(replace(one, load_check=why))
                continue
            candidate = Candidate(one.variant, one.model, "")
            expected = judge.answers(candidate, pool.engine, rows)
            reason = why_refused(result, name, expected, judge.row_limit(candidate, pool.engine, one.gate))
            if reason is None:
                how = f"{result.server} on {pool.engine}: {num_rows(rows)} rows answered as its gate saw"
                served.append(replace(one, load_check=how))
            elif one.variant == "fp32":
                raise NotServed(name, reason)
            else:
                refused[one.variant] = reason
    return LoadCheck(served, refused)


def some_rows(inputs: Arrays, max_batch_size: int) -> Arrays:
    """Picks rows, spread evenly and no more than a batch holds: data is often sorted by label."""
    return spread(inputs, min(MAX_ROWS, max_batch_size or MAX_ROWS))


def why_refused(result: LoadResult, name: str, expected: Sequence[NDArray[Any]], limit: float) -> str | None:
    """Says why the variant is refused; None where it answered as the gate saw. `limit`: how far a row may differ, in output scales."""
    if name in result.failed:
        return f"{result.server} does not serve it: {result.failed[name]}"
    difference = worst_difference(list(result.answers[name]), list(expected))
    if difference <= limit:
        return None
    return f"{result.server} gives other answers than the gate measured: a row differs by {difference:.2g} (at most {limit:g})"
