"""How many connections does one listener have, in all and from one address?

More are closed before anything of them is read, over HTTP with an answer that says so.
"""

from __future__ import annotations

from collections import Counter

from serving.errors import Overloaded, RateLimited, RequestError
from serving.settings import LimitSettings

RETRY_AFTER_S = 1.0  # until others have gone; a guess, not measured


class Connections:
    """`listener`: as metrics call it. `num_refused`: by the limit that they met."""

    def __init__(self, listener: str, limits: LimitSettings) -> None:
        self.listener = listener
        self.number = 0
        self.num_refused = {"listener": 0, "client": 0}
        self._limits = limits
        self._by_client: Counter[str] = Counter()

    def begin(self, client: str) -> RequestError | None:
        """Why this one is not taken, or None: then it counts until its `end`.

        What is refused does not count while it lasts, or one address that tries again and again would keep all others out.
        """
        most, most_of_client = self._limits.max_connections, self._limits.max_connections_per_client
        if self.number >= most:
            self.num_refused["listener"] += 1
            return Overloaded(
                f"there are {most} connections here already (max_connections); try again", retry_after_s=RETRY_AFTER_S
            )
        if self._by_client[client] >= most_of_client:
            self.num_refused["client"] += 1
            return RateLimited(
                f"your address has {most_of_client} connections here already (max_connections_per_client); use those",
                retry_after_s=RETRY_AFTER_S,
            )
        self.number += 1
        self._by_client[client] += 1
        return None

    def end(self, client: str) -> None:
        self.number -= 1
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]
