"""The gRPC health checking protocol (`grpc.health.v1.Health`), which Kubernetes' gRPC probes and load balancers ask.

Its two messages have one field each, so they are read and written here by hand. `Watch` is not offered: who needs it is told UNIMPLEMENTED,
which the protocol has for that. Rule: it says what `/health/ready` says.
"""

from __future__ import annotations

from serving import errors
from serving.protocol import protobuf_wire as wire

NAME = "grpc.health.v1.Health"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse: field 1, the status


def checked(message: bytes, service: str, *, is_ready: bool) -> bytes:
    """The answer to a HealthCheckRequest about the whole server or this service. Raises NotFound for any other, or BadRequest."""
    try:
        _, taken = wire.take_out(message, (1,))
    except wire.Malformed as error:
        raise errors.BadRequest(f"the message is not a HealthCheckRequest: {error}") from None
    asked = bytes(taken[1][-1]) if taken[1] else b""
    if asked not in (b"", service.encode(), NAME.encode()):
        raise errors.NotFound(f"there is no service {asked[:100].decode('utf-8', 'replace')!r} here")
    return SERVING if is_ready else NOT_SERVING
