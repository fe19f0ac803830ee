"""The client of one RPC, who leaves by cancelling it or by closing the connection."""

from __future__ import annotations

from collections.abc import Callable


class GrpcClient:
    __slots__ = ("_has_left", "_tell")

    def __init__(self) -> None:
        self._tell: Callable[[], None] | None = None
        self._has_left = False

    def listen(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        if self._has_left:
            tell()

    def ignore(self) -> None:
        self._tell = None

    def leave(self) -> None:
        """Called by whoever hears of it."""
        self._has_left = True
        if self._tell is not None:
            self._tell()
