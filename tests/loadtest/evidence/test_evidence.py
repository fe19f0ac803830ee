"""What servers counted during a run is a difference, or nothing: a counter that fell is believed by nobody."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadtest import records
from loadtest.evidence import counts as told
from loadtest.evidence import meters
from loadtest.evidence.counts import Counters, Queue, Reading, Scrape, Window, evidence
from loadtest.records import Evidence
from loadtest.report import build as report
from loadtest.report import evidence as report_evidence
from loadtest.report import page
from loadtest.target import Gateway
from serving.measure import energy
from tests.loadtest import rows as make

NS = {"count": 3, "ns": 3_000_000}


def stats(**changes: Any) -> dict[str, Any]:
    times = {name: dict(NS) for name in ("success", "queue", "compute_input", "compute_infer", "compute_output")}
    model = {"name": "digits", "inference_count": 6, "execution_count": 2, "inference_stats": times}
    return {"model_stats": [{**model, **changes}]}


def test_tritons_statistics_are_read() -> None:
    assert told.counters(stats()) == Counters(3, 6, 2, 3_000_000, 3_000_000, 3_000_000, 3_000_000)
    two_versions = {"model_stats": stats()["model_stats"] * 2}
    assert told.counters(two_versions) == Counters(6, 12, 4, *[6_000_000] * 4)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        [],
        "x",
        {"model_stats": []},
        {"model_stats": [{}]},
        stats(inference_stats={}),
        stats(inference_stats=None),
        stats(inference_count="many"),
    ],
)
def test_statistics_that_are_none_are_nothing(answer: Any) -> None:
    assert told.counters(answer) is None


ONE = Counters(10, 40, 5, 100, 200, 300, 400)


def test_of_several_servers_one_that_is_silent_is_not_left_out_quietly() -> None:
    assert told.complete({"a": ONE, "b": ONE}) == {"a": ONE, "b": ONE}
    assert told.complete({"a": ONE, "b": None}) is None
    assert told.complete({}) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "[::1]", "OWN"])
def test_a_gateway_at_an_address_of_this_machine_shares_its_cores(host: str) -> None:
    own = next(a.address for known in psutil.net_if_addrs().values() for a in known if a.family == socket.AF_INET)
    assert Gateway(f"http://{host.replace('OWN', own)}:8080").is_local


@pytest.mark.parametrize("host", ["192.0.2.7", "[2001:db8::7]", "gateway.example"])
def test_a_gateway_elsewhere_has_its_own(host: str) -> None:
    assert not Gateway(f"http://{host}:8080").is_local


METRICS = """\
# TYPE tandem_queue_seconds histogram
tandem_queue_seconds_sum{model="digits",pool="cpu",variant="fp32"} 1.5
tandem_queue_seconds_count{model="digits",pool="cpu",variant="fp32"} 3.0
tandem_queue_seconds_sum{model="a\\"b",pool="cpu",variant="fp32"} 7
tandem_queue_seconds_count{model="a\\"b",pool="cpu",variant="fp32"} 1
broken{ 3
tandem_queue_seconds_sum{model="digits",pool="gpu",variant="fp32"} what
nv_energy_consumption{gpu_uuid="GPU-1"} 100.5
nv_energy_consumption{gpu_uuid="GPU-2"} 50
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-2"} 0.1
process_start_time_seconds 17
"""


def test_the_gateways_queue_is_that_of_the_arm_alone() -> None:
    assert told.queue_of(METRICS, "digits", "fp32", "cpu") == Queue(1.5, 3.0)
    for other in (("digits", "int8", "cpu"), ("digits", "fp32", "gpu"), ("", "", "")):
        assert told.queue_of(METRICS, *other) is None
    assert told.queue_of("", "digits", "fp32", "cpu") is None


def test_cards_in_tritons_metrics_are_added_up_and_their_use_is_averaged() -> None:
    assert meters.card_metrics(METRICS) == {"gpu_j": 150.5, "gpu_ratio": pytest.approx(0.3)}
    assert meters.card_metrics(None) == meters.card_metrics("# none\n") == {}


@pytest.mark.parametrize(
    ("line", "card"),
    [
        ("0, 37, 71.93\n", ("0", {"gpu_ratio": 0.37, "gpu_w": 71.93})),
        ("1, [N/A], 12.00", ("1", {"gpu_w": 12.0})),
        ("1, 5, [Not Supported]", ("1", {"gpu_ratio": 0.05})),
        ("", None),
        ("No devices were found", None),
        ("0, 37", None),
    ],
)
def test_a_line_of_nvidia_smi_is_read_or_left_out(line: str, card: object) -> None:
    assert meters.card_line(line) == card


# -- differences ---------------------------------------------------------------------------------------------------------

LATER = Counters(30, 120, 25, 20_000_100, 40_000_200, 60_000_300, 80_000_400)
WINDOW = Window(100.0, 104.0)


def readings(name: str, values: dict[float, float]) -> list[Reading]:
    return [Reading(at, {name: value}) for at, value in values.items()]


def test_what_rose_during_a_run_is_told_per_request() -> None:
    seen = evidence(Scrape({"a": ONE}, Queue(1.0, 10)), Scrape({"a": LATER}, Queue(1.2, 30)), [], None)
    assert (seen.num_requests, seen.num_rows, seen.num_executions) == (20, 80, 20)
    assert seen.triton_queue_s == pytest.approx(0.001)
    assert (seen.triton_input_s, seen.triton_infer_s) == (pytest.approx(0.002), pytest.approx(0.003))
    assert (seen.triton_output_s, seen.gateway_queue_s) == (pytest.approx(0.004), pytest.approx(0.01))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, LATER),
        (ONE, None),
        (LATER, ONE),  # Triton began anew
        (ONE, ONE),  # nothing was asked
        (ONE, LATER._replace(infer_ns=0)),  # one counter alone fell
    ],
)
def test_counters_that_fell_or_are_missing_tell_nothing(before: Counters | None, after: Counters | None) -> None:
    asked = [Scrape(told.complete({"a": counted})) for counted in (before, after)]
    assert evidence(*asked, [], None) == Evidence()


def test_one_of_several_servers_that_began_anew_is_not_hidden_by_the_sum_of_all() -> None:
    both = evidence(Scrape({"a": ONE, "b": ONE}), Scrape({"a": LATER, "b": LATER}), [], None)
    assert (both.num_requests, both.num_rows) == (40, 160)
    anew = ONE._replace(num_requests=1)
    assert evidence(Scrape({"a": ONE, "b": ONE}), Scrape({"a": LATER, "b": anew}), [], None) == Evidence()
    assert evidence(Scrape({"a": ONE, "b": ONE}), Scrape({"a": LATER}), [], None) == Evidence()
    assert evidence(Scrape({"a": ONE}), Scrape({"b": LATER}), [], None) == Evidence()


@pytest.mark.parametrize(
    ("before", "after", "seen"),
    [
        (Queue(0.0, 0), Queue(1.0, 10), 0.1),  # the first such request of this gateway's came in the run
        (None, Queue(1.0, 10), None),  # nobody knows how much of it was there before
        (Queue(1.0, 10), None, None),
        (Queue(1.0, 10), Queue(1.0, 10), None),
        (Queue(5.0, 50), Queue(1.0, 10), None),
    ],
)
def test_the_gateways_queue_is_a_difference_too(before: Queue | None, after: Queue | None, seen: float | None) -> None:
    assert evidence(Scrape(None, before), Scrape(None, after), [], None).gateway_queue_s == seen


def test_a_counter_is_read_between_its_readings_at_both_ends_of_the_measured_seconds() -> None:
    steady = readings(told.TRITON_CPU_S, {99.0: 10.0, 101.0: 12.0, 103.0: 16.0, 105.0: 18.0})
    assert told.rise(steady, told.TRITON_CPU_S, WINDOW) == pytest.approx(17.0 - 11.0)
    exact = readings(told.TRITON_CPU_S, {100.0: 1.0, 104.0: 3.0})
    assert told.rise(exact, told.TRITON_CPU_S, WINDOW) == 2.0


@pytest.mark.parametrize(
    "values",
    [
        {},
        {101.0: 1.0, 105.0: 2.0},  # began too late
        {99.0: 1.0, 103.0: 2.0},  # ended too early
        {99.0: 5.0, 102.0: 6.0, 103.0: 1.0, 105.0: 9.0},  # a process was started anew
    ],
)
def test_a_counter_that_does_not_cover_the_measured_seconds_tells_nothing(values: dict[float, float]) -> None:
    assert told.rise(readings(told.CPU_J, values), told.CPU_J, WINDOW) is None


def test_energy_is_the_cards_own_counter_and_else_its_power_over_the_measured_seconds() -> None:
    power = readings(told.GPU_W, {99.0: 1000.0, 101.0: 50.0, 103.0: 70.0, 105.0: 1000.0})
    seen = evidence(Scrape(), Scrape(), power, WINDOW)
    assert (seen.gpu_power_w, seen.gpu_energy_j) == (60.0, 240.0)
    counted = readings(told.GPU_J, {99.0: 0.0, 105.0: 600.0})
    assert evidence(Scrape(), Scrape(), [*power, *counted], WINDOW).gpu_energy_j == pytest.approx(400.0)
    assert evidence(Scrape(), Scrape(), power, Window(110.0, 114.0)) == Evidence()
    assert evidence(Scrape(), Scrape(), power, None) == Evidence()


# -- meters -----------------------------------------------------------------------------------------------------------------


def test_cpu_seconds_are_added_up_over_processes_until_one_of_them_ends() -> None:
    burn = (
        "t=__import__('time'); e=t.process_time()+0.23\nwhile t.process_time()<e: pass\nprint('x', flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        both = [psutil.Process(), psutil.Process(child.pid)]
        own_s = meters.cpu_s(both[:1])  # first: ours goes on
        assert meters.cpu_s(both) >= own_s + 0.2
        child.communicate(b"\n")
    with pytest.raises(psutil.NoSuchProcess):
        meters.cpu_s(both)


def until(meter: meters.Meter, has_come: Callable[[Mapping[str, float]], bool]) -> Mapping[str, float]:
    deadline = time.monotonic() + 20
    while not has_come(values := meter()):
        assert time.monotonic() < deadline, values
        time.sleep(0.01)
    return values


def test_what_nvidia_smi_prints_is_read_while_it_runs_and_it_is_stopped(tmp_path: Path) -> None:
    """A program that prints as it does stands for it where there is no card."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho $$ > $(dirname $0)/pid\nwhile :; do echo '0, 40, 100.0'; echo '1, 20, [N/A]'; sleep 0.1; done\n"
    )
    program.chmod(0o755)
    with meters.nvidia_smi(str(program)) as meter:
        seen = until(meter, lambda values: values.get(told.GPU_RATIO, 0.4) != 0.4)
        assert seen == {told.GPU_RATIO: pytest.approx(0.3)}  # one card does not tell its power: no sum of that
        pid = int((tmp_path / "pid").read_text())
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


def test_a_gateway_that_is_not_there_leaves_nothing_read_and_no_run_fails() -> None:
    nobody = Gateway("http://127.0.0.1:9")
    with meters.watching(nobody, "digits", "fp32", "cpu") as seen:
        pass
    assert [dict(reading.values) for reading in seen] == [{}, {}]
    scraped = meters.scrape(nobody, "digits", "fp32", "cpu")
    assert evidence(scraped, scraped, seen, WINDOW) == Evidence()


def rapl(folder: Path, zone: str, name: str, energy: str) -> None:
    (folder / zone).mkdir()
    (folder / zone / "name").write_text(name)
    (folder / zone / "energy_uj").write_text(energy)


def test_a_processors_energy_is_that_of_its_packages_where_they_tell_it(tmp_path: Path) -> None:
    rapl(tmp_path, "intel-rapl:0", "package-0\n", "1500000\n")
    rapl(tmp_path, "intel-rapl:1", "package-1\n", "500000\n")
    rapl(tmp_path, "intel-rapl:0:0", "core\n", "9000000\n")
    assert energy.joules(energy.rapl_files(tmp_path)) == 2.0
    assert energy.rapl_files(tmp_path / "gone") == ()


STATUS = {
    "pools": {
        "cpu": {"servers": [{"url": "http://a:1/", "variants": ["m-fp32"]}, {"url": "http://b:2", "variants": []}]},
        "gpu": {"servers": [{"url": "http://c:3", "variants": ["m-fp32"]}]},
    },
    "models": {"m": {"variants": [{"name": "m-fp32", "variant": "fp32", "pool": pool} for pool in ("cpu", "gpu")]}},
}


def test_the_servers_of_an_arm_are_those_of_its_pool_that_hold_its_variant() -> None:
    assert meters.holders(STATUS, "m", "fp32", "cpu") == [("http://a:1", "m-fp32")]
    assert meters.holders(STATUS, "m", "fp32", "gpu") == [("http://c:3", "m-fp32")]
    for status, model, variant, pool in (
        (None, "m", "fp32", "cpu"),
        ({}, "m", "fp32", "cpu"),
        (STATUS, "n", "fp32", "cpu"),
        (STATUS, "m", "int8", "cpu"),
        (STATUS, "m", "fp32", "tpu"),
    ):
        assert meters.holders(status, model, variant, pool) == []


# -- what a report makes of it ----------------------------------------------------------------------------------------------

SEEN = Evidence(100, 200, 50, 0.001, 0.0001, 0.005, 0.0002, 0.0003, 0.2, 1.0)


def witnessed(*seen: Evidence | None) -> report.Report:
    """Two repeats of each arm, with this evidence of the baseline's runs."""
    manifest, by_run = make.two_arms()
    of = {f"runs/fp32-cpu-{repeat + 1}.csv": one for repeat, one in enumerate(seen)}
    runs = tuple(replace(run, evidence=of.get(run.rows, SEEN)) for run in manifest.runs)
    return report.summarise(replace(manifest, runs=runs), by_run)


def test_an_arms_evidence_is_the_median_of_its_runs_and_costs_are_by_good_answers() -> None:
    built = witnessed(SEEN, replace(SEEN, triton_infer_s=0.007, gateway_cpu_s=0.4))
    fp32 = built.arms[0].evidence
    assert fp32 is not None
    assert (fp32.triton_infer_s, fp32.rows_per_execution) == (pytest.approx(0.006), 4.0)
    good = [run.throughput_rps * 2.0 for run in built.runs if run.arm == "fp32-cpu"]
    assert fp32.gateway_cpu_s == pytest.approx((0.2 / good[0] + 0.4 / good[1]) / 2)
    assert fp32.gpu_energy_j is None
    assert built.arms[2].evidence is None  # not run


def test_what_one_valid_run_does_not_know_the_arm_does_not_know() -> None:
    fp32 = witnessed(SEEN, replace(SEEN, triton_infer_s=None, num_executions=0)).arms[0].evidence
    assert fp32 is not None
    assert (fp32.triton_infer_s, fp32.rows_per_execution, fp32.triton_queue_s) == (None, None, 0.001)
    without = witnessed(SEEN, None).arms[0].evidence
    assert without is not None
    assert set(asdict(without).values()) == {None}


def test_the_page_shows_what_the_servers_say_and_what_nobody_measured() -> None:
    shown = page.render(witnessed(SEEN, SEEN))
    assert "the servers say" in shown
    assert "Triton: computing, ms" in shown
    assert "Energy: not measured" in shown
    assert "GPU, J" not in shown
    with_card = page.render(witnessed(*[replace(SEEN, gpu_energy_j=50.0, gpu_power_w=25.0)] * 2))
    assert "GPU, J" in with_card
    assert "processor: not measured" in with_card
    manifest, by_run = make.two_arms()
    assert "the servers say" not in page.render(report.summarise(manifest, by_run))


def test_a_dash_stands_for_what_is_not_known() -> None:
    arms = witnessed(*[replace(SEEN, gpu_energy_j=50.0)] * 2).arms[:2]
    of = {row[0]: row[1:] for row in report_evidence.table(arms).rows}
    assert of["Energy of the GPU, J"][1] == report_evidence.DASH  # INT8's runs have none
    assert of["Triton: computing, ms"] == ("5.00", "5.00")


def test_evidence_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    given = make.manifest([make.run(evidence=SEEN), make.run("int8-cpu")])
    records.write_manifest(tmp_path, given)
    assert records.read_manifest(tmp_path) == given
    whole = json.loads((tmp_path / records.MANIFEST).read_text())
    whole["runs"][0]["evidence"]["guess"] = 1
    (tmp_path / records.MANIFEST).write_text(json.dumps(whole))
    with pytest.raises(records.ResultsError, match="guess"):
        records.read_manifest(tmp_path)
