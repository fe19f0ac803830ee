"""Where a control document is kept: a file for one machine's gateways, Redis for many. A ConfigMap is `cluster/control_map.py`'s.

A store gives the text in force and takes a new one if nobody else was quicker. Beside it are gateways (`followers.py`) and logs of
rollouts (`evidence.py`).
Rule: a document that vanished or cannot be read is an error and never an empty one, because gateways keep what they have then.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qsl, urlsplit

from serving.control.evidence import Comparison, Read
from serving.control.followers import FORGOTTEN_S, Follower, read_followers
from serving.control.revisions import History, Revision, in_force
from serving.documents.nearest import nearest
from serving.documents.reader import read_text
from serving.documents.replacement import Replaced, undisturbed
from serving.errors import EnvironmentFault, UserError
from serving.redis_client import RedisClient, Reply, Word

EVERY_S = 0.5  # between two looks: a change is in force at all gateways well within the two seconds that are promised
WHAT = "the control document"
REDIS = ("redis://", "rediss://")
CONFIGMAP = "configmap:"
DEFAULT_KEY = "tandem:control"
MAX_LINES = 200  # of a log at once: 0.1 s of a judge's work
KEPT_S = 7 * 24 * 3600  # a log to which nobody adds
FORMS = f"FILE, redis://HOST:PORT[/DATABASE][?key={DEFAULT_KEY}] or configmap:NAME"


class Conflict(EnvironmentFault):
    """Somebody else changed the document since it was read."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was changed by somebody else meanwhile; look at it with `tandem diff`, and try again")


class Later(EnvironmentFault):
    """A log is of something that came later than what is in force here."""

    def __init__(self, comparison: Comparison, name: str) -> None:
        super().__init__(f"{name} is of a later revision than {comparison.revision}, which is not in force here yet")


class Store(ABC):
    """`name`: for messages, without a password. All methods raise TandemError. One thread follows; others may read and write
    meanwhile. To be closed, by `with`.

    `block_s`: how often a log of evidence may be added to, so many times (`num_alike`) before that is twice as long; `num_latencies`: of an
    arm, that fit into a line of it. `announce_s`: how often gateways announce themselves.
    """

    name: str
    block_s = announce_s = 1.0
    num_alike = (
        3600  # so evidence of a week has 45 MB, and a candidate that has been good for a day is judged every 24 s
    )
    num_latencies = 100

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - a file needs none
        """A store that is asked again opens again."""

    @abstractmethod
    def current(self) -> Revision | None:
        """What is in force; None where nothing was ever put there."""

    @abstractmethod
    def history(self) -> History:
        """With all that is kept."""

    @abstractmethod
    def write(self, following: History, before: History) -> None:
        """Raises Conflict where what is in force is not `before`'s any more."""

    @abstractmethod
    def exchange(self, comparison: Comparison, began: str, place: int, lines: Sequence[str]) -> Read:
        """Adds lines to the log of the comparison, and reads it on from a `place` in the log that `began` so, else from its beginning.

        A log of something else is begun anew. Raises Later.
        """

    @abstractmethod
    def announce(self, follower: Follower) -> None:
        """In place of what this one announced before."""

    @abstractmethod
    def withdraw(self, name: str) -> None:
        """A gateway has ended."""

    @abstractmethod
    def followers(self) -> list[Follower]:
        """Gateways that announced themselves within the last hour."""

    def following(self, last: Revision | None) -> Revision | None:
        """What is in force a moment later, or as soon as it is another than `last`."""
        del last
        time.sleep(EVERY_S)
        return self.current()


class FileStore(Store):
    """The file, and beside it `NAME.revisions` with what was recorded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"{WHAT} {path}"

    @property
    def _recorded(self) -> Path:
        return self.path.with_name(f"{self.path.name}.revisions")

    @property
    def _gateways(self) -> Path:
        return self.path.with_name(f"{self.path.name}.gateways")

    def current(self) -> Revision | None:
        """Raises UserError where there is none, too: an editor makes it, so that its name may be a mistake."""
        with undisturbed(self.path):
            if not self.path.exists():
                raise UserError(
                    f"{self.name} is not there; make it by `tandem apply FILE --control {self.path}` "
                    f"or `tandem models pin MODEL --version NUMBER --control {self.path}`"
                )
            text, newest = read_text(self.path, WHAT), None
            if self._recorded.exists():
                newest = read_text(self._recorded, "the revisions").rpartition("\n")[2]
        return in_force(text, newest)

    def history(self) -> History:
        text = read_text(self.path, WHAT) if self.path.exists() else None
        recorded = read_text(self._recorded, "the revisions") if self._recorded.exists() else ""
        return History.of(text, recorded.partition("\n")[0])

    def write(self, following: History, before: History) -> None:
        with Replaced(self.path, WHAT) as file:
            if self.history().current.digest != before.current.digest:
                raise Conflict(self.name)
            file.replace(following.current.text.encode())
            with Replaced(self._recorded, "the revisions") as recorded:
                recorded.replace(f"{following.recorded}\n{following.newest}".encode())

    def announce(self, follower: Follower) -> None:
        with self._announced() as (told, file):
            told[follower.name] = [time.time(), follower.line]
            _rewrite(file, told)

    def withdraw(self, name: str) -> None:
        with self._announced() as (told, file):
            told.pop(name, None)
            _rewrite(file, told)

    def followers(self) -> list[Follower]:
        if not self._gateways.exists():
            return []
        now = time.time()
        with self._announced() as (told, _):
            return read_followers((line, now - at) for at, line in told.values())

    @contextlib.contextmanager
    def _announced(self) -> Iterator[tuple[dict[str, Any], IO[bytes]]]:
        with self._locked(self._gateways) as file:
            try:
                told = {
                    name: [float(at), str(line)]
                    for name, (at, line) in json.loads(file.read().rstrip(b"\0") or b"{}").items()
                }
            except (
                ValueError,
                TypeError,
                AttributeError,
            ):  # of a gateway that was killed while it wrote, or of another Tandem
                told = {}
            yield told, file

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[IO[bytes]]:
        """A file that gateways share, which is made where there is none."""
        try:
            with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file
        except OSError as error:
            raise EnvironmentFault(f"cannot write {path}: {error.strerror or error}") from None

    def exchange(self, comparison: Comparison, began: str, place: int, lines: Sequence[str]) -> Read:
        path = self.path.with_name(f"{self.path.name}.{comparison.model}.evidence")
        with self._locked(path) as file:
            found = file.readline().decode(errors="replace").strip()
            if comparison.is_behind(found):
                raise Later(comparison, str(path))
            if not comparison.goes_on(found):
                file.truncate(0)
                file.seek(0)
                found = comparison.head(secrets.token_hex(4))
                file.write(f"{found}\n".encode())
            first = len(found.encode()) + 1
            if (
                place > file.seek(-1, os.SEEK_END) + 1
            ):  # somebody has cut it off: what was read before is known by its numbers
                place = first
            if file.read(1) != b"\n":  # half a line of one that was killed
                file.write(b"\n")
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.seek(place if found == began else first)
            read = [file.readline() for _ in range(MAX_LINES)]
            whole = [line.decode(errors="replace").strip() for line in read if line.endswith(b"\n")]
            return Read(found, file.tell(), whole, len(whole) == MAX_LINES)


def _rewrite(file: IO[bytes], told: dict[str, Any]) -> None:
    """Where the disk is full, what stands there stays: one that fell silent is not forgotten for that."""
    text = json.dumps({name: it for name, it in told.items() if time.time() - it[0] < FORGOTTEN_S}).encode()
    os.posix_fallocate(
        file.fileno(), 0, len(text)
    )  # may leave zeros behind what stands there, where it finds room for a part
    file.seek(0)
    file.write(text)
    file.truncate()


# In one step, so that of two who write at once one is refused.
_WRITE = """
if (redis.call('HGET', KEYS[1], 'document') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'document', ARGV[2], 'newest', ARGV[3], 'revisions', ARGV[4])
return 1
"""


# By the clock of Redis, which all share.
_ANNOUNCE = """
local now = redis.call('TIME')[1]
redis.call('HSET', KEYS[1], ARGV[1], now .. ' ' .. ARGV[2])
local all = redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  if now - tonumber(string.match(all[at + 1], '^%d+')) > tonumber(ARGV[3]) then redis.call('HDEL', KEYS[1], all[at]) end
end
return 1
"""
# Reads the first line, and adds to the log if that is still the one.
_EXCHANGE = """
local began = redis.call('LINDEX', KEYS[1], 0)
if (began or '') ~= ARGV[1] then return {began or ''} end
if ARGV[2] ~= ARGV[1] then redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], ARGV[2]) end
for at = 6, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[at]) end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {ARGV[2], redis.call('LRANGE', KEYS[1], ARGV[4], ARGV[5])}
"""


class RedisStore(Store):
    """One hash: the text in its field `document`, what was recorded in `newest` and `revisions`. A list for each log of evidence."""

    def __init__(self, url: str) -> None:
        """Raises UserError."""
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := next((name for name in options if name != "key"), None):
            raise UserError(f"unknown option '{unknown}' of {parts.scheme}://{nearest(unknown, ['key'])}")
        self._key = options.get("key", DEFAULT_KEY)
        self._redis = RedisClient(parts._replace(query="").geturl())
        self._lock = threading.Lock()  # a client is one thread's at a time
        self.name = f"{WHAT} {self._key} in Redis {self._redis.where}"

    def current(self) -> Revision | None:
        text, newest = self._fields("document", "newest")
        return None if text is None else in_force(text, newest)

    def history(self) -> History:
        return History.of(*self._fields("document", "revisions"))

    def write(self, following: History, before: History) -> None:
        current = following.current
        words = (before.current.text, current.text, following.newest, following.recorded)
        written = self._ask("EVAL", _WRITE, 1, self._key, *words)
        if written != 1:
            raise Conflict(self.name)

    def exchange(self, comparison: Comparison, began: str, place: int, lines: Sequence[str]) -> Read:
        key, found = f"{self._key}:evidence:{comparison.model}", began
        while True:
            if comparison.is_behind(found):
                raise Later(comparison, f"{key} in Redis {self._redis.where}")
            wanted = found if comparison.goes_on(found) else comparison.head(secrets.token_hex(4))
            first = place if wanted == began else 1
            words = (found, wanted, KEPT_S, first, first + MAX_LINES - 1)
            reply = self._ask("EVAL", _EXCHANGE, 1, key, *words, *lines)
            assert isinstance(reply, list)
            head, read = _text(reply[0]), reply[1:]
            if read:
                assert isinstance(read[0], list)
                return Read(head, first + len(read[0]), [_text(line) for line in read[0]], len(read[0]) == MAX_LINES)
            found = head  # it is another log by now

    def announce(self, follower: Follower) -> None:
        self._ask("EVAL", _ANNOUNCE, 1, self._gateways, follower.name, follower.line, int(FORGOTTEN_S))

    def withdraw(self, name: str) -> None:
        self._ask("HDEL", self._gateways, name)

    def followers(self) -> list[Follower]:
        with self._lock:
            told, now = self._redis.ask_all([("HVALS", self._gateways), ("TIME",)])
        assert isinstance(told, list)
        assert isinstance(now, list)
        lines = (_text(it).partition(" ") for it in told)
        return read_followers((line, int(_text(now[0])) - int(at)) for at, _, line in lines)

    @property
    def _gateways(self) -> str:
        return f"{self._key}:gateways"

    def _ask(self, *words: Word) -> Reply:
        with self._lock:
            return self._redis.ask(*words)

    def close(self) -> None:
        with self._lock:
            self._redis.close()

    def _fields(self, *names: str) -> tuple[str | None, str | None]:
        found = self._ask("HMGET", self._key, *names)
        if not isinstance(found, list):
            raise EnvironmentFault(f"{self.name} is no document")
        try:
            first, second = (it.decode() if isinstance(it, bytes) else None for it in found)
        except UnicodeDecodeError:
            raise UserError(f"{self.name} is not text in UTF-8") from None
        return first, second


def _text(reply: Reply) -> str:
    return reply.decode(errors="replace") if isinstance(reply, bytes) else ""


def store_at(place: str) -> Store:
    """By what `--control` says, but for a ConfigMap. Raises UserError."""
    if place.startswith(REDIS):
        return RedisStore(place)
    scheme, separator, _ = place.partition("://")
    if separator:
        raise UserError(f"a control document cannot be at {scheme}://; it is at {FORMS}")
    return FileStore(Path(place))
