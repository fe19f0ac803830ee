"""`tandem plan`: what was asked becomes an objective, files become profiles and prices, and the plan is shown and written.

Exit code 0 there is a plan, 1 there is none (it says what binds), 2 a wrong option or file. Rule: nothing is decided here.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from serving.decisions.plan.outputs import Origin, as_json, write
from serving.decisions.plan.result import Objective, Plan
from serving.decisions.plan.search import make_plan
from serving.decisions.prices import PriceList, pool_of, read_price_lists
from serving.decisions.profile import Profile, read_profile
from serving.decisions.published import published_models, published_profiles
from serving.decisions.wording import paragraph, table
from serving.documents.nearest import nearest
from serving.documents.reader import read_text
from serving.errors import UserError

SHIPPED_WORD = "shipped"  # among --prices: the list that comes with Tandem

_TIME = re.compile(r"((?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(us|µs|ms|s)?")
_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
MAX_S = 3600.0  # what takes longer is no request
DAY_HOURS = 24.0
MAX_RATE_RPS = 1e7  # more than any one model gets; beyond, numbers of servers mean nothing
ROUNDING_HOURS = 0.01  # 24 thirds of an hour with two digits


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """`rate_rps` or `rates`; `instances` are POOL=NAME."""

    p99: str
    rate_rps: float | None = None
    rates: Path | None = None
    prices: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    max_price_per_hour: float | None = None
    min_replicas: int = 1
    max_replicas: int | None = None
    headroom_ratio: float = 0.7
    batch_size: int = 1
    like: str | None = None

    def objective(self, minimise: str = "price") -> Objective:
        """Raises UserError for a time, a rate or limits that cannot be."""
        if (self.rate_rps is None) == (self.rates is None):
            raise UserError("say one of --rate (requests per second) and --rates FILE (lines of hours a day,rate)")
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise UserError(f"--max-replicas {self.max_replicas} is less than --min-replicas {self.min_replicas}")
        if self.like is not None and self.like not in published_models():
            known = published_models()
            raise UserError(
                f"--like {self.like}: nobody published figures of it, but of {', '.join(known)}{nearest(self.like, known)}"
            )
        return Objective(
            latency_p99_s=seconds(self.p99, "--p99"),
            rates=read_rates(self.rates) if self.rates is not None else ((DAY_HOURS, self.rate_rps or 0.0),),
            max_price_per_hour=self.max_price_per_hour,
            minimise=minimise,
            min_replicas=self.min_replicas,
            max_replicas=self.max_replicas,
            headroom_ratio=self.headroom_ratio,
            batch_size=self.batch_size,
        )

    def published(self, model: str, objective: Objective) -> tuple[Profile, ...]:
        """Cards by others' published figures, which are of one row to a request. None where nobody published the net."""
        return published_profiles(model, objective.latency_p99_s, like=self.like) if objective.batch_size == 1 else ()

    def priced(self) -> tuple[PriceList, Mapping[str, str]]:
        """The price list, and the offer that stands for a pool's machines, by pool. Raises UserError."""
        prices = read_price_lists([None if name == SHIPPED_WORD else Path(name) for name in self.prices])
        return prices, _instances(self.instances, prices)


def seconds(text: str, option: str, most_s: float = MAX_S) -> float:
    """`20ms` and `0.02s` are the same; a number without its unit is refused. Raises UserError."""
    match = _TIME.fullmatch(text.strip())
    if match and match[2] is None and float(match[1]) > 0:
        raise UserError(f"{option} {text}: {match[1]} what? Write {match[1]}ms or {match[1]}s")
    value = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    if not 0 < value <= most_s:
        raise UserError(f"{option} {text}: not a time above 0 and up to {most_s:g} s; write 20ms or 0.02s")
    return value


def read_rates(path: Path) -> tuple[tuple[float, float], ...]:
    """Lines of `hours,rate`: how many hours a day, and requests per second in them. A first line of words and lines with # do not count."""
    pairs = []
    lines = read_text(path, "the rates", encoding="utf-8-sig").splitlines()
    for number, cells in enumerate(csv.reader(lines), 1):
        if not cells or cells[0].lstrip().startswith("#") or (number == 1 and _is_heading(cells)):
            continue
        pairs.append(_pair(cells, f"{path}, line {number}"))
    if not pairs or not any(rate for _, rate in pairs):
        raise UserError(f"{path}: no rate above 0; write lines of hours a day and requests per second, such as 8,200")
    total = sum(hours for hours, _ in pairs)
    if abs(total - DAY_HOURS) > ROUNDING_HOURS:
        way_out = (
            f"add the rest at no load: {DAY_HOURS - total:g},0" if total < DAY_HOURS else "take away what is too much"
        )
        raise UserError(f"{path}: the hours add up to {total:g}, a day has 24; {way_out}")
    return tuple(pairs)


def _is_heading(cells: list[str]) -> bool:
    return [cell.strip().lower() for cell in cells[:2]] in (["hours", "rate"], ["hours", "rate_rps"])


def _pair(cells: list[str], where: str) -> tuple[float, float]:
    try:
        hours, rate = (float(cell) for cell in cells)
    except ValueError:
        raise UserError(f"{where}: '{','.join(cells)}' is not hours,rate such as 8,200") from None
    if not (0 < hours <= DAY_HOURS and 0.0 <= rate <= MAX_RATE_RPS):
        raise UserError(
            f"{where}: hours are above 0 and at most 24, a rate is 0 or more and at most {MAX_RATE_RPS:,.0f}, not '{','.join(cells)}'"
        )
    return hours, rate


def _instances(values: tuple[str, ...], prices: PriceList) -> Mapping[str, str]:
    """POOL=NAME: which offer of the list stands for a pool's machines. Raises UserError for one that cannot."""
    chosen: dict[str, str] = {}
    for value in values:
        pool, _, name = value.partition("=")
        if pool not in ("cpu", "gpu") or not name:
            raise UserError(f"--instance {value}: not of the form cpu=NAME or gpu=NAME")
        offer = prices.offer(name)
        if offer is None:
            of_pool = [offer.name for offer in prices.offers if offer.device == pool]
            raise UserError(f"--instance {value}: no such machine in {prices.name}{nearest(name, of_pool)}")
        if offer.device != pool:
            raise UserError(f"--instance {value}: {name} is a {offer.device} machine")
        if pool in chosen:
            raise UserError(f"--instance {value}: the pool {pool} has {chosen[pool]} already")
        chosen[pool] = name
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions(LoadOptions):
    """`command` is how it was called, for the files."""

    profiles: tuple[Path, ...]
    model: str | None = None
    minimise: str = "price"
    gateway_per_hour: float = 0.0
    output: Path | None = None
    as_json: bool = False
    command: str = "tandem plan"


def run(options: PlanOptions) -> int:
    objective = options.objective(options.minimise)
    profiles = [read_profile(path) for path in options.profiles]
    model = _model(options, profiles)
    prices, instances = options.priced()
    has_card = any(pool_of(server) == "gpu" for profile in profiles for server in profile.servers)
    published = () if has_card else options.published(model, objective)
    today = datetime.now(UTC).date().isoformat()
    plan = make_plan(
        model,
        objective,
        profiles,
        prices,
        instances=instances,
        gateway_per_hour=options.gateway_per_hour,
        today=today,
        published=published,
    )
    whence = f"{prices.name}, {prices.date} ({prices.source})"
    origin = Origin(options.command, tuple(path.name for path in options.profiles), whence, today)
    written = write(options.output, plan, origin) if options.output is not None else []
    if options.as_json:
        print(json.dumps(as_json(plan, origin), indent=1, ensure_ascii=False, allow_nan=False))
    else:
        _show(plan, prices, written)
    return 0 if plan.pools else 1


def _show(plan: Plan, prices: PriceList, written: Sequence[Path]) -> None:
    print("\n\n".join(part for part in (paragraph(plan), table(plan)) if part))
    print(f"\nPrices: {prices.name}, {prices.date}.")
    for caveat in plan.caveats:
        print(f"Mind: {caveat}.")
    for path in written:
        print(f"wrote {path}")


def _model(options: PlanOptions, profiles: Sequence[Profile]) -> str:
    names = sorted({profile.model for profile in profiles})
    if options.model is None and len(names) > 1:
        raise UserError(f"the profiles are of several models; say which by --model: {', '.join(names)}")
    if options.model is not None and options.model not in names:
        raise UserError(f"--model {options.model}: no profile is of it{nearest(options.model, names)}")
    return options.model or names[0]
