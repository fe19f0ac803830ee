"""The scaler finds every address of a gateway's name, reads what each publishes, and takes no number that cannot be right."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable

import pytest

from serving.cluster.scaler.gateways import (
    MAX_BYTES,
    Addresses,
    Endpoint,
    GatewayNames,
    NoReport,
    UnusableReport,
    parse_report,
    read_demand,
    read_page,
)
from serving.decisions.demand import Demand
from serving.gateway.fleet.addresses import LOOK_S, NoAddress
from serving.gateway.metrics import Metrics, PoolGauge
from tests.cluster.servers import nobody
from tests.local.harness import wait_until


class Dns:
    """What it says next; counts how often it was asked."""

    def __init__(self, says: list[str] | OSError) -> None:
        self.says, self.num_asked = says, 0

    def __call__(self, host: str, port: int) -> list[str]:  # noqa: ARG002
        self.num_asked += 1
        if isinstance(self.says, OSError):
            raise self.says
        return self.says


def looked(names: GatewayNames, dns: Dns, now: float) -> Addresses:
    """After the look-up that this look starts, if it starts one."""
    before = dns.num_asked
    names.look(now)
    wait_until(lambda: dns.num_asked > before, "it is asked")
    wait_until(lambda: not any(t.name.startswith("look-up") for t in threading.enumerate()), "it has answered")
    return names.look(now)


GATEWAYS = ["http://gateways.ns.svc:9090"]


def test_every_address_of_every_name_is_one_gateway() -> None:
    dns = Dns(["10.0.0.1", "10.0.0.2"])
    names = GatewayNames([*GATEWAYS, "http://10.9.9.9:9090"], dns)
    found = looked(names, dns, 0.0)
    assert [it.text for it in found.places] == ["10.0.0.1:9090", "10.0.0.2:9090", "10.9.9.9:9090"]
    assert found.are_known


def test_a_literal_address_is_never_looked_up() -> None:
    dns = Dns([])
    assert GatewayNames(["http://127.0.0.1:1", "http://[::1]:2"], dns).look(0.0) == Addresses(
        (Endpoint("127.0.0.1", 1), Endpoint("::1", 2))
    )
    assert dns.num_asked == 0
    assert Endpoint("::1", 2).text == "[::1]:2"


def test_while_nobody_can_tell_what_has_published_stays() -> None:
    dns = Dns(["10.0.0.1"])
    names = GatewayNames(GATEWAYS, dns)
    looked(names, dns, 0.0)
    dns.says = socket.gaierror(socket.EAI_AGAIN, "try again")
    found = looked(names, dns, LOOK_S)
    assert [it.address for it in found.places] == ["10.0.0.1"]
    assert not found.are_known
    assert found.problem.startswith("gateways.ns.svc")
    assert "(try again)" in found.problem


def test_a_name_without_an_address_is_known_to_have_none() -> None:
    dns = Dns(["10.0.0.1"])
    names = GatewayNames(GATEWAYS, dns)
    looked(names, dns, 0.0)
    dns.says = NoAddress(socket.EAI_NONAME, "not known")
    found = looked(names, dns, LOOK_S)
    assert (found.places, found.are_known) == ((), True)
    assert "gateways.ns.svc" in (found.problem or "")
    dns.says = ["10.0.0.7"]
    assert looked(names, dns, 2 * LOOK_S) == Addresses((Endpoint("10.0.0.7", 9090),))


def test_a_resolver_that_hangs_is_not_waited_for_and_not_asked_twice() -> None:
    goes_on = threading.Event()
    asked: list[str] = []

    def hang(host: str, port: int) -> list[str]:
        asked.append(host)
        goes_on.wait(60)
        return ["10.0.0.1"]

    names = GatewayNames(GATEWAYS, hang)
    for now in range(100):
        assert names.look(float(now)) == Addresses((), are_known=False)
    assert len(asked) == 1
    goes_on.set()
    wait_until(lambda: names.look(0.0).places, "it has answered")


def test_names_are_asked_no_more_often_than_dns_changes() -> None:
    dns = Dns(["10.0.0.1"])
    names = GatewayNames(GATEWAYS, dns)
    looked(names, dns, 0.0)
    names.look(LOOK_S / 2)
    assert dns.num_asked == 1


POOLS = ("cpu", "gpu")
NAMES = ("tandem_demand_replicas", "tandem_demand_only_replicas", "tandem_ready_servers")


def pages() -> tuple[str, str]:
    """All metrics and the small page, by a gateway's own hand."""
    gauges = [
        PoolGauge("cpu", "ready", 3, demand_replicas=1.5, demand_only_replicas=0.5, num_ready=2),
        PoolGauge(
            "gpu",
            "waking",
            0,
            demand_replicas=0.15,
            demand_unseen_replicas=0.1,
            demand_shared_replicas={"gpu,other": 0.05},
        ),
        PoolGauge("other", "ready", 0, num_ready=7),
    ]
    metrics = Metrics(lambda: gauges)
    for model, pool, num_good in (("digits", "cpu", 2), ("texts", "cpu", 3), ("digits", "other", 9)):
        series = metrics.series(model, "fp32", pool)
        series.outcomes["ok"] += num_good
        for outcome, count in (("shed", 100), ("backend_error", 1), ("client_error", 50), ("cancelled", 50)):
            for _ in range(count):
                series.ended(outcome)
    metrics.unresolved.ended("shed")
    return asyncio.run(metrics.text()).decode(), metrics.demand().decode()


def published() -> str:
    return pages()[1]


@pytest.mark.parametrize("page", [0, 1], ids=["all metrics", "the small page"])
def test_what_a_gateway_publishes_is_understood(page: int) -> None:
    found = parse_report(pages()[page], POOLS)
    assert found.demands == {"cpu": Demand(1.5, 0.5, 2), "gpu": Demand(0.15, 0.0, 0, 0.1, {"gpu,other": 0.05})}
    assert found.states == {"cpu": "ready", "gpu": "waking"}
    assert found.good == {"cpu": 5, "gpu": 0}
    assert found.failed == {"": 1, "cpu": 202, "gpu": 0}


def replaced(name: str, value: str, pool: str = "gpu") -> str:
    """Another value of a pool's number; the line is gone for the value "gone"."""
    start = f'{name}{{pool="{pool}"}}'
    lines = published().splitlines()
    assert any(line.startswith(start) for line in lines)
    return "\n".join(
        f"{start} {value}" if line.startswith(start) else line
        for line in lines
        if value != "gone" or not line.startswith(start)
    )


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-0.5", "1e308", "100001"])
@pytest.mark.parametrize("name", [*NAMES, "tandem_demand_unseen_replicas"])
def test_a_number_that_cannot_be_right_is_no_answer(name: str, value: str) -> None:
    with pytest.raises(UnusableReport, match=f"{name} .*'gpu'"):
        parse_report(replaced(name, value), POOLS)


def test_an_older_gateway_that_does_not_tell_what_it_never_saw_is_heard() -> None:
    found = parse_report(replaced("tandem_demand_unseen_replicas", "gone"), POOLS)
    assert found.demands["gpu"] == Demand(0.15, 0.0, 0, 0.0, {"gpu,other": 0.05})


@pytest.mark.parametrize("name", NAMES)
def test_a_gateway_that_does_not_know_a_pool_is_asked_for_its_configuration(name: str) -> None:
    with pytest.raises(UnusableReport, match=rf"{name}.*pool.*'gpu'.*tandem.yaml"):
        parse_report(replaced(name, "gone"), POOLS)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("<html>welcome</html>", id="another server"),
        pytest.param('tandem_demand_replicas{pool="gpu', id="cut off"),
        pytest.param("tandem_demand_replicas{pool=gpu} 1", id="no quotes"),
        pytest.param('tandem_demand_replicas{pool="gpu"} many', id="a word for a number"),
        pytest.param('tandem_demand_replicas{pool="gpu"}', id="no number"),
    ],
)
def test_what_is_no_text_of_metrics_is_no_answer(text: str) -> None:
    with pytest.raises(UnusableReport):
        parse_report(text, POOLS)


def test_lines_that_nobody_needs_may_be_anything() -> None:
    assert parse_report(published() + "\nsomething{else= broken\n", POOLS).demands["cpu"].replicas == 1.5


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


def answer_of(
    talk: Talk, limit_s: float = 30.0, key: str | None = None, ask: Callable[[int], Awaitable[str]] | None = None
) -> str:
    talks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.transport.abort()

    def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.ensure_future(one(reader, writer)))

    async def asked() -> str:
        server = await asyncio.start_server(came, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            return await (read_page("127.0.0.1", port, "/metrics", key, limit_s) if ask is None else ask(port))
        finally:
            server.close()
            for task in talks:
                task.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
            await asyncio.sleep(0)  # what was aborted closes now

    return asyncio.run(asked())


def saying(*pieces: bytes, closes: bool = True, heads: list[bytes] | None = None) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heads is not None:
            heads.append(head)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        if closes:
            writer.close()
            await writer.wait_closed()
        else:
            await reader.read()  # until the other side has had enough

    return talk


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([GOOD], id="in one piece"),
        pytest.param([GOOD[:9], GOOD[9:40], GOOD[40:]], id="in pieces"),
        pytest.param([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"], id="chunked"),
    ],
)
def test_an_answer_is_read_as_it_comes(pieces: list[bytes]) -> None:
    assert answer_of(saying(*pieces, closes=False)) == "hello"


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_where_no_length_is_told_the_answer_ends_with_the_connection(version: str) -> None:
    head = f"HTTP/{version} 200 OK\r\nContent-Type: text/plain\r\n\r\n".encode()
    assert answer_of(saying(head, b"a 1\nb", b" 2\n")) == "a 1\nb 2\n"


@pytest.mark.parametrize("key", [None, "tdm_0123"])
def test_the_key_is_sent_where_there_is_one(key: str | None) -> None:
    heads: list[bytes] = []
    answer_of(saying(GOOD, heads=heads), key=key)
    assert (b"X-API-Key: tdm_0123\r\n" in heads[0]) == (key is not None)


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        pytest.param([], "closes the connection before", id="hangs up"),
        pytest.param([GOOD[:-2]], "closes the connection before", id="half an answer"),
        pytest.param([b"HTTP/1.0 200 OK\r\n\r\na 1\nb 2"], "closes the connection before", id="half a line, no length"),
        pytest.param([b"HTTP/1.0 200 OK\r\nServer: a\r\n"], "closes the connection before", id="half a head"),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n"],
            "closes the connection before",
            id="without its last chunk",
        ),
        pytest.param([b"SSH-2.0-OpenSSH\r\n"], "not HTTP", id="another protocol"),
        pytest.param([b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"], "401; a key is wanted", id="no key"),
        pytest.param([b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"], "no scope 'metrics'", id="a wrong key"),
        pytest.param([b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"], "admin listener", id="another port"),
        pytest.param([b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"], "answers 500", id="broken"),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b"x" * (MAX_BYTES + 1)],
            "more than",
            id="endless",
        ),
    ],
)
def test_what_is_no_answer_is_told_in_words(pieces: list[bytes], says: str) -> None:
    with pytest.raises(NoReport, match=says):
        answer_of(saying(*pieces))


@pytest.mark.parametrize("pieces", [[], [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"]], ids=["mute", "stops"])
def test_one_that_does_not_end_is_not_waited_for(pieces: list[bytes]) -> None:
    with pytest.raises(NoReport, match=r"\b0\.1 s"):
        answer_of(saying(*pieces, closes=False), limit_s=0.1)


def test_one_that_trickles_is_not_waited_for() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.01)

    with pytest.raises(NoReport, match="no answer within"):
        answer_of(trickle, limit_s=0.2)


@pytest.mark.parametrize(
    ("pages", "asked", "says"),
    [
        pytest.param({"/metrics/demand": "a 1\n", "/metrics": "b 2\n"}, 1, "a 1\n", id="a gateway of this version"),
        pytest.param({"/metrics": "b 2\n"}, 2, "b 2\n", id="an older one, which has all metrics alone"),
    ],
)
def test_the_small_page_is_read_where_there_is_one(pages: dict[str, str], asked: int, says: str) -> None:
    paths: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        paths.append(head.split(b" ")[1].decode())
        status, body = ("200 OK", pages[paths[-1]]) if paths[-1] in pages else ("404 Not Found", "")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await reader.read()

    assert answer_of(talk, ask=lambda port: read_demand("127.0.0.1", port)) == says
    assert paths == ["/metrics/demand", "/metrics"][:asked]


def test_nobody_there_is_told() -> None:
    with nobody() as address:
        host, port = address.split(":")
        with pytest.raises(NoReport, match="connection refused"):
            asyncio.run(read_page(host, int(port), "/metrics"))
