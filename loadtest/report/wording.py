"""What does a report say in plain words? Each arm against the baseline, what is missing, and what a reader must know first."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.records import ArmRecord, Load, Manifest
from loadtest.report.summaries import ArmSummary, RunSummary, device_kind, milliseconds, number
from loadtest.validity import BUSY_GENERATOR
from serving.measure.intervals import FALSE_ALARM_RATIO, MIN_REPEATS, Difference

EMULATED = "emulated"  # how names of pools and devices begin whose times follow a file (docs/emulated.md)
WHAT_IF = "inconclusive (what-if)"


def label(arm: ArmSummary | ArmRecord) -> str:
    plain, usual = f"{arm.variant} on {arm.pool}", f"{arm.variant}-{arm.pool}"
    if arm.is_again and arm.name == f"{usual}-again":
        return f"{plain} again"
    return plain if arm.name == usual else f"{arm.name} ({plain})"


def emulated(arms: Sequence[ArmSummary]) -> list[str]:
    """The pools and devices of a report whose times follow a file: by name, because a pool that gave no answer has no receipt."""
    names = {name for arm in arms for name in (arm.pool, *map(device_kind, arm.devices))}
    return sorted(name for name in names if name.startswith(EMULATED))


def verdict(arms: Sequence[ArmSummary]) -> str | None:
    """Whatever the numbers are: a file's times prove nothing about a device, so with one of them in it nothing ever pays."""
    return WHAT_IF if emulated(arms) else None


def point_label(load: Load, point: float) -> str:
    if load.kind == "open":
        return f"{point:,.6g} requests per second"
    return f"{point:g} user{'' if point == 1 else 's'}"


def sentence(arms: Sequence[ArmSummary], load: Load) -> str:
    """The result in plain words, in a line."""
    return " ".join(paragraphs(arms, load))


def paragraphs(arms: Sequence[ArmSummary], load: Load) -> list[str]:
    """Each arm against the baseline, a paragraph for each point of the load; then what is missing."""
    told = []
    if names := emulated(arms):
        told.append(f"{WHAT_IF.capitalize()}: the times of {', '.join(names)} come from a file, not from a device.")
    for point in load.points:
        said = " ".join(_at_point([arm for arm in arms if arm.point == point], load))
        told.append(f"At {point_label(load, point)}: {said}" if len(load.points) > 1 or load.kind == "open" else said)
    last = " ".join(_not_there(arms, load))
    return [*told, last] if last else told


def _not_there(arms: Sequence[ArmSummary], load: Load) -> list[str]:
    """Arms that were not run, and those without a valid run."""
    parts = _missing([arm for arm in arms if arm.point == load.points[0]])
    for point in load.points:
        empty = [label(a) for a in arms if a.point == point and not a.not_run and not a.num_runs and not a.is_baseline]
        if empty:
            at = f" at {point_label(load, point)}" if len(load.points) > 1 else ""
            parts.append(f"No valid run{at}: {', '.join(empty)}.")
    return parts


def _at_point(arms: Sequence[ArmSummary], load: Load) -> list[str]:
    baseline = next(arm for arm in arms if arm.is_baseline)
    if baseline.throughput_rps is None:
        why = f"not run: {baseline.not_run}" if baseline.not_run else "without a valid run"
        return [f"Nothing can be compared: the baseline, {label(baseline)}, was {why}."]
    others = [arm for arm in arms if not arm.is_baseline and arm.throughput_rps]
    again = [_itself(arm, load) for arm in others if arm.is_again]
    others = [arm for arm in others if not arm.is_again]
    if load.kind == "open":
        return [
            f"{label(baseline)} {_answers(baseline, load)}.",
            *(_in_time(arm, baseline, load) for arm in others),
            *again,
        ]
    rate = number(baseline.throughput_rps.median)
    first = f"{label(baseline)} answers {rate} requests per second{_median_ms(baseline)}."
    return [first, *(_against(arm, baseline) for arm in others), *again]


def _itself(arm: ArmSummary, load: Load) -> str:
    """What two equal arms look like here."""
    ratio = arm.speed_ratio if load.kind == "open" else arm.throughput_ratio
    what = "median latency" if load.kind == "open" else "requests per second"
    if ratio is None or ratio.smallest_seen_ratio is None:
        return f"The baseline beside itself: {_inconclusive(ratio)}."
    if ratio.outcome != "no_difference_seen":
        return (
            f"The baseline beside itself was told apart ({_between(ratio)} times in {what}): a false alarm, as two equal arms give in "
            f"{FALSE_ALARM_RATIO:.0%} of reports. Differences of this size mean nothing here."
        )
    return (
        f"The baseline beside itself was not told apart ({_between(ratio)} times in {what}): a difference under "
        f"{_percent(ratio.smallest_seen_ratio)} would not have been seen."
    )


def _missing(arms: Sequence[ArmSummary]) -> list[str]:
    baseline = next(arm for arm in arms if arm.is_baseline)
    missing = [arm for arm in arms if arm.not_run and not (arm.is_baseline and baseline.throughput_rps is None)]
    reasons: dict[str, list[str]] = {}
    for arm in missing:
        reasons.setdefault(arm.not_run or "", []).append(label(arm))
    return [f"Not run: {', '.join(names)} ({reason})." for reason, names in reasons.items()]


def _answers(arm: ArmSummary, load: Load) -> str:
    assert load.objective_s
    assert arm.within_objective_ratio
    share = f"{arm.within_objective_ratio.median:.2%} within {milliseconds(load.objective_s)} ms"
    whose, their = ("the good answers", " of these") if arm.num_errors else ("all", "")  # what failed is in no latency
    median = (
        "" if arm.latency_p50_s is None else f", half of {whose} within {milliseconds(arm.latency_p50_s.median)} ms"
    )
    slowest = "" if arm.latency_p99_s is None else f", 99 %{their} within {milliseconds(arm.latency_p99_s.median)} ms"
    return f"answers {share}{median}{slowest}"


def _in_time(arm: ArmSummary, baseline: ArmSummary, load: Load) -> str:
    said = f"{label(arm)} {_answers(arm, load)}"
    ratio = arm.speed_ratio
    if ratio is None or ratio.low is None:
        return f"{said}; {_inconclusive(ratio)}."
    median = "the median of its good answers" if arm.num_errors or baseline.num_errors else "its median"
    if ratio.outcome == "no_difference_seen":
        return f"{said}, not to be told apart: {median} is {_between(ratio)} times as fast."
    called = "faster" if ratio.outcome == "higher" else "slower"
    return f"{said}; {median} is {ratio.ratio:.2f} times as fast ({_between(ratio)}), {called}."


def _against(arm: ArmSummary, baseline: ArmSummary) -> str:
    ratio = arm.throughput_ratio
    assert arm.throughput_rps
    assert baseline.throughput_rps
    if ratio is None:
        mine = f"{label(arm)} answers {number(arm.throughput_rps.median)}{_median_ms(arm)}"
        return f"{mine}, but no repeat has a valid baseline run beside it."
    times = f"{label(arm)} answers {ratio.ratio:.2f} times as many{_median_ms(arm)}"
    if ratio.low is None:
        return f"{times}; {_inconclusive(ratio)}."
    if ratio.outcome == "no_difference_seen":
        return f"{label(arm)} cannot be told apart from it: {_between(ratio)} times as many{_median_ms(arm)}."
    return f"{times}: {_between(ratio)} times over {len(ratio.runs)} repeats, {'more' if ratio.outcome == 'higher' else 'fewer'}."


def _percent(share: float) -> str:
    """Two digits: no interval of few repeats is known better."""
    return f"{share:.2%}" if share < 0.01 else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _between(ratio: Difference) -> str:
    """The interval, with as many digits as tell its ends apart from 1."""
    assert ratio.low is not None
    assert ratio.high is not None
    digits = 2 if max(abs(ratio.low - 1), abs(ratio.high - 1)) >= 0.01 else 4
    return f"{ratio.low:.{digits}f} to {ratio.high:.{digits}f}"


def _inconclusive(ratio: Difference | None) -> str:
    """Too little to say whether that is noise."""
    if ratio is None:
        return "inconclusive: too few requests for a median, or no valid run of the baseline beside one"
    num = len(ratio.runs)
    return f"inconclusive: {num} repeat{'' if num == 1 else 's'} cannot say how much of that is noise, which takes {MIN_REPEATS}"


def _median_ms(arm: ArmSummary) -> str:
    return "" if arm.latency_p50_s is None else f" (median latency {milliseconds(arm.latency_p50_s.median)} ms)"


def _before_all_others(manifest: Manifest) -> str:
    """The priority that the generator had, and kept."""
    num = sum(1 for run in manifest.runs if run.is_generator_real_time)
    in_some = f" in {num} of {len(manifest.runs)} runs" if num < len(manifest.runs) else ""
    return f", before all other work{in_some} (real-time priority)" if num else ""


def caveats(manifest: Manifest, arms: Sequence[ArmSummary], runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """What a reader must know before believing the sentence."""
    said = [text for text in (manifest.note, manifest.payload.remark) if text]
    if manifest.is_interrupted or len(manifest.runs) < manifest.num_planned:
        done = sum(1 for run in manifest.runs if run.state == "done")
        said.append(f"Partial: {done} of {manifest.num_planned} runs were made before the campaign was interrupted.")
    if manifest.is_local:
        cores = f"{manifest.machine.num_cores:g} cores"
        first = _before_all_others(manifest)
        said.append(f"The load generator ran on the same {cores} as the server and took its share of them{first}.")
    busy = max((run.generator_cpu_ratio or 0.0 for run in runs if run.void is None), default=0.0)
    if busy > BUSY_GENERATOR:
        limit = "it may limit the throughput of the fastest arms, so ratios are understated"
        said.append(f"The generator used up to {busy:.0%} of a core: {limit}.")
    if others := [run.num_others for run in runs if run.void is None and run.num_others]:
        where = f"in {len(others)} run{'' if len(others) == 1 else 's'}"
        many = f"{where} it counted up to {max(others):,} requests that the load test did not send"
        said.append(f"Others used the gateway, too: {many}. They took their share of the servers.")
    dropped = max((run for run in runs if run.void is None), key=lambda run: run.num_dropped, default=None)
    if dropped is not None and dropped.num_dropped:
        waiting = f"{manifest.load.max_in_flight:,} waited for their answers"
        many = f"up to {dropped.num_dropped:,} requests of a run"
        said.append(f"Dropped and never sent: {many}, due while {waiting}. They are not in time, and in no latency.")
    if unstable := sum(1 for run in runs if run.void is None and run.unstable):
        valid = sum(1 for run in runs if run.void is None)
        said.append(
            f"Not stable: {unstable} of {valid} runs changed from their beginning to their end, as told below; they count all the same."
        )
    if any(arm.num_errors for arm in arms):
        said.append("Some requests failed; throughput and latency count good answers only.")
    unproven = sorted({device_kind(d) for arm in arms for d in arm.devices} - {"cpu", "gpu"})
    if unproven:
        said.append(f"Receipts tell of devices that are no proven CPU or GPU: {', '.join(unproven)}.")
    return tuple(said)
