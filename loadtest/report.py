"""What do the rows of a campaign mean? From a results directory to numbers and one plain sentence; `report.json` holds all of it.

Everything is computed from the rows and the manifest, with a fixed seed, so that a report built again is the same. Pure but for `build`,
which reads, and `write`. Deliberately not here: how it looks (`page.py`), what it costs and whether a GPU pays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadtest import records
from loadtest.errors import ResultsError
from loadtest.estimates import Estimate, curve, estimate, is_apart, percentile
from loadtest.records import ArmRecord, Load, Manifest, Row, RunRecord

VERSION = 1
REPORT = "report.json"
PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
# Above this the generator, not the server, may set the throughput of a closed loop (Locust's own warning is at the same place).
BUSY_GENERATOR = 0.9
EMULATED = "emulated"  # how names of pools and devices begin whose times follow a file (docs/emulated.md)
WHAT_IF = "inconclusive (what-if)"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run. `void` says why it does not count; None if it counts. Latencies of good answers to requests sent after the warm-up."""

    arm: str
    repeat: int
    state: str
    void: str | None
    rows: str
    started: str
    num_ok: int
    num_errors: int
    num_wrong: int | None  # good answers with another label than the true one; None where no truth is known
    throughput_rps: float
    latency_p50_s: float | None
    latency_p90_s: float | None
    latency_p99_s: float | None
    generator_cpu_ratio: float | None


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One arm over its valid runs. Ratios are per repeat against the baseline's run of the same repeat; above 1 is faster."""

    name: str
    variant: str
    pool: str
    is_baseline: bool
    not_run: str | None
    devices: tuple[str, ...]  # as the receipts tell
    num_runs: int
    num_void: int
    num_ok: int
    num_errors: int
    errors: dict[str, int]
    accuracy: float | None
    throughput_rps: Estimate | None
    latency_p50_s: Estimate | None
    latency_p90_s: Estimate | None
    latency_p99_s: Estimate | None
    throughput_ratio: Estimate | None  # this arm's requests per second / the baseline's
    speed_ratio: Estimate | None  # the baseline's median latency / this arm's
    latency_curve: tuple[tuple[float, float], ...]  # (seconds, share of requests at or below)


@dataclass(frozen=True, slots=True)
class Report:
    """`verdict` is None where none is given: what a device costs is not known here."""

    sentence: str
    verdict: str | None
    caveats: tuple[str, ...]
    is_partial: bool
    manifest: Manifest
    arms: tuple[ArmSummary, ...]
    runs: tuple[RunSummary, ...]
    version: int = VERSION


def build(directory: Path) -> Report:
    """Reads a results directory. Raises ResultsError."""
    manifest = records.read_manifest(directory)
    rows = {run.rows: _read(directory / run.rows) for run in manifest.runs}
    return summarise(manifest, rows)


def write(directory: Path, report: Report) -> Path:
    records.write_json(directory / REPORT, asdict(report))
    return directory / REPORT


def describe(run: RunRecord, directory: Path, manifest: Manifest) -> str:
    """One run in a line, for the progress display."""
    arm = next(arm for arm in manifest.arms if arm.name == run.arm)
    summary = summarise_run(run, arm, manifest.load, _read(directory / run.rows))
    if summary.void:
        return f"{summary.state if summary.state == 'interrupted' else 'void'}: {summary.void}"
    median = "" if summary.latency_p50_s is None else f", p50 {summary.latency_p50_s * 1000:.2f} ms"
    return f"{summary.throughput_rps:,.0f} requests/s{median}, {summary.num_errors} errors"


def _read(path: Path) -> list[Row]:
    """No file: the run ended before its first row."""
    try:
        return records.read_rows(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error}.") from error


# -- one run ----------------------------------------------------------------------------------------------------------


def sent_in_window(rows: Sequence[Row], load: Load) -> list[Row]:
    """Requests sent after the warm-up and before the end. Their answers may come later: users wait for their last one."""
    return [r for r in rows if load.warmup_s <= r.start_s < load.warmup_s + load.duration_s]


def throughput_rps(rows: Sequence[Row], load: Load) -> float:
    """Good answers that came within the window, whenever they were sent, per second: no edge is counted twice or lost."""
    end_s = load.warmup_s + load.duration_s
    return sum(1 for r in rows if r.is_ok and load.warmup_s <= r.start_s + r.latency_s < end_s) / load.duration_s


def void_reason(run: RunRecord, arm: ArmRecord, load: Load, rows: Sequence[Row]) -> str | None:
    """Why a run must not be compared, the gravest first; None if it may."""
    if run.state != "done":
        return run.reason or run.state
    sent = sent_in_window(rows, load)
    good = [r for r in sent if r.is_ok]
    if not good:
        return f"no successful request ({_count(Counter(r.error for r in sent)) or 'none was sent'})"
    if not throughput_rps(rows, load):
        return f"no answer arrived within the {load.duration_s:g} measured seconds; make the run longer"
    if not run.is_reachable_after:
        return "the gateway was not ready after the run"
    for what, asked, told in (
        ("variant", arm.variant, [r.variant for r in good]),
        ("pool", arm.pool, [r.pool for r in good]),
    ):
        others = Counter(value or "nothing" for value in told if value != asked)
        if others:
            return f"asked for {what} {asked}, but receipts show {_count(others)}"
    if arm.pool == "gpu" and any(device_kind(r.device) == "cpu" for r in good):
        return "the receipts of the gpu pool say that a CPU did the work"
    if run.gateway_counted is not None and run.gateway_counted < sum(1 for r in rows if r.status):
        return f"the gateway was restarted during the run: it counted {run.gateway_counted} of {len(rows)} requests"
    num_ok = sum(1 for r in rows if r.is_ok)
    if run.triton_counted is not None and run.triton_counted < num_ok:
        return f"Triton or its model was restarted during the run: it counted {run.triton_counted} of {num_ok} requests"
    return None


def device_kind(device: str) -> str:
    """`cpu; name="…"` -> `cpu`"""
    return device.partition(";")[0].strip()


def summarise_run(run: RunRecord, arm: ArmRecord, load: Load, rows: Sequence[Row]) -> RunSummary:
    sent = sent_in_window(rows, load)
    good = [r for r in sent if r.is_ok]
    judged = [r.correct for r in good if r.correct is not None]
    latencies = _latencies(good)
    quantiles = {name: percentile(latencies, q) for name, q in PERCENTILES.items()}
    return RunSummary(
        arm=run.arm,
        repeat=run.repeat,
        state=run.state,
        void=void_reason(run, arm, load, rows),
        rows=run.rows,
        started=run.started,
        num_ok=len(good),
        num_errors=len(sent) - len(good),
        num_wrong=len(judged) - sum(judged) if judged else None,
        throughput_rps=throughput_rps(rows, load),
        latency_p50_s=quantiles["p50"],
        latency_p90_s=quantiles["p90"],
        latency_p99_s=quantiles["p99"],
        generator_cpu_ratio=run.generator_cpu_ratio,
    )


def _latencies(rows: Sequence[Row]) -> npt.NDArray[np.float64]:
    return np.array([r.latency_s for r in rows], dtype=np.float64)


# -- arms -------------------------------------------------------------------------------------------------------------


def summarise(manifest: Manifest, rows: Mapping[str, Sequence[Row]]) -> Report:
    """`rows` by the file name that the manifest gives each run."""
    by_name = {arm.name: arm for arm in manifest.arms}
    runs = tuple(summarise_run(run, by_name[run.arm], manifest.load, rows[run.rows]) for run in manifest.runs)
    arms = tuple(_arm(arm, manifest, runs, rows) for arm in manifest.arms)
    is_partial = manifest.is_interrupted or len(manifest.runs) < manifest.num_planned
    told = caveats(manifest, arms, runs)
    return Report(sentence(arms), verdict(arms), told, is_partial, manifest, arms, runs)


def _arm(
    arm: ArmRecord, manifest: Manifest, runs: Sequence[RunSummary], rows: Mapping[str, Sequence[Row]]
) -> ArmSummary:
    own = [run for run in runs if run.arm == arm.name]
    valid = [run for run in own if run.void is None]
    baseline = {run.repeat: run for run in runs if run.arm == manifest.baseline and run.void is None}
    sent = [row for run in valid for row in sent_in_window(rows[run.rows], manifest.load)]
    good = [row for row in sent if row.is_ok]
    judged = [row.correct for row in good if row.correct is not None]
    seed = manifest.load.seed
    pairs = [(run, baseline[run.repeat]) for run in valid if run.repeat in baseline and arm.name != manifest.baseline]
    speeds = [b.latency_p50_s / r.latency_p50_s for r, b in pairs if r.latency_p50_s and b.latency_p50_s]
    return ArmSummary(
        name=arm.name,
        variant=arm.variant,
        pool=arm.pool,
        is_baseline=arm.name == manifest.baseline,
        not_run=arm.not_run,
        devices=tuple(sorted({row.device for row in good})),
        num_runs=len(valid),
        num_void=sum(1 for run in own if run.void and run.state != "interrupted"),
        num_ok=len(good),
        num_errors=len(sent) - len(good),
        errors=dict(sorted(Counter(row.error for row in sent if row.error).items())),
        accuracy=sum(judged) / len(judged) if judged else None,
        throughput_rps=estimate([run.throughput_rps for run in valid], seed),
        latency_p50_s=_over([run.latency_p50_s for run in valid], seed),
        latency_p90_s=_over([run.latency_p90_s for run in valid], seed),
        latency_p99_s=_over([run.latency_p99_s for run in valid], seed),
        throughput_ratio=estimate([r.throughput_rps / b.throughput_rps for r, b in pairs], seed),
        speed_ratio=estimate(speeds, seed),
        latency_curve=tuple(curve(_latencies(good))),
    )


def _over(values: Sequence[float | None], seed: int) -> Estimate | None:
    """None as soon as one run had too few requests for this percentile."""
    known = [value for value in values if value is not None]
    return estimate(known, seed) if len(known) == len(values) else None


# -- words ------------------------------------------------------------------------------------------------------------


def label(arm: ArmSummary | ArmRecord) -> str:
    plain = f"{arm.variant} on {arm.pool}"
    return plain if arm.name == f"{arm.variant}-{arm.pool}" else f"{arm.name} ({plain})"


def emulated(arms: Sequence[ArmSummary]) -> list[str]:
    """The pools and devices of a report whose times follow a file: by name, because a pool that gave no answer has no receipt."""
    names = {name for arm in arms for name in (arm.pool, *map(device_kind, arm.devices))}
    return sorted(name for name in names if name.startswith(EMULATED))


def verdict(arms: Sequence[ArmSummary]) -> str | None:
    """Whatever the numbers are: a file's times prove nothing about a device, so with one of them in it nothing ever pays."""
    return WHAT_IF if emulated(arms) else None


def sentence(arms: Sequence[ArmSummary]) -> str:
    """The result in plain words: each arm against the baseline, then what is missing."""
    baseline = next(arm for arm in arms if arm.is_baseline)
    parts = []
    if names := emulated(arms):
        parts.append(f"{WHAT_IF.capitalize()}: the times of {', '.join(names)} come from a file, not from a device.")
    if baseline.throughput_rps is None:
        why = f"not run: {baseline.not_run}" if baseline.not_run else "without a valid run"
        parts.append(f"Nothing can be compared: the baseline, {label(baseline)}, was {why}.")
    else:
        parts.append(
            f"{label(baseline)} answers {number(baseline.throughput_rps.median)} requests per second{_median_ms(baseline)}."
        )
        parts += [_against(arm, baseline) for arm in arms if not arm.is_baseline and arm.throughput_rps]
    missing = [arm for arm in arms if arm.not_run and not (arm.is_baseline and baseline.throughput_rps is None)]
    if missing:
        reasons: dict[str, list[str]] = {}
        for arm in missing:
            reasons.setdefault(arm.not_run or "", []).append(label(arm))
        parts += [f"Not run: {', '.join(names)} ({reason})." for reason, names in reasons.items()]
    empty = [label(arm) for arm in arms if not arm.not_run and not arm.num_runs and not arm.is_baseline]
    if empty:
        parts.append(f"No valid run: {', '.join(empty)}.")
    return " ".join(parts)


def _against(arm: ArmSummary, baseline: ArmSummary) -> str:
    ratio = arm.throughput_ratio
    assert arm.throughput_rps
    assert baseline.throughput_rps
    if ratio is None:
        mine = f"{label(arm)} answers {number(arm.throughput_rps.median)}{_median_ms(arm)}"
        return f"{mine}, but no repeat has a valid baseline run beside it."
    times = f"{label(arm)} answers {ratio.median:.2f} times as many{_median_ms(arm)}"
    if len(ratio.runs) == 1:
        return f"{times}; one repeat cannot say how much of that is noise."
    between = f"{min(ratio.runs):.2f} to {max(ratio.runs):.2f} times over {len(ratio.runs)} repeats"
    if order := is_apart(arm.throughput_rps.runs, baseline.throughput_rps.runs):
        return f"{times}: {between}, {'more' if order > 0 else 'fewer'} in every run."
    return f"{label(arm)} cannot be told apart from it: {between}{_median_ms(arm)}."


def _median_ms(arm: ArmSummary) -> str:
    return "" if arm.latency_p50_s is None else f" (median latency {milliseconds(arm.latency_p50_s.median)} ms)"


def caveats(manifest: Manifest, arms: Sequence[ArmSummary], runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """What a reader must know before believing the sentence."""
    said = [] if manifest.note is None else [manifest.note]
    if manifest.is_interrupted or len(manifest.runs) < manifest.num_planned:
        done = sum(1 for run in manifest.runs if run.state == "done")
        said.append(f"Partial: {done} of {manifest.num_planned} runs were made before the campaign was interrupted.")
    if manifest.is_local:
        cores = f"{manifest.machine.num_cores:g} cores"
        said.append(f"The load generator ran on the same {cores} as the server and took its share of them.")
    busy = max((run.generator_cpu_ratio or 0.0 for run in runs if run.void is None), default=0.0)
    if busy > BUSY_GENERATOR:
        limit = "it may limit the throughput of the fastest arms, so ratios are understated"
        said.append(f"The generator used up to {busy:.0%} of a core: {limit}.")
    if any(arm.num_errors for arm in arms):
        said.append("Some requests failed; throughput and latency count good answers only.")
    unproven = sorted({device_kind(d) for arm in arms for d in arm.devices} - {"cpu", "gpu"})
    if unproven:
        said.append(f"Receipts tell of devices that are no proven CPU or GPU: {', '.join(unproven)}.")
    return tuple(said)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def milliseconds(value_s: float) -> str:
    """Three significant digits: what the repeats of such a run agree on at best."""
    value = value_s * 1000
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _count(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({num:,})" for name, num in sorted(counts.items(), key=lambda item: -item[1]))
