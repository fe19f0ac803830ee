"""Runs a campaign: every arm, repeat by repeat, one Locust process at a time, rows to disk, then the report.

`run` and `report` are what the command line calls. Arms take turns within each repeat, so that a machine that gets slower or faster with
time does so to all of them. One run is `one_run.py`'s; what it means is not decided here.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from loadtest import records
from loadtest.arrivals import schedule
from loadtest.campaign_file import Arm, Campaign, read_campaign
from loadtest.errors import CampaignError, ResultsError
from loadtest.evidence.counts import evidence
from loadtest.evidence.meters import scrape, watching
from loadtest.one_run import ARRIVALS, INPUTS, PendingRun, generate, generator_cpu_ratio, is_real_time, measured_window
from loadtest.progress import INTERRUPTED, Progress, sigterm_as_interrupt
from loadtest.report import build as report_of
from loadtest.report import fail_if as conditions
from loadtest.report import page
from loadtest.report.summaries import Report
from loadtest.report.wording import point_label
from loadtest.sending.prepared import RequestSource, prepare
from loadtest.target import Gateway, find_gateway, not_run_reason, own_gateway, triton_names
from serving.measure.machine import this_machine, versions

CANNOT_WRITE = 3  # the exit code


@dataclass(frozen=True, slots=True)
class CampaignOptions:
    """`url` None: the gateway on 127.0.0.1:8080 if one is there, else a `tandem up` of its own. `model_repository`: what
    that serves, and where the files lie that texts and photographs are made with. The three numbers replace the file's."""

    file: Path
    url: str | None = None
    output: Path | None = None
    duration_s: float | None = None
    warmup_s: float | None = None
    repeats: int | None = None
    model_repository: Path | None = None
    replayed: Path | None = None  # an access log or traces, sent in the place of the file's load
    fail_if: tuple[str, ...] = ()  # conditions, as `p99_s > 0.05`
    as_json: bool = False

    @property
    def command(self) -> str:
        pairs = (
            ("--url", self.url),
            ("--output", self.output),
            ("--duration", self.duration_s),
            ("--warmup", self.warmup_s),
            ("--repeats", self.repeats),
            ("--model-repository", self.model_repository),
            ("--from-traces", self.replayed),
            *(("--fail-if", condition) for condition in self.fail_if),
        )
        given = [word for name, value in pairs if value is not None for word in (name, str(value))]
        return shlex.join(["tandem", "campaign", "run", str(self.file), *given])


def run(options: CampaignOptions) -> int:
    """Exit code: 0 every arm that could run has a valid run, 1 one has none, none could run or a condition to fail on is so,
    2 and 3 as everywhere, 130 interrupted."""
    return ending(lambda: _run(options), "runs that ended before are kept, and `tandem campaign report` tells of them")


def ending(campaign: Callable[[], int], kept: str) -> int:
    """The exit code of a campaign of any kind; what stopped it is told in a line. `kept`: what is left after a full disk."""
    try:
        return campaign()
    except CampaignError as error:
        print(f"tandem: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # a full disk is the usual one
        where = f"{error.filename}: " if error.filename else ""
        print(f"tandem: the campaign ended: {where}{error.strerror or error}; {kept}", file=sys.stderr)
        return CANNOT_WRITE


def report(directory: Path) -> Path:
    """Rebuilds report.json and report.html from the rows; returns the page. Raises ResultsError (exit code 2)."""
    return _rebuild(directory)[1]


def report_again(directory: Path, fail_if: tuple[str, ...], *, as_json: bool = False) -> int:
    """Says where the page is. Exit code 1 if a condition to fail on is so. Raises CampaignError."""
    conditions.check(fail_if)
    built, html = _rebuild(directory)
    print(_as_json(directory, built, html) if as_json else html)
    return _failed(fail_if, built)


def _as_json(directory: Path, built: Report, html: Path) -> str:
    told = {"version": 1, "sentence": built.sentence, "results": str(directory), "report": str(html)}
    return json.dumps({**told, "report_json": str(directory / report_of.REPORT)}, indent=1)


def _failed(fail_if: tuple[str, ...], built: Report) -> int:
    sentences = conditions.broken_conditions(fail_if, built)
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    return int(bool(sentences))


def _rebuild(directory: Path) -> tuple[Report, Path]:
    built = report_of.build(directory)
    report_of.write(directory, built)
    return built, page.write(directory, built)


def plan(arms: tuple[Arm, ...], load: records.Load) -> list[PendingRun]:
    """Every arm once per point and repeat. Each repeat begins with another arm, so that none is always the first one after a pause."""
    runs: list[PendingRun] = []
    for repeat in range(load.repeats):
        for index, point in enumerate(load.points):
            turn = (repeat + index) % len(arms) if arms else 0
            for arm in (*arms[turn:], *arms[:turn]):
                at = f"-{point:g}" if len(load.points) > 1 else ""
                rows = f"{records.RUNS}/{len(runs):03d}-{arm.name}{at}-repeat{repeat + 1}.csv"
                runs.append(PendingRun(arm, point, repeat + 1, load.seed + repeat, rows))
    return runs


def _run(options: CampaignOptions) -> int:
    campaign = read_campaign(options.file, options.replayed).lasting(
        options.duration_s, options.warmup_s, options.repeats
    )
    conditions.check(options.fail_if, [arm.name for arm in campaign.arms])
    started = datetime.now().astimezone()
    found = find_gateway(options.url)
    directory = new_directory(options.output, campaign.name, started, records.RUNS)
    with ExitStack() as stack, Progress() as progress:
        stack.enter_context(sigterm_as_interrupt())
        try:
            if found is None:
                progress.say("no gateway at 127.0.0.1:8080: starting `tandem up` (a first start takes minutes)")
                found = stack.enter_context(own_gateway(directory / "gateway.log", options.model_repository))
            prepared = _prepare(campaign, options, found, directory, stack)
            manifest = _manifest(campaign, prepared, options, found, started)
            manifest = _execute(campaign, manifest, found, directory, progress)
        except KeyboardInterrupt:
            if not (directory / records.MANIFEST).exists():
                progress.say("interrupted before the first run; nothing was kept")
                return INTERRUPTED
            manifest = replace(records.read_manifest(directory), is_interrupted=True)
            records.write_manifest(directory, manifest)
    return _conclude(directory, manifest, options)


def _conclude(directory: Path, manifest: records.Manifest, options: CampaignOptions) -> int:
    built, html = _rebuild(directory)
    print(_as_json(directory, built, html) if options.as_json else f"{built.sentence}\nreport: {html}")
    code = _failed(options.fail_if, built)
    if manifest.is_interrupted:
        return INTERRUPTED
    able = [arm for arm in built.arms if not arm.not_run]
    return code if able and all(arm.num_runs for arm in able) else 1


def new_directory(output: Path | None, name: str, started: datetime, *folders: str) -> Path:
    """For results: where --output says, or below results/. Raises ResultsError."""
    path = output or Path("results") / f"{name}-{started:%Y%m%d-%H%M%S}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ResultsError(f"{path} is not empty; name a new directory with --output.")
        for folder in folders:
            (path / folder).mkdir()
    except OSError as error:
        raise ResultsError(f"{path} cannot be made: {error.strerror}; name another directory with --output.") from None
    return path


def _prepare(
    campaign: Campaign, options: CampaignOptions, gateway: Gateway, directory: Path, stack: ExitStack
) -> RequestSource | None:
    """What every run sends, in a file beside the rows until the campaign ends; None of a model that is not served."""
    metadata = gateway.metadata(campaign.model)
    if metadata is None:
        return None
    given = (campaign.payload, campaign.model, metadata, campaign.folder, options.model_repository, campaign.load.seed)
    prepared = prepare(*given)
    file = directory / records.RUNS / INPUTS
    stack.callback(file.unlink, missing_ok=True)
    prepared.given.write(file)
    return prepared


def _manifest(
    campaign: Campaign, prepared: RequestSource | None, options: CampaignOptions, gateway: Gateway, started: datetime
) -> records.Manifest:
    status = gateway.status()
    arms = []
    for arm in campaign.arms:
        reason = not_run_reason(status, campaign.model, arm.variant, arm.pool)
        if reason is None:
            reason = _refusal(campaign, arm, prepared, gateway)
        arms.append(records.ArmRecord(arm.name, arm.variant, arm.pool, reason, arm.is_again))
    return records.Manifest(
        name=campaign.name,
        model=campaign.model,
        started=started.isoformat(timespec="seconds"),
        command=options.command,
        url=gateway.url,
        is_local=gateway.is_local,
        machine=this_machine(),
        versions={**versions(), **gateway.versions()},
        load=campaign.load,
        payload=campaign.payload if prepared is None else prepared.payload,
        baseline=campaign.baseline,
        arms=tuple(arms),
        note=campaign.note,
    )


def _refusal(campaign: Campaign, arm: Arm, prepared: RequestSource | None, gateway: Gateway) -> str | None:
    if prepared is None:
        return f"the gateway does not serve a model named {campaign.model}"
    return gateway.refusal(campaign.model, arm.variant, arm.pool, prepared.first)


def _execute(
    campaign: Campaign, manifest: records.Manifest, gateway: Gateway, directory: Path, progress: Progress
) -> records.Manifest:
    able = {arm.name for arm in manifest.arms if arm.not_run is None}
    for arm in manifest.arms:
        if arm.not_run:
            progress.say(f"{arm.variant} on {arm.pool}: not run: {arm.not_run}")
    runs = plan(tuple(arm for arm in campaign.arms if arm.name in able), campaign.load)
    recorded = campaign.recorded
    times_s = [at for at, _ in recorded]
    if recorded:
        text = "".join(f"{at:.6f} {rows}\n" for at, rows in recorded)
        (directory / records.RUNS / ARRIVALS).write_text(text, encoding="utf-8")
    manifest = replace(manifest, num_planned=len(runs))
    records.write_manifest(directory, manifest)
    for number, planned in enumerate(runs, start=1):
        at = f" at {point_label(campaign.load, planned.point)}" if len(campaign.load.points) > 1 else ""
        title = f"run {number}/{len(runs)}: {planned.title}{at}, repeat {planned.repeat}"
        record = _one(campaign, planned, times_s, gateway, directory, progress, title)
        manifest = replace(manifest, runs=(*manifest.runs, record), is_interrupted=record.state == "interrupted")
        records.write_manifest(directory, manifest)
        progress.say(f"{title}: {report_of.describe(record, directory, manifest)}")
        if manifest.is_interrupted:
            break
    return manifest


def _one(
    campaign: Campaign,
    planned: PendingRun,
    times_s: list[float],
    gateway: Gateway,
    directory: Path,
    progress: Progress,
    title: str,
) -> records.RunRecord:
    names = triton_names(gateway.status(), campaign.model, planned.arm.variant)
    arm = (gateway, campaign.model, planned.arm.variant, planned.arm.pool)
    before, scraped = (gateway.num_requests(), gateway.num_inferences(names)), scrape(*arm)
    started = datetime.now().astimezone()
    with watching(*arm) as readings:
        state, reason = generate(campaign, planned, gateway.url, directory, progress, title)
    after = gateway.num_requests(), gateway.num_inferences(names)
    window = measured_window(directory / planned.rows, campaign.load.warmup_s, campaign.load.end_s)
    return records.RunRecord(
        arm=planned.arm.name,
        point=planned.point,
        repeat=planned.repeat,
        rows=planned.rows,
        seed=planned.seed,
        started=started.isoformat(timespec="milliseconds"),
        state=state,
        reason=reason,
        is_reachable_after=gateway.is_ready(),
        gateway_counted=_difference(before[0], after[0]),
        triton_counted=_difference(before[1], after[1]),
        generator_cpu_ratio=generator_cpu_ratio(directory / planned.rows),
        is_generator_real_time=is_real_time(directory / planned.rows),
        num_scheduled=_num_scheduled(campaign.load, planned, times_s),
        evidence=evidence(scraped, scrape(*arm), readings, window),
    )


def _num_scheduled(load: records.Load, planned: PendingRun, times_s: list[float]) -> int | None:
    """By the schedule, not by what the generator says that it did."""
    if load.kind == "closed":
        return None
    times = schedule(load.at(planned.point, times_s), load.end_s, planned.seed)
    return sum(1 for at in times if at >= load.warmup_s)


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
