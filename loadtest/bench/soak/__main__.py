"""Does Tandem lose what it accepted, and does it grow, while it serves for an hour and things die under it (`make soak`)?

    python -m loadtest.bench.soak [--minutes 60] [--period-s 60] [--models DIR] [--keep DIR] [--json FILE]

A real `tandem up` with a second server in its pool; a mixed load over every surface (texts to a model that is made for it); in each
minute a kill, a slow reader and a slow writer, in every fifth a reload and a client that floods for ten seconds. Each minute says how it
stands. Exit code 1 only for a value beyond twice its aim.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from loadtest.bench.command import BenchReport, bench_parser, run_bench
from loadtest.bench.soak.fates import NOBODY, Fate, Losses
from loadtest.bench.soak.growth import THIS, VALUES
from loadtest.bench.soak.plan import Victim
from loadtest.bench.soak.run import MAX_FLOODING, Setting, SoakTally, soak
from loadtest.bench.verdicts import AtMost, Verdict, table
from loadtest.processes import MODEL_REPOSITORY
from serving.environment import reach_loopback_directly

MODULE = "loadtest.bench.soak"
NONE = AtMost(0)
LATE = AtMost(0.005, "")  # of the accepted
BACK = AtMost(10.0, "s")
RELOADED = AtMost(20.0, "s")
LOG_BYTES = AtMost(45.0, "MB")  # three children, 15 MB each (serving/local/logs.py)
# An hour's growth of a process that goes on, by role; the allocator's steps are within it (guess).
GROWTH = {"memory": AtMost(20.0, "MB/h"), "descriptors": AtMost(5.0, "/h"), "threads": AtMost(5.0, "/h")}
JUDGED = ("gateway", "tandem up", "pool's supervisor", THIS)  # the others are killed before they could be seen to grow
MIN_PERIOD_S = 8.0  # less, and the next kill comes before the last is over


def main(arguments: Sequence[str]) -> int:
    parser = bench_parser(MODULE, __doc__)
    parser.add_argument("--minutes", type=_positive, default=60.0, help="how long the load lasts (60)")
    parser.add_argument("--period-s", type=_positive, default=60.0, help="from one kill to the next (60)")
    parser.add_argument(
        "--models",
        type=Path,
        default=MODEL_REPOSITORY,
        help="a repository with digits; without a text model in it, a small one is made",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the logs in this new folder")
    options = parser.parse_args(arguments)
    if options.period_s < MIN_PERIOD_S:
        parser.error(f"--period-s: at least {MIN_PERIOD_S:g}")
    reach_loopback_directly()
    setting = Setting(options.minutes * 60, options.period_s)

    def measure() -> BenchReport:
        with _folder(options.keep) as folder:
            return report(setting, soak(setting, folder, options.models))

    return run_bench(MODULE, arguments, options.json, measure, is_quick=False)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"'{text}' is not a number above 0")
    return value


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="tandem-soak-") as folder:
        yield Path(folder)


def report(setting: Setting, found: SoakTally) -> BenchReport:
    of_mix, of_flood = found.mix, found.flood
    outages = found.longest_outages_s()
    verdicts = [
        Verdict("accepted requests lost", of_mix.num_lost, NONE, of_mix.listed() or f"{of_mix.num_accepted} accepted"),
        Verdict(
            "accepted requests lost, of the flood",
            of_flood.num_lost,
            NONE,
            of_flood.listed() or f"{of_flood.num_accepted} accepted",
        ),
        Verdict("late ÷ accepted", of_mix.fates[Fate.LATE] / max(1, of_mix.num_accepted), LATE, _counted(of_mix.late)),
        *(Verdict(f"answers again after {who}", seconds, BACK, "the longest") for who, seconds in outages.items()),
        Verdict(
            "reloads that failed", sum(status != 200 for _, status in found.reloads), NONE, f"of {len(found.reloads)}"
        ),
        Verdict("longest reload", max((s for s, _ in found.reloads), default=0.0), RELOADED),
        *_growth(found),
        _logs(found),
        Verdict("processes and segments left", len(found.left), NONE, ", ".join(found.left[:4])),
        Verdict("what was to be done and could not be", len(found.missed), NONE, "; ".join(found.missed[:3])),
    ]
    lag_s = found.lag.quantile(0.99) or 0.0
    conditions = [
        f"{setting.duration_s / 60:g} minutes, {setting.rate_rps:g} requests/s of {', '.join(found.surfaces)}, Poisson, deadline 5 s; "
        f"a kill every {setting.period_s:g} s",
        f"the flood: {found.flood_rps:,.0f} requests/s, {setting.flood_times:g} times what a closed loop was answered, deadline 1 s; "
        f"{found.num_dropped} not sent, because {MAX_FLOODING} were under way",
        f"the generator's lag p99 {lag_s * 1000:.1f} ms; answers p50 {(found.took.quantile(0.5) or 0) * 1000:.1f} ms, "
        f"p99 {(found.took.quantile(0.99) or 0) * 1000:.1f} ms",
    ]
    parts = [_summary(found), _requests(of_mix, of_flood), _kills(found), _processes(found)]
    parts.append(_counted(found.slow) or "no slow clients")
    facts = {
        "mix": _json(of_mix),
        "flood": _json(of_flood),
        "kills": dict(Counter(kill.victim.value for kill in found.kills)),
        "longest_outage_s": dict(outages),
        "processes": {name: _of_role(found, name) for name in sorted(found.growth.roles)},
    }
    return BenchReport(conditions, parts, verdicts, facts)


def _summary(found: SoakTally) -> str:
    kinds = found.mix, found.flood
    of_gateway = Victim.GATEWAY.value
    of_servers = sum(kind.num_lost_to(one.value) for kind in kinds for one in Victim if one is not Victim.GATEWAY)
    rest = sum(kind.num_lost for kind in kinds) - of_servers
    times = Counter(kill.victim is Victim.GATEWAY for kill in found.kills)
    judged = [
        name
        for name in JUDGED
        if name in found.growth.roles and found.growth.roles[name].slope(VALUES["memory"]) is not None
    ]
    return "\n".join(
        [
            f"of {sum(kind.num_accepted for kind in kinds)} accepted requests",
            f"  lost to {times[False]} kills of servers, models' processes and supervisors: {of_servers}",
            f"  held by the gateway at its {times[True]} kills, and gone with it: {sum(kind.held for kind in kinds)}",
            f"  lost otherwise, after {of_gateway} was back or when nothing was killed: {rest}",
            f"growth is judged of: {', '.join(judged) or 'nothing, it was too short'}",
        ]
    )


def _logs(found: SoakTally) -> Verdict:
    sizes, slope = found.growth.log_bytes, found.growth.log_slope()
    note = "too short for a slope" if slope is None else f"{slope / 1e6:+.2f} MB/h"
    return Verdict("logs", sizes[-1][1] / 1e6 if sizes else None, LOG_BYTES, note)


def _growth(found: SoakTally) -> Iterator[Verdict]:
    """Of roles that lived long enough; a short soak judges none."""
    for name in JUDGED:
        for what, aim in GROWTH.items():
            slope = found.growth.roles[name].slope(VALUES[what]) if name in found.growth.roles else None
            if slope is not None:
                yield Verdict(f"{name}: {what}", max(0.0, slope), aim)


def _requests(*kinds: Losses) -> str:
    rows: list[tuple[str, ...]] = [("requests", "mix", "flood")]
    rows.append(("sent", *(str(kind.num_sent) for kind in kinds)))
    rows += [(one.name.lower().replace("_", " "), *(str(kind.fates[one]) for kind in kinds)) for one in Fate]
    rows.append(("refused as", *(_counted(kind.refused_as) for kind in kinds)))
    return table(rows)


def _kills(found: SoakTally) -> str:
    rows: list[tuple[str, ...]] = [("killed", "times", "lost", "… of the flood", "late", "refused", "longest outage")]
    outages, times = found.longest_outages_s(), Counter(kill.victim.value for kill in found.kills)
    for who in (*(victim.value for victim in Victim), NOBODY):
        refused = sum(count for (of, _), count in found.mix.refused.items() if of == who)
        seconds = outages.get(who)
        counts = times[who], found.mix.num_lost_to(who), found.flood.num_lost_to(who), found.mix.late[who], refused
        rows.append((who, *map(str, counts), "" if seconds is None else f"{seconds:.2f} s"))
    return table(rows)


def _processes(found: SoakTally) -> str:
    """First and last of the one of each role that lived longest, and the growth an hour of those that lived long enough."""
    rows: list[tuple[str, ...]] = [("process", "lives", "memory, MB", "highest", "descriptors", "threads")]
    for name, lives in sorted(found.growth.roles.items()):
        first, last = lives.ends_of_longest()
        pairs = []
        for value in VALUES.values():
            slope = lives.slope(value)
            an_hour = "" if slope is None else f" ({slope:+.1f}/h)"
            pairs.append(f"{value(first):.0f} → {value(last):.0f}{an_hour}")
        memory, *others = pairs
        rows.append((name, str(len(lives.of)), memory, f"{lives.highest() / 1e6:.0f}", *others))
    return table(rows)


def _of_role(found: SoakTally, name: str) -> dict[str, object]:
    lives = found.growth.roles[name]
    first, last = lives.ends_of_longest()
    return {
        what: {"first": value(first), "last": value(last), "growth_per_hour": lives.slope(value)}
        for what, value in VALUES.items()
    } | {"num_lives": len(lives.of), "highest_bytes": lives.highest(), "longest_life": lives.longest_series()}


def _json(kind: Losses) -> dict[str, object]:
    return {
        "num_sent": kind.num_sent,
        "num_accepted": kind.num_accepted,
        "fates": {one.name.lower(): kind.fates[one] for one in Fate},
        "refused": _by_victim(kind.refused),
        "lost": _by_victim(kind.lost),
        "words": kind.words,
        "held": kind.held,
    }


def _by_victim(counts: Counter[tuple[str, str]]) -> list[dict[str, object]]:
    return [{"killed": who, "as": what, "count": count} for (who, what), count in counts.most_common()]


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} × {what}" for what, count in counts.most_common(5))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
