"""Does Tandem lose what it accepted, and does it grow, while it serves for an hour and things die under it (`make soak`)?

    python -m loadtest.bench.soak [--minutes 60] [--period-s 60] [--models DIR] [--keep DIR] [--json FILE]

A real `tandem up` with a second server in its pool; a mixed load over every surface; in each minute a kill, a slow reader and a slow
writer, in every fifth a reload and a client that floods for ten seconds. Exit code 1 only for a value beyond twice its aim.
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
from loadtest.bench.soak.fates import Fate, Losses, losses
from loadtest.bench.soak.growth import VALUES
from loadtest.bench.soak.plan import Victim
from loadtest.bench.soak.run import MAX_FLOODING, Setting, Soaked, soak
from loadtest.bench.verdicts import AtMost, Verdict, table
from loadtest.processes import MODEL_REPOSITORY
from loadtest.sending.sent_request import percentile
from serving.environment import reach_loopback_directly

MODULE = "loadtest.bench.soak"
NONE = AtMost(0)
LATE = AtMost(0.005, "")  # of the accepted
BACK = AtMost(10.0, "s")
RELOADED = AtMost(20.0, "s")
LOG_BYTES = AtMost(45.0, "MB")  # three children, 15 MB each (serving/local/logs.py)
# An hour's growth of a process that goes on, by role; the allocator's steps are within it (guess).
GROWTH = {"memory": AtMost(20.0, "MB/h"), "descriptors": AtMost(5.0, "/h"), "threads": AtMost(5.0, "/h")}
JUDGED = ("gateway", "tandem up", "pool's supervisor")  # the others are killed before they could be seen to grow
MIN_PERIOD_S = 8.0  # less, and the next kill comes before the last is over


def main(arguments: Sequence[str]) -> int:
    parser = bench_parser(MODULE, __doc__)
    parser.add_argument("--minutes", type=_positive, default=60.0, help="how long the load lasts (60)")
    parser.add_argument("--period-s", type=_positive, default=60.0, help="from one kill to the next (60)")
    parser.add_argument(
        "--models",
        type=Path,
        default=MODEL_REPOSITORY,
        help="a repository with digits; one with a text model adds embeddings",
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


def report(setting: Setting, found: Soaked) -> BenchReport:
    of_mix, of_flood = losses(found.shots, found.kills), losses(found.flooding, found.kills)
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
        Verdict("logs", found.growth.log_bytes[-1][1] / 1e6 if found.growth.log_bytes else None, LOG_BYTES),
        Verdict("processes and segments left", len(found.left), NONE, ", ".join(found.left[:4])),
        Verdict("what was to be done and could not be", len(found.missed), NONE, "; ".join(found.missed[:3])),
    ]
    lag_s = percentile((shot.lag_s for shot in found.shots), 0.99) or 0.0
    took_s = [shot.took_s for shot in found.shots if shot.is_answered]
    held = of_mix.held + of_flood.held
    conditions = [
        f"{setting.duration_s / 60:g} minutes, {setting.rate_rps:g} requests/s of {', '.join(found.surfaces)}, Poisson, deadline 5 s; "
        f"a kill every {setting.period_s:g} s",
        f"the flood: {found.flood_rps:,.0f} requests/s, {setting.flood_times:g} times what a closed loop was answered, deadline 1 s; "
        f"{found.num_dropped} not sent, because {MAX_FLOODING} were under way",
        f"the generator's lag p99 {lag_s * 1000:.1f} ms; answers p50 {(percentile(took_s, 0.5) or 0) * 1000:.1f} ms, "
        f"p99 {(percentile(took_s, 0.99) or 0) * 1000:.1f} ms",
    ]
    parts = [_requests(of_mix, of_flood), _kills(found, of_mix), _processes(found)]
    parts.append(
        f"held by a gateway when it was killed, and gone with it: {held}; {_counted(found.slow) or 'no slow clients'}"
    )
    facts = {
        "mix": _json(of_mix),
        "flood": _json(of_flood),
        "kills": dict(Counter(kill.victim.value for kill in found.kills)),
        "longest_outage_s": dict(outages),
        "processes": {name: _of_role(found, name) for name in sorted(found.growth.roles)},
    }
    return BenchReport(conditions, parts, verdicts, facts)


def _growth(found: Soaked) -> Iterator[Verdict]:
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


def _kills(found: Soaked, of_mix: Losses) -> str:
    rows = [("killed", "times", "lost", "late", "refused", "longest outage")]
    outages, times = found.longest_outages_s(), Counter(kill.victim for kill in found.kills)
    for victim in Victim:
        who = victim.value
        lost, refused = (
            sum(count for (of, _), count in counts.items() if of == who) for counts in (of_mix.lost, of_mix.refused)
        )
        seconds = outages.get(who)
        rows.append(
            (
                who,
                str(times[victim]),
                str(lost),
                str(of_mix.late[who]),
                str(refused),
                "" if seconds is None else f"{seconds:.2f} s",
            )
        )
    return table(rows)


def _processes(found: Soaked) -> str:
    """First and last of the one of each role that lived longest."""
    rows: list[tuple[str, ...]] = [("process", "lives", "memory, MB", "highest", "descriptors", "threads")]
    for name, lives in sorted(found.growth.roles.items()):
        first, last = lives.ends_of_longest()
        pairs = (f"{VALUES[what](first):.0f} → {VALUES[what](last):.0f}" for what in VALUES)
        memory, *others = pairs
        rows.append((name, str(len(lives.of)), memory, f"{lives.highest() / 1e6:.0f}", *others))
    return table(rows)


def _of_role(found: Soaked, name: str) -> dict[str, object]:
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
