"""What has each tenant used in this second, hour and month, and may it ask for more?

A gateway counts here and hands what is new to a store, which tells what all gateways have counted. Windows begin with the second, the
hour and the month in UTC. Rules: pure, time is an argument (seconds of 1970); what is counted once is handed over once, whatever becomes
of the store; and requests count when they begin, so that none slips through while others run. Limits of a second and of requests at
once are shared out among gateways: each has a part (`asks`, `leased`), which no other has, and goes by that alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import NamedTuple, TypeVar

REQUESTS, DEVICE_S, DOLLARS, TOKENS, BYTES = range(5)
WHATS = ("requests", "device_s", "dollars", "tokens", "bytes")
HOUR_S = 3600
REFUSED_S = 2.0  # after a refusal, that a gateway wants all of the limit; two looks at the store and more
LEAST_PART = 0.05  # of an equal part, for who wants nothing now; a guess
TURN_S = 4.0  # of a gateway that has all of a limit; at its end it is nobody's for two looks at the store
STEP_S = 1.0  # that a clock may be set back before windows of before count again
UNDIVIDED_S = 60.0  # after a request that did not fit into a part, that gateways take turns; a guess
_LASTING_S = {"second": 1, "hour": HOUR_S}
Amounts = list[float]  # of each of WHATS
T = TypeVar("T")


class Limit(NamedTuple):
    """No more of `what` (its place in WHATS) in a second, hour or month."""

    what: int
    per: str
    most: float


@dataclass(frozen=True, slots=True)
class Quotas:
    """Of a tenant. `concurrent` None: any number at once."""

    limits: tuple[Limit, ...] = ()
    concurrent: int | None = None


class Excess(NamedTuple):
    """Why a request may not begin: what it would have of `most`, of which this gateway `may` give so much and has `used` so much.

    `passes_in_s`: until one may begin; None: when another one ends; infinite: never. `is_too_large`: a smaller one may, than of `used`.
    """

    tenant: str
    what: str  # of WHATS, or `concurrent`
    per: str
    most: float
    may: float
    used: float
    passes_in_s: float | None
    is_too_large: bool = False

    def is_like(self, other: Excess | None) -> bool:
        """But for the time, so that its text is the same."""
        return other is not None and self[:6] == other[:6] and self.is_too_large == other.is_too_large

    @property
    def text(self) -> str:
        tenant, what, per, most, may, used, _, is_too_large = self
        if is_too_large:
            return f"'{tenant}' may use {most:g} bytes per {per}, and this alone has {used:g}"
        if what == "concurrent":
            if not most:
                return f"'{tenant}' may have no requests: its quota of concurrent ones is 0"
            return f"'{tenant}' may have {most:g} requests at once{_here(may, most)} and has them"
        return f"'{tenant}' may use {most:g} {what} per {per}{_here(may, most)} and has used {used:.6g}"


Part = tuple[str, str]  # of a limit: the tenant, and what of it a gateway may use in a second, or `concurrent`


class Ask(NamedTuple):
    """What a gateway would have of a limit: `target`; `least` it uses now. `want`: what it would use if it had all, and more than all
    where parts are too small for what it is sent.
    """

    want: float
    target: float
    least: float
    limit: float


class Lease(NamedTuple):
    """What it may use, and what all gateways want, by their names."""

    may_use: float
    wants: Mapping[str, float]


class Entry(NamedTuple):
    """What one line of the store is of; `hour`: since 1970."""

    hour: int
    tenant: str
    model: str
    pool: str


class Window(NamedTuple):
    per: str
    number: int  # of the second or hour since 1970, or of the month since year 0
    tenant: str


@dataclass(slots=True)
class Batch:
    """What a store is to add."""

    entries: dict[Entry, Amounts] = field(default_factory=dict)
    windows: dict[Window, Amounts] = field(default_factory=dict)


def fair_parts(limit: float, wants: Mapping[str, float], *, is_whole: bool, turn: int = 0) -> dict[str, float]:
    """What of a limit each gets, the least wants first, and what nobody wants in equal parts: all of it. `is_whole`: in whole numbers.

    Where one wants more than all, those that want any take turns, and get all.
    """
    if len(wants) == 1:
        return dict.fromkeys(wants, float(int(limit + 1e-9)) if is_whole else limit)
    parts: dict[str, float] = {}
    left, least = limit, LEAST_PART * limit / len(wants)
    if limit and max(wants.values()) > limit:
        several = sorted(name for name, want in wants.items() if want > least)
        parts = dict.fromkeys(wants, 0.0)
        parts[several[turn % len(several)]] = float(int(limit + 1e-9)) if is_whole else limit
        return parts
    for number, (name, want) in enumerate(sorted(wants.items(), key=lambda it: it[1])):
        parts[name] = min(max(want, least), left / (len(wants) - number))
        left -= parts[name]
    parts = {name: part + left / len(wants) for name, part in parts.items()}
    if is_whole:
        exact, parts = parts, {name: float(int(part + 1e-9)) for name, part in parts.items()}
        rest = int(limit + 1e-9) - int(sum(parts.values()))
        for name in sorted(parts, key=lambda it: (parts[it] >= wants[it], round(parts[it] - exact[it], 9), it))[:rest]:
            parts[name] += 1.0
    return parts


def month_of(now: float) -> int:
    at = datetime.fromtimestamp(now, UTC)
    return at.year * 12 + at.month - 1


def month_begins(number: int) -> float:
    return datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC).timestamp()


class _Running:
    """A window that goes on: `used` by all gateways as far as is known, `given` of that what a store was given or told.

    `counts_from`: the moment from which requests count in it, `ends` excluded. `missing`: of `used`, what a store was given and has lost.
    """

    __slots__ = ("before", "begins", "counts_from", "ends", "given", "missing", "per", "used", "window")

    def __init__(self, per: str, tenant: str) -> None:
        self.per = per
        self.window = Window(per, -1, tenant)
        self.begins = self.counts_from = self.ends = 0.0
        self.used = _nothing()
        self.before = _nothing()  # used in the window before
        self.given = _nothing()
        self.missing = _nothing()

    @property
    def fresh(self) -> Amounts:
        """What no store was given yet."""
        return [used - given for used, given in zip(self.used, self.given, strict=True)]

    def turn(self, now: float) -> None:
        """The one of now."""
        number = int(now) if self.per == "second" else int(now // HOUR_S) if self.per == "hour" else month_of(now)
        self.begins = month_begins(number) if self.per == "month" else float(number * _LASTING_S[self.per])
        self.counts_from = now if self.window.number < 0 else self.begins  # of the first only what comes now
        self.before = list(self.used) if number == self.window.number + 1 else _nothing()
        self.window = self.window._replace(number=number)
        self.ends = month_begins(number + 1) if self.per == "month" else (number + 1.0) * _LASTING_S[self.per]
        self.used, self.given, self.missing = _nothing(), _nothing(), _nothing()

    def hear(self, known: Sequence[float] | None, *, has_forgotten: bool) -> None:
        """What the store has of all gateways, with what it was given last; None: nothing."""
        if has_forgotten:
            known = known or _nothing()
            self.missing = [max(0.0, given - now) for given, now in zip(self.given, known, strict=True)]
        if known is not None:
            fresh, self.given = self.fresh, list(map(sum, zip(known, self.missing, strict=True)))
            self.used = list(map(sum, zip(self.given, fresh, strict=True)))


class _Watch:
    """Of a tenant: its windows, and what it used since these were looked at, which is `new`: one sum for all of them. While that has `room`
    and no window has ended, nothing is near its limit. `limits`: the window, what of it, and how much of that there may be.
    """

    __slots__ = ("concurrent", "ends", "limits", "new", "room", "windows")

    def __init__(
        self, windows: tuple[_Running, ...], limits: Sequence[tuple[_Running, int, float]], concurrent: float
    ) -> None:
        self.windows = windows
        self.limits = limits
        self.concurrent = concurrent
        self.ends = 0.0
        self.new = _nothing()
        self.room = _nothing()

    def is_well(self, now: float, num_open: int, num_bytes: int) -> bool:
        """False: it has to be looked at."""
        requests, device_s, dollars, tokens, size = self.new
        requests_room, device_room, dollars_room, tokens_room, bytes_room = self.room
        return (
            now < self.ends
            and num_open < self.concurrent
            and requests + 1 <= requests_room
            and size + num_bytes < bytes_room
            and device_s < device_room
            and dollars < dollars_room
            and tokens < tokens_room
        )

    def settle(self) -> None:
        """What is new counts in each window."""
        if not any(self.new):
            return
        for running in self.windows:
            running.used = [used + new for used, new in zip(running.used, self.new, strict=True)]
        self.look()

    def look(self) -> None:
        """At windows that have all that was used."""
        self.new, room = _nothing(), [inf] * len(WHATS)
        for running, what, may in self.limits:
            room[what] = min(room[what], may - running.used[what])
        self.room = room
        self.ends = min((running.ends for running in self.windows), default=inf)


Begun = tuple[dict[str, _Running], _Watch]  # windows, by their length


def begin(tenant: str, quotas: Quotas) -> Begun:
    """What a ledger needs of a tenant of whom it knows nothing; of thousands to be made where no event loop waits for it."""
    windows = {limit.per: _Running(limit.per, tenant) for limit in quotas.limits}
    return windows, _watch(quotas, windows, lambda _, most: most)


def _watch(quotas: Quotas, windows: Mapping[str, _Running], part: Callable[[str, float], float]) -> _Watch:
    """`part`: of a limit that gateways share out, what this one may use."""
    most = inf if quotas.concurrent is None else part("concurrent", quotas.concurrent)
    limits = [
        (windows[per], what, part(WHATS[what], limit) if per == "second" else limit)
        for what, per, limit in quotas.limits
    ]
    return _Watch(tuple(windows.values()), limits, most)


class Ledger:
    def __init__(self) -> None:
        self.num_open: dict[str, int] = {}
        self.num_refused: dict[tuple[str, str], int] = {}  # by tenant and outcome: of requests that got no answer
        self._quotas: Mapping[str, Quotas] = {}
        self._running: dict[str, dict[str, _Running]] = {}  # by tenant and per, where there are limits
        self._ended = Batch()  # hours and windows that are over and not handed over yet
        self._hour = 0
        self._hour_ends = 0.0
        self._in_hour: dict[tuple[str, str, str], Amounts] = {}  # of the hour of now, not handed over yet
        self._handed: dict[tuple[str, str, str], Amounts] = {}  # since this process began
        self._on_its_way: Batch | None = None
        self._stored: Mapping[Window, Sequence[float]] = {}
        self._leases: Mapping[Part, Lease] = {}
        self._watches: dict[str, _Watch] = {}  # of tenants with quotas
        self._refused_at: dict[Part, float] = {}  # of what is shared out
        self._undivided_at: dict[
            Part, float
        ] = {}  # likewise, of what one request needs more of than this gateway's part

    @property
    def quotas(self) -> Mapping[str, Quotas]:
        return self._quotas

    @quotas.setter
    def quotas(self, quotas: Mapping[str, Quotas]) -> None:
        self.follow(quotas, {})

    def follow(self, quotas: Mapping[str, Quotas], begun: Mapping[str, Begun]) -> None:
        """From now on. What is counted goes on where a tenant still has a limit by that time. `begun`: of these, what is new will use."""
        known, self._quotas = self._quotas, quotas
        # Of thousands most are the same in a new document, or all are new in a first one: neither is gone through one by one.
        changed = [tenant for tenant, given in quotas.items() if tenant not in known or known[tenant] != given]
        leased = {tenant for tenant, _ in self._leases}
        new = {
            tenant: begun[tenant]
            for tenant in changed
            if tenant in begun and tenant not in known and tenant not in leased
        }
        self._running |= {tenant: windows for tenant, (windows, _) in new.items()}
        self._watches |= {tenant: watch for tenant, (_, watch) in new.items()}
        rest = [tenant for tenant in changed if tenant not in new] if len(new) < len(changed) else []
        for tenant in rest:
            if tenant in known:
                self._watches[tenant].settle()
            own = self._running.get(tenant, {})
            windows, watch = begun.get(tenant) or begin(tenant, quotas[tenant])
            mine = self._running[tenant] = {per: own.pop(per, running) for per, running in windows.items()}
            is_as_begun = tenant not in leased and mine == windows
            self._watches[tenant] = watch if is_as_begun else self._watch(tenant)
            for left in own.values():
                self._end_window(left)
        for tenant in [tenant for tenant in known if tenant not in quotas]:
            self._watches.pop(tenant).settle()
            for left in self._running.pop(tenant).values():
                self._end_window(left)

    @property
    def sums(self) -> dict[tuple[str, str, str], Amounts]:
        """By tenant, model and pool, since this process began."""
        sums = {names: list(amounts) for names, amounts in self._handed.items()}
        for names, amounts in self._in_hour.items():
            _add(sums, names, amounts)
        return sums

    def excess(self, now: float, tenant: str, num_bytes: int, *, is_first: bool = True) -> Excess | None:
        """Why `begin` would not let it in; nothing is counted."""
        watch = self._watches.get(tenant)
        if watch is None or watch.is_well(now, self.num_open.get(tenant, 0), num_bytes):
            return None
        return self._excess(now, tenant, num_bytes, is_first=is_first)

    def begin(self, now: float, tenant: str, num_bytes: int, *, is_first: bool = True) -> Excess | None:
        """An inference of so many bytes; None: it may, and is counted until `end` or `unanswered`.

        `is_first`: of its request, which is one however many inferences it has, and open until `left`.
        """
        watch, num_open = self._watches.get(tenant), self.num_open.get(tenant, 0)
        if watch is not None:
            if not watch.is_well(now, num_open, num_bytes) and (
                excess := self._excess(now, tenant, num_bytes, is_first=is_first)
            ):
                return excess
            new = watch.new
            new[REQUESTS] += is_first
            new[BYTES] += num_bytes
        if is_first:
            self.num_open[tenant] = num_open + 1
        return None

    def left(self, tenant: str) -> None:
        """One of its requests is over."""
        self.num_open[tenant] -= 1

    def unanswered(self, now: float, began: float, tenant: str, num_bytes: int, *, is_first: bool = True) -> None:
        """In place of `end`: it counts nothing in the windows that it began in and that go on."""
        windows = self._running.get(tenant)
        if windows:
            self._turn(now, tenant)
            for running in windows.values():
                if began >= running.counts_from:
                    running.used[REQUESTS] -= is_first
                    running.used[BYTES] -= num_bytes

    def end(
        self,
        now: float,
        tenant: str,
        num_bytes: int,
        answered: tuple[str, str, float, float, float],
        *,
        is_first: bool = True,
    ) -> None:
        """`answered`: model, pool, seconds of a server, dollars and tokens."""
        model, pool, device_s, dollars, tokens = answered
        watch = self._watches.get(tenant)
        if watch is not None:
            if now >= watch.ends:
                self._turn(now, tenant)
            new = watch.new
            new[DEVICE_S] += device_s
            new[DOLLARS] += dollars
            new[TOKENS] += tokens
        if now >= self._hour_ends:
            self._end_hour(now)
        amounts = self._in_hour.get((tenant, model, pool))
        if amounts is None:
            amounts = self._in_hour[tenant, model, pool] = _nothing()
        amounts[0] += is_first
        amounts[1] += device_s
        amounts[2] += dollars
        amounts[3] += tokens
        amounts[4] += num_bytes

    def quota_ratios(self, now: float) -> Iterator[tuple[str, str, str, float]]:
        """Tenant, what and per, and how much of that quota is used up: as far as is known by all gateways, of `concurrent` here.

        Of a quota of 0 nothing can be used up. As `hears`, not all at once.
        """
        for tenant, quotas in list(self._quotas.items()):
            if self._quotas.get(tenant) != quotas:
                continue
            self._turn(now, tenant, may_go_back=False)
            windows = self._running[tenant]
            for what, per, most in quotas.limits:
                if most:
                    yield tenant, WHATS[what], per, windows[per].used[what] / most
            if quotas.concurrent:
                yield tenant, "concurrent", "", self.num_open.get(tenant, 0) / quotas.concurrent

    def refused(self, tenant: str, outcome: str) -> None:
        self.num_refused[tenant, outcome] = self.num_refused.get((tenant, outcome), 0) + 1

    def used(self, now: float, tenant: str, per: str) -> Amounts:
        """In the window of now: by all gateways as far as the store told, and here; of a tenant with such a limit."""
        self._turn(now, tenant)
        return list(self._running[tenant][per].used)

    def gathers(self) -> Iterator[None]:
        """Puts together what is new for `hand_over`, as `hears` not all at once; while something is on its way nothing."""
        if self._on_its_way is not None:
            return
        for names in list(self._in_hour):
            self._end_entry(names)
            yield
        self._hour_ends = 0.0  # what is next looks at the clock, which may have been set back
        for tenant in list(self._running):
            if tenant in self._watches:
                self._watches[tenant].settle()
            for running in self._running.get(tenant, {}).values():
                self._end_window(running)
                running.given = list(running.used)
            yield

    def hand_over(self) -> Batch:
        """What was gathered; the same again until `hears` says that the store has it."""
        if self._on_its_way is None:
            self._on_its_way, self._ended = self._ended, Batch()
        return self._on_its_way

    def hears(
        self,
        totals: Mapping[Window, Sequence[float]],
        leases: Mapping[Part, Lease],
        *,
        has_forgotten: bool = False,
    ) -> Iterator[None]:
        """The store has what was handed over. `totals`: of the windows of now, what it has of all gateways. `leases`: what this gateway
        has until it asks again; of what is not there, all. `has_forgotten`: the store lost some of what it was given before.

        Tenant by tenant, so that requests need not wait for all of them: run it to its end.
        """
        self._on_its_way = None
        self._stored, self._leases = totals, leases
        for tenant in list(self._quotas):
            if tenant in self._watches:
                self._watches[tenant].settle()
                for running in self._running[tenant].values():
                    if running.per != "second":
                        running.hear(totals.get(running.window), has_forgotten=has_forgotten)
                self._watches[tenant] = self._watch(tenant)
            yield

    def asks(self, now: float, name: str) -> Iterator[tuple[Part, Ask]]:
        """What this gateway, of that name, would have of each limit that gateways share out; as `hears`, not all at once."""
        for tenant, quotas in list(self._quotas.items()):
            if self._quotas.get(tenant) != quotas:
                continue  # they were changed meanwhile
            self._turn(now, tenant, may_go_back=False)
            windows = self._running[tenant]
            for what, per, most in quotas.limits:
                if per == "second":
                    running = windows[per]
                    uses = running.used[what], max(running.used[what], running.before[what])
                    part = tenant, WHATS[what]
                    yield part, self._ask(now, name, part, *uses, most)
            if quotas.concurrent is not None:
                num_open = float(self.num_open.get(tenant, 0))
                part = tenant, "concurrent"
                yield part, self._ask(now, name, part, num_open, num_open, float(quotas.concurrent))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _excess(self, now: float, tenant: str, num_bytes: int, *, is_first: bool) -> Excess | None:
        """Where something is near its limit, or was not looked at yet."""
        quotas = self._quotas[tenant]
        if is_first and quotas.concurrent is not None:
            may = self._part(tenant, "concurrent", quotas.concurrent)
            if self.num_open.get(tenant, 0) >= may:
                self._note_refusal(now, (tenant, "concurrent"), 1.0, quotas.concurrent)
                passes_in_s = None if quotas.concurrent else inf
                return Excess(tenant, "concurrent", "", quotas.concurrent, may, 0.0, passes_in_s)
        self._turn(now, tenant)
        windows = self._running[tenant]
        worst: Excess | None = None
        for what, per, most in quotas.limits:
            if what == REQUESTS and not is_first:
                continue
            running = windows[per]
            used = running.used[what]
            more = 1.0 if what == REQUESTS else float(num_bytes) if what == BYTES else 0.0
            may = self._part(tenant, WHATS[what], most) if per == "second" else most
            if used + more <= may and (more or used < may):
                continue
            if what == BYTES and more > most:
                return Excess(tenant, "bytes", per, most, may, more, inf, is_too_large=True)
            if per == "second":
                self._note_refusal(now, (tenant, WHATS[what]), more, most)
            passes_in_s = running.ends - now if most else inf
            if worst is None or passes_in_s > (worst.passes_in_s or 0.0):
                worst = Excess(tenant, WHATS[what], per, most, may, used, passes_in_s)
        return worst

    def _turn(self, now: float, tenant: str, *, may_go_back: bool = True) -> None:
        """Also back, where the clock was set back: nobody is to wait until it is again as late as it was.

        Not `may_go_back`: for who goes through all tenants, whose `now` may be of seconds ago.
        """
        watch = self._watches[tenant]
        watch.settle()
        is_new = not watch.ends
        for running in watch.windows:
            if now >= running.ends or (may_go_back and now < running.begins - STEP_S):
                running.turn(now)  # what no store has of the one before, nobody will ask for
                known = self._stored.get(running.window)
                if known is not None:
                    running.used, running.given = list(known), list(known)
                is_new = True
        if is_new:
            watch.look()

    def _watch(self, tenant: str) -> _Watch:
        return _watch(self._quotas[tenant], self._running[tenant], partial(self._part, tenant))

    def _part(self, tenant: str, what: str, most: float) -> float:
        lease = self._leases.get((tenant, what))
        return most if lease is None else min(most, lease.may_use)

    def _note_refusal(self, now: float, part: Part, more: float, most: float) -> None:
        """Of one that needed so much `more`; where an equal part is less than that, this gateway wants a turn."""
        self._refused_at[part] = now
        lease = self._leases.get(part)
        if lease is not None and lease.may_use < more and more * len(lease.wants) > most:
            self._undivided_at[part] = now

    def _ask(self, now: float, name: str, part: Part, uses: float, used: float, most: float) -> Ask:
        """`uses` now, and `used` at most of late."""
        is_refused = 0 <= now - self._refused_at.get(part, -inf) < REFUSED_S
        want = most if is_refused else min(used, most)
        if want and 0 <= now - self._undivided_at.get(part, -inf) < UNDIVIDED_S:
            want = 2 * most
        lease = self._leases.get(part)
        wants = {**({} if lease is None else lease.wants), name: want}
        is_whole = part[1] in ("concurrent", WHATS[REQUESTS])
        parts = fair_parts(most, wants, is_whole=is_whole, turn=int(now // TURN_S))
        return Ask(want, parts[name], uses, most)

    def _end_window(self, running: _Running) -> None:
        if running.per != "second" and any(fresh := running.fresh):
            _add(self._ended.windows, running.window, fresh)

    def _end_hour(self, now: float) -> None:
        for names in list(self._in_hour):
            self._end_entry(names)
        self._hour = int(now // HOUR_S)
        self._hour_ends = (self._hour + 1.0) * HOUR_S

    def _end_entry(self, names: tuple[str, str, str]) -> None:
        """What it has so far is to be handed over."""
        amounts = self._in_hour.pop(names, None)
        if amounts is not None:
            _add(self._ended.entries, Entry(self._hour, *names), amounts)
            _add(self._handed, names, amounts)


def _here(may: float, most: float) -> str:
    return f", {may:g} of them by this gateway," if may < most else ""


def _nothing() -> Amounts:
    return [0.0] * len(WHATS)


def _add(sums: dict[T, Amounts], key: T, amounts: Sequence[float]) -> None:
    have = sums.get(key)
    sums[key] = list(amounts) if have is None else [a + b for a, b in zip(have, amounts, strict=True)]
