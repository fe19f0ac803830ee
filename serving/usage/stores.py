"""Where counts of tenants are kept over gateways and restarts: a file for one machine's gateways, Redis for many.

The file is a SQLite database, so that several processes add to it, and one that is killed in the middle spoils nothing. Rule: a batch has a
name, and a store that has added it does not add it again, because whoever got no answer sends it once more.
"""

from __future__ import annotations

import json
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from serving.errors import EnvironmentFault, UserError
from serving.redis_client import RedisClient, Reply
from serving.settings import usage_place
from serving.usage.ledger import HOUR_S, WHATS, Amounts, Ask, Batch, Entry, Lease, Part, Window, month_of

KEPT_S = 400 * 24 * HOUR_S  # of entries: a year of bills, and a month to write them
SLOT_S = 60  # of what servers were there
LEASE_S = 3.0  # a part of a limit is its gateway's after it asked last: six times as long as until it asks again
LOCKED_S = 2.0  # that others may hold the file; a guess, a batch takes milliseconds
PREFIX = "tandem:usage"


class Slot(NamedTuple):
    """A minute of a pool, by its number since 1970."""

    number: int
    pool: str


class Servers(NamedTuple):
    """In a minute, on average: `present` are paid for, `answering` of these served something.

    `joules`: that all of them took, where a gateway has a meter.
    """

    present: float
    answering: float
    joules: float = 0.0


def add_seconds(
    by_minute: dict[int, tuple[float, float]], begin: float, end: float, present: float, answering: float
) -> None:
    """Of so many servers from one moment to another (seconds of 1970), to those of each minute."""
    while begin < end:
        minute = int(begin // SLOT_S)
        until = min(end, (minute + 1.0) * SLOT_S)
        there_s, answering_s = by_minute.get(minute, (0.0, 0.0))
        by_minute[minute] = there_s + (until - begin) * present, answering_s + (until - begin) * answering
        begin = until


class UsageStore(ABC):
    """`name`: for messages, without a password. Methods raise EnvironmentFault, and belong to one thread."""

    name: str

    @abstractmethod
    def add(
        self, writer: str, number: int, batch: Batch, servers: Mapping[Slot, Servers], *, is_scaler: bool = False
    ) -> bool:
        """All or nothing; of the batch nothing where this writer's of this number was added before.

        `is_scaler`: the servers are `nodes`. Of what several saw of a minute the most counts. Returns whether all that this writer gave
        it before is still there.
        """

    @abstractmethod
    def totals(self, now: float) -> dict[Window, Amounts]:
        """Of the windows of now."""

    def lease(self, writer: str, asks: Mapping[Part, Ask]) -> dict[Part, Lease]:
        """To each gateway that asks of each limit what it would have, but no more than others that asked within `LEASE_S` have left.

        What it uses now is no other's, and once that is over not its own again.
        """
        del writer, asks
        return {}  # whoever is alone has all

    @abstractmethod
    def entries(self, since: float) -> dict[Entry, Amounts]:
        """Of the hours from this moment on."""

    @abstractmethod
    def servers(self, since: float) -> dict[Slot, Servers]:
        """Likewise."""

    @abstractmethod
    def nodes(self, since: float) -> dict[Slot, Servers]:
        """Likewise, as a scaler saw them: what it paid for, and what of that answered."""

    @abstractmethod
    def close(self) -> None:
        """A store that is asked again opens again."""


def store_at(place: str) -> UsageStore:
    """`place`: a file, or redis://HOST:PORT. Raises UserError."""
    try:
        usage_place(place)
    except ValueError as error:
        raise UserError(str(error)) from None
    return RedisUsage(place) if "://" in place else FileUsage(Path(place))


class ProcessUsage(UsageStore):
    """Of one gateway that keeps them nowhere: quotas hold until it ends, and there are no bills."""

    def __init__(self) -> None:
        self.name = "this process"
        self._windows: dict[Window, Amounts] = {}

    def add(
        self, writer: str, number: int, batch: Batch, servers: Mapping[Slot, Servers], *, is_scaler: bool = False
    ) -> bool:
        del writer, number, servers, is_scaler
        for window, amounts in batch.windows.items():
            have = self._windows.get(window, _nothing())
            self._windows[window] = [a + b for a, b in zip(have, amounts, strict=True)]
        return True

    def totals(self, now: float) -> dict[Window, Amounts]:
        running = _windows(now)
        self._windows = {it: amounts for it, amounts in self._windows.items() if (it.per, it.number) in running}
        return dict(self._windows)

    def entries(self, since: float) -> dict[Entry, Amounts]:
        del since
        return {}

    def servers(self, since: float) -> dict[Slot, Servers]:
        del since
        return {}

    nodes = servers

    def close(self) -> None:
        pass


_TABLES = f"""
CREATE TABLE IF NOT EXISTS entries (hour INTEGER, tenant TEXT, model TEXT, pool TEXT,
    {", ".join(f"{what} REAL NOT NULL" for what in WHATS)}, PRIMARY KEY (hour, tenant, model, pool)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS windows (per TEXT, number INTEGER, tenant TEXT,
    {", ".join(f"{what} REAL NOT NULL" for what in WHATS)}, PRIMARY KEY (per, number, tenant)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS servers (slot INTEGER, pool TEXT, present REAL NOT NULL, answering REAL NOT NULL,
    joules REAL NOT NULL DEFAULT 0, PRIMARY KEY (slot, pool)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nodes (slot INTEGER, pool TEXT, present REAL NOT NULL, answering REAL NOT NULL,
    joules REAL NOT NULL DEFAULT 0, PRIMARY KEY (slot, pool)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (tenant TEXT, what TEXT, writer TEXT, want REAL NOT NULL, held REAL NOT NULL,
    until REAL NOT NULL, PRIMARY KEY (tenant, what, writer)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (writer TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
"""
_ADDED = ", ".join(f"{what} = {what} + excluded.{what}" for what in WHATS)
_MARKS = ", ".join("?" * len(WHATS))


class FileUsage(UsageStore):
    def __init__(self, path: Path) -> None:
        self.name = (
            f"the usage file {path.absolute()}"  # whole, because a gateway may run in another folder than who asks
        )
        self._path = path
        self._opened: sqlite3.Connection | None = None

    def add(
        self, writer: str, number: int, batch: Batch, servers: Mapping[Slot, Servers], *, is_scaler: bool = False
    ) -> bool:
        try:
            database = self._database()
            with database:
                database.execute("BEGIN IMMEDIATE")
                database.executemany(
                    f"INSERT INTO {'nodes' if is_scaler else 'servers'} VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                    "present = max(present, excluded.present), answering = max(answering, excluded.answering), "
                    "joules = max(joules, excluded.joules)",
                    [(*slot, *seen) for slot, seen in servers.items()],
                )
                row = database.execute("SELECT number FROM batches WHERE writer = ?", (writer,)).fetchone()
                last = 0 if row is None else row[0]
                if last >= number:
                    return True
                database.execute("INSERT OR REPLACE INTO batches VALUES (?, ?)", (writer, number))
                database.executemany(
                    f"INSERT INTO entries VALUES (?, ?, ?, ?, {_MARKS}) ON CONFLICT DO UPDATE SET {_ADDED}",
                    [(*entry, *amounts) for entry, amounts in batch.entries.items()],
                )
                database.executemany(
                    f"INSERT INTO windows VALUES (?, ?, ?, {_MARKS}) ON CONFLICT DO UPDATE SET {_ADDED}",
                    [(*window, *amounts) for window, amounts in batch.windows.items()],
                )
        except sqlite3.Error as error:
            raise self._fault(error) from None
        return bool(last >= number - 1)

    def lease(self, writer: str, asks: Mapping[Part, Ask]) -> dict[Part, Lease]:
        if not asks:
            return {}
        now, found = time.time(), {}
        try:
            database = self._database()
            with database:
                database.execute("BEGIN IMMEDIATE")
                # The second: of before the clock was set back.
                database.execute("DELETE FROM leases WHERE until < ? OR until > ?", (now, now + 2 * LEASE_S))
                for part, ask in asks.items():
                    rows = database.execute(
                        "SELECT writer, want, held FROM leases WHERE tenant = ? AND what = ? AND writer <> ?",
                        (*part, writer),
                    ).fetchall()
                    may_use = max(0.0, min(ask.target, ask.limit - sum(row[2] for row in rows)))
                    database.execute(
                        "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?)",
                        (*part, writer, ask.want, max(ask.least, may_use), now + LEASE_S),
                    )
                    found[part] = Lease(may_use, {name: want for name, want, _ in rows} | {writer: ask.want})
        except sqlite3.Error as error:
            raise self._fault(error) from None
        return found

    def totals(self, now: float) -> dict[Window, Amounts]:
        found: dict[Window, Amounts] = {}
        try:
            database = self._database()
            for per, number in _windows(now):
                rows = database.execute("SELECT * FROM windows WHERE per = ? AND number = ?", (per, number))
                found |= {Window(*row[:3]): list(row[3:]) for row in rows}
            with database:
                for per, number in _windows(now):
                    old = number - (10 if per == "second" else 1)
                    database.execute("DELETE FROM windows WHERE per = ? AND number < ?", (per, old))
                database.execute("DELETE FROM entries WHERE hour < ?", (int((now - KEPT_S) // HOUR_S),))
                for table in ("servers", "nodes"):
                    database.execute(f"DELETE FROM {table} WHERE slot < ?", (int((now - KEPT_S) // SLOT_S),))
        except sqlite3.Error as error:
            raise self._fault(error) from None
        return found

    def entries(self, since: float) -> dict[Entry, Amounts]:
        rows = self._rows("SELECT * FROM entries WHERE hour >= ?", int(since // HOUR_S))
        return {Entry(*row[:4]): list(row[4:]) for row in rows}

    def servers(self, since: float) -> dict[Slot, Servers]:
        return self._slots("servers", since)

    def nodes(self, since: float) -> dict[Slot, Servers]:
        return self._slots("nodes", since)

    def _slots(self, table: str, since: float) -> dict[Slot, Servers]:
        rows = self._rows(f"SELECT * FROM {table} WHERE slot >= ?", int(since // HOUR_S) * HOUR_S // SLOT_S)
        return {Slot(*row[:2]): Servers(*row[2:]) for row in rows}

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _rows(self, query: str, since: int) -> list[tuple]:  # type: ignore[type-arg]
        if not self._path.exists():  # whoever reads makes none, in which there would be nothing to pay
            raise EnvironmentFault(
                f"{self.name} is not there; gateways make it, where they run, when they begin to count"
            )
        try:
            return self._database().execute(query, (since,)).fetchall()
        except sqlite3.Error as error:
            raise self._fault(error) from None

    def _database(self) -> sqlite3.Connection:
        if self._opened is None:
            self._opened = sqlite3.connect(self._path, timeout=LOCKED_S, isolation_level=None, check_same_thread=False)
            self._opened.execute("PRAGMA journal_mode = WAL")
            self._opened.execute("PRAGMA synchronous = NORMAL")
            self._opened.executescript(_TABLES)
            for table in ("servers", "nodes"):
                with suppress(sqlite3.OperationalError):  # files of before have none; others have it already
                    self._opened.execute(f"ALTER TABLE {table} ADD COLUMN joules REAL NOT NULL DEFAULT 0")
        return self._opened

    def _fault(self, error: sqlite3.Error) -> EnvironmentFault:
        self.close()
        is_place = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        way_out = "; name a file in a folder that exists and that you may write to" if is_place else ""
        return EnvironmentFault(f"{self.name} cannot be used: {error}{way_out}")


# Fields are JSON lists, so that no name can run into another. ARGV: the batch's number, how long that is
# known, and of each line: key, field, expiry (below 0: the largest counts), amount.
_ADD = """
local last = redis.call('GET', KEYS[1])
last = tonumber(last or '0')
local is_new = last < tonumber(ARGV[1])
if is_new then redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2]) end
for _, line in ipairs(cjson.decode(ARGV[3])) do
  local key, field, kept_s, amount = line[1], line[2], line[3], line[4]
  if kept_s < 0 then
    local have = tonumber(redis.call('HGET', key, field) or '0')
    if tonumber(amount) > have then redis.call('HSET', key, field, amount) end
    redis.call('EXPIRE', key, -kept_s)
  elseif is_new then
    redis.call('HINCRBYFLOAT', key, field, amount)
    redis.call('EXPIRE', key, kept_s)
  end
end
return last
"""
# KEYS: a hash of gateways for each part, of each one's want, part and end. ARGV: the gateway, seconds, and of each part what it wants,
# would have, uses now, and the limit.
_LEASE = """
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local kept_s, found = tonumber(ARGV[2]), {}
for number, ask in ipairs(cjson.decode(ARGV[3])) do
  local key, others, told = KEYS[number], 0, {}
  local every = redis.call('HGETALL', key)
  for at = 1, #every, 2 do
    local its = cjson.decode(every[at + 1])
    if its[3] < now then
      redis.call('HDEL', key, every[at])
    elseif every[at] ~= ARGV[1] then
      others = others + its[2]
      told[#told + 1] = {every[at], its[1]}
    end
  end
  local may_use = math.max(0, math.min(ask[2], ask[4] - others))
  redis.call('HSET', key, ARGV[1], cjson.encode({ask[1], math.max(ask[3], may_use), now + kept_s}))
  redis.call('EXPIRE', key, math.ceil(kept_s) + 1)
  found[number] = {may_use, told}
end
return cjson.encode(found)
"""
_MOST_LEASES = 100  # of one script, while which Redis does nothing else
_KEPT_S = {"second": 10, "hour": 2 * HOUR_S, "month": 40 * 24 * HOUR_S}


class RedisUsage(UsageStore):
    """A hash for each hour, for each window, and for the servers of each hour."""

    def __init__(self, url: str) -> None:
        """Raises UserError."""
        self._redis = RedisClient(url)
        self.name = f"usage in Redis {self._redis.where}"

    def add(
        self, writer: str, number: int, batch: Batch, servers: Mapping[Slot, Servers], *, is_scaler: bool = False
    ) -> bool:
        kind = "nodes" if is_scaler else "servers"
        lines: list[tuple[str, str, int, str]] = []
        for entry, amounts in batch.entries.items():
            names = [entry.tenant, entry.model, entry.pool]
            lines += _lines(f"{PREFIX}:hour:{entry.hour}", names, KEPT_S, amounts)
        for window, amounts in batch.windows.items():
            lines += _lines(f"{PREFIX}:{window.per}:{window.number}:all", [window.tenant], _KEPT_S[window.per], amounts)
        for slot, seen in servers.items():
            key = f"{PREFIX}:{kind}:{slot.number * SLOT_S // HOUR_S}"
            for what, count in zip(Servers._fields, seen, strict=True):
                if what == "joules" and not count:
                    continue
                lines.append((key, json.dumps([slot.number, slot.pool, what]), -KEPT_S, str(count)))
        words = f"{PREFIX}:batch:{writer}", number, _KEPT_S["month"], json.dumps(lines)
        last = self._redis.ask("EVAL", _ADD, 1, *words)
        assert isinstance(last, int)
        return last >= number - 1

    def lease(self, writer: str, asks: Mapping[Part, Ask]) -> dict[Part, Lease]:
        found, every = {}, list(asks.items())
        for at in range(0, len(every), _MOST_LEASES):
            some = every[at : at + _MOST_LEASES]
            keys = [f"{PREFIX}:lease:{json.dumps(part)}" for part, _ in some]
            words = writer, LEASE_S, json.dumps([ask for _, ask in some])
            reply = self._redis.ask("EVAL", _LEASE, len(keys), *keys, *words)
            assert isinstance(reply, bytes)
            for (part, ask), (may_use, others) in zip(some, json.loads(reply), strict=True):
                found[part] = Lease(may_use, dict(others) | {writer: ask.want})
        return found

    def totals(self, now: float) -> dict[Window, Amounts]:
        windows = _windows(now)
        replies = self._redis.ask_all([("HGETALL", f"{PREFIX}:{per}:{number}:all") for per, number in windows])
        found: dict[Window, Amounts] = {}
        for (per, number), reply in zip(windows, replies, strict=True):
            for (tenant, what), amount in _pairs(reply):
                found.setdefault(Window(per, number, tenant), _nothing())[WHATS.index(what)] = amount
        return found

    def entries(self, since: float) -> dict[Entry, Amounts]:
        found: dict[Entry, Amounts] = {}
        for hour, reply in self._hours("hour", since):
            for (tenant, model, pool, what), amount in _pairs(reply):
                found.setdefault(Entry(hour, tenant, model, pool), _nothing())[WHATS.index(what)] = amount
        return found

    def servers(self, since: float) -> dict[Slot, Servers]:
        return self._slots("servers", since)

    def nodes(self, since: float) -> dict[Slot, Servers]:
        return self._slots("nodes", since)

    def _slots(self, kind: str, since: float) -> dict[Slot, Servers]:
        found: dict[Slot, dict[str, float]] = {}
        for _, reply in self._hours(kind, since):
            for (number, pool, what), count in _pairs(reply):
                found.setdefault(Slot(number, pool), {"present": 0.0, "answering": 0.0})[what] = count
        return {slot: Servers(**seen) for slot, seen in found.items()}

    def close(self) -> None:
        self._redis.close()

    def _hours(self, kind: str, since: float) -> list[tuple[int, Reply]]:
        first, cursor, hours = int(since // HOUR_S), b"0", set[int]()
        while True:
            reply = self._redis.ask("SCAN", cursor, "MATCH", f"{PREFIX}:{kind}:*", "COUNT", 1000)
            assert isinstance(reply, list)
            cursor, keys = reply[0], reply[1]  # type: ignore[assignment]
            names = [key.decode().rpartition(":")[2] for key in keys]  # type: ignore[union-attr]
            hours |= {int(name) for name in names if name.isdigit() and int(name) >= first}
            if cursor == b"0":
                break
        ordered = sorted(hours)
        if not ordered:
            return []
        return list(
            zip(ordered, self._redis.ask_all([("HGETALL", f"{PREFIX}:{kind}:{h}") for h in ordered]), strict=True)
        )


def _windows(now: float) -> list[tuple[str, int]]:
    return [("second", int(now)), ("hour", int(now // HOUR_S)), ("month", month_of(now))]


def _nothing() -> Amounts:
    return [0.0] * len(WHATS)


def _lines(key: str, names: list[str], kept_s: int, amounts: Amounts) -> Iterable[tuple[str, str, int, str]]:
    return [
        (key, json.dumps([*names, what]), kept_s, repr(float(amount)))
        for what, amount in zip(WHATS, amounts, strict=True)
        if amount
    ]


def _pairs(reply: Reply) -> Iterable[tuple[list, float]]:  # type: ignore[type-arg]
    """Fields and values of a hash."""
    assert isinstance(reply, list)
    for at in range(0, len(reply), 2):
        field, value = reply[at], reply[at + 1]
        assert isinstance(field, bytes)
        assert isinstance(value, bytes)
        yield json.loads(field), float(value)
