"""A profile as text for a terminal: the ladder, the highest rates, cold starts, and what must be known before believing it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.profile.parts import batch_sizes
from loadtest.profile.wording import where_time_goes
from loadtest.report.summaries import milliseconds, number
from serving.decisions.profile import RUNGS, MaxRate, Profile, Rung, ServerProfile
from serving.documents.tables import columns

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
    return where_time_goes(server, sizes[0]) if sizes else []


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
    """What stands beside a rate."""
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
