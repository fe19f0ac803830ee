"""Runs the claims suite: each experiment that a claim needs, once, then the answers, claims.json, claims.md and claims.html.

`run` is what the command line calls. One experiment that fails leaves its claims `not run`, with its reason, and the others go on; Ctrl-C
keeps what was measured. Rule: this is the only place that knows when anything runs; what it means is decided elsewhere, without a clock.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from loadtest.campaign import ending, new_directory
from loadtest.claims import cells, judge, page, speeds, values
from loadtest.claims.claims_file import Claim, Suite, read_suite
from loadtest.claims.experiments import Experiment, SuiteSetup, experiments
from loadtest.claims.values import Findings, Report, Result
from loadtest.errors import CampaignFileError, CannotMeasure
from loadtest.processes import Moment
from loadtest.progress import INTERRUPTED, Progress, sigterm_as_interrupt
from serving.decisions.engines import EnginePython
from serving.errors import TandemError
from serving.export.scratch import scratch
from serving.local.devices import installed
from serving.measure.machine import Machine, this_machine, versions
from serving.repository import default_repository

RESULTS, TEXT, PAGE = "claims.json", "claims.md", "claims.html"
# Short enough to try the suite, too short to believe it.
QUICK: dict[str, dict[str, Any]] = {
    "speeds": {"seconds": 0.05, "max_seconds": 5.0, "rounds": 2},
    "bandwidth": {"rounds": 3},
    "trees": {"seconds": 0.1},
    "scaling": {"duration_s": 600.0},
    "served": {"seconds": 0.3, "rounds": 2},
}
NUM_QUICK_SIZES = 2


@dataclass(frozen=True, slots=True)
class ClaimsOptions:
    """`nets`: a repository of untrained nets that are made already. `engines` None: those installed. `model_repository`: of digits.

    `found`: what was measured before, by the experiments named in `known`, which then do not run again."""

    file: Path
    output: Path | None = None
    only: tuple[str, ...] = ()
    is_quick: bool = False
    nets: Path | None = None
    engines: Mapping[str, EnginePython] | None = field(default=None, compare=False)
    model_repository: Path | None = None
    found: Findings = field(default_factory=Findings)
    known: frozenset[str] = frozenset()

    @staticmethod
    def of(
        file: Path,
        output: Path | None,
        only: tuple[str, ...],
        *,
        is_quick: bool,
        model_repository: Path | None,
        **others: Any,
    ) -> ClaimsOptions:
        """`others`: options of a load test, which would do nothing here. Raises CampaignFileError."""
        for name, value in others.items():
            if value is not None:
                option = name.removesuffix("_s")
                raise CampaignFileError(
                    f"--{option} does nothing for {file}, which holds claims: its times stand in it."
                )
        return ClaimsOptions(file, output, only, is_quick, model_repository=model_repository)

    @property
    def command(self) -> str:
        """Without places of this machine."""
        program = "tandem campaign run" if self.nets is None else "python -m loadtest.claims --nets NETS"
        words = [*program.split(), self.file.name if self.file.is_absolute() else str(self.file)]
        words += [word for name in self.only for word in ("--only", name)]
        return shlex.join([*words, *(["--quick"] if self.is_quick else [])])


def run(options: ClaimsOptions) -> int:
    """Exit code: 0 all that could run ran, 1 something failed, 2 and 3 as everywhere, 130 interrupted."""
    return ending(lambda: _run(options), "what was measured before is kept")


def _run(options: ClaimsOptions) -> int:
    suite = read_suite(options.file)
    if options.is_quick:
        suite = quick(suite)
    claims = suite.only(options.only)
    started, began = datetime.now().astimezone(), Moment.now()
    directory = new_directory(options.output, suite.name, started)
    engines = dict(installed() if options.engines is None else options.engines)
    found, is_partial = options.found, False
    with ExitStack() as stack, Progress() as progress:
        stack.enter_context(sigterm_as_interrupt())
        nets = options.nets or stack.enter_context(scratch("nets"))
        here = SuiteSetup(
            suite, claims, this_machine(), engines, nets, options.model_repository or default_repository()
        )
        try:
            for name, experiment in experiments(here, progress.say):
                if name in options.known:
                    continue
                found = found + _tried(name, experiment, progress.say)
                write(directory, _report(options, here, started, began, found, is_partial=True))
        except KeyboardInterrupt:
            is_partial = True
            found = replace(found, not_run={**_interrupted(claims), **found.not_run})
            progress.say("interrupted; what was measured is kept")
    report = _report(options, here, started, began, found, is_partial=is_partial)
    write(directory, report)
    for result in report.results:
        print(f"{result.answer:>17}  {result.name}: {result.numbers}")
    print(f"report: {directory / PAGE}")
    if is_partial:
        return INTERRUPTED
    return 1 if set(found.not_run) - {speeds.TREES_EXPERIMENT} else 0


def _report(
    options: ClaimsOptions, here: SuiteSetup, started: datetime, began: Moment, found: Findings, *, is_partial: bool
) -> Report:
    now = Moment.now()
    engines = {f"ONNX Runtime ({name})": engine.version for name, engine in here.engines.items() if engine.version}
    return Report(
        name=here.suite.name,
        machine=here.machine,
        date=started.isoformat(timespec="seconds"),
        command=options.command,
        versions=versions() | engines,
        num_threads=here.num_threads,
        is_quick=options.is_quick,
        is_partial=is_partial,
        seconds=now.at_s - began.at_s,
        others_ratio=began.others_ratio(now, here.machine.num_cores),
        results=tuple(result(claim, found, here.machine) for claim in here.claims),
        findings=found,
        note=here.suite.note,
    )


def result(claim: Claim, found: Findings, machine: Machine) -> Result:
    judged_cells = judge.judged(cells.cells(claim, found, machine), claim.at_least, claim.at_most)
    return Result(
        name=claim.name,
        number=claim.number,
        says=claim.says,
        source=claim.source,
        url=claim.url,
        note=claim.note,
        experiment=claim.asks_for,
        threshold=claim.threshold,
        answer=judge.answer(judged_cells),
        numbers=judge.numbers(judged_cells),
        cells=judged_cells,
    )


def write(directory: Path, report: Report) -> None:
    (directory / RESULTS).write_text(values.to_json(report), encoding="utf-8")
    (directory / TEXT).write_text(f"# {report.name}\n\n{page.markdown(report)}", encoding="utf-8")
    (directory / PAGE).write_text(page.render(report), encoding="utf-8")


def _tried(name: str, experiment: Experiment, say: Callable[[str], None]) -> Findings:
    try:
        return experiment()
    except (CannotMeasure, TandemError) as error:
        say(f"{name}: not run: {error}")
        return Findings(not_run={name: str(error)})


def _interrupted(claims: tuple[Claim, ...]) -> dict[str, str]:
    names = {claim.experiment for claim in claims} | {"bandwidth", "prices"}
    return dict.fromkeys(sorted(names), "the suite was interrupted before it")


def quick(suite: Suite) -> Suite:
    """The same claims with short times and few sizes."""
    shorter: dict[str, dict[str, Any]] = {}
    for name, settings in suite.experiments.items():
        cut = {key: value[:NUM_QUICK_SIZES] for key, value in settings.items() if key in ("batch_sizes", "seeds")}
        shorter[name] = {**settings, **QUICK[name], **cut}
    return replace(suite, experiments=shorter)
