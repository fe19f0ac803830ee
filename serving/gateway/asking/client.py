"""Who waits for an answer, as the queue sees it: somebody who may leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Client(Protocol):
    def listen(self, tell: Callable[[], None]) -> None:
        """From now on `tell` is called, on the event loop, once the client has gone; at once where it has gone already."""

    def ignore(self) -> None:
        """`tell` is called no more."""


class NobodyLeaves:
    """For work whose asker's leaving is seen elsewhere, or by nobody."""

    def listen(self, tell: Callable[[], None]) -> None:
        pass

    def ignore(self) -> None:
        pass
