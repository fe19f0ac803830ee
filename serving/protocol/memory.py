"""How much memory do all requests take that are here now: bodies, what they are unpacked to, and the tensors that are made of them?

One budget for HTTP and gRPC together. A request claims what it is about to hold, and gives all of it back when it is over. The last part
of it is for tenants that hold little, so that no tenant's bodies keep out another's. Rules: pure accounting, which any edge can use; claims
come from several threads; what is refused is told apart from what can never fit.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from threading import Lock

from serving.errors import Overloaded, TooLarge

RETRY_AFTER_S = 1.0  # until others have their answers; a guess, not measured
LAST_RATIO = 0.25  # of all memory, for tenants that hold less than `LITTLE_RATIO` of it; guesses, not measured
LITTLE_RATIO = 0.25


class Memory:
    """`held`: bytes that requests have claimed now; `num_refused`: claims that found no room."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held = self.num_refused = 0
        self.held_by: dict[str, int] = {}  # tenants that are known
        self.lock = Lock()

    def claim(self, tenant: str = "") -> Claim:
        """Nothing yet, for one request. `tenant` empty: of nobody that is known."""
        return Claim(self, tenant)

    def _has_room(self, tenant: str, num_bytes: int, own_bytes: int) -> bool:
        """For so many more of a request that holds `own_bytes`; to be asked under the lock."""
        after = self.held + num_bytes
        if after > self.most_bytes:
            return False
        if not tenant or after <= (1 - LAST_RATIO) * self.most_bytes:
            return True
        of_tenant = self.held_by.get(tenant, 0)
        return of_tenant == own_bytes or of_tenant + num_bytes <= LITTLE_RATIO * self.most_bytes

    def _add(self, tenant: str, num_bytes: int) -> None:
        """Likewise; fewer where it is below 0."""
        self.held += num_bytes
        if tenant:
            left = self.held_by.get(tenant, 0) + num_bytes
            if left > 0:
                self.held_by[tenant] = left
            else:
                self.held_by.pop(tenant, None)


class Claim:
    """What one request holds, until `release`: after that a thread that still works for it gets nothing more."""

    __slots__ = ("_is_released", "_memory", "_tenant", "held")

    def __init__(self, memory: Memory, tenant: str = "") -> None:
        self._memory = memory
        self._tenant = tenant
        self._is_released = False
        self.held = 0

    def take(self, num_bytes: int) -> None:
        """So many more. Raises Overloaded, or TooLarge where it would not fit if it were alone."""
        memory = self._memory
        most = memory.most_bytes
        with memory.lock:
            if not self._is_released and (num_bytes <= 0 or memory._has_room(self._tenant, num_bytes, self.held)):
                memory._add(self._tenant, num_bytes)
                self.held += num_bytes
                return
            memory.num_refused += not self._is_released
            is_alone_too_large = self.held + num_bytes > most
        if is_alone_too_large:
            raise TooLarge(
                f"the request needs more than {most} bytes of memory, all there is for requests (max_buffered_bytes); "
                "send it in binary, or in several"
            )
        raise Overloaded(
            f"the requests that are here at this moment take all of the {most} bytes of memory there are for them "
            "(max_buffered_bytes); try again",
            retry_after_s=RETRY_AFTER_S,
        )

    def take_over(self, other: Claim) -> None:
        """What another claim holds of the same memory."""
        with self._memory.lock:
            self._memory._add(other._tenant, -other.held)
            self._memory._add(self._tenant, other.held)
            self.held, other.held = self.held + other.held, 0

    def give_back(self, num_bytes: int) -> None:
        """So many, or all where it holds less."""
        with self._memory.lock:
            num_bytes = min(num_bytes, self.held)
            if num_bytes > 0:
                self._memory._add(self._tenant, -num_bytes)
                self.held -= num_bytes

    def release(self) -> None:
        """All of it, for good."""
        with self._memory.lock:
            self._is_released = True
            self._memory._add(self._tenant, -self.held)
            self.held = 0


def joined(pieces: list[bytes | memoryview]) -> bytes:
    """All of them in one, the very same object where there is one. Takes each out of the list, so that hardly a byte is held twice."""
    if len(pieces) == 1:
        return bytes(pieces.pop())
    whole = BytesIO()  # grows in place, and gives away what it holds
    pieces.reverse()
    while pieces:
        whole.write(pieces.pop())
    return whole.getvalue()


Claims = Callable[[], Claim]  # the claim of a request, made when it is first needed
