"""Clients of the gateways' Service under open-loop load: a request is due when it is due, and what goes wrong is never tried again.

Three of four speak HTTP, over connections to a ready endpoint at random that are used in turn until the server closes them, and one gRPC
(`channels`). Times are from when a request was due. Errors are all statuses but 200 and OK, and connections that failed, under their names.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass

from tests.cluster.hybrid.channels import Channels
from tests.cluster.hybrid.endpoints import Known

TIMEOUT_S = 20.0
GRPC_EVERY = 4  # requests
CONNECTIONS = 8  # kept by all clients together, so that both gateways always have some


@dataclass(frozen=True, slots=True)
class Row:
    due_s: float  # since the load began
    took_s: float
    said: str  # status, or what failed
    pool: str
    endpoint: str
    is_grpc: bool = False

    @property
    def is_error(self) -> bool:
        return self.said not in ("200", "OK")


class Load(threading.Thread):
    """Sends until it is told to stop; rows may be read meanwhile."""

    def __init__(self, known: Known, channels: Channels, path: str, body: bytes, rate_rps: float) -> None:
        super().__init__(name="load", daemon=True)
        self._known, self._channels = known, channels
        head = f"POST {path} HTTP/1.1\r\nHost: tandem-gateway\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body
        self.rate_rps = rate_rps  # may be changed at any time
        self._stopped = threading.Event()
        self._idle: deque[tuple[str, asyncio.StreamReader, asyncio.StreamWriter]] = deque()
        self._busy = 0
        self.rows: list[Row] = []
        self.began = time.monotonic()

    def start(self) -> None:
        self.began = time.monotonic()
        super().start()

    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def run(self) -> None:
        asyncio.run(self._send_all())

    def num_endpoints(self) -> int:
        """Gateways that nodes know now."""
        return len(self._known.now("http"))

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    async def _send_all(self) -> None:
        due_s, number = 0.0, 0
        running: set[asyncio.Task[None]] = set()
        await self._channels.start()
        while not self._stopped.is_set():
            await asyncio.sleep(max(0.0, due_s - self.elapsed_s()))
            number += 1
            self._known.look()
            send = self._send_grpc if number % GRPC_EVERY == 0 else self._send
            task = asyncio.create_task(send(due_s))
            running.add(task)
            task.add_done_callback(running.discard)
            due_s += 1 / self.rate_rps
        await asyncio.gather(*running)
        await self._channels.stop()

    async def _send_grpc(self, due_s: float) -> None:
        said, pool, endpoint = await self._channels.ask(TIMEOUT_S)
        self.rows.append(Row(due_s, self.elapsed_s() - due_s, said, pool, endpoint, is_grpc=True))

    async def _send(self, due_s: float) -> None:
        self._busy += 1
        endpoints, endpoint, said, pool = self._known.now("http"), "", "", ""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while self._idle and self._idle[0][1].at_eof():
                    self._idle.popleft()[2].close()
                if len(self._idle) + self._busy >= CONNECTIONS and self._idle:
                    endpoint, reader, writer = self._idle.popleft()
                else:
                    # The one with the fewest idle connections, so that both gateways always have some.
                    kept = Counter(it[0] for it in self._idle)
                    least = min((kept[it] for it in endpoints), default=0)
                    fewest = [it for it in endpoints if kept[it] == least]
                    endpoint = random.choice(fewest)  # IndexError: the Service has none
                    reader, writer = await asyncio.open_connection(*endpoint.split(":"))
                said, pool, stays = await self._ask(reader, writer)
            if stays and len(self._idle) < CONNECTIONS:
                self._idle.append((endpoint, reader, writer))
            else:
                writer.close()
        except IndexError:
            said = "no endpoint"
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            said = type(error).__name__
        finally:
            self._busy -= 1
        self.rows.append(Row(due_s, self.elapsed_s() - due_s, said, pool, endpoint))

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, str, bool]:
        writer.write(self._request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        fields = {name: value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(fields["content-length"]))
        said = head[0].split()[1]
        if said != "200":
            said = f"{said} {body[:200].decode(errors='replace')}"
        return said, fields.get("tandem-pool", ""), fields.get("connection") != "close"


def summary(rows: list[Row]) -> dict[str, object]:
    """Of one phase."""
    took_s = sorted(it.took_s for it in rows if not it.is_error)
    return {
        "requests": len(rows),
        "errors": sum(it.is_error for it in rows),
        "said": dict(Counter(it.said for it in rows)),
        "pools": dict(Counter(it.pool for it in rows if not it.is_error)),
        "grpc": {"requests": sum(it.is_grpc for it in rows), "errors": sum(it.is_grpc and it.is_error for it in rows)},
        "endpoints": len({it.endpoint for it in rows if not it.is_grpc}),
        "grpc_endpoints": len({it.endpoint for it in rows if it.is_grpc}),
        "p50_s": round(took_s[len(took_s) // 2], 4) if took_s else None,
        "max_s": round(took_s[-1], 3) if took_s else None,
    }
