"""What do tenants pay of servers that were there anyway, so that all bills add up to the price of the servers?

A tenant pays for the seconds of servers that its requests used, and for the rest in proportion to that: `idle` are seconds in which a
server answered and nobody used it, `cold` those in which it was there and did not answer. What nobody used is nobody's. Where requests
used more than there was, because curves are wrong, all are scaled down. Rule: of every pool the parts add up to what it cost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.usage.ledger import DEVICE_S, HOUR_S, REQUESTS, TOKENS, Amounts, Entry
from serving.usage.stores import SLOT_S, Servers, Slot, store_at

BY = ("tenant", "model", "pool")


@dataclass(slots=True)
class Line:
    """`names`: of what it is by. Dollars: `used` by its own requests; `idle` and `cold` are its part of the rest."""

    names: tuple[str, ...]
    num_requests: float = 0.0
    device_s: float = 0.0
    tokens: float = 0.0
    used: float = 0.0
    idle: float = 0.0
    cold: float = 0.0
    joules: float = 0.0  # its part of what was metered, as of the dollars

    @property
    def dollars(self) -> float:
        return self.used + self.idle + self.cold


@dataclass(slots=True)
class Bill:
    """`lines` and what nobody used (`idle` and `cold`, in dollars) add up to `paid`: servers' prices times their hours."""

    lines: list[Line]
    idle: float
    cold: float
    paid: float
    paid_h: float
    scaler_h: float  # of these, as a scaler saw them
    joules: float  # that were metered; 0 where nothing was
    unused_joules: float  # of these, of nobody
    unpriced: tuple[str, ...]  # pools that have no price

    @property
    def total(self) -> float:
        return sum(line.dollars for line in self.lines) + self.idle + self.cold


@dataclass(slots=True)
class _Pool:
    paid_s: float = 0.0
    ready_s: float = 0.0
    used_s: float = 0.0
    joules: float = 0.0


def bill(
    entries: Mapping[Entry, Amounts],
    servers: Mapping[Slot, Servers],
    prices_per_hour: Mapping[str, float],
    by: Sequence[str] = BY,
    nodes: Mapping[Slot, Servers] | None = None,
) -> Bill:
    """By any of BY. `nodes`: what a scaler saw of a minute, which counts in the place of what gateways saw of it.

    The rule is applied to each pool and hour, so that who asks at night pays for the night."""
    pools: dict[tuple[int, str], _Pool] = {}
    for slot, seen in {**servers, **(nodes or {})}.items():
        one = pools.setdefault((slot.number * SLOT_S // HOUR_S, slot.pool), _Pool())
        one.paid_s += seen.present * SLOT_S
        one.ready_s += min(seen.answering, seen.present) * SLOT_S
    for slot, seen in servers.items():
        pools[slot.number * SLOT_S // HOUR_S, slot.pool].joules += seen.joules
    for entry, amounts in entries.items():
        pools.setdefault((entry.hour, entry.pool), _Pool()).used_s += amounts[DEVICE_S]
    lines: dict[tuple[str, ...], Line] = {}
    for entry, amounts in entries.items():
        line = lines.setdefault(tuple(getattr(entry, name) for name in by), Line(()))
        line.num_requests += amounts[REQUESTS]
        line.device_s += amounts[DEVICE_S]
        line.tokens += amounts[TOKENS]
        pool = pools[entry.hour, entry.pool]
        if pool.used_s <= 0:
            continue
        used, idle, cold = _parts(pool, prices_per_hour.get(entry.pool, 0.0))
        part = amounts[DEVICE_S] / pool.used_s
        line.used += used * part
        line.idle += idle * part
        line.cold += cold * part
        line.joules += pool.joules * part
    unused = [_parts(pool, prices_per_hour.get(name, 0.0)) for (_, name), pool in pools.items() if pool.used_s <= 0]
    for names, line in lines.items():
        line.names = names
    return Bill(
        lines=sorted(lines.values(), key=lambda line: (-line.dollars, -line.device_s, line.names)),
        idle=sum(idle for _, idle, _ in unused),
        cold=sum(cold for _, _, cold in unused),
        paid=sum(prices_per_hour.get(name, 0.0) * pool.paid_s / HOUR_S for (_, name), pool in pools.items()),
        paid_h=sum(pool.paid_s for pool in pools.values()) / HOUR_S,
        joules=sum(pool.joules for pool in pools.values()),
        unused_joules=sum(pool.joules for pool in pools.values() if pool.used_s <= 0),
        scaler_h=sum(seen.present for seen in (nodes or {}).values()) * SLOT_S / HOUR_S,
        unpriced=tuple(sorted({name for _, name in pools if name not in prices_per_hour})),
    )


def bill_at(place: str, prices_per_hour: Mapping[str, float | None], by: Sequence[str], since: float) -> Bill:
    """Of what gateways keep there, from the hour of that moment on (seconds of 1970). Raises UserError and EnvironmentFault."""
    store = store_at(place)
    try:
        priced = {name: price for name, price in prices_per_hour.items() if price is not None}
        return bill(store.entries(since), store.servers(since), priced, by, store.nodes(since))
    finally:
        store.close()


def _parts(pool: _Pool, price_per_hour: float) -> tuple[float, float, float]:
    """Dollars of one pool's hour: used, idle, cold."""
    price_per_s = price_per_hour / HOUR_S
    used_s = min(pool.used_s, pool.paid_s)
    cold_s = min(pool.paid_s - pool.ready_s, pool.paid_s - used_s)
    idle_s = pool.paid_s - used_s - cold_s
    return used_s * price_per_s, idle_s * price_per_s, cold_s * price_per_s


def csv_rows(told: Bill, by: Sequence[str]) -> Iterable[list[str]]:
    """A name that a spreadsheet would compute has an apostrophe before it."""
    more = ["joules"] if told.joules else []
    yield [*by, "requests", "device_s", "tokens", "used_dollars", "idle_dollars", "cold_dollars", "dollars", *more]
    for line in told.lines:
        counts = [f"{line.num_requests:.0f}", f"{line.device_s:.3f}", f"{line.tokens:.0f}"]
        yield [
            *(f"'{name}" if name.startswith(("=", "+", "-", "@")) else name for name in line.names),
            *counts,
            *(f"{it:.6f}" for it in (line.used, line.idle, line.cold, line.dollars)),
            *([f"{line.joules:.0f}"] if more else []),
        ]


def document(told: Bill, names: Sequence[str], began: float) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "version": 1,
        "since": datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        "lines": [
            {
                **dict(zip(names, line.names, strict=True)),
                "requests": round(line.num_requests),
                "device_s": line.device_s,
                "tokens": round(line.tokens),
                "used_dollars": line.used,
                "idle_dollars": line.idle,
                "cold_dollars": line.cold,
                "dollars": line.dollars,
                **({"joules": line.joules} if told.joules else {}),
            }
            for line in told.lines
        ],
        "unused_idle_dollars": told.idle,
        "unused_cold_dollars": told.cold,
        "paid_dollars": told.paid,
        "paid_hours": told.paid_h,
        "scaler_hours": told.scaler_h,
        **({"joules": told.joules, "unused_joules": told.unused_joules} if told.joules else {}),
        "pools_without_price": list(told.unpriced),
    }


def names_of(by: str) -> tuple[str, ...]:
    """`tenant,model` as two. Raises UserError."""
    names = tuple(dict.fromkeys(name.strip() for name in by.split(",")))
    unknown = next((name for name in names if name not in BY), None)
    if unknown is not None:
        raise UserError(f"by {unknown!r}: this is none of {', '.join(BY)}{nearest(unknown, BY)}")
    return names


def since_moment(text: str, now: float) -> float:
    """Its hour's beginning, in seconds of 1970. Raises UserError."""
    try:
        if match := re.fullmatch(r"([0-9]{1,5})([dh])", text):
            moment = now - int(match[1]) * (86400 if match[2] == "d" else 3600)
        else:
            at = datetime.fromisoformat(text)
            moment = (at.replace(tzinfo=UTC) if at.tzinfo is None else at).timestamp()
        begins = moment // HOUR_S * HOUR_S
        datetime.fromtimestamp(begins, UTC)  # which years before 1 have not
    except (ValueError, OverflowError):
        raise UserError(
            f"since {text!r}: this is neither a time until now, as 30d or 12h, nor a date, as 2026-11-01"
        ) from None
    if moment > now:
        raise UserError(f"since {text}: this has not come yet")
    return begins
