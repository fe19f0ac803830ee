"""How many requests per second does one generator process send, open loop, before it has measured itself?

    python -m loadtest.bench.generator [--quick] [--undisturbed] [--json FILE]

Real Locust with the locustfile of campaigns on one core, a server that answers at once on another; the rules that void runs of campaigns
decide, and nothing else. On a machine with one core, or one that
is busy, the figure is of that. The generator has real-time priority where that is allowed, and the verdict says so; `--undisturbed` gives
it to both processes, which takes root.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.arrivals import schedule
from loadtest.bench.command import BenchReport, bench_parser, run_bench
from loadtest.bench.verdicts import Reach, Verdict, table
from loadtest.errors import CannotMeasure
from loadtest.one_run import LOCUSTFILE, generator_cpu_ratio, is_real_time
from loadtest.processes import ROOT
from loadtest.records import ArmRecord, Load, RunRecord, read_rows
from loadtest.report.build import summarise_run
from loadtest.stack import quick_server
from loadtest.target import last_line
from serving.measure.search import Course, Search

MODULE = "loadtest.bench.generator"
AIM_RPS = 2000.0  # of one core
OBJECTIVE_S = 0.05  # so that a lag of 2.5 ms at p99 voids a run; a server slower than this is not what so many requests are sent to
WARMUP_S = 1.0
# Upward from 1,000 requests/s, then between the last good rate and the first void one, which leaves 6 % of it open.
SEARCH = Search(start_rps=1000.0, floor_rps=10.0, num_repeats=1, max_runs=24)
RUN_S = 4.0  # 4,000 requests and more: 40 of them beyond the 99th percentile of the lag
NUM_ATTEMPTS = 3  # at a rate: what else runs on the machine comes and goes; one good run shows that it can be sent
GRACE_S = 60.0  # for Locust to start and end
ARM = ArmRecord("generator", "fp32", "cpu")


@dataclass(frozen=True, slots=True)
class Run:
    """One run. `void` None: the generator kept up."""

    rate_rps: float
    void: str | None
    lag_p99_s: float | None
    latency_p50_s: float | None
    cpu_ratio: float | None
    is_real_time: bool | None = None  # it went before all other work, and kept up with that

    def cells(self) -> tuple[str, str, str, str, str]:
        lag, half = (("–" if s is None else f"{s * 1000:.2f}") for s in (self.lag_p99_s, self.latency_p50_s))
        cpu = "–" if self.cpu_ratio is None else f"{self.cpu_ratio:.0%}"
        return f"{self.rate_rps:,.0f}", lag, half, cpu, self.void or "kept up"


def highest(send: Callable[[float], Run]) -> Iterator[Run]:
    """Every run of the search; a rate is missed where all attempts at it are void."""
    steps = Course(SEARCH).steps()
    rate_rps = next(steps)
    while True:
        for _ in range(NUM_ATTEMPTS):
            yield (run := send(rate_rps))
            if run.void is None:
                break
        try:
            rate_rps = steps.send("met" if run.void is None else "missed")
        except StopIteration:
            return


def best(runs: Sequence[Run]) -> Run | None:
    return max((run for run in runs if run.void is None), key=lambda run: run.rate_rps, default=None)


def verdict(runs: Sequence[Run], num_cores: int) -> Verdict:
    found = best(runs)
    name = "open-loop rate of one generator process"
    if found is None:
        return Verdict(name, None, Reach(AIM_RPS, "requests/s"))
    lag_ms, cpu = (found.lag_p99_s or 0) * 1000, found.cpu_ratio or 0
    where = "on a core of its own" if num_cores > 1 else "on the server's core"
    where += " at real-time priority" if found.is_real_time else ""
    note = f"{where}, lag p99 {lag_ms:.2f} ms of {OBJECTIVE_S * 50:g} ms, {cpu:.0%} of the core"
    return Verdict(name, found.rate_rps, Reach(AIM_RPS, "requests/s"), note)


def rates(folder: Path) -> Iterator[Verdict]:
    """A part of `make prove`. Raises CannotMeasure."""
    yield verdict(list(measure(folder, RUN_S)), len(os.sched_getaffinity(0)))


def _place(pid: int, core: int, *, is_undisturbed: bool) -> None:
    """Before the process starts threads or processes of its own, which inherit it."""
    os.sched_setaffinity(pid, {core})
    if is_undisturbed:
        try:
            os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))
        except PermissionError:
            raise CannotMeasure("--undisturbed takes root: real-time priority was refused") from None


def measure(folder: Path, duration_s: float, *, is_undisturbed: bool = False) -> Iterator[Run]:
    """Raises CannotMeasure."""
    cores = sorted(os.sched_getaffinity(0))
    with quick_server(folder) as server:
        _place(server.pid, cores[-1], is_undisturbed=is_undisturbed)
        yield from highest(lambda rate_rps: _send(rate_rps, server.url, folder, duration_s, cores[0], is_undisturbed))


def _send(rate_rps: float, url: str, folder: Path, duration_s: float, core: int, is_undisturbed: bool) -> Run:
    load = Load(WARMUP_S, duration_s, 1, 1, kind="open", rate_rps=(rate_rps,), objective_s=OBJECTIVE_S)
    rows, log = folder / "rows.csv", folder / "generator.log"
    for old in folder.glob("rows.*"):
        old.unlink()
    with log.open("wb") as file:
        generator = subprocess.Popen(
            _command(rate_rps, url, rows, duration_s), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=folder,
        )  # fmt: skip
    try:
        _place(generator.pid, core, is_undisturbed=is_undisturbed)
        code = generator.wait(WARMUP_S + duration_s + GRACE_S)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        generator.kill()
        generator.wait()
    if code:
        raise CannotMeasure(f"the generator ended with exit code {code}: {last_line(log)}")
    due = schedule(load.at(rate_rps), load.end_s, load.seed)
    run = RunRecord(
        ARM.name, rate_rps, 1, rows.name, load.seed, "", "failed" if code is None else "done", "the generator did not end",
        generator_cpu_ratio=generator_cpu_ratio(rows), num_scheduled=sum(1 for at in due if at >= WARMUP_S),
    )  # fmt: skip
    summary = summarise_run(run, ARM, load, read_rows(rows) if rows.exists() else [])
    cpu_ratio, first = summary.generator_cpu_ratio, is_real_time(rows)
    return Run(rate_rps, summary.void, summary.lag_p99_s, summary.latency_p50_s, cpu_ratio, first)


def _command(rate_rps: float, url: str, rows: Path, duration_s: float) -> list[str]:
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"]
    command += ["--loglevel", "WARNING", "--host", url, "--rate", str(rate_rps), "--seed", "1"]
    return [*command, "--warmup", str(WARMUP_S), "--measure", str(duration_s), "--rows", str(rows)]


def main(arguments: Sequence[str]) -> int:
    parser = bench_parser(MODULE, __doc__, "runs of 2 s instead of 4")
    parser.add_argument(
        "--undisturbed",
        action="store_true",
        help="real-time priority for both processes, or none: what else runs here does not count",
    )
    options = parser.parse_args(arguments)
    duration_s = 2.0 if options.quick else RUN_S
    conditions = (
        f"Poisson arrivals, one real digit per request as JSON, {duration_s:g} s after {WARMUP_S:g} s of warm-up, against a server "
        f"that answers at once; objective {OBJECTIVE_S * 1000:g} ms; up to {NUM_ATTEMPTS} tries at a rate"
        f"{', real-time priority for both processes' if options.undisturbed else ''}"
    )

    def search() -> BenchReport:
        runs = list[Run]()
        with tempfile.TemporaryDirectory(prefix="tandem-generator-") as folder:
            for run in measure(Path(folder), duration_s, is_undisturbed=options.undisturbed):
                runs.append(run)
                print(" | ".join(run.cells()), file=sys.stderr)
        found = table([("requests/s", "lag p99 ms", "p50 ms", "CPU", "outcome"), *(run.cells() for run in runs)])
        facts = {"objective_s": OBJECTIVE_S, "runs": [asdict(run) for run in runs]}
        return BenchReport([conditions], [found], [verdict(runs, len(os.sched_getaffinity(0)))], facts)

    return run_bench(MODULE, arguments, options.json, search, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
