"""Reads what servers and machine count while a run is on: Triton's and the gateway's statistics, CPU seconds, energy, a GPU's load.

The statistics are asked for before and after a run only. During it a thread reads /proc and /sys twice a second (0.1 ms of CPU for five
processes) and keeps what nvidia-smi, which runs beside it, printed last. Rule: nothing here fails a run: what cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import csv
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psutil

from loadtest.evidence import counts as evidence
from loadtest.evidence.counts import Counters, Queue, Reading, Scrape
from loadtest.target import Gateway, triton_names
from serving.http_client import address
from serving.measure import energy

PERIOD_S = 0.5
NVIDIA_SMI_MS = 500
QUERY = "index,utilization.gpu,power.draw"
SHORT_S = 1.0  # for a port that may be closed to us
METRICS_PORT = 8002  # Triton's own default, for servers that are not started by `tandem up`

Meter = Callable[[], Mapping[str, float]]


# -- what the servers count ----------------------------------------------------------------------------------------------


def scrape(gateway: Gateway, model: str, variant: str, pool: str) -> Scrape:
    """Of a variant on a pool, on all of its servers."""
    text = gateway.get_text("/metrics")
    queue = None
    if text is not None:  # before the first such request the series is not there yet
        queue = evidence.queue_of(text, model, variant, pool) or Queue(0.0, 0.0)
    return Scrape(_triton(gateway, model, variant, pool), queue)


def _triton(gateway: Gateway, model: str, variant: str, pool: str) -> Mapping[str, Counters] | None:
    """From the servers themselves where they can be reached; through the gateway only where it has but one to ask."""
    status = gateway.status()
    urls = dict(holders(status, model, variant, pool))
    if (found := evidence.complete({url: _counted(Gateway(url), name) for url, name in urls.items()})) is not None:
        return found
    names = triton_names(status, model, variant)
    return evidence.complete({gateway.url: _counted(gateway, names[0])}) if len(names) == 1 else None


def _counted(server: Gateway, name: str) -> Counters | None:
    return evidence.counters(server.get_json(f"/v2/models/{name}/stats"))


def holders(status: Mapping[str, Any] | None, model: str, variant: str, pool: str) -> list[tuple[str, str]]:
    """(URL, Triton's name) of every server of the pool that holds the variant."""
    try:
        known = (status or {})["models"][model]["variants"]
        (name,) = {v["name"] for v in known if v["variant"] == variant and v["pool"] == pool}
        servers = (status or {})["pools"][pool]["servers"]
        return [(str(server["url"]).rstrip("/"), name) for server in servers if name in server["variants"]]
    except (TypeError, KeyError, ValueError):
        return []


# -- what is read during a run ---------------------------------------------------------------------------------------------


@contextmanager
def watching(gateway: Gateway, model: str, variant: str, pool: str) -> Iterator[list[Reading]]:
    """The readings fill while the block runs, and have one more when it is left."""
    readings: list[Reading] = []
    with contextlib.ExitStack() as stack:
        tritons = [url for url, _ in holders(gateway.status(), model, variant, pool)]
        meters: list[Meter] = []
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            for meter in _meters(gateway, tritons, stack):
                meters.append(meter)
        is_over = threading.Event()
        thread = threading.Thread(target=_read_on, args=(meters, readings, is_over), daemon=True)
        readings.append(_reading(meters))
        thread.start()
        try:
            yield readings
        finally:
            is_over.set()
            thread.join()
            readings.append(_reading(meters))


def _read_on(meters: Sequence[Meter], readings: list[Reading], is_over: threading.Event) -> None:
    while not is_over.wait(PERIOD_S):
        readings.append(_reading(meters))


def _reading(meters: Sequence[Meter]) -> Reading:
    values: dict[str, float] = {}
    for meter in meters:
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            values.update(meter())
    return Reading(time.time(), values)


def _meters(gateway: Gateway, tritons: Sequence[str], stack: contextlib.ExitStack) -> Iterator[Meter]:
    """Those of this machine only where the servers are on it."""
    if gateway.is_local:
        yield from _cpu_meters([gateway.url], evidence.GATEWAY_CPU_S, with_children=False)
    if gateway.is_local and tritons and all(Gateway(url).is_local for url in tritons):
        yield from _cpu_meters(tritons, evidence.TRITON_CPU_S, with_children=True)
        if (counter := energy.of_processor()) is not None:
            yield lambda: {evidence.CPU_J: counter()}
        if program := shutil.which("nvidia-smi"):
            yield stack.enter_context(nvidia_smi(program))
    elif tritons:
        urls = [f"http://{address(url)[0]}:{METRICS_PORT}/metrics" for url in tritons]
        if all(card_metrics(text) for text in map(_text, urls)):
            yield lambda: _summed([card_metrics(_text(url)) for url in urls])


def _cpu_meters(urls: Sequence[str], name: str, *, with_children: bool) -> Iterator[Meter]:
    """Of the processes that listen there; none where they belong to somebody else."""
    with contextlib.suppress(OSError, psutil.Error):
        ports = {address(url)[1] for url in urls}
        listening = (c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
        pids = {c.pid for c in listening if getattr(c.laddr, "port", None) in ports}
        if pids and None not in pids:
            processes = [psutil.Process(pid) for pid in pids]
            children = [child for one in processes if with_children for child in one.children(recursive=True)]
            yield lambda: {name: cpu_s([*processes, *children])}


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """User and system seconds. Raises psutil.Error once one of them has ended: without it the sum would be another."""
    times = [one.cpu_times() for one in processes]
    return sum(float(t.user + t.system) for t in times)


@contextmanager
def nvidia_smi(program: str) -> Iterator[Meter]:
    """What it printed last, of all cards together."""
    command = [program, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-lms", str(NVIDIA_SMI_MS)]
    latest: dict[str, tuple[float, dict[str, float]]] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        thread = threading.Thread(target=_keep_latest, args=(process, latest), daemon=True)
        thread.start()
        try:
            yield lambda: _summed([card for at, card in latest.values() if time.time() - at < 2 * NVIDIA_SMI_MS / 1000])
        finally:
            process.kill()
            thread.join()


def _keep_latest(process: subprocess.Popen[str], latest: dict[str, tuple[float, dict[str, float]]]) -> None:
    assert process.stdout
    for line in process.stdout:
        if (card := card_line(line)) is not None:
            latest[card[0]] = time.time(), card[1]


def card_line(line: str) -> tuple[str, dict[str, float]] | None:
    """`0, 37, 71.93` -> card 0 at 37 % and 71.93 W. What a card does not tell (`[N/A]`) is left out."""
    cells = [cell.strip() for cell in next(csv.reader([line]), [])]
    if len(cells) != 3:
        return None
    values = {}
    for name, cell, unit in zip((evidence.GPU_RATIO, evidence.GPU_W), cells[1:], (100.0, 1.0), strict=True):
        with contextlib.suppress(ValueError):
            values[name] = float(cell) / unit
    return cells[0], values


def card_metrics(text: str | None) -> dict[str, float]:
    """The same out of Triton's own metrics: of its cards the sum, of their use the mean."""
    names = {
        evidence.GPU_RATIO: "nv_gpu_utilization",
        evidence.GPU_W: "nv_gpu_power_usage",
        evidence.GPU_J: "nv_energy_consumption",
    }
    found = {key: [value for _, value in evidence.samples(text or "", name)] for key, name in names.items()}
    sums = {key: sum(values) for key, values in found.items() if values}
    if evidence.GPU_RATIO in sums:
        sums[evidence.GPU_RATIO] /= len(found[evidence.GPU_RATIO])
    return sums


def _summed(cards: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Only what every card told."""
    if not cards:
        return {}
    names = set.intersection(*(set(card) for card in cards))
    sums = {name: sum(card[name] for card in cards) for name in names}
    if evidence.GPU_RATIO in sums:
        sums[evidence.GPU_RATIO] /= len(cards)
    return sums


def _text(url: str) -> str | None:
    base, _, path = url.rpartition("/")
    return Gateway(base).get_text(f"/{path}", SHORT_S)
