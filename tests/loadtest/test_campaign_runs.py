"""Whole campaigns: real Triton, the real gateway, real Locust, on real digits."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from hdrh.histogram import HdrHistogram

from loadtest import records
from loadtest.arrivals import Arrivals, schedule
from loadtest.campaign import CampaignOptions, run
from loadtest.one_run import LOCUSTFILE
from loadtest.report import build as report
from loadtest.sending.inputs import DIGITS
from loadtest.target import DEFAULT_URL, Gateway, own_gateway
from serving.measure.intervals import t_quantile
from serving.ports import free_ports
from tests.local.harness import LIMIT_S, black_hole, wait_until

pytestmark = [
    pytest.mark.triton,
    pytest.mark.campaigns,
    pytest.mark.timeout(240),
]  # a first start makes Triton's environment
ROOT = Path(__file__).parents[2]
CAMPAIGN = """\
{version: 1, name: short, model: digits,
 arms: [{variant: fp32, pool: cpu}, {variant: int8, pool: cpu}, {variant: fp16, pool: cpu}, {variant: fp16, pool: gpu}],
 load: {users: 4, warmup_s: 0.2, duration_s: 0.6, repeats: 2}, payload: {encoding: ENCODING, batch_size: BATCH}}
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with own_gateway(tmp_path_factory.mktemp("up") / "gateway.log") as running:
        yield running
    assert not running.is_ready()


def campaign_file(folder: Path, encoding: str = "json", batch_size: int = 1) -> Path:
    file = folder / "short.yaml"
    file.write_text(CAMPAIGN.replace("ENCODING", encoding).replace("BATCH", str(batch_size)))
    return file


@pytest.mark.thorough
@pytest.mark.parametrize(("encoding", "batch_size", "least"), [("json", 1, 0.95), ("binary", 4, 0.85)])
def test_a_campaign_measures_the_arms_it_was_asked_for(
    gateway: Gateway, tmp_path: Path, encoding: str, batch_size: int, least: float
) -> None:
    out = tmp_path / "out"
    assert run(CampaignOptions(campaign_file(tmp_path, encoding, batch_size), gateway.url, out)) == 0
    built = report.build(out)
    fp32, int8, on_cpu, on_gpu = built.arms
    assert [r.void for r in built.runs] == [None] * 4
    assert [(r.arm, r.repeat) for r in built.runs] == [
        ("fp32-cpu", 1),
        ("int8-cpu", 1),
        ("int8-cpu", 2),
        ("fp32-cpu", 2),
    ]
    for arm in (fp32, int8):
        assert arm.num_errors == 0
        assert arm.num_ok > 50
        assert arm.accuracy is not None
        assert arm.accuracy > least  # a batch counts as right only if all of it is
        assert [device.split(";")[0] for device in arm.devices] == ["cpu"]
    assert on_cpu.not_run is not None
    assert re.match("fp16 .* cpu pool", on_cpu.not_run)
    assert "no GPU" in (on_gpu.not_run or "")
    for ran in built.manifest.runs:
        written = records.read_rows(out / ran.rows)
        assert ran.gateway_counted is not None
        assert ran.gateway_counted >= len(written)
        assert {(row.variant, row.pool) for row in written} == {(ran.arm.split("-")[0], "cpu")}
        assert max(row.start_s for row in written) <= 0.8  # rounded to the microsecond
        assert min(row.latency_s for row in written) > 0
    assert {p.name for p in out.iterdir()} == {"manifest.json", "report.json", "report.html", "runs"}
    assert not list(out.rglob("*.log"))


def test_an_npz_is_sent_as_it_is_and_the_servers_are_asked_what_they_did(gateway: Gateway, tmp_path: Path) -> None:
    with np.load(DIGITS) as whole:
        np.savez(tmp_path / "few.npz", image=whole["image"][:30].reshape(-1, 1, 8, 8), labels=whole["labels"][:30])
    text = """{version: 1, name: npz, model: digits, arms: [{variant: fp32, pool: cpu}],
               load: {users: 2, warmup_s: 0.1, duration_s: 1, repeats: 1}, payload: {data: few.npz, batch_size: 3}}"""
    (tmp_path / "npz.yaml").write_text(text)
    assert run(CampaignOptions(tmp_path / "npz.yaml", gateway.url, tmp_path / "out")) == 0
    built = report.build(tmp_path / "out")
    (arm,), (ran,) = built.arms, built.manifest.runs
    assert built.manifest.payload.num_distinct == 30
    assert arm.accuracy is not None
    assert arm.accuracy > 0.8
    seen = ran.evidence
    assert seen is not None
    rows = records.read_rows(tmp_path / "out" / ran.rows)
    assert (seen.num_requests, seen.num_rows) == (len(rows), 3 * len(rows))
    assert seen.triton_infer_s is not None
    assert 0 < seen.triton_infer_s < max(row.latency_s for row in rows)
    assert seen.gateway_queue_s is not None
    assert seen.triton_cpu_s is not None
    assert seen.triton_cpu_s > 0
    assert seen.gpu_energy_j is None
    assert "the servers say" in (tmp_path / "out" / "report.html").read_text()
    assert not list((tmp_path / "out").rglob("*.npz"))


def test_a_payload_that_does_not_fit_ends_a_campaign_before_its_first_run(
    gateway: Gateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = campaign_file(tmp_path)
    file.write_text(file.read_text().replace("payload: {", "payload: {data: photographs, "))
    assert run(CampaignOptions(file, gateway.url, tmp_path / "out")) == 2
    assert "[3, H, W]" in capsys.readouterr().err


@pytest.mark.parametrize(("old", "new"), [("model: digits", "model: digit"), ("pool: cpu", "pool: cqu")])
def test_a_campaign_none_of_whose_arms_can_run_has_failed(gateway: Gateway, tmp_path: Path, old: str, new: str) -> None:
    file = campaign_file(tmp_path)
    file.write_text(file.read_text().replace(old, new))
    assert run(CampaignOptions(file, gateway.url, tmp_path / "out")) == 1
    assert all(arm.not_run for arm in report.build(tmp_path / "out").arms)


OPEN = """\
{version: 1, name: open, model: digits, arms: [{variant: fp32, pool: cpu}],
 load: {kind: open, rate_rps: [40, RATE], objective_s: OBJECTIVE, warmup_s: 0.3, duration_s: 2, repeats: 1, PROCESSES}}
"""


def open_file(folder: Path, rate: float, objective_s: float, more: str = "processes: 1") -> Path:
    file = folder / "open.yaml"
    text = OPEN.replace("RATE", f"{rate:g}").replace("OBJECTIVE", f"{objective_s:g}").replace("PROCESSES", more)
    file.write_text(text)
    return file


@pytest.mark.parametrize("processes", [1, 2])
def test_an_open_loop_sends_what_is_due_alone_or_with_others(gateway: Gateway, tmp_path: Path, processes: int) -> None:
    out = tmp_path / "out"
    file = open_file(tmp_path, 80, 10.0, f"processes: {processes}")  # a busy machine's lag is no matter here
    assert run(CampaignOptions(file, gateway.url, out)) == 0
    built = report.build(out)
    assert [(r.point, r.void) for r in built.runs] == [(40.0, None), (80.0, None)]
    for ran in built.manifest.runs:
        rows = records.read_rows(out / ran.rows)
        whole = list(schedule(built.manifest.load.at(ran.point), 2.3, ran.seed))
        assert sorted(row.start_s for row in rows) == pytest.approx(whole, abs=1e-6)
        assert ran.num_scheduled == sum(1 for at in whole if at >= 0.3)
        assert all(row.latency_s >= row.lag_s >= 0 for row in rows)
        assert {row.error for row in rows} == {""}
    assert "within 10,000 ms" in built.sentence
    parts = sorted(path.name for path in (out / "runs").iterdir() if "generator" in path.name)
    assert len(parts) == 2 * processes
    assert len(list((out / "runs").glob("*.together.json"))) == (2 if processes > 1 else 0)


@pytest.mark.parametrize("processes", [1, 2])
def test_what_a_gateway_wrote_down_is_sent_when_it_came_and_with_as_many_rows(
    gateway: Gateway, tmp_path: Path, processes: int
) -> None:
    out, log = tmp_path / "out", tmp_path / "access.jsonl"
    recorded = [(number * 0.02, (1, 4, 2)[number % 3]) for number in range(100)]
    lines = ({"at": 1_800_000_000 + at, "rows": rows, "model": "digits"} for at, rows in recorded)
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    file = open_file(tmp_path, 80, 10.0, f"processes: {processes}")
    assert run(CampaignOptions(file, gateway.url, out, replayed=log)) == 0
    (ran,) = report.build(out).manifest.runs
    sent = sorted(records.read_rows(out / ran.rows), key=lambda row: row.start_s)
    assert [row.start_s for row in sent] == pytest.approx([at for at, _ in recorded], abs=1e-5)
    assert {row.error for row in sent} == {""}
    by_rows: dict[int, list[int]] = {}
    for (_, rows), row in zip(recorded, sent, strict=True):
        by_rows.setdefault(rows, []).append(row.num_bytes)
    assert max(by_rows[1]) < min(by_rows[2])
    assert max(by_rows[2]) < min(by_rows[4])


@pytest.mark.thorough
def test_a_throttled_generator_voids_its_run_and_says_so(gateway: Gateway, tmp_path: Path) -> None:
    out = tmp_path / "out"
    file = open_file(tmp_path, 90_000, 0.05)  # more than any Python process sends
    assert run(CampaignOptions(file, gateway.url, out)) == 1
    built = report.build(out)
    fast = built.runs[1]
    assert fast.void is not None
    assert fast.void.startswith("the generator ")
    assert built.arms[1].throughput_ratio is None


@pytest.mark.thorough
def test_the_plain_sentence_goes_to_standard_output_and_progress_beside_it(gateway: Gateway, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "serving", "campaign", "run", str(campaign_file(tmp_path)), "--url", gateway.url]
    options = ["--output", str(tmp_path / "out"), "--duration", "0.4", "--repeats", "1"]
    with black_hole() as (proxies, num_callers):  # loopback is reached without a proxy
        named = {**os.environ, **proxies}
        done = subprocess.run([*command, *options], cwd=ROOT, env=named, capture_output=True, text=True, timeout=120)
        assert num_callers() == 0
    assert done.returncode == 0, done.stderr
    assert "fp32 on cpu" in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[1] == f"report: {tmp_path / 'out' / 'report.html'}"
    assert "2/2" in done.stderr
    assert "int8" in done.stderr
    assert "repeat" in done.stderr
    again = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert again.returncode == 2
    assert "not empty" in again.stderr
    assert "--output" in again.stderr


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_campaign_keeps_what_ran_and_leaves_no_generator(
    gateway: Gateway, tmp_path: Path, sign: signal.Signals
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "serving", "campaign", "run", str(campaign_file(tmp_path)), "--url", gateway.url]
    with subprocess.Popen([*command, "--output", str(out)], cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        _wait_for_line(running, "run 1/4")
        _wait_for_generator(running.pid)
        running.send_signal(sign)
        assert running.communicate(timeout=60)
    assert running.returncode == 130
    built = report.build(out)
    assert built.is_partial
    assert built.arms[0].num_runs == 1
    assert [r.state for r in built.runs] == ["done", "interrupted"]
    assert "partial" in (out / "report.html").read_text()
    assert not _with_in_command(str(out))


@pytest.mark.thorough
def test_a_generator_that_is_killed_leaves_no_worker_that_loads_the_server_of_the_next_run(
    gateway: Gateway, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    file = open_file(tmp_path, 50, 10.0, "processes: 2")
    command = [sys.executable, "-m", "serving", "campaign", "run", str(file), "--url", gateway.url, "--duration", "60"]
    with subprocess.Popen([*command, "--output", str(out)], cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        for _ in range(2):
            master = _wait_for_generator(running.pid, num_workers=2)
            master.kill()
            psutil.wait_procs([master])
        assert running.communicate(timeout=60)
    assert running.returncode == 1
    assert ["generator" in (run.void or "") and "-9" in (run.void or "") for run in report.build(out).runs] == [
        True
    ] * 2
    assert not _with_in_command(str(out))


def test_a_campaign_that_is_killed_takes_its_generator_and_its_own_gateway_with_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "serving", "campaign", "run", str(campaign_file(tmp_path)), "--duration", "60"]
    if Gateway(DEFAULT_URL).is_ready():
        pytest.skip("a gateway of somebody else's is at the default address")
    with subprocess.Popen([*command, "--output", str(out)], cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        _wait_for_generator(running.pid)
        started = psutil.Process(running.pid).children()
        running.kill()
    _, alive = psutil.wait_procs(started, timeout=50)
    assert len(started) == 2
    assert not alive
    assert report.build(out).is_partial


@pytest.mark.thorough
def test_a_gateway_killed_under_load_voids_its_runs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with own_gateway(tmp_path / "gateway.log") as doomed:
        port = doomed.url.rsplit(":", 1)[1]
        below = psutil.Process().children(
            recursive=True
        )  # looked for now, so that nothing but the kill comes after the line
        (victim,) = [process for process in below if {"gateway", port} <= set(process.cmdline())]
        command = [
            sys.executable,
            "-m",
            "serving",
            "campaign",
            "run",
            str(campaign_file(tmp_path)),
            "--url",
            doomed.url,
        ]
        with subprocess.Popen([*command, "--output", str(out)], cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
            _wait_for_line(running, "run 1/4")
            _wait_for_generator(running.pid)
            victim.kill()
            assert running.communicate(timeout=60)
    first, second, *_ = report.build(out).runs  # those after them have a gateway again
    assert first.void is None
    assert second.void is not None


def num_answered(gateway: Gateway) -> float:
    with urllib.request.urlopen(f"{gateway.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("tandem_requests_total{"))


def test_without_rows_the_locustfile_is_an_ordinary_one(gateway: Gateway) -> None:
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    before = num_answered(gateway)
    with subprocess.Popen(
        [*command, "--host", gateway.url, "--users", "2"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        wait_until(lambda: running.poll() is not None or num_answered(gateway) > before + 20, "it sends requests")
        running.terminate()
        said, complaints = running.communicate(timeout=60)
    assert running.returncode == 0, complaints
    (told,) = json.loads(said)
    assert told["num_requests"] > 0
    assert told["num_failures"] == 0


def test_a_generator_that_cannot_start_says_so_and_ends(gateway: Gateway, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        str(LOCUSTFILE),
        "--headless",
        "--only-summary",
        "--host",
        gateway.url,
    ]
    options = ["--measure", "0.2", "--rows", str(rows), "--model", "nobody"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "no model nobody (404)" in done.stderr
    assert not rows.exists()


def by_hand(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary", "--host", url]
    port = str(free_ports(1)[0])
    command += ["--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, *options], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.thorough
def test_several_processes_started_by_hand_send_what_one_would_send_alone(gateway: Gateway, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    options = ["--rate", "60", "--measure", "2", "--seed", "3", "--rows", str(rows)]
    done = by_hand(gateway.url, "--processes", "3", "--users", "3", "--spawn-rate", "3", *options)
    assert done.returncode == 0, done.stderr
    sent = sorted(row.start_s for part in tmp_path.glob("rows.*.csv") for row in records.read_rows(part))
    assert sent == pytest.approx(list(schedule(Arrivals("poisson", 60.0), 2.0, 3)), abs=1e-6)
    merged = together(rows)
    taken_s = sorted(row.latency_s for part in tmp_path.glob("rows.*.csv") for row in records.read_rows(part))
    assert merged.get_total_count() == len(taken_s)
    for percent in (10, 50, 90, 100):
        rank = max(1, round(percent / 100 * len(taken_s))) - 1
        assert merged.get_value_at_percentile(percent) / 1e6 == pytest.approx(taken_s[rank], rel=0.002, abs=2e-6)


def together(rows: Path) -> HdrHistogram:
    """Of all workers of a run, in microseconds."""
    facts = json.loads(rows.with_suffix(".together.json").read_text())
    return HdrHistogram.decode(facts["latencies_us"].encode())


@pytest.mark.thorough
def test_two_workers_measure_what_one_process_measures(gateway: Gateway, tmp_path: Path) -> None:
    """Within the interval in which one more equal run of one process lies in 999 of 1,000 cases, told by three of them."""
    options = ["--rate", "100", "--measure", "1"]
    alone = []
    for seed in ("1", "2", "3"):
        rows = tmp_path / f"{seed}.csv"
        done = by_hand(gateway.url, *options, "--seed", seed, "--rows", str(rows))
        assert done.returncode == 0, done.stderr
        alone.append([math.log(row.latency_s) for row in records.read_rows(rows)])
    rows = tmp_path / "two.csv"
    two = ["--processes", "2", "--users", "2", "--spawn-rate", "2", "--seed", "4", "--rows", str(rows)]
    done = by_hand(gateway.url, *options, *two)
    assert done.returncode == 0, done.stderr
    merged = together(rows)
    for percent in (50, 90):
        known = [float(np.percentile(latencies, percent)) for latencies in alone]
        reach = t_quantile(2, 0.001) * float(np.std(known, ddof=1)) * math.sqrt(1 + 1 / 3)
        found = math.log(merged.get_value_at_percentile(percent) / 1e6)
        assert found == pytest.approx(float(np.mean(known)), abs=max(reach, 0.05))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--processes", "2", "--rate", "50"], "an open loop needs one user for each process that sends: --users 2"),
        (["--users", "8", "--rate", "50"], "an open loop needs one user for each process that sends: --users 1"),
        (["--rate", "-5"], "poisson arrivals need a rate above 0"),
        (["--trace", "gone.txt"], "No such file or directory: 'gone.txt'"),
        (["--trace", "gone.txt", "--processes", "2", "--users", "2"], "No such file or directory: 'gone.txt'"),
    ],
)
def test_an_open_loop_that_cannot_be_sent_ends_at_once_and_says_why(
    gateway: Gateway, options: list[str], why: str
) -> None:
    done = by_hand(gateway.url, "--measure", "1", *options)
    assert done.returncode != 0
    assert why in done.stderr


@pytest.mark.parametrize("processes", [[], ["--processes", "2", "--users", "2", "--spawn-rate", "2"]])
def test_a_generator_whose_disk_is_full_ends_and_says_so(
    gateway: Gateway, tmp_path: Path, processes: list[str]
) -> None:
    for name in ("rows.csv", "rows.1.csv"):
        (tmp_path / name).symlink_to("/dev/full")
    done = by_hand(gateway.url, "--rate", "50", "--measure", "0.5", "--rows", str(tmp_path / "rows.csv"), *processes)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("[Errno 28] No space left on device")


def test_a_directory_that_cannot_be_used_ends_a_campaign_in_a_line(
    gateway: Gateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    file = campaign_file(tmp_path)
    (out / "runs").write_text("no folder")
    assert run(CampaignOptions(file, gateway.url, out)) == 2
    assert "is not empty" in capsys.readouterr().err
    assert run(CampaignOptions(file, gateway.url, file)) == 2
    assert re.search(f"{file} .*: File exists", capsys.readouterr().err)


def _with_in_command(text: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if text in " ".join(p.info["cmdline"] or [])]


def _wait_for_generator(pid: int, num_workers: int = 0) -> psutil.Process:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # the one that was killed
                if "locust" in " ".join(child.cmdline()) and len(child.children()) >= num_workers:
                    return child
        time.sleep(0.02)
    raise AssertionError("no generator was started")


def _wait_for_line(running: subprocess.Popen[str], start: str) -> None:
    assert running.stderr
    said = []
    for line in running.stderr:
        said.append(line)
        if line.startswith(start):
            return
    raise AssertionError(f"it ended without {start!r}: {said}")
