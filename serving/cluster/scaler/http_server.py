"""Serves the scaler's metrics, health and cold starts over HTTP, read-only. It has threads of its own, so a slow client delays no round."""

from __future__ import annotations

import dataclasses
import errno
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, SHUT_RDWR, socket
from typing import Any

from serving.cluster.scaler.metrics import Metrics
from serving.cluster.scaler.state import ScalerState
from serving.decisions.cold_start import ColdStart
from serving.errors import UserError

STUCK_S = 30.0  # without a round, which comes every second and takes at most 2 s: the loop hangs; a guess
STOP_S = 0.1  # how often it checks whether to stop
CONNECTION_S = 10.0  # for one request and its response; Prometheus waits as long by default
MAX_CONNECTIONS = 64  # at once, each on a thread; Prometheus, probes and people make a few; a guess
READING = ("GET", "HEAD")


class HttpServer:
    def __init__(self, state: ScalerState, host: str, port: int, now: Callable[[], float] = time.monotonic) -> None:
        """Raises UserError where the port is taken."""
        try:
            self._server = _Server((host, port), _handler(state, Metrics(state, now), now))
        except OSError as error:
            why = (
                "is taken" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror or error})"
            )
            raise UserError(f"port {port} on {host} {why}; choose another with --port") from None

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(STOP_S,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """Bounds the number of connections and how long each lasts, so that neither many clients nor slow ones take all threads."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        self._connections: dict[socket, float] = {}  # when each must have ended
        super().__init__(address, handler)

    def verify_request(self, request: Any, _address: object) -> bool:
        if len(self._connections) >= MAX_CONNECTIONS:
            return False
        self._connections[request] = time.monotonic() + CONNECTION_S
        return True

    def shutdown_request(self, request: Any) -> None:
        self._connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called every STOP_S."""
        now = time.monotonic()
        for connection, end in list(self._connections.items()):
            if now > end:
                with suppress(OSError):
                    connection.shutdown(SHUT_RDWR)  # its thread reads the end of the stream, and closes it

    def handle_error(self, _request: object, _address: object) -> None:
        pass  # a client that left


def _handler(state: ScalerState, metrics: Metrics, now: Callable[[], float]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            self.handle_one_request()  # one request for each connection, so that no thread waits for a next one

        def do_GET(self) -> None:
            accept = self.headers.get("Accept", "")
            status, kind, body = _page(self.path.partition("?")[0], accept, state, metrics, now())
            if self.command not in READING:
                status, kind, body = _json(405, {"error": "there is nothing to change here: GET and HEAD"})
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            if status == 405:
                self.send_header("Allow", ", ".join(READING))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET  # noqa: N815

        def version_string(self) -> str:
            return "tandem"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler


def _page(path: str, accept: str, state: ScalerState, metrics: Metrics, now: float) -> tuple[int, str, bytes]:
    """Status, content type, body."""
    if path == "/metrics":
        kind, text = metrics.text(accept)
        return 200, kind, text
    if path == "/cold-starts":
        listed = [_described(it) for it in state.result.cold_starts]
        return _json(200, {"version": 1, "cold_starts": listed})
    if path == "/status":
        return _json(200, _status(state, now))
    if path == "/fleet":
        return _json(200, _fleet(state))
    if path == "/health/live":
        is_stuck = state.has_looked and now - state.result.scaling.at > STUCK_S
        return _json(503 if is_stuck else 200, {"live": not is_stuck})
    if path == "/health/ready":
        return _json(
            200 if state.has_published else 503, {"ready": state.has_published, "holds": state.result.scaling.holds}
        )
    return _json(404, {"error": "there are /metrics, /status, /fleet, /cold-starts, /health/live and /health/ready"})


def _status(state: ScalerState, now: float) -> dict[str, object]:
    result, scaling = state.result, state.result.scaling
    gateways = {
        address: {
            "heard_s_ago": None if it.said is None else round(max(0.0, now - it.read_at), 3),
            "is_named": it.left_at is None,
            "problem": result.silent.get(address, ""),
        }
        for address, it in scaling.gateways.known.items()
    }
    return {
        "version": 1,
        "wanted": scaling.replicas,
        "demands": {pool: dataclasses.asdict(it) for pool, it in (scaling.demands or {}).items()},
        "holds": scaling.holds,
        "holds_s": None if state.holds_since is None else round(max(0.0, now - state.holds_since), 3),
        "keeps": scaling.keeps,
        "decisions": {pool: dataclasses.asdict(it) for pool, it in state.last_decisions.items()},
        "traffic": {pool: dataclasses.asdict(it) for pool, it in result.traffic.items()},
        "is_api_readable": result.is_api_readable,
        "applies": None if state.leader is None else dataclasses.asdict(state.leader),
        "gateways": gateways,
    }


def _fleet(state: ScalerState) -> dict[str, object]:
    """What gateways show of it on their page: few bytes, whatever number of models and gateways there are."""
    result, scaling = state.result, state.result.scaling
    last = {it.pool: it for it in result.cold_starts}
    return {
        "version": 1,
        "began": round(state.began, 3),
        "holds": scaling.holds,
        "keeps": scaling.keeps,
        "pools": {
            pool: {
                "wanted": state.replicas(pool),
                "ready": demand.num_ready if (demand := (scaling.demands or {}).get(pool)) else None,
                "nodes": None if result.nodes is None else result.nodes.get(pool, 0),
                "per_hour": bill.per_hour,
                "spent": bill.spent,
                "decision": dataclasses.asdict(it) if (it := state.last_decisions.get(pool)) else None,
                "cold_start": _described(last[pool]) if pool in last else None,
            }
            for pool, bill in state.bills.items()
        },
    }


def _described(it: ColdStart) -> dict[str, object]:
    return {**dataclasses.asdict(it), "phases_s": {name: round(took_s, 3) for name, took_s in it.phases.items()}}


def _json(status: int, value: object) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(value).encode()
