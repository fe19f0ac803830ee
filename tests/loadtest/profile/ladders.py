"""Ladders with known parts, for tests of what is said and drawn of them."""

from __future__ import annotations

from dataclasses import dataclass

from serving.decisions.profile import Rung, Timing


@dataclass(frozen=True, slots=True)
class Server:
    label: str
    ladder: tuple[Timing, ...]


def timing(rung: Rung, seconds: float, batch_size: int = 1, spread: float = 0.01, **more: float) -> Timing:
    """`spread`: half the interval, as a share."""
    low, high = seconds * (1 - spread), seconds * (1 + spread)
    return Timing(rung, batch_size, 500, seconds, None, low, high, 1000, **more)


def server(
    label: str,
    batch_size: int = 1,
    *,
    compute_s: float = 0.001,
    transfer_s: float = 0.001,
    json_s: float = 0.001,
    gateway_s: float = 0.001,
    queue_s: float = 0.0,
) -> Server:
    binary_s = compute_s + transfer_s + queue_s
    return Server(
        label,
        (
            timing("in_process", compute_s, batch_size),
            timing("triton_grpc", binary_s, batch_size),
            timing("triton_http_binary", binary_s, batch_size, queue_s=queue_s, compute_infer_s=compute_s * 1.1),
            timing("triton_http_json", binary_s + json_s, batch_size),
            timing("gateway_binary", binary_s + gateway_s, batch_size),
            timing("gateway_json", binary_s + json_s + gateway_s, batch_size),
        ),
    )


def together(*servers: Server) -> Server:
    """One server with the batch sizes of all."""
    return Server(servers[0].label, tuple(timing for one in servers for timing in one.ladder))
