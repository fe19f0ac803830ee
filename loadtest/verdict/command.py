"""`tandem verdict`: profiles this machine, plans, checks the plan by a run, judges, writes the report and says it in one paragraph.

Exit code 0; 1 where nothing meets the objective, the check missed it or a --fail-if holds; 2 a wrong option or file; 3 what could not be
measured; 130 interrupted. Rule: nothing is measured before all that was typed has been read.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from loadtest.campaign import new_directory
from loadtest.errors import CampaignError, CannotMeasure
from loadtest.profile.measure import Interrupted
from loadtest.progress import INTERRUPTED, Progress, sigterm_as_interrupt
from loadtest.report.fail_if import ArmNumbers, Condition, failures
from loadtest.verdict import page
from loadtest.verdict.build import build
from loadtest.verdict.check import NUM_QUICK_RUNS, NUM_RUNS, run_check, why_not
from loadtest.verdict.options import Question, VerdictOptions, read_question
from loadtest.verdict.report import FILE, Check, Source, VerdictReport, as_json
from loadtest.verdict.sources import gather, profile_options
from serving.decisions.plan.outputs import Origin
from serving.decisions.plan.outputs import write as write_plan
from serving.decisions.plan.result import Plan
from serving.decisions.plan.search import make_plan
from serving.measure.machine import versions

__all__ = ["CampaignError", "VerdictOptions", "run"]


def run(options: VerdictOptions) -> int:
    """Raises UserError and CampaignError."""
    question = read_question(options)
    started = datetime.now().astimezone()
    output = new_directory(options.output, f"verdict-{options.model}", started)
    try:
        with Progress() as progress, sigterm_as_interrupt():
            report = _report(options, question, output, started, progress)
    except CannotMeasure as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 3
    except OSError as error:
        return _cannot_write(error)
    except (Interrupted, KeyboardInterrupt):
        kept = f"what was measured is in {output}" if any(output.iterdir()) else "nothing was kept"
        print(f"tandem: interrupted before there was a verdict; {kept}", file=sys.stderr)
        return INTERRUPTED
    finally:
        with suppress(OSError):  # it holds something, as it should
            output.rmdir()
    try:
        return _conclude(report, question.conditions, output, is_json=options.as_json)
    except OSError as error:  # the answer took minutes: it is told all the same
        print(report.paragraph, file=sys.stderr if options.as_json else sys.stdout)
        return _cannot_write(error)


def _cannot_write(error: OSError) -> int:
    print(f"tandem: {error.filename or 'a file'} cannot be written: {error.strerror or error}", file=sys.stderr)
    return 3


def _report(
    options: VerdictOptions, question: Question, output: Path, started: datetime, progress: Progress
) -> VerdictReport:
    sources, asides = gather(options, question.objective, output, progress.say, progress)
    plan = make_plan(
        options.model,
        question.objective,
        [source.profile for source in sources],
        question.prices,
        instances=question.instances,
        today=started.date().isoformat(),
    )
    origin = Origin(
        options.command, tuple(s.file or "measured here" for s in sources), question.prices.name, f"{started:%Y-%m-%d}"
    )
    write_plan(output, plan, origin)
    check, not_run = _check(options, plan, sources, progress)
    return build(
        plan,
        sources,
        question.prices,
        check=check,
        check_not_run=not_run,
        asides=asides,
        date=started.isoformat(timespec="seconds"),
        command=options.command,
        versions=versions(),
    )


def _check(
    options: VerdictOptions, plan: Plan, sources: Sequence[Source], progress: Progress
) -> tuple[Check | None, str | None]:
    """The check, or why there is none."""
    if not options.has_check:
        return None, "--no-check was given"
    if (reason := why_not(plan, sources)) is not None:
        return None, reason
    profiled = profile_options(options, plan.objective, plan.pools[0].chosen.server.device)
    num_runs = NUM_QUICK_RUNS if options.is_quick else NUM_RUNS
    return run_check(plan, profiled, progress.say, progress, num_runs=num_runs), None


def _conclude(report: VerdictReport, conditions: Sequence[Condition], output: Path, *, is_json: bool) -> int:
    text = json.dumps(as_json(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    (output / FILE).write_text(text, encoding="utf-8")
    html = page.write(output, report)
    out = sys.stderr if is_json else sys.stdout
    if is_json:
        print(text, end="")
    failed = [line for one in conditions for line in failures(one, [arm_numbers(report)])]
    print(report.paragraph, file=out)
    for line in failed:
        print(line, file=out)
    print(f"report: {html}", file=out)
    return 1 if failed or not report.is_met else 0


def arm_numbers(report: VerdictReport) -> ArmNumbers:
    """What --fail-if judges. A break-even that is never reached is infinitely far."""
    values: dict[str, float | None] = {name: number.value for name, number in report.numbers.items()}
    kinds = {server.device == "cpu" for server in report.servers if server.offer is not None}
    if report.verdict.break_even_rps is None and len(kinds) == 2:
        values["break_even_rps"] = math.inf
    return ArmNumbers("the verdict", "", values, None)
