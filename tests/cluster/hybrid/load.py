"""Clients of the gateways' Service under open-loop load: a request is due when it is due, and what goes wrong is never tried again.

There is no kube-proxy. As its rules would, a new connection goes to one of the ready endpoints at random, known `PROXY_LATE_S` late, and
stays with it; connections are used in turn until the server closes them. Times are from when a request was
due. Errors are HTTP statuses from 400 on, and connections that failed, under their names.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

PROXY_LATE_S = 1.0  # kube-proxy writes its rules at most once a second unless told otherwise (minSyncPeriod)
TIMEOUT_S = 20.0
CONNECTIONS = 8  # kept by all clients together, so that both gateways always have some

Endpoints = Callable[[], list[str]]  # address:port of each that is ready


@dataclass(frozen=True, slots=True)
class Row:
    due_s: float  # since the load began
    took_s: float
    said: str  # status, or what failed
    pool: str
    endpoint: str

    @property
    def is_error(self) -> bool:
        return self.said != "200"


class Known:
    """The endpoints as nodes know them: late."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._seen: deque[tuple[float, list[str]]] = deque()

    def now(self, now_s: float) -> list[str]:
        self._seen.append((now_s, self._endpoints()))
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - PROXY_LATE_S:
            self._seen.popleft()
        return self._seen[0][1]


class Load(threading.Thread):
    """Sends until it is told to stop; rows may be read meanwhile."""

    def __init__(self, endpoints: Endpoints, path: str, body: bytes, rate_rps: float) -> None:
        super().__init__(name="load", daemon=True)
        self._known = Known(endpoints)
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

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    async def _send_all(self) -> None:
        due_s = 0.0
        running: set[asyncio.Task[None]] = set()
        while not self._stopped.is_set():
            await asyncio.sleep(max(0.0, due_s - self.elapsed_s()))
            task = asyncio.create_task(self._send(due_s))
            running.add(task)
            task.add_done_callback(running.discard)
            due_s += 1 / self.rate_rps
        await asyncio.gather(*running)

    async def _send(self, due_s: float) -> None:
        self._busy += 1
        endpoints, endpoint, said, pool = self._known.now(time.monotonic()), "", "", ""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while self._idle and self._idle[0][1].at_eof():
                    self._idle.popleft()[2].close()
                if len(self._idle) + self._busy >= CONNECTIONS and self._idle:
                    endpoint, reader, writer = self._idle.popleft()
                else:
                    endpoint = random.choice(endpoints)  # IndexError: the Service has none
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
        "endpoints": len({it.endpoint for it in rows}),
        "p50_s": round(took_s[len(took_s) // 2], 4) if took_s else None,
        "max_s": round(took_s[-1], 3) if took_s else None,
    }
