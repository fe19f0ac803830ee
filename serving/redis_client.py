"""Redis for threads, by redis-py: one kept connection, and errors that are told as ours. What several gateways share is kept there.

Deliberately not here: clusters, sentinels, subscriptions. Rule: nothing is sent twice, because a command that timed out may have been done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from serving.errors import EnvironmentFault, UserError

if TYPE_CHECKING:
    from redis import Redis

TIMEOUT_S = 2.0  # for connecting and for each reply; a guess: Redis answers from memory, within a millisecond
FORM = "redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], or rediss:// for TLS"
Word = bytes | str | int | float
Reply = bytes | int | list["Reply"] | None


class Unreachable(EnvironmentFault):
    """No connection, or none any more, or no reply in time."""


class Refused(EnvironmentFault):
    """Redis answered with an error: a wrong password, a command that is not allowed, a script that failed."""


class RedisClient:
    """Of one thread. Connects when it is asked first, and anew after an error."""

    def __init__(self, url: str, timeout_s: float | None = None) -> None:
        """`timeout_s` None: TIMEOUT_S. Raises UserError for what is no URL of a Redis."""
        try:
            parts = urlsplit(url)
            port, database = parts.port or 6379, int(parts.path.strip("/") or 0)
        except ValueError:
            raise _no_url(url) from None
        if parts.scheme not in ("redis", "rediss") or not parts.hostname or database < 0 or parts.query:
            raise _no_url(url)
        self.where = f"{parts.hostname}:{port}/{database}"  # without the password
        self._url = url
        self._timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        self._opened: Redis | None = None

    def __enter__(self) -> RedisClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, *words: Word) -> Reply:
        """The reply to one command. Raises Unreachable and Refused."""
        return self.ask_all([words])[0]

    def ask_all(self, commands: Sequence[Sequence[Word]]) -> list[Reply]:
        """The replies to commands that are sent together. Raises Unreachable and Refused, for the first that fails."""
        from redis import AuthenticationError, RedisError, ResponseError  # 0.2 s of import, for those who have one

        try:
            pipeline = self._client().pipeline(transaction=False)
            for words in commands:
                pipeline.execute_command(*words)  # type: ignore[no-untyped-call]
            return cast(list[Reply], pipeline.execute())
        except (ResponseError, AuthenticationError) as error:
            self.close()
            raise Refused(f"the Redis {self.where} refuses: {error}") from None
        except (
            RedisError,
            OSError,
            ValueError,
        ) as error:  # ssl's errors are OSErrors; what is not RESP is a ValueError
            self.close()
            raise Unreachable(f"the Redis {self.where} does not answer ({error or type(error).__name__})") from None

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _client(self) -> Redis:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        if self._opened is None:
            self._opened = Redis.from_url(
                self._url,
                max_connections=1,
                socket_timeout=self._timeout_s,
                socket_connect_timeout=self._timeout_s,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
            self._opened.response_callbacks.clear()  # replies as they come, whatever the command
        return self._opened


def _no_url(url: str) -> UserError:
    return UserError(f"'{url.rpartition('@')[2][:80]}' is no address of a Redis: it is {FORM}")
