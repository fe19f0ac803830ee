"""KEDA's side of the wire: real gRPC, bytes written by hand after KEDA's proto, so that our own messages are not believed by themselves."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from serving.cluster.scaler import keda
from serving.cluster.scaler.keda import OPTIONS, ExternalScaler
from serving.cluster.scaler.state import Result, ScalerState
from serving.decisions.scaling import Scaling
from serving.errors import UserError
from serving.ports import free_ports

POOLS = ("cpu", "gpu", "gpu-big")
ACTIVE, INACTIVE = b"\x08\x01", b""  # bool result = 1; false is left out


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def ref(**metadata: str) -> bytes:
    """A ScaledObjectRef: name 1, namespace 2, scalerMetadata 3."""
    entries = (field(1, key.encode()) + field(2, value.encode()) for key, value in metadata.items())
    return field(1, b"gpu") + field(2, b"ml") + b"".join(field(3, entry) for entry in entries)


class Bed:
    def __init__(self, told: ScalerState, server: ExternalScaler, address: str, channel: grpc.aio.Channel) -> None:
        self.told, self.server, self.address, self.channel = told, server, address, channel

    def publish(self, replicas: Mapping[str, int] | None) -> None:
        self.told.publish(Result(Scaling(replicas=replicas, holds="" if replicas else "no gateway answers")))

    async def ask(self, method: str, message: bytes) -> bytes:
        call = self.channel.unary_unary(f"/externalscaler.ExternalScaler/{method}")
        answer: bytes = await call(message, timeout=30)
        return answer

    def stream(self, message: bytes) -> Any:
        return self.channel.unary_stream("/externalscaler.ExternalScaler/StreamIsActive")(message, timeout=30)

    async def error(self, method: str, message: bytes) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.ask(method, message)
        return caught.value.code(), caught.value.details() or ""


@asynccontextmanager
async def bed() -> AsyncIterator[Bed]:
    told = ScalerState(POOLS)
    port = free_ports(1)[0]
    server = ExternalScaler(told, "127.0.0.1", port)
    await server.start()
    try:
        address = f"127.0.0.1:{port}"
        async with grpc.aio.insecure_channel(address) as channel:
            yield Bed(told, server, address, channel)
    finally:
        await server.stop()


def run(test: Callable[[Bed], Awaitable[None]]) -> None:
    async def main() -> None:
        async with bed() as made:
            await test(made)

    asyncio.run(main())


def test_a_wanted_pool_is_active_and_its_metric_is_the_number_of_servers() -> None:
    async def test(bed: Bed) -> None:
        bed.publish({"cpu": 0, "gpu": 3, "gpu-big": 1})
        assert await bed.ask("IsActive", ref(pool="gpu")) == ACTIVE
        assert await bed.ask("IsActive", ref(pool="cpu")) == INACTIVE
        value = field(1, b"tandem_wanted_replicas") + b"\x10\x03" + b"\x19" + struct.pack("<d", 3.0)
        asked = field(1, ref(pool="gpu")) + field(2, b"tandem_wanted_replicas")
        assert await bed.ask("GetMetrics", asked) == field(1, value)

    run(test)


def test_one_server_counts_for_one_also_while_nothing_is_known() -> None:
    async def test(bed: Bed) -> None:
        spec = field(1, b"tandem_wanted_replicas") + b"\x10\x01" + b"\x19" + struct.pack("<d", 1.0)
        assert await bed.ask("GetMetricSpec", ref(pool="gpu")) == field(1, spec)

    run(test)


def test_nothing_wanted_is_the_number_nothing_and_no_error() -> None:
    async def test(bed: Bed) -> None:
        bed.publish({"cpu": 1, "gpu": 0, "gpu-big": 0})
        answer = await bed.ask("GetMetrics", field(1, ref(pool="gpu")) + field(2, b"anything"))
        assert answer == field(1, field(1, b"anything"))  # 0 is left out on the wire

    run(test)


@pytest.mark.parametrize("method", ["IsActive", "GetMetrics"])
@pytest.mark.parametrize("has_published", [False, True])
def test_what_is_not_known_is_unavailable_and_says_why(method: str, has_published: bool) -> None:
    async def test(bed: Bed) -> None:
        if has_published:
            bed.publish({"cpu": 1, "gpu": 2, "gpu-big": 0})
            bed.publish(None)
        message = ref(pool="gpu") if method == "IsActive" else field(1, ref(pool="gpu"))
        code, says = await bed.error(method, message)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "no gateway" in says

    run(test)


@pytest.mark.parametrize("method", ["IsActive", "GetMetricSpec", "StreamIsActive", "GetMetrics"])
@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"pool": "gpus"}, "no pool 'gpus'; did you mean 'gpu'? known are cpu, gpu, gpu-big"),
        ({"pool": "zebra"}, "no pool 'zebra'; known are cpu, gpu, gpu-big"),
        ({"Pool": "gpu"}, "the trigger's metadata name no 'pool'; known are cpu, gpu, gpu-big"),
        ({}, "the trigger's metadata name no 'pool'; known are cpu, gpu, gpu-big"),
    ],
)
def test_a_wrong_trigger_is_told_which_pools_there_are(method: str, metadata: dict[str, str], says: str) -> None:
    async def test(bed: Bed) -> None:
        bed.publish({"cpu": 1, "gpu": 2, "gpu-big": 0})
        if method == "StreamIsActive":
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await bed.stream(ref(**metadata)).read()
            found = caught.value.code(), caught.value.details()
        else:
            message = ref(**metadata) if method != "GetMetrics" else field(1, ref(**metadata))
            found = await bed.error(method, message)
        assert found == (grpc.StatusCode.INVALID_ARGUMENT, says)

    run(test)


def test_a_stream_tells_what_is_so_at_once_and_then_what_changes() -> None:
    async def test(bed: Bed) -> None:
        bed.publish({"cpu": 1, "gpu": 0, "gpu-big": 0})
        stream = bed.stream(ref(pool="gpu"))
        assert await stream.read() == INACTIVE
        bed.publish({"cpu": 1, "gpu": 0, "gpu-big": 1})  # nothing of this pool
        bed.publish({"cpu": 1, "gpu": 1, "gpu-big": 1})
        assert await stream.read() == ACTIVE
        bed.publish({"cpu": 1, "gpu": 3, "gpu-big": 1})  # as active as before
        bed.publish({"cpu": 1, "gpu": 0, "gpu-big": 1})
        assert await stream.read() == INACTIVE
        stream.cancel()

    run(test)


def test_a_stream_is_silent_while_nothing_is_known_and_goes_on_afterwards() -> None:
    async def test(bed: Bed) -> None:
        stream = bed.stream(ref(pool="gpu"))
        first = asyncio.ensure_future(stream.read())
        await bed.ask("GetMetricSpec", ref(pool="gpu"))  # so the stream is open, too
        assert not first.done()
        bed.publish({"cpu": 1, "gpu": 1, "gpu-big": 0})
        assert await first == ACTIVE
        bed.publish(None)
        second = asyncio.ensure_future(stream.read())
        bed.publish({"cpu": 1, "gpu": 0, "gpu-big": 0})
        assert await second == INACTIVE
        stream.cancel()

    run(test)


def test_what_keda_asks_beyond_that_is_not_implemented_and_it_goes_on_without() -> None:
    async def test(bed: Bed) -> None:
        code, _ = await bed.error("StreamMetricSpec", ref(pool="gpu"))
        assert code is grpc.StatusCode.UNIMPLEMENTED

    run(test)


@pytest.mark.parametrize("method", ["IsActive", "GetMetricSpec", "GetMetrics"])
def test_bytes_that_are_no_message_end_that_call_alone(method: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(bed: Bed) -> None:
        bed.publish({"cpu": 1, "gpu": 1, "gpu-big": 0})
        code, says = await bed.error(method, b"\xff\xff\xff")
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "externalscaler." in says
        assert await bed.ask("IsActive", ref(pool="gpu")) == ACTIVE

    run(test)
    assert not caplog.records


def test_a_name_without_end_is_said_again_in_part() -> None:
    async def test(bed: Bed) -> None:
        entry = b"".join(field(number, text) for number, text in ((1, b"pool"),)) + b"\x12\xa0\x9c\x01" + b"x" * 20_000
        long = b"\x1a" + bytes([len(entry) & 0x7F | 0x80, len(entry) >> 7 & 0x7F | 0x80, len(entry) >> 14]) + entry
        code, says = await bed.error("IsActive", long)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert f"no pool '{'x' * 100}'" in says

    run(test)


def test_streams_end_well_with_the_scaler_because_keda_comes_back_later_after_an_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keda, "GOODBYE_S", 600.0)

    async def main() -> None:
        async with bed() as made:
            made.publish({"cpu": 1, "gpu": 0, "gpu-big": 0})
            streams = [made.stream(ref(pool="gpu")) for _ in range(3)]
            assert [await stream.read() for stream in streams] == [INACTIVE] * 3
            gone = made.stream(ref(pool="gpu"))
            await gone.read()
            gone.cancel()
            await made.server.stop()  # nobody is waited for
            for stream in streams:
                assert await stream.read() is grpc.aio.EOF
                assert await stream.code() is grpc.StatusCode.OK

    asyncio.run(main())
    # grpc itself logs a call that was cancelled in the moment of the stop.
    assert not [record for record in caplog.records if "StreamIsActive" not in record.getMessage()]


def test_a_client_may_ask_whether_the_scaler_is_there_between_two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    (interval,) = (name for name in OPTIONS if "ping_interval" in name)
    monkeypatch.setitem(OPTIONS, interval, 50)
    settings, ping = b"\0\0\0\4\0\0\0\0\0", b"\0\0\x08\6\0\0\0\0\0" + b"whether?"
    answer = b"\0\0\x08\6\1\0\0\0\0" + b"whether?"

    async def test(bed: Bed) -> None:
        reader, writer = await asyncio.open_connection(*bed.address.split(":"))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        came = b""
        for _ in range(5):  # by default the third that comes too soon ends the connection
            await asyncio.sleep(0.1)  # from when the one before was heard
            writer.write(ping)
            came += await reader.readuntil(answer)
        writer.write_eof()
        came += await reader.read()
        assert (came.count(answer), b"too_many_pings" in came) == (5, False)
        writer.close()

    run(test)


def test_a_taken_port_is_named() -> None:
    async def main() -> None:
        port = free_ports(1)[0]
        first = ExternalScaler(ScalerState(POOLS), "127.0.0.1", port)
        await first.start()
        with pytest.raises(UserError, match=rf"port.*{port}.*127.0.0.1.*--grpc-port"):
            ExternalScaler(ScalerState(POOLS), "127.0.0.1", port)
        await first.stop()

    asyncio.run(main())
