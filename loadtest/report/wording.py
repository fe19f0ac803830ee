"""Says a report in plain words: each arm against the baseline, what is missing, and what a reader must know first."""

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
    """The answer, then the result of each arm, in a line."""
    return " ".join(filter(None, (answer(arms, load), *paragraphs(arms, load))))


def chosen(arms: Sequence[ArmSummary], load: Load) -> tuple[ArmSummary, ArmSummary] | None:
    """The arm to use and the baseline, at the highest point of the load at which both ran.

    The fastest of those that are significantly faster; the baseline itself where none is. None: nothing can be compared.
    """
    for point in sorted(load.points, reverse=True):
        here = [arm for arm in arms if arm.point == point and arm.throughput_rps is not None]
        baseline = next((arm for arm in here if arm.is_baseline), None)
        faster = [(ratio.ratio, arm) for arm in here if (ratio := of_load(arm, load)) and ratio.outcome == "higher"]
        if baseline is not None and len(here) > 1:
            return max(faster, key=lambda one: one[0])[1] if faster else baseline, baseline
    return None


def of_load(arm: ArmSummary, load: Load) -> Difference | None:
    """The one comparison with the baseline: by median latency in an open loop, by throughput in a closed one."""
    return None if arm.is_again else arm.speed_ratio if load.kind == "open" else arm.throughput_ratio


def _what_if(arms: Sequence[ArmSummary]) -> str:
    names = emulated(arms)
    return (
        f"{WHAT_IF.capitalize()}: the times of {', '.join(names)} come from a file, not from a device. "
        if names
        else ""
    )


def answer(arms: Sequence[ArmSummary], load: Load) -> str:
    """One sentence to forward: which arm, what it does, how much better and how well that is known, and how right its answers are."""
    if (found := chosen(arms, load)) is None:
        return ""
    arm, baseline = found
    at = f"at {point_label(load, arm.point)}"
    if load.kind == "open":
        slowest = "" if arm.latency_p99_s is None else f", p99 {milliseconds(arm.latency_p99_s.median)} ms"
        does = f"{at} {_share(arm, load)}{slowest}"
    else:
        assert arm.throughput_rps is not None
        does = f"{at} it answers {number(arm.throughput_rps.median)} requests per second{_median_ms(arm)}"
    right = "" if arm.accuracy is None else f", {arm.accuracy:.2%} of its answers are right"
    if arm is baseline:
        is_known = all((it := of_load(one, load)) is None or it.low is not None for one in arms)
        why = (
            "nothing was significantly faster"
            if is_known
            else f"fewer than {MIN_REPEATS} repeats cannot tell what is faster"
        )
        return f"{_what_if(arms)}Stay with {label(baseline)}: {does}{right}; {why}."
    ratio = of_load(arm, load)
    assert ratio is not None
    before = "" if baseline.accuracy is None or not right else f" ({baseline.accuracy:.2%} of the baseline's)"
    what = "its median is" if load.kind == "open" else "that is"
    better = f"{what} {ratio.ratio:.2f} times as {'fast' if load.kind == 'open' else 'many'} as {label(baseline)}"
    return f"{_what_if(arms)}Use {label(arm)}: {does}; {better}, {between(ratio)}{right}{before}."


def between(ratio: Difference) -> str:
    """The interval in words."""
    if ratio.low is None or ratio.high is None:
        return "how much of it is noise is not known"
    return f"with {1 - FALSE_ALARM_RATIO:.0%} certainty between {' and '.join(_interval(ratio).split('–'))} times"


def _share(arm: ArmSummary, load: Load) -> str:
    assert load.objective_s
    assert arm.within_objective_ratio
    return f"{arm.within_objective_ratio.median:.2%} come within {milliseconds(load.objective_s)} ms"


def paragraphs(arms: Sequence[ArmSummary], load: Load) -> list[str]:
    """Each arm against the baseline, a paragraph for each point of the load; then what is missing."""
    texts = []
    if not answer(arms, load) and (doubt := _what_if(arms)):
        texts.append(doubt.strip())
    for point in load.points:
        here = " ".join(_at_point([arm for arm in arms if arm.point == point], load))
        texts.append(f"At {point_label(load, point)}: {here}" if len(load.points) > 1 or load.kind == "open" else here)
    last = " ".join(_not_there(arms, load))
    return [*texts, last] if last else texts


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
        reason = f"was not run: {baseline.not_run}" if baseline.not_run else "has no valid run"
        return [f"Nothing can be compared: the baseline, {label(baseline)}, {reason}."]
    if load.kind == "open":
        first = f"{label(baseline)} answers {_in_time(baseline, load)}."
    else:
        rate = number(baseline.throughput_rps.median)
        first = f"{label(baseline)} answers {rate} requests per second{_median_ms(baseline)}."
    measured = [arm for arm in arms if not arm.is_baseline and arm.throughput_rps]
    others = [_against(arm, baseline, load) for arm in measured if not arm.is_again]
    return [first, *others, *(_itself(arm, load) for arm in measured if arm.is_again)]


def _itself(arm: ArmSummary, load: Load) -> str:
    """What two equal arms look like here."""
    ratio, what = (arm.speed_ratio, "speed-up") if load.kind == "open" else (arm.throughput_ratio, "throughput ratio")
    if ratio is None or ratio.smallest_seen_ratio is None:
        return f"The baseline against itself: {_inconclusive(ratio)}."
    if ratio.outcome != "no_difference_seen":
        return (
            f"The baseline differs significantly from itself ({what} {_interval(ratio)}): a false alarm, as two equal arms give in "
            f"{FALSE_ALARM_RATIO:.0%} of reports. Differences of this size mean nothing here."
        )
    return (
        f"The baseline shows no significant difference from itself ({what} {_interval(ratio)}); one under "
        f"{_percent(ratio.smallest_seen_ratio)} would have gone unnoticed."
    )


def _missing(arms: Sequence[ArmSummary]) -> list[str]:
    baseline = next(arm for arm in arms if arm.is_baseline)
    reasons: dict[str, list[str]] = {}
    for arm in arms:
        if arm.not_run and arm.name != baseline.name:
            reasons.setdefault(arm.not_run, []).append(label(arm))
    return [f"Not run: {', '.join(names)} ({reason})." for reason, names in reasons.items()]


def _in_time(arm: ArmSummary, load: Load) -> str:
    assert load.objective_s
    assert arm.within_objective_ratio
    share = f"{arm.within_objective_ratio.median:.2%} within {milliseconds(load.objective_s)} ms"
    whose, of = ("the good answers", " of these") if arm.num_errors else ("all", "")  # what failed is in no latency
    median = (
        "" if arm.latency_p50_s is None else f", half of {whose} within {milliseconds(arm.latency_p50_s.median)} ms"
    )
    slowest = "" if arm.latency_p99_s is None else f", 99 %{of} within {milliseconds(arm.latency_p99_s.median)} ms"
    return f"{share}{median}{slowest}"


def _against(arm: ArmSummary, baseline: ArmSummary, load: Load) -> str:
    """Against the baseline: by the median latency in an open loop, by throughput in a closed one."""
    assert arm.throughput_rps
    if load.kind == "open":
        ratio, what = arm.speed_ratio, "median latency"
        start = f"{label(arm)} answers {_in_time(arm, load)}"
        good = " of its good answers" if arm.num_errors or baseline.num_errors else ""
        times = f"{start}; the median{good} is {ratio.ratio if ratio else 0:.2f} times as fast"
    else:
        ratio, what = arm.throughput_ratio, "throughput"
        start = f"{label(arm)} answers {number(arm.throughput_rps.median)}{_median_ms(arm)}"
        times = f"{label(arm)} answers {ratio.ratio if ratio else 0:.2f} times as many{_median_ms(arm)}"
    if ratio is None:
        return f"{start}; {_inconclusive(ratio)}."
    if ratio.low is None:
        return f"{times}; {_inconclusive(ratio)}."
    if ratio.outcome == "no_difference_seen":
        return f"{start}; no significant difference in {what} (ratio {_interval(ratio)})."
    return f"{times}, a significant difference (ratio {_interval(ratio)})."


def _percent(share: float) -> str:
    """Two digits: no interval of few repeats is known better."""
    return f"{share:.2%}" if share < 0.01 else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _interval(ratio: Difference) -> str:
    """With as many digits as tell its ends apart from 1."""
    assert ratio.low is not None
    assert ratio.high is not None
    digits = 2 if max(abs(ratio.low - 1), abs(ratio.high - 1)) >= 0.01 else 4
    return f"{ratio.low:.{digits}f}–{ratio.high:.{digits}f}"


def _inconclusive(ratio: Difference | None) -> str:
    if ratio is None:
        return "inconclusive: no repeat has a valid run of both, or too few requests for a median"
    num = len(ratio.runs)
    return f"inconclusive: {num} repeat{'' if num == 1 else 's'} cannot show how much of that is noise; it takes {MIN_REPEATS}"


def _median_ms(arm: ArmSummary) -> str:
    return "" if arm.latency_p50_s is None else f" (median latency {milliseconds(arm.latency_p50_s.median)} ms)"


def caveats(manifest: Manifest, arms: Sequence[ArmSummary], runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """What a reader must know before believing the sentence."""
    valid = [run for run in runs if run.void is None]
    remarks = [text for text in (manifest.note, manifest.payload.remark) if text]
    if manifest.is_interrupted or len(manifest.runs) < manifest.num_planned:
        done = sum(1 for run in manifest.runs if run.state == "done")
        remarks.append(f"Partial: the campaign was interrupted after {done} of {manifest.num_planned} runs.")
    if manifest.is_local:
        remarks.append(
            f"The load generator ran on the same {manifest.machine.num_cores:g} cores as the server and took its share of them"
            f"{_before_all_others(manifest)}."
        )
    busy = max((run.generator_cpu_ratio or 0.0 for run in valid), default=0.0)
    if busy > BUSY_GENERATOR:
        remarks.append(
            f"The generator used up to {busy:.0%} of a core: it may limit the throughput of the fastest arms, so ratios are understated."
        )
    if others := [run.num_others for run in valid if run.num_others]:
        remarks.append(
            f"Others used the gateway too: in {len(others)} run{'' if len(others) == 1 else 's'} it counted up to {max(others):,} requests "
            "that the load test did not send. They took their share of the servers."
        )
    if dropped := max((run.num_dropped for run in valid), default=0):
        remarks.append(
            f"Dropped and never sent: up to {dropped:,} requests of a run, due while {manifest.load.max_in_flight:,} waited for their "
            "answers. They are not in time, and in no latency."
        )
    if unstable := sum(1 for run in valid if run.unstable):
        remarks.append(
            f"Unstable: {unstable} of {len(valid)} runs changed from beginning to end, as listed below; they still count."
        )
    if any(arm.num_errors for arm in arms):
        remarks.append("Some requests failed; throughput and latency count good answers only.")
    if unproven := sorted({device_kind(d) for arm in arms for d in arm.devices} - {"cpu", "gpu"}):
        remarks.append(f"Receipts name devices that are not a proven CPU or GPU: {', '.join(unproven)}.")
    return tuple(remarks)


def _before_all_others(manifest: Manifest) -> str:
    """The priority that the generator had, and kept."""
    num = sum(1 for run in manifest.runs if run.is_generator_real_time)
    in_some = f" in {num} of {len(manifest.runs)} runs" if num < len(manifest.runs) else ""
    return f", before all other work{in_some} (real-time priority)" if num else ""
