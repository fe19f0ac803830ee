"""What small requests cost the server and its other clients: statuses do not show it.

Each body is some kilobytes that stand for millions of values, or names more of something than any model has. While it is answered, another
client goes on asking whether the gateway lives; told are its longest wait, how much memory the gateway gained, and the seconds that Triton
computed. Ten times what a plain request costs is a finding, where it is beyond what is aimed at as well. Then each comes from 32 clients
at once, and twice the aim is a finding. A wait counts as far as the gateway computed meanwhile, and its event loop did
not wait for a processor.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import struct
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2 as pb  # type: ignore[import-untyped]

from loadtest.bench.made_models import INPUTS
from serving.protocol.protobuf_wire import field_head
from tests.fuzz.models import NUMBERS, SAME_NUMBERS, SAME_TEXTS, TEXTS
from tests.fuzz.served import SAMPLE, Served

INFER, EMBED, CLASSIFY = "/v2/models/digits/infer", "/v1/embeddings", "/v1/classify/digits"
INDEX, LOAD, UNLOAD = (f"/v2/repository/{what}" for what in ("index", "models/digits/load", "models/digits/unload"))
GRPC = "/inference.GRPCInferenceService/"
LIVE = "/v2/health/live"
SIZE = 62 * 2**20  # of an unpacked body; 64 MiB is the most that a gateway takes if nobody says otherwise
TEXT = b'{"inputs":[{"name":"image","shape":[1,1,8,8],"datatype":"FP32","data":['
REFUSED = {400, 403, 404, 413, 422}
TURNED_AWAY = {503, 504}  # as well, where they are many
# Aims on two cores with nothing else running, and how often a plain request's share any may cost: guesses at what other clients bear.
MAX_WAIT_S, MAX_TRITON_S, MAX_GROWTH_BYTES = 0.1, 0.2, 300 * 10**6
MAX_SHARES = 10
AT_ONCE, MAX_WAIT_OF_MANY_S, MAX_TIMES_OF_MANY = 32, 0.25, 2
TRIES = 3  # before it is a finding
AFTER_S = 0.2  # so that what was begun has ended


# Of each way to cost much the dearest, for a run of half a minute.
SHORT = {
    "50,000 parameters",
    "200,000 inputs",
    "[objects]",
    "[lists as data]",
    "[numbers for 64]",
    "[images]",
    "an image of 4,900 x 4,900",
    "[texts to embed]",
    "gRPC: contents again and again",
    "gRPC: a name of 40 MiB",
    "[gRPC: a message of zeros]",
    "[any length: short numbers]",
    "[a long answer: one text]",  # is read as "[any length: one text]" is
    "embed 2,048 sentences",
}


@dataclass(frozen=True, slots=True)
class Packed:
    """Of SIZE bytes that are the same again and again. To pack them takes half a second, and a short run sends few."""

    before: bytes
    one: bytes
    after: bytes

    def gzip(self) -> bytes:
        return gzip.compress(self.before + self.one * (SIZE // len(self.one)) + self.after, 1)


@dataclass(frozen=True)
class Body:
    """A name in brackets says what unpacks out of it. `kind`: its Content-Type; of gRPC, `path` is the method's.

    `is_good`: may be answered, or be too much to be in time on a busy machine; `is_work`: what Triton computes for it is the model's own work.
    """

    name: str
    path: str
    content: bytes | Packed
    kind: str = "application/json"
    is_good: bool = False
    is_work: bool = False

    @cached_property
    def data(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content.gzip()


def _named(number: int) -> dict[str, int]:
    return {f"p{index}": index for index in range(number)}


def bodies() -> Iterator[Body]:
    yield from _of_json()
    yield from _of_images()
    yield from _of_texts()
    yield from _of_grpc()
    yield from _of_any_length()
    yield from _of_long_answers()
    yield from _of_embeddings()


def _of_json() -> Iterator[Body]:
    asked = json.loads(SAMPLE)
    many = [{"name": f"x{index}", "shape": [1], "datatype": "FP32", "data": [1]} for index in range(200_000)]
    yield Body("50,000 parameters", INFER, json.dumps({**asked, "parameters": _named(50_000)}).encode())
    yield Body("65 parameters", INFER, json.dumps({**asked, "parameters": _named(65)}).encode())
    yield Body("200,000 inputs", INFER, json.dumps({"inputs": many}).encode())
    yield Body("100,000 outputs", INFER, json.dumps({**asked, "outputs": many[:100_000]}).encode())
    for name, shape in {
        "a huge product": [2**31] * 60,
        "no elements": [0, *[2**31] * 60],
        "less than none": [-1],
    }.items():
        yield Body(name, INFER, json.dumps({"inputs": [asked["inputs"][0] | {"shape": shape}]}).encode())
    yield Body("[objects]", INFER, Packed(b'{"inputs":[', b"{},", b"{}]}"))
    yield Body("[objects as outputs]", INFER, Packed(SAMPLE.rstrip()[:-1] + b',"outputs":[', b"{},", b"{}]}"))
    yield Body("[one key again and again]", INFER, Packed(b"{", b'"inputs":1,', b'"inputs":[]}'))
    yield Body("[lists as data]", INFER, Packed(TEXT, b"[],", b"[]]}]}"))
    yield Body("[numbers for 64]", INFER, Packed(TEXT, b"0,", b"0]}]}"))
    yield Body("[escaped text]", INFER, Packed(TEXT + b'"', b"\\u0061", b'"]}]}'))
    yield Body("[brackets]", INFER, Packed(b"", b"[", b""))
    yield Body("[white space]", INFER, Packed(b"{", b" ", SAMPLE.rstrip()[1:]))
    yield Body("[texts as data]", INFER, Packed(TEXT.replace(b"FP32", b"BYTES"), b'"a",', b'"a"]}]}'))
    yield Body("[one text]", INFER, Packed(TEXT.replace(b"FP32", b"BYTES") + b'"', b"a", b'"]}]}'))
    yield Body("[dimensions]", INFER, Packed(TEXT.partition(b"1,1,8")[0], b"1,", b'1],"data":[1]}]}'))
    for path in (INDEX, LOAD, UNLOAD):
        yield Body(f"[parameters of {path}]", path, Packed(b'{"parameters":{', b'"a":1,', b'"b":1}}'))
        yield Body(f"brackets of {path}", path, b"[" * 60_000)


def _of_images() -> Iterator[Body]:
    part = b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\n%b\r\n'
    yield Body("[images]", CLASSIFY, Packed(b'{"images":[', b'"a",', b'"a"]}'))
    yield Body("[one image of base64]", CLASSIFY, Packed(b'{"images":["', b"AAAA", b'"]}'))
    yield Body("[one image of escapes]", CLASSIFY, Packed(b'{"images":["', b"\\/", b'"]}'))
    yield Body("an image of 30,000 x 30,000", CLASSIFY, png(30_000), "image/png")
    yield Body("an image of 4,900 x 4,900", CLASSIFY, png(4_900), "image/png", is_good=True)
    yield Body("10,000 frames", CLASSIFY, _gif(10_000), "image/gif")
    yield Body("100,000 parts", CLASSIFY, part % b"" * 100_000 + b"--x--\r\n", "multipart/form-data; boundary=x")
    yield Body(
        "[a part of boundaries]",
        CLASSIFY,
        Packed(part.partition(b"%b")[0], b"\r\n--", b"\r\n--x--\r\n"),
        "multipart/form-data; boundary=x",
    )


def _of_texts() -> Iterator[Body]:
    before = b'{"model":"digits","input":'
    yield Body("[one escaped text to embed]", EMBED, Packed(before + b'"', b"\\u0061", b'"}'))
    yield Body("[texts to embed]", EMBED, Packed(before + b"[", b'"a",', b'"a"]}'))
    yield Body("[lists to embed]", EMBED, Packed(before + b"[", b"[1],", b"[1]]}"))
    yield Body("2,048 texts", EMBED, before + b"[" + b'"%b",' % (b"\\u4e00" * 400) * 2047 + b'"a"]}')
    yield Body("one long text", EMBED, before + b'"' + b"a" * 5_000_000 + b'"}')
    yield Body("300,000 tokens", EMBED, before + b"[" + b"1234567," * 299_999 + b"1]}")
    yield Body("100,000 deep lists", EMBED, before + b"[" * 100_000 + b"]" * 100_000 + b"}")
    yield Body("dimensions beyond all", EMBED, before + b'"a","dimensions":%d}' % 2**62)


def _of_grpc() -> Iterator[Body]:
    def field(number: int, value: bytes) -> bytes:
        return bytes(field_head(number, len(value))) + value

    tensor = pb.ModelInferRequest.InferInputTensor(name="image", datatype="FP32", shape=[1, 1, 8, 8])
    plain, one = pb.ModelInferRequest(model_name="digits").SerializeToString(), tensor.SerializeToString()
    whole = plain + field(5, one) + field(7, bytes(256))
    entries = b"".join(field(4, field(1, b"p%d" % index) + field(2, b"\x10\x01")) for index in range(50_000))
    deep = b""
    while len(deep) < 60_000:
        deep = field(1, deep)
    yield Body("gRPC: 50,000 parameters", GRPC + "ModelInfer", whole + entries)
    yield Body("gRPC: parameters of an input", GRPC + "ModelInfer", plain + field(5, one + entries))
    yield Body("gRPC: 200,000 inputs", GRPC + "ModelInfer", plain + field(5, one) * 200_000)
    yield Body(
        "gRPC: one output 1,000,000 times", GRPC + "ModelInfer", whole + field(6, field(1, b"scores")) * 1_000_000
    )
    yield Body("gRPC: 1,000,000 raw tensors", GRPC + "ModelInfer", whole + field(7, b"") * 1_000_000)
    yield Body(
        "gRPC: contents again and again",
        GRPC + "ModelInfer",
        plain + field(5, one + field(5, field(6, bytes(4))) * 200_000),
    )
    yield Body(
        "gRPC: 10,000,000 numbers",
        GRPC + "ModelInfer",
        plain + field(5, one + field(5, field(2, b"\x01" * 10_000_000))),
    )
    yield Body("gRPC: 2,000,000 texts", GRPC + "ModelInfer", plain + field(5, one + field(5, b"\x42\0" * 2_000_000)))
    yield Body("gRPC: 1,000,000 dimensions", GRPC + "ModelInfer", plain + field(5, one + field(3, b"\x01" * 1_000_000)))
    yield Body("gRPC: a name of 40 MiB", GRPC + "ModelInfer", field(1, b"a" * (40 * 2**20)) + whole)
    yield Body("gRPC: 60,000 bytes of nesting", GRPC + "ModelInfer", whole + field(4, deep))
    yield Body("gRPC: a message of zeros", GRPC + "ServerLive", bytes(40 * 2**20))
    yield Body("gRPC: a name to load", GRPC + "RepositoryModelLoad", field(2, b"a" * (40 * 2**20)))
    yield Body("[gRPC: a message of zeros]", GRPC + "ModelInfer", gzip.compress(whole + field(9, bytes(SIZE)), 1))


def _of_any_length() -> Iterator[Body]:
    """To models that may have so much; reading it is Triton's own work."""

    numbers, texts = (f"/v2/models/{model}/infer" for model in (NUMBERS, TEXTS))
    for what, one in {"short": b"0,", "long": b"-1.2345678e-38,", "spaced": b"0 , "}.items():
        number = SIZE // len(one) + 1
        yield _good(f"[any length: {what} numbers]", numbers, Packed(_head("FP32", number), one, b"0]}]}"))
    in_lists = Packed(_head("FP32", SIZE // 4 + 1), b"[0],", b"[0]]}]}")
    yield _good("[any length: numbers in lists]", numbers, in_lists)
    yield _good("any length: 1,000,000 numbers", numbers, _head("FP32", 10**6) + b"1," * 999_999 + b"1]}]}")
    yield Body("[any length: numbers for one]", numbers, Packed(_head("FP32", 1), b"0,", b"0]}]}"))
    for what, one in {"one text": b"a", "one escaped text": b"\\u0061"}.items():
        yield _good(f"[any length: {what}]", texts, Packed(_head("BYTES", 1) + b'"', one, b'"]}]}'))
    yield _good("[any length: texts]", texts, Packed(_head("BYTES", SIZE // 4 + 1), b'"a",', b'"a"]}]}'))
    yield _good("any length: gRPC, 10,000,000 numbers", GRPC + "ModelInfer", _raw(NUMBERS, "FP32", 10**7))
    yield _good("any length: gRPC, 1,000,000 empty texts", GRPC + "ModelInfer", _raw(TEXTS, "BYTES", 10**6))
    ids = b'{"name":"%b","shape":[1,100000],"datatype":"INT64","data":[' + b"1," * 99_999 + b"1]}"
    both = b'{"inputs":[' + b",".join(ids.replace(b"%b", name.encode()) for name in INPUTS) + b"]}"
    yield _good("any length: 100,000 tokens", "/v2/models/words/infer", both)


def _of_long_answers() -> Iterator[Body]:
    """Of models that answer what they were sent."""
    numbers, texts = (f"/v2/models/{model}/infer" for model in (SAME_NUMBERS, SAME_TEXTS))
    for what, one in {"one text": b"a", "one text of N": b"N", "one text of accents": "é".encode()}.items():
        yield _good(f"[a long answer: {what}]", texts, Packed(_head("BYTES", 1) + b'"', one, b'"]}]}'))
    yield _good("a long answer: 500,000 texts", texts, _head("BYTES", 500_000) + b'"NaN",' * 499_999 + b'"NaN"]}]}')
    yield _good("a long answer: 1,000,000 numbers", numbers, _head("FP32", 10**6) + b"0.1," * 999_999 + b"1]}]}")
    for model, datatype, number in ((SAME_NUMBERS, "FP32", 10**7), (SAME_TEXTS, "BYTES", 500_000)):
        yield _good(
            f"gRPC: a long answer, {number:,} of {datatype}", GRPC + "ModelInfer", _raw(model, datatype, number)
        )


def _good(name: str, path: str, content: bytes | Packed) -> Body:
    return Body(name, path, content, is_good=True, is_work=True)


def _head(datatype: str, number: int) -> bytes:
    return b'{"inputs":[{"name":"x","shape":[1,%d],"datatype":"%b","data":[' % (number, datatype.encode())


def _raw(model: str, datatype: str, number: int) -> bytes:
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype=datatype, shape=[1, number])
    message = pb.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[bytes(4 * number)])
    return bytes(message.SerializeToString())


def _of_embeddings() -> Iterator[Body]:
    """To a model that takes texts."""
    before = b'{"model":"words","truncate":true,"input":'
    of = {
        "2,048 sentences": b"[" + b",".join([b'"the harbour was quiet and the last tram had left"'] * 2048) + b"]",
        "2,048 escaped texts": b"[" + b'"%b",' % (b"\\u4e00" * 400) * 2047 + b'"a"]',
        "one text of 5,000,000 letters": b'"' + b"a" * 5_000_000 + b'"',
        "one text of 1,000,000 words": b'"' + b"tram " * 1_000_000 + b'"',
        "one text of accents": b'"e' + "\u0301".encode() * 1_000_000 + b'"',
        "one text of signs": b'"' + b".," * 1_000_000 + b'"',
    }
    for name, text in of.items():
        yield Body(f"embed {name}", EMBED, before + text + b"}", is_good=True, is_work=True)
    for name, one, end in (
        ("one text", b"a", b'"'),
        ("one escaped text", b"\\u0061", b'"'),
        ("texts", b'a","', b'a"]'),
    ):
        begin = b'["' if name == "texts" else b'"'
        yield Body(f"[embed {name}]", EMBED, Packed(before + begin, one, end + b"}"), is_good=True, is_work=True)


def png(size: int) -> bytes:
    """Black, of `size` times `size` pixels: a bit each, packed."""
    packer = zlib.compressobj(1)
    rows = b"".join([*(packer.compress(bytes(1 + (size + 7) // 8)) for _ in range(size)), packer.flush()])
    chunks = {b"IHDR": struct.pack(">IIBBBBB", size, size, 1, 0, 0, 0, 0), b"IDAT": rows, b"IEND": b""}
    made = (
        struct.pack(">I", len(it)) + name + it + struct.pack(">I", zlib.crc32(name + it)) for name, it in chunks.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def _gif(frames: int) -> bytes:
    return b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff" + b"\x2c\0\0\0\0\1\0\1\0\0\2\2\x44\1\0" * frames + b";"


@dataclass(frozen=True, slots=True)
class Cost:
    """`wait_s`: of another client, at most, by the clock; `held_s`: of a wait, what the gateway's computing explains."""

    statuses: set[int]
    expected: set[int]
    is_work: bool  # that Triton computes, of the model itself
    took_s: float
    wait_s: float
    held_s: float
    grew_bytes: int
    triton_s: float

    def exceeds(self, plain: Cost) -> bool:
        is_slow = self.held_s > max(MAX_WAIT_S, MAX_SHARES * plain.held_s)
        is_work = not self.is_work and self.triton_s > max(MAX_TRITON_S, MAX_SHARES * plain.triton_s)
        return bool(self.statuses - self.expected) or is_slow or is_work or self.grew_bytes > MAX_GROWTH_BYTES

    def exceeds_of_many(self, plain: Cost) -> bool:
        is_slow = self.held_s > MAX_TIMES_OF_MANY * MAX_WAIT_OF_MANY_S
        is_work = not self.is_work and self.triton_s > AT_ONCE * max(MAX_TRITON_S, MAX_SHARES * plain.triton_s)
        is_large = self.grew_bytes > MAX_TIMES_OF_MANY * MAX_GROWTH_BYTES
        return bool(self.statuses - self.expected - TURNED_AWAY) or is_slow or is_work or is_large

    def told(self, most_s: float) -> str:
        met = self.held_s <= most_s and self.grew_bytes <= MAX_GROWTH_BYTES
        return (
            f"{'/'.join(map(str, sorted(self.statuses)))} after {self.took_s * 1000:.0f} ms; another client waited at most "
            f"{self.wait_s * 1000:.0f} ms, {self.held_s * 1000:.0f} ms by the gateway's computing, memory {self.grew_bytes / 1e6:+.0f} MB, "
            f"Triton computed {self.triton_s:.2f} s: {'within' if met else 'beyond'} the aim"
        )


def run(here: Served, part_of_name: str = "", *, is_short: bool = False) -> list[str]:
    """Prints a row for each body, or those with that in their names; returns what cost too much each time it was tried, because other
    work on the machine costs too.
    """
    every = list(bodies())
    assert {body.name for body in every} >= SHORT
    chosen = [body for body in every if part_of_name in body.name and (body.name in SHORT or not is_short)]
    found: list[str] = []
    with AnotherClient(here) as client, ThreadPoolExecutor(AT_ONCE) as senders:
        plain = _cost(here, client, senders, Body("plain", INFER, SAMPLE), 1)
        print(f"{'cost':18} plain: {plain.told(MAX_WAIT_S)}", flush=True)
        for at_once, most_s in ((1, MAX_WAIT_S), (AT_ONCE, MAX_WAIT_OF_MANY_S)):
            costs = []
            for body in chosen:
                size = len(body.data)
                for _ in range(TRIES):
                    cost = _cost(here, client, senders, body, at_once)
                    told = f"{at_once} x {body.name}: {size / 1000:.0f} kB, {cost.told(most_s)}"
                    print(f"{'cost':18} {told}", flush=True)
                    if not (cost.exceeds(plain) if at_once == 1 else cost.exceeds_of_many(plain)):
                        break
                else:
                    found.append(f"cost: {told}")
                costs.append(cost)
            print(
                f"{'cost':18} {len(costs)} inputs, {at_once} at once: longest wait {max(it.wait_s for it in costs) * 1000:.0f} ms, "
                f"{max(it.held_s for it in costs) * 1000:.0f} ms by the gateway's computing (aim {most_s * 1000:.0f}); highest memory "
                f"{max(it.grew_bytes for it in costs) / 1e6:+.0f} MB (aim {MAX_GROWTH_BYTES / 1e6:+.0f})",
                flush=True,
            )
    if not here.gateway.is_running():
        found.append("cost: the gateway has ended")
    return found


def _cost(here: Served, client: AnotherClient, senders: ThreadPoolExecutor, body: Body, at_once: int) -> Cost:
    client.waits()
    memory, triton_s = here.memory_bytes(), here.triton_cpu_s()
    here.forget_peak()
    began = time.perf_counter()
    statuses = set(senders.map(lambda _: _status(here, body), range(at_once)))
    took_s = time.perf_counter() - began
    time.sleep(AFTER_S)
    wait_s, held_s = client.waits()
    return Cost(
        statuses,
        REFUSED | {200} | TURNED_AWAY if body.is_good else REFUSED,
        body.is_work,
        took_s,
        wait_s,
        held_s,
        here.peak_bytes() - memory,
        here.triton_cpu_s() - triton_s,
    )


CODES = {
    "OK": 200,
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 413,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


def _status(here: Served, body: Body) -> int:
    """As HTTP has it, also over gRPC."""
    if body.path.startswith(GRPC):
        return _status_of_grpc(here, body)
    headers = {"Content-Type": body.kind} | ({"Content-Encoding": "gzip"} if body.data[:2] == b"\x1f\x8b" else {})
    try:
        with urllib.request.urlopen(
            urllib.request.Request(here.url + body.path, body.data, headers), timeout=120
        ) as answer:
            while answer.read(2**20):
                pass
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def _status_of_grpc(here: Served, body: Body) -> int:
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    options += [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{here.grpc_port}", options=options) as channel:
        call: Any = channel.unary_unary(body.path)
        try:
            call(body.data, timeout=120)
        except grpc.RpcError as refused:
            return CODES.get(refused.code().name, 500)
    return 200


class AnotherClient:
    """A process that asks again and again whether the gateway lives."""

    def __init__(self, here: Served) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._end = ours
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=_ask, args=(here.port, here.gateway.pid, theirs), daemon=True)

    def waits(self) -> tuple[float, float]:
        """The longest since they were last asked for, by the clock and with a processor, in seconds."""
        self._end.send(None)
        wait_s, held_s = self._end.recv()
        return wait_s, held_s

    def __enter__(self) -> AnotherClient:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def _ask(port: int, gateway: int, end: Connection) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    longest_s = held_s = 0.0
    while True:
        before = _times_s(gateway)
        began = time.perf_counter()
        connection.request("GET", LIVE)
        connection.getresponse().read()
        wait_s = time.perf_counter() - began
        longest_s = max(longest_s, wait_s)
        held_s = max(held_s, _held_s(wait_s, before, _times_s(gateway)))
        if end.poll(0.005):
            end.recv()
            end.send((longest_s, held_s))
            longest_s = held_s = 0.0


Times = tuple[float, float]
WITHOUT_LOCK = {
    "event_engine",
    "grpc_global_tim",
    "lifeguard",
}  # gRPC's own threads, which never wait for Python's lock nor have it


def _times_s(gateway: int) -> Times:
    """How long the gateway has computed where it can hold up its event loop; how long that and this thread could have and had no processor."""
    ran_s = 0.0
    for task in Path(f"/proc/{gateway}/task").iterdir():
        with suppress(OSError):
            if (task / "comm").read_text().strip() not in WITHOUT_LOCK:
                ran_s += _schedule_s(task)[0]
    return ran_s, _schedule_s(Path(f"/proc/{gateway}/task/{gateway}"))[1] + _schedule_s(Path("/proc/thread-self"))[1]


def _schedule_s(task: Path) -> tuple[float, float]:
    ran, delayed, _ = map(int, (task / "schedstat").read_text().split())
    return ran / 1e9, delayed / 1e9


def _held_s(wait_s: float, before: Times, after: Times) -> float:
    """What of a wait is neither for a processor nor longer than the gateway computed meanwhile."""
    ran_s, delayed_s = (late - early for early, late in zip(before, after, strict=True))
    return max(0.0, min(ran_s, wait_s - delayed_s))
