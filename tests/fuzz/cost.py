"""What small requests cost the server and its other clients: statuses do not show it.

Each body is some kilobytes that stand for millions of values, or names more of something than any model has. While it is answered, another
client goes on asking; told are its longest wait, how much memory the gateway gained, and the seconds that Triton computed. Ten times what a
plain request costs is a finding, where it is beyond what is aimed at as well.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.fuzz.served import SAMPLE, Served

INFER, EMBED, CLASSIFY = "/v2/models/digits/infer", "/v1/embeddings", "/v1/classify/digits"
SIZE = 62 * 2**20  # of an unpacked body; 64 MiB is the most that a gateway takes if nobody says otherwise
TEXT = b'{"inputs":[{"name":"image","shape":[1,1,8,8],"datatype":"FP32","data":['
REFUSED = {400, 413, 422}
# Aims on two cores with nothing else running, and how often a plain request's share any may cost: guesses at what other clients bear.
MAX_WAIT_S, MAX_TRITON_S, MAX_GROWTH_BYTES = 0.1, 0.2, 300 * 10**6
MAX_SHARES = 10
TRIES = 3  # before it is a finding
PAUSE_S = 0.3  # before and after, so that the other client is asking and what was begun has ended


def _packed(before: bytes, one: bytes, after: bytes) -> bytes:
    return gzip.compress(before + one * (SIZE // len(one)) + after, 1)


def _named(number: int) -> dict[str, int]:
    return {f"p{index}": index for index in range(number)}


def bodies() -> Iterator[tuple[str, str, bytes]]:
    """Name, path and body. A name in brackets says what unpacks out of it."""
    asked = json.loads(SAMPLE)
    many = [{"name": f"x{index}", "shape": [1], "datatype": "FP32", "data": [1]} for index in range(200_000)]
    yield "50,000 parameters", INFER, json.dumps({**asked, "parameters": _named(50_000)}).encode()
    yield "65 parameters", INFER, json.dumps({**asked, "parameters": _named(65)}).encode()
    yield "200,000 inputs", INFER, json.dumps({"inputs": many}).encode()
    yield "100,000 outputs", INFER, json.dumps({**asked, "outputs": many[:100_000]}).encode()
    yield "[objects]", INFER, _packed(b'{"inputs":[', b"{},", b"{}]}")
    yield "[objects as outputs]", INFER, _packed(SAMPLE.rstrip()[:-1] + b',"outputs":[', b"{},", b"{}]}")
    yield "[one key again and again]", INFER, _packed(b"{", b'"inputs":1,', b'"inputs":[]}')
    yield "[lists as data]", INFER, _packed(TEXT, b"[],", b"[]]}]}")
    yield "[numbers for 64]", INFER, _packed(TEXT, b"0,", b"0]}]}")
    yield "[escaped text]", INFER, _packed(TEXT + b'"', b"\\u0061", b'"]}]}')
    yield "[brackets]", INFER, _packed(b"", b"[", b"")
    yield "[white space]", INFER, _packed(b"{", b" ", SAMPLE.rstrip()[1:])
    yield "[texts as data]", INFER, _packed(TEXT.replace(b"FP32", b"BYTES"), b'"a",', b'"a"]}]}')
    yield "[one text]", INFER, _packed(TEXT.replace(b"FP32", b"BYTES") + b'"', b"a", b'"]}]}')
    yield "[one escaped text to embed]", EMBED, _packed(b'{"model":"digits","input":"', b"\\u0061", b'"}')
    yield "[dimensions]", INFER, _packed(TEXT.partition(b"1,1,8")[0], b"1,", b'1],"data":[1]}]}')
    yield "[texts to embed]", EMBED, _packed(b'{"model":"digits","input":[', b'"a",', b'"a"]}')
    yield "[lists to embed]", EMBED, _packed(b'{"model":"digits","input":[', b"[1],", b"[1]]}")
    yield "[images]", CLASSIFY, _packed(b'{"images":[', b'"a",', b'"a"]}')


@dataclass(frozen=True, slots=True)
class Cost:
    status: int
    took_s: float
    wait_s: float  # of another client, at most
    grew_bytes: int
    triton_s: float

    def exceeds(self, plain: Cost) -> bool:
        is_slow = self.wait_s > max(MAX_WAIT_S, MAX_SHARES * plain.wait_s)
        is_work = self.triton_s > max(MAX_TRITON_S, MAX_SHARES * plain.triton_s)
        return self.status not in REFUSED or is_slow or is_work or self.grew_bytes > MAX_GROWTH_BYTES

    def __str__(self) -> str:
        return (
            f"{self.status} after {self.took_s * 1000:.0f} ms; another client waited at most {self.wait_s * 1000:.0f} ms, "
            f"memory {self.grew_bytes / 1e6:+.0f} MB, Triton computed {self.triton_s:.2f} s"
        )


def run(here: Served) -> list[str]:
    """Prints a row for each body; returns what cost too much each time it was tried, because other work on the machine costs too."""
    found: list[str] = []
    plain = _cost(here, INFER, SAMPLE)
    print(f"{'cost':18} plain: {plain}", flush=True)
    worst_s, most_bytes, number = 0.0, 0, 0
    for name, path, body in bodies():
        for _ in range(TRIES):
            cost = _cost(here, path, body)
            told = f"{name}: {len(body) / 1000:.0f} kB, {cost}"
            print(f"{'cost':18} {told}", flush=True)
            if not cost.exceeds(plain):
                break
        else:
            found.append(f"cost: {told}")
        worst_s, most_bytes, number = max(worst_s, cost.wait_s), max(most_bytes, cost.grew_bytes), number + 1
    print(
        f"{'cost':18} {number} inputs, longest wait {worst_s * 1000:.0f} ms, highest memory {most_bytes / 1e6:+.0f} MB"
    )
    return found


def _cost(here: Served, path: str, body: bytes) -> Cost:
    memory, triton_s = here.memory_bytes(), here.triton_cpu_s()
    with _another_client(here) as waits:
        began = time.perf_counter()
        status = _status(here, path, body)
        took_s = time.perf_counter() - began
    return Cost(status, took_s, max(waits), here.memory_bytes() - memory, here.triton_cpu_s() - triton_s)


def _status(here: Served, path: str, body: bytes) -> int:
    headers = {"Content-Type": "application/json"} | ({"Content-Encoding": "gzip"} if body[:2] == b"\x1f\x8b" else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(here.url + path, body, headers), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


@contextmanager
def _another_client(here: Served) -> Iterator[list[float]]:
    """Asks for digits one after the other meanwhile, and notes how long each answer took."""
    waits, is_over = [], threading.Event()

    def ask() -> None:
        while not is_over.wait(0.005):
            began = time.perf_counter()
            here.is_well()
            waits.append(time.perf_counter() - began)

    client = threading.Thread(target=ask)
    client.start()
    time.sleep(PAUSE_S)
    try:
        yield waits
        time.sleep(PAUSE_S)
    finally:
        is_over.set()
        client.join()
