"""One run: a Locust process, or a master and its workers, from start to end, and its rows in one file.

Locust is only ever a subprocess: importing it would patch this one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from loadtest import records
from loadtest.campaign_file import Arm, Campaign
from loadtest.evidence.counts import Window
from loadtest.progress import Progress
from loadtest.target import end_group, last_line, leashed, stop
from serving.children import held
from serving.ports import free_ports

LOCUSTFILE = Path(__file__).resolve().with_name("locustfile.py")
# Python and Locust take 1 to 3 s to start here, and the slowest answer may take the generator's 30 s; beyond that it hangs.
GENERATOR_GRACE_S = 60.0
ARRIVALS = "arrivals.txt"  # seconds and rows of a trace, one request a line, beside the rows
INPUTS = "inputs.npz"  # what all runs send, beside the rows while they are made


@dataclass(frozen=True, slots=True)
class PendingRun:
    """One run to come."""

    arm: Arm
    point: float  # of the load: users, or requests per second
    repeat: int  # from 1
    seed: int
    rows: str

    @property
    def title(self) -> str:
        return f"{self.arm.variant} on {self.arm.pool}{' again' if self.arm.is_again else ''}"


def generate(
    campaign: Campaign, planned: PendingRun, url: str, directory: Path, progress: Progress, title: str
) -> tuple[records.State, str | None]:
    """Runs Locust to its end; on Ctrl-C ends it early, which keeps its rows."""
    rows = (directory / planned.rows).resolve()
    log = rows.with_suffix(".log")
    length_s = campaign.load.warmup_s + campaign.load.duration_s
    process: subprocess.Popen[bytes] | None = None
    try:
        with log.open("wb") as file, held():
            process = subprocess.Popen(
                leashed(locust_command(campaign, planned, url, rows)),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=rows.parent,  # no locust.conf of the user's lies there
                env=_locust_environment(),
            )
        progress.wait(process, title, length_s, GENERATOR_GRACE_S)
    except KeyboardInterrupt:
        if process is not None:
            stop(process, signal.SIGTERM, timeout_s=10.0)
        _gather(rows, campaign.load.processes)
        return "interrupted", f"stopped by Ctrl-C in run {planned.rows}"
    except subprocess.TimeoutExpired:
        assert process is not None
        stop(process, signal.SIGKILL, timeout_s=10.0)
        return "failed", f"the generator did not end within {length_s + GENERATOR_GRACE_S:.0f} s"
    finally:
        if process is not None:
            end_group(process)  # a master that was killed leaves workers, which would load the server of the next run
    if not _gather(rows, campaign.load.processes) or process.returncode:
        return "failed", f"the generator ended with exit code {process.returncode}: {last_line(log)}"
    log.unlink()
    return "done", None


def locust_command(campaign: Campaign, planned: PendingRun, url: str, rows: Path) -> list[str]:
    load, payload = campaign.load, campaign.payload
    given: dict[str, object] = {
        "host": url,
        "model": campaign.model,
        "variant": planned.arm.variant,
        "pool": planned.arm.pool,
        "data": rows.parent / INPUTS,
        "encoding": payload.encoding,
        "batch": payload.batch_size,
        "warmup": load.warmup_s,
        "measure": load.duration_s,
        "seed": planned.seed,
        "rows": rows,
    }
    if load.kind == "closed":
        given |= {"users": f"{planned.point:g}", "spawn-rate": f"{planned.point:g}"}
    else:
        given |= {"users": load.processes, "spawn-rate": load.processes, "max-in-flight": load.max_in_flight}
        if load.arrivals == "trace":
            given |= {"trace": rows.parent / ARRIVALS}
        else:
            given |= {"rate": planned.point, "arrivals": load.arrivals, "burst-times": load.burst_times}
            given |= {"burst-every": load.burst_every_s, "burst-lasting": load.burst_lasting_s}
        if load.processes > 1:
            given |= {"processes": load.processes}
            port = free_ports(1)[0]
            given |= {"master-bind-host": "127.0.0.1", "master-bind-port": port, "master-port": port}
    options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"]
    return [*command, "--loglevel", "WARNING", *options]


def _locust_environment() -> dict[str, str]:
    """Without LOCUST_… variables, which would change the run behind the campaign file's back."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LOCUST_")}
    root = str(LOCUSTFILE.parent.parent)
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH"))))}


def generator_cpu_ratio(rows: Path) -> float | None:
    """Of the busiest process."""
    try:
        facts = [json.loads(file.read_text(encoding="utf-8")) for file in generator_files(rows)]
        return max(float(fact["cpu_s"]) / float(fact["wall_s"]) for fact in facts)
    except (OSError, ValueError, KeyError, ZeroDivisionError):
        return None


def is_real_time(rows: Path) -> bool | None:
    """Whether every process of the generator went before all other work. None where they do not say."""
    try:
        facts = [json.loads(file.read_text(encoding="utf-8")) for file in generator_files(rows)]
        return all(bool(fact["is_real_time"]) for fact in facts) if facts else None
    except (OSError, ValueError, KeyError):
        return None


def measured_window(rows: Path, warmup_s: float, end_s: float) -> Window | None:
    """By this machine's clock; of several processes from the last one's start to the first one's end."""
    try:
        facts = [json.loads(file.read_text(encoding="utf-8")) for file in generator_files(rows)]
        began = [float(fact["began"]) for fact in facts]
        return Window(max(began) + warmup_s, min(began) + end_s)
    except (OSError, ValueError, KeyError):
        return None


def generator_files(rows: Path) -> list[Path]:
    """What the processes of a run said of themselves: one, or one of each part."""
    return sorted(rows.parent.glob(f"{rows.stem}.generator.json")) + sorted(
        rows.parent.glob(f"{rows.stem}.[0-9]*.generator.json")
    )


def _gather(rows: Path, num_processes: int) -> bool:
    """Makes one file of rows out of those of several processes, in the order in which they were due; False where one is missing."""
    files = generator_files(rows)
    if len(files) < num_processes:
        return False
    if num_processes > 1:
        parts = [Path(str(file).removesuffix(".generator.json") + ".csv") for file in files]
        records.write_rows(rows, sorted(row for part in parts for row in records.read_rows(part)))
        for part in parts:
            part.unlink()
    return True
