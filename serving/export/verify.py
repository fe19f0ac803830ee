"""Is a repository still what was proven? `tandem verify` recomputes every digest, and every gate whose data was kept.

Gates are run again by `gate_rerun`, which needs NumPy and ONNX Runtime; without them the digests are checked all the same, and `lacks` says
what is missing. Rules: standard library only at import, because it guards servers in thin images; what is not proven again
is a note, what is disproven a problem.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from serving.documents.nearest import nearest
from serving.errors import EnvironmentFault, UserError
from serving.export.progress import Progress, silent
from serving.installation import how_to_add
from serving.measure.machine import has_instructions
from serving.repository import GATE_DATA_FILE, NOTHING, PRECISIONS, Check, DigestMismatch, Repository, Variant

if TYPE_CHECKING:  # it needs NumPy and ONNX Runtime
    from serving.export.gate_rerun import EngineRun, GateRun

VERSION = 1

PASSED = "passed"
FAILED = "failed"
NOT_RUN = "not run"

TANDEM = "tandem"
NVIDIA = "nvidia"
SERVERS = (TANDEM, NVIDIA)


@dataclass(frozen=True, slots=True)
class VariantVerdict:
    """One directory of a repository. `checks`: as measured now, with the limits that they were held against."""

    name: str
    is_whole: bool  # every file is the one that was gated
    gate: str  # PASSED, FAILED or NOT_RUN: run again, on the data named in `notes` or kept beside the model
    checks: tuple[Check, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """The object that `tandem verify --json` prints. A directory without a record, or with one that cannot be read, is a
    problem: nothing proves it. `unread`: those of the second kind that were not asked for, each with why.
    """

    version: int
    repository: str
    server: str
    variants: tuple[VariantVerdict, ...]
    unread: Mapping[str, str] = field(default_factory=dict)
    lacks: str | None = None  # the package without which no gate could be run again

    @property
    def has_passed(self) -> bool:
        return not any(variant.problems for variant in self.variants)


def verify(
    path: Path,
    *,
    data: Path | None = None,
    model: str | None = None,
    names: Sequence[str] = (),
    digests_only: bool = False,
    server: str = TANDEM,
    engines: Mapping[str, EngineRun] | None = None,
    progress: Progress = silent,
    processor: str | None = None,
) -> Verification:
    """`data` stands in for what was kept. `names`: these variants alone; none: all. `engines`: of those beside the plain CPU
    provider that are here, by name. `processor`: a key that stands in for this machine's.
    """
    if server not in SERVERS:
        raise UserError(f"unknown server {server!r}{nearest(server, SERVERS)}")
    if data is not None and digests_only:
        raise UserError("--data is what gates are run on, and --digests-only runs none; give one of them")
    everything, unreadable = Repository(path).readable()
    bare = dict.fromkeys(Repository(path).ungated(), "has no tandem.json, so nothing proves it")
    variants, without = _chosen(path, everything, {**bare, **unreadable}, model, names)
    fp32s = [one for one in everything if one.record.variant == "fp32"]
    wanted = {variant.name for variant in variants}
    # FP32 is what the others are compared with, also where only they were asked for
    beside = [one for one in fp32s if one.record.model in {variant.record.model for variant in variants}]
    found = {variant.name: _digests(variant) for variant in {one.name: one for one in (*variants, *beside)}.values()}
    if not digests_only:
        found |= _gates(variants, beside, unreadable, found, data, engines or {}, progress)
    newest = {one.record.model: one.record.model_version for one in fp32s}
    for variant in variants:
        result = _for_server(variant, found[variant.name], server, processor)
        found[variant.name] = _for_its_version(variant, result, newest.get(variant.record.model, 0))
    results = {name: result for name, result in found.items() if name in wanted}
    results |= {name: VariantVerdict(name, False, NOT_RUN, (), (reason,), ()) for name, reason in without.items()}
    unread = {name: reason for name, reason in unreadable.items() if name not in without}
    lacks = None if digests_only else _lacks()
    if lacks is not None and not any(_not_installed(lacks) in result.notes for result in results.values()):
        lacks = None  # nothing would have been run
    return Verification(VERSION, str(path), server, tuple(results[name] for name in sorted(results)), unread, lacks)


def _chosen(
    path: Path, everything: Sequence[Variant], unproven: Mapping[str, str], model: str | None, names: Sequence[str]
) -> tuple[list[Variant], dict[str, str]]:
    """Returns the chosen variants, and of directories without a readable record the chosen ones with their reasons."""
    if model is not None and names:
        raise UserError("--model and --variant both say what to verify; give one of them")
    known = sorted({variant.record.model for variant in everything})
    of_model = {name for name in unproven if name in [f"{model}-{precision}" for precision in PRECISIONS]}
    if model is not None and model not in known and not of_model:
        raise UserError(f"{path} has no model {model!r}{nearest(model, known) if known else '; it is empty'}")
    there = sorted([variant.name for variant in everything] + list(unproven))
    if absent := [name for name in names if name not in there]:
        hint = nearest(absent[0], there) if there else "; it is empty"
        raise UserError(f"{path} has no variant {absent[0]!r}{hint}")
    variants = [v for v in everything if model in (None, v.record.model) and (not names or v.name in names)]
    concerned = of_model if model is not None else set(names or unproven)
    return variants, {name: reason for name, reason in unproven.items() if name in concerned}


def _digests(variant: Variant) -> VariantVerdict:
    try:
        variant.verify()
    except DigestMismatch as mismatch:
        return VariantVerdict(variant.name, False, NOT_RUN, (), (f"{mismatch.file} {mismatch.problem}",), ())
    return VariantVerdict(variant.name, True, NOT_RUN, (), (), ())


def _for_server(variant: Variant, result: VariantVerdict, server: str, processor: str | None) -> VariantVerdict:
    """Adds what NVIDIA's image would silently compute otherwise on a CPU pool. Its backend hands OpenVINO nothing but
    the device, and nobody there asks what a file needs of the processor.
    """
    pool = variant.record.pools.get("cpu")
    if server != NVIDIA or pool is None or not pool.is_loadable:
        return result
    problems, notes = list(result.problems), list(result.notes)
    if variant.record.variant == "bf16":
        problems.append(
            "BF16 on the CPU pool is computed by Tandem's own backend only; in NVIDIA's image it would be FP32: leave it out"
        )
    elif pool.engine == "openvino":
        problems.append(
            "the number of OpenVINO's threads is set by Tandem's own backend only; in NVIDIA's image every instance would "
            "take all cores: export it with --engine cpu"
        )
    if "vnni" in variant.record.needs and has_instructions("vnni", processor):
        notes.append("needs VNNI, which this processor has; NVIDIA's image loads it on every other too")
    elif "vnni" in variant.record.needs:
        problems.append(
            "needs VNNI, which this processor lacks; NVIDIA's image would load it all the same and answer wrongly: export it "
            "with --int8-range 7bit"
        )
    return replace(result, problems=tuple(problems), notes=tuple(notes))


def _for_its_version(variant: Variant, result: VariantVerdict, fp32_version: int) -> VariantVerdict:
    """Refuses a variant of an earlier version than FP32's: it would answer for weights that are gone."""
    version = variant.record.model_version
    if version >= fp32_version:
        return result
    problem = f"is of version {version}, and FP32 of version {fp32_version}: export it again, or remove its folder"
    return replace(result, problems=(*result.problems, problem))


# -- gates ------------------------------------------------------------------------------------------------------------


def _gates(
    variants: Sequence[Variant],
    fp32s: Sequence[Variant],
    unreadable: Mapping[str, str],
    found: Mapping[str, VariantVerdict],
    data: Path | None,
    engines: Mapping[str, EngineRun],
    progress: Progress,
) -> dict[str, VariantVerdict]:
    """Runs the gates again; returns the results that this changes. `fp32s`: of the models of these variants."""
    models = sorted({variant.record.model for variant in variants})
    if data is not None and len(models) > 1:
        raise UserError(f"--data is of one model, and the repository has {', '.join(models)}; say which with --model")
    changed: dict[str, VariantVerdict] = {}
    for model in models:
        family = [variant for variant in variants if variant.record.model == model]
        fp32 = next((variant for variant in fp32s if variant.record.model == model), None)
        reason = _why_not(fp32, found, data)
        if f"{model}-fp32" in unreadable:
            reason = f"gate not run again: the record of {model}-fp32 cannot be read"
        if reason is None and (lacks := _lacks()) is not None:
            if data is not None:
                raise EnvironmentFault(f"--data cannot be used: {lacks} is not installed here: {how_to_add('onnx')}")
            reason = _not_installed(lacks)
        if fp32 is not None and reason is None:
            changed |= _rerun(family, fp32, found, data, engines, progress)
            continue
        for variant in family:
            changed[variant.name] = _with_note(found[variant.name], _why_not_this(variant) or reason or "")
    return changed


def _why_not(fp32: Variant | None, found: Mapping[str, VariantVerdict], data: Path | None) -> str | None:
    """Says why none of a model's gates can be run again; None where they can."""
    if fp32 is None:
        return "gate not run again: the repository has no FP32 of this model to compare with"
    if not found[fp32.name].is_whole:
        return f"gate not run again: the files of {fp32.name} are not the ones that were gated"
    if data is None and GATE_DATA_FILE not in fp32.record.files:
        return "gate not run again: no data kept; give --data"
    return None


def _lacks() -> str | None:
    """Names the package without which no gate runs here; None where all are there."""
    try:
        from serving.export import gate_rerun  # noqa: F401
    except ImportError as error:
        return (error.name or "a package").partition(".")[0]
    return None


def _not_installed(package: str) -> str:
    return f"gate not run again: {package} is not installed here"


def _why_not_this(variant: Variant) -> str | None:
    if variant.record.is_untrained:
        return "gate not run again: untrained, so that there is nothing to be right about"
    if variant.record.gate.basis == NOTHING:
        return "gate not run again: there was none, it was accepted ungated"
    return None


def _rerun(
    family: Sequence[Variant],
    fp32: Variant,
    found: Mapping[str, VariantVerdict],
    data: Path | None,
    engines: Mapping[str, EngineRun],
    progress: Progress,
) -> dict[str, VariantVerdict]:
    from serving.export import gate_rerun

    run = gate_rerun.Rerun(fp32, data, engines, progress)
    changed = {}
    for variant in family:
        result = found[variant.name]
        if own_reason := _why_not_this(variant):
            changed[variant.name] = _with_note(result, own_reason)
        elif result.is_whole:
            changed[variant.name] = _with_outcome(result, run.of(variant))
    return changed


def _with_outcome(result: VariantVerdict, run: GateRun) -> VariantVerdict:
    gate = FAILED if run.problems else PASSED if run.checks else NOT_RUN
    return replace(result, gate=gate, checks=run.checks, problems=run.problems, notes=run.notes)


def _with_note(result: VariantVerdict, note: str) -> VariantVerdict:
    return replace(result, notes=(*result.notes, note)) if result.is_whole else result


# -- what the user sees ----------------------------------------------------------------------------------------------


def show(verification: Verification, *, as_json: bool) -> None:
    if as_json:
        is_whole = all(variant.is_whole for variant in verification.variants)
        document = {**asdict(verification), "is_whole": is_whole, "has_passed": verification.has_passed}
        print(json.dumps(document, indent=2))
        return
    for name, reason in verification.unread.items():
        print(f"tandem: {name}, which was not asked for, cannot be read: {reason}", file=sys.stderr)
    for variant in verification.variants:
        print(f"{variant.name}: {_line(variant)}")


def _line(variant: VariantVerdict) -> str:
    if variant.problems:
        return "; ".join((*variant.problems, *variant.notes))
    gate = {"passed": "whole, gate passed again"}.get(variant.gate, "whole")
    return "; ".join((gate, *variant.notes))
