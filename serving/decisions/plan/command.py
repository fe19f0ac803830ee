"""`tandem plan`: what was asked becomes an objective, files become profiles and prices, and the plan is shown and written.

Exit code 0 there is a plan, 1 there is none (it says what binds), 2 a wrong option or file. Rule: nothing is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from serving.decisions.files.prices import read_price_lists
from serving.decisions.files.profile import read_profile
from serving.decisions.plan import objective as asked
from serving.decisions.plan.outputs import Origin, as_json, write
from serving.decisions.plan.result import Objective, Plan
from serving.decisions.plan.search import make_plan
from serving.decisions.plan.wording import paragraph, table
from serving.decisions.prices import PriceList
from serving.decisions.profile import Profile
from serving.documents.nearest import nearest
from serving.errors import UserError

SHIPPED_WORD = "shipped"  # among --prices: the list that comes with Tandem


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What `tandem plan` is asked. `rate_rps` or `rates`; `instances` are POOL=NAME; `command` is how it was called, for the files."""

    profiles: tuple[Path, ...]
    p99: str
    rate_rps: float | None = None
    rates: Path | None = None
    model: str | None = None
    prices: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    max_price_per_hour: float | None = None
    minimise: str = "price"
    min_replicas: int = 1
    max_replicas: int | None = None
    headroom_ratio: float = 0.7
    batch_size: int = 1
    gateway_per_hour: float = 0.0
    output: Path | None = None
    as_json: bool = False
    command: str = "tandem plan"


def run(options: PlanOptions) -> int:
    objective = _objective(options)
    profiles = [read_profile(path) for path in options.profiles]
    model = _model(options, profiles)
    prices = read_price_lists([None if name == SHIPPED_WORD else Path(name) for name in options.prices])
    today = datetime.now(UTC).date().isoformat()
    plan = make_plan(
        model,
        objective,
        profiles,
        prices,
        instances=read_instances(options.instances, prices),
        gateway_per_hour=options.gateway_per_hour,
        today=today,
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
    print("\n\n".join(part for part in (table(plan), paragraph(plan)) if part))
    print(f"\nPrices: {prices.name}, {prices.date}.")
    for caveat in plan.caveats:
        print(f"Mind: {caveat}.")
    for path in written:
        print(f"wrote {path}")


def _objective(options: PlanOptions) -> Objective:
    if (options.rate_rps is None) == (options.rates is None):
        raise UserError("say one of --rate (requests per second) and --rates FILE (lines of hours a day,rate)")
    if options.max_replicas is not None and options.max_replicas < options.min_replicas:
        raise UserError(f"--max-replicas {options.max_replicas} is less than --min-replicas {options.min_replicas}")
    rates = asked.read_rates(options.rates) if options.rates is not None else asked.constant(options.rate_rps or 0.0)
    return Objective(
        latency_p99_s=asked.seconds(options.p99, "--p99"),
        rates=rates,
        max_price_per_hour=options.max_price_per_hour,
        minimise=options.minimise,
        min_replicas=options.min_replicas,
        headroom_ratio=options.headroom_ratio,
        batch_size=options.batch_size,
        max_replicas=options.max_replicas,
    )


def _model(options: PlanOptions, profiles: Sequence[Profile]) -> str:
    names = sorted({profile.model for profile in profiles})
    if options.model is None and len(names) > 1:
        raise UserError(f"the profiles are of several models; say which by --model: {', '.join(names)}")
    if options.model is not None and options.model not in names:
        raise UserError(f"--model {options.model}: no profile is of it{nearest(options.model, names)}")
    return options.model or names[0]


def read_instances(values: Sequence[str], prices: PriceList) -> Mapping[str, str]:
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
