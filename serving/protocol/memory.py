"""How much memory do all requests take that are here now: bodies, what they are unpacked to, and the tensors that are made of them?

One budget for HTTP and gRPC together. A request claims what it is about to hold, and gives all of it back when it is over. Rules: pure
accounting, which any edge can use; claims come from several threads; what is refused is told apart from what can never fit.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from serving.errors import Overloaded, TooLarge

RETRY_AFTER_S = 1.0  # until others have their answers; a guess, not measured


class Memory:
    """`held`: bytes that requests have claimed now; `num_refused`: claims that found no room."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held = self.num_refused = 0
        self._lock = Lock()

    def claim(self) -> Claim:
        """Nothing yet, for one request."""
        return Claim(self)

    def add(self, num_bytes: int) -> bool:
        """Whether there was room for so many more; less than 0 gives back."""
        with self._lock:
            if num_bytes > 0 and self.held + num_bytes > self.most_bytes:
                self.num_refused += 1
                return False
            self.held += num_bytes
            return True


class Claim:
    """What one request holds, until `release`."""

    __slots__ = ("_memory", "held")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.held = 0

    def take(self, num_bytes: int) -> None:
        """So many more. Raises Overloaded, or TooLarge where it would not fit if it were alone."""
        if not self._memory.add(num_bytes):
            most = self._memory.most_bytes
            if self.held + num_bytes > most:
                raise TooLarge(
                    f"the request needs more than {most} bytes of memory, all there is for requests (max_buffered_bytes); "
                    "send it in binary, or in several"
                )
            raise Overloaded(
                f"the requests that are here at this moment take all of the {most} bytes of memory there are for them "
                "(max_buffered_bytes); try again",
                retry_after_s=RETRY_AFTER_S,
            )
        self.held += num_bytes

    def take_over(self, other: Claim) -> None:
        """What another claim holds of the same memory."""
        self.held, other.held = self.held + other.held, 0

    def give_back(self, num_bytes: int) -> None:
        """So many, or all where it holds less."""
        num_bytes = min(num_bytes, self.held)
        if num_bytes > 0:
            self._memory.add(-num_bytes)
            self.held -= num_bytes

    def release(self) -> None:
        self.give_back(self.held)


Claims = Callable[[], Claim]  # the claim of a request, made when it is first needed
