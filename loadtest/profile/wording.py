"""A profile in words: where the time of a request goes, why one server is slower than another, and the tables for a terminal. Pure.

Rule: a number is in a sentence only if it was measured, and a difference within noise is called so.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.profile.options import ProfileOptions
from loadtest.profile.parts import HasLadder, PartName, Split, batch_sizes, overlap, split
from loadtest.report.summaries import milliseconds, number
from serving.decisions.batch_buckets import MOST_PADDING_RATIO, batch_buckets
from serving.decisions.profile import BUCKETS, RUNGS, MaxRate, Profile, Rung, ServerProfile
from serving.documents.tables import columns
from serving.scheduling.curve import Curve

DOES: dict[PartName, str] = {
    "compute": "the net itself",
    "queue": "waiting for its turn in Triton",
    "transfer": "HTTP, copies and Triton around the net",
    "json": "JSON instead of binary tensors",
    "gateway": "the gateway",
}
DELAY_S = 0.0005  # a shorter wait is Triton's own handing over (0.04 to 0.09 ms on two cores), not a queue delay that somebody set
MOST, MUCH = 0.5, 0.1  # of a request: what is worth a sentence of advice


def where_time_goes(server: HasLadder, batch_size: int) -> list[str]:
    """Empty where the ladder cannot tell."""
    found = split(server.ladder, batch_size)
    if found is None:
        return []
    shares = [_share(found, part.name) for part in found.parts]
    said = [f"A request of {rows(batch_size)} takes {ms(found.total_s)} {_way(found)}: {_listed(shares)}."]
    said += _advice(server, found)
    return said


def _share(found: Split, name: PartName) -> str:
    if not found.seconds(name):
        return f"{DOES[name]} nothing measurable"
    return f"{DOES[name]} {ms(found.seconds(name))} ({found.ratio(name):.0%}{', within noise' if found.is_noise(name) else ''})"


def _way(found: Split) -> str:
    words = {
        "gateway_json": "through the gateway, as JSON",
        "gateway_binary": "through the gateway, as binary tensors",
        "triton_http_json": "from Triton, as JSON",
        "triton_http_binary": "from Triton, as binary tensors",
        "triton_grpc": "from Triton by gRPC",
    }
    return words.get(found.top.rung, "")


def _advice(server: HasLadder, found: Split) -> list[str]:
    said = []
    size = found.batch_size
    if found.ratio("compute") < MOST:
        larger = _per_row(server, size)
        said.append(
            f"Most of it is not the net: a faster device would save at most {ms(found.seconds('compute'))} of {ms(found.total_s)}{larger}."
        )
    if not found.is_noise("json") and found.ratio("json") >= MUCH:
        said.append(f"Binary tensors instead of JSON save {ms(found.seconds('json'))} of each request.")
    if found.ratio("queue") >= MUCH and found.seconds("queue") >= DELAY_S:
        said.append("A lone request waits in Triton: the queue delay holds it back for a fuller batch.")
    return said


def _per_row(server: HasLadder, size: int) -> str:
    """The time of a row in a larger batch, where one was measured and helps."""
    one, many = _total(server, size), None
    for larger in batch_sizes(server):
        if larger > size and (total := _total(server, larger)) is not None:
            many = (larger, total)
    if one is None or many is None or many[1] / many[0] >= one / size:
        return ""
    return f"; {many[0]} rows together take {ms(many[1])}, which is {ms(many[1] / many[0])} a row instead of {ms(one / size)}"


def why_slower(gpu: HasLadder, cpu: HasLadder, batch_size: int) -> list[str]:
    """Compares two servers at the same number of rows: which is slower, where its time goes, and what would make it faster."""
    ours, theirs = split(gpu.ladder, batch_size), split(cpu.ladder, batch_size)
    if ours is None or theirs is None or ours.top.rung != theirs.top.rung:
        return [f"{gpu.label} and {cpu.label} were not both measured with {rows(batch_size)}."]
    if overlap(*sorted((ours.top, theirs.top), key=lambda timing: timing.latency_p50_s)):
        return [
            f"With {rows(batch_size)}, {gpu.label} and {cpu.label} show no significant difference: {ms(ours.total_s)} and "
            f"{ms(theirs.total_s)}."
        ]
    if ours.total_s <= theirs.total_s:
        times = theirs.total_s / ours.total_s
        return [
            f"With {rows(batch_size)}, {gpu.label} is {times:.1f} times as fast as {cpu.label}: {ms(ours.total_s)} instead of "
            f"{ms(theirs.total_s)}.",
            f"The net alone is {_times(theirs.seconds('compute'), ours.seconds('compute'))}.",
        ]
    said = [
        f"With {rows(batch_size)}, {gpu.label} takes {ms(ours.total_s)}, {cpu.label} {ms(theirs.total_s)}: "
        f"{ms(ours.total_s - theirs.total_s)} more."
    ]
    said.append(_compute_against(ours, theirs))
    if around := _around(ours, theirs):
        said.append(around)
    said.append(_turning_point(gpu, cpu, batch_size))
    if not ours.is_noise("json") and ours.ratio("json") >= MUCH:
        turns = ours.total_s - ours.seconds("json") < theirs.total_s
        end = ", which would make it the faster one" if turns else ", which is not enough by itself"
        said.append(f"Binary tensors instead of JSON save it {ms(ours.seconds('json'))}{end}.")
    return said


def _compute_against(ours: Split, theirs: Split) -> str:
    mine, other = ours.seconds("compute"), theirs.seconds("compute")
    if mine < other:
        return f"Its net is faster ({ms(mine)} instead of {ms(other)}), but it loses that lead on the way."
    return f"Its net alone is already slower: {ms(mine)} instead of {ms(other)}."


def _around(ours: Split, theirs: Split) -> str:
    """The part around the net in which it loses most."""
    names: tuple[PartName, ...] = ("queue", "transfer", "json", "gateway")
    lost_s, name = max((ours.seconds(name) - theirs.seconds(name), name) for name in names)
    if lost_s <= 0 or ours.is_noise(name):
        return ""
    return (
        f"Around the net it loses most in {DOES[name]}: {ms(ours.seconds(name))} instead of {ms(theirs.seconds(name))}."
    )


def _turning_point(gpu: HasLadder, cpu: HasLadder, batch_size: int) -> str:
    both = sorted(set(batch_sizes(gpu)) & set(batch_sizes(cpu)))
    larger = [size for size in both if size > batch_size]
    for size in larger:
        mine, other = _total(gpu, size), _total(cpu, size)
        if mine is not None and other is not None and mine < other:
            return f"With {rows(size)} in a request it is faster: {ms(mine)} instead of {ms(other)}."
    if larger:
        return f"Larger batches do not help: it stays slower up to {rows(larger[-1])}."
    return "Larger batches, which might make it faster, were not measured on both."


def _total(server: HasLadder, size: int) -> float | None:
    found = split(server.ladder, size)
    return None if found is None else found.total_s


def ms(seconds: float) -> str:
    return f"{milliseconds(seconds)} ms"


def rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _times(theirs_s: float, ours_s: float) -> str:
    if not ours_s or not theirs_s:
        return "not measured on both"
    ratio = theirs_s / ours_s
    return f"{ratio:.1f} times as fast" if ratio >= 1 else f"{1 / ratio:.1f} times as slow"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# Other work on the cores beyond this moves medians by as much as variants differ (guess: from rounds on busy and quiet machines).
BUSY_RATIO = 0.10


def notes(
    options: ProfileOptions,
    num_cores: float,
    others_ratio: float,
    asides: Sequence[str],
    priorities: Sequence[bool],
    *,
    is_partial: bool,
) -> str:
    """`priorities`: of each run under load whether the generator had real-time priority."""
    said = []
    if is_partial:
        said.append("Partial: it was interrupted, and what had not been measured by then is missing.")
    if options.emulate is not None:
        said.append(
            f"The times of {options.pool} follow the file {options.emulate.name}: a what-if, which proves nothing about a device."
        )
    said.append(
        f"Client, gateway and Triton shared this machine's {num_cores:g} cores: clients on machines of their own would leave the "
        "server more of them, so that rates are rather too low than too high."
    )
    if priorities:
        said.append(priority(priorities))
    if others_ratio > BUSY_RATIO:
        said.append(
            f"Other work took {others_ratio:.0%} of the cores meanwhile: times are too long and rates too low by an unknown part."
        )
    if options.is_quick:
        said.append("Quick: short runs and one estimate of each rate, for a first impression.")
    said += [f"{capitalised(aside).rstrip('.')}." for aside in dict.fromkeys(asides)]
    return " ".join(said)


def priority(priorities: Sequence[bool]) -> str:
    """Of some runs, at least one."""
    if not any(priorities):
        return "The load generator had no real-time priority: other work could make it late, and where that could matter a run is void."
    runs = "" if all(priorities) else f" in {sum(priorities)} of {len(priorities)} runs"
    return (
        f"The load generator had real-time priority{runs}: it went before all other work, the server's own too, so that it sent in time "
        "and took what it needed of the cores first."
    )


def capitalised(sentence: str) -> str:
    """With a capital, unless it begins with the name of a variant."""
    is_word = sentence.partition(" ")[0].isalpha()
    return f"{sentence[:1].upper()}{sentence[1:]}" if is_word else sentence


NAMES: dict[Rung, str] = {
    "in_process": "in process",
    "triton_grpc": "gRPC",
    "triton_http_binary": "HTTP binary",
    "triton_http_json": "HTTP JSON",
    "gateway_binary": "gateway binary",
    "gateway_json": "gateway JSON",
}


def table(profile: Profile) -> str:
    sets = " ".join(profile.machine.instruction_sets) or "unknown"
    parts = [
        f"{profile.model} on {profile.machine.processor} ({sets}), {profile.machine.num_cores:g} cores, {profile.date}\n"
        f"{profile.command}\nsent: {profile.data}"
    ]
    if any(server.ladder for server in profile.servers):
        parts.append("milliseconds of a request alone, median\n" + columns(_ladder_rows(profile.servers), ruled=True))
        parts += [f"{server.label}: {' '.join(words)}" for server in profile.servers if (words := _words(server))]
    if any(server.max_rates for server in profile.servers):
        parts.append(columns(_rate_rows(profile.servers), ruled=True))
    if any(server.cold_start for server in profile.servers):
        parts.append("cold start, seconds\n" + columns(_cold_rows(profile.servers), ruled=True))
    if profile.note:
        parts.append(profile.note)
    return "\n\n".join(parts)


def _words(server: ServerProfile) -> list[str]:
    """Of the smallest batch: a ladder has its numbers for the others."""
    sizes = batch_sizes(server)
    return [*(where_time_goes(server, sizes[0]) if sizes else []), *buckets_asked_for(server)]


def buckets_asked_for(server: ServerProfile) -> list[str]:
    """Which `batch_buckets` the engine's own times ask for, on a card or where there are buffers; nothing where they tell no shape."""
    has_buffers = any(word.startswith(f"{BUCKETS}=") for word in server.settings.tuning)
    points = sorted({t.batch_size: t.latency_p50_s for t in server.ladder if t.rung == "in_process"}.items())
    if not (server.device == "gpu" or has_buffers) or len(points) < 2 or server.settings.max_batch_size < 2:
        return []
    found = batch_buckets(Curve(tuple(points)), server.settings.max_batch_size)
    return [
        f"Padding would cost a batch at most {MOST_PADDING_RATIO:.0%} of its time with batch_buckets: [{', '.join(map(str, found))}]."
    ]


def _ladder_rows(servers: Sequence[ServerProfile]) -> list[tuple[str, ...]]:
    used = [rung for rung in RUNGS if any(timing.rung == rung for server in servers for timing in server.ladder)]
    rows: list[tuple[str, ...]] = [("server", "batch", *(NAMES[rung] for rung in used))]
    for server in servers:
        for size in sorted({timing.batch_size for timing in server.ladder}):
            medians = {t.rung: milliseconds(t.latency_p50_s) for t in server.ladder if t.batch_size == size}
            rows.append((server.label, str(size), *(medians.get(rung, "-") for rung in used)))
    return rows


def _rate_rows(servers: Sequence[ServerProfile]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("server", "batch", "p99 within", "at most", "")]
    for server in servers:
        for most in server.max_rates:
            rows.append(
                (
                    server.label,
                    str(most.batch_size),
                    f"{milliseconds(most.objective_s)} ms",
                    f"{number(most.rate_rps)}/s",
                    rate_words(server, most),
                )
            )
    return rows


def rate_words(server: ServerProfile, most: MaxRate) -> str:
    """The remark beside a rate."""
    said = []
    tried = [p for p in server.load if (p.objective_s, p.batch_size) == (most.objective_s, most.batch_size)]
    if not tried:
        said.append("half of all requests take longer one at a time")
    elif not most.runs and most.is_bounded_by_generator:
        said.append("no valid run: the generator was too slow here")
    elif not most.runs:
        said.append("not even the lowest rate that was tried was in time")
    elif len(most.runs) > 1:
        between = f"{number(min(most.runs))} to {number(max(most.runs))} over {len(most.runs)} estimates"
        said.append(between)
    else:
        said.append("one estimate")
    if most.runs and most.is_bounded_by_generator:
        said.append("the generator reached its end first: the server could perhaps carry more")
    return "; ".join(said)


def _cold_rows(servers: Sequence[ServerProfile]) -> list[tuple[str, ...]]:
    names = list(dict.fromkeys(phase.name for server in servers for phase in server.cold_start))
    rows: list[tuple[str, ...]] = [("server", *(name.replace("_", " ") for name in names), "in all")]
    for server in servers:
        took = {phase.name: f"{phase.seconds:.2f}" for phase in server.cold_start}
        if server.cold_start_s is not None:
            rows.append((server.label, *(took.get(name, "-") for name in names), f"{server.cold_start_s:.2f}"))
    return rows
