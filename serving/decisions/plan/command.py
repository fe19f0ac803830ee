"""`tandem plan`: what was asked becomes an objective, files become profiles and prices, and the plan is shown and written.

Exit code 0 there is a plan, 1 there is none (it says what binds), 2 a wrong option or file. Rule: nothing is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from serving.decisions.files.profile import read_profile
from serving.decisions.plan.options import LoadOptions
from serving.decisions.plan.outputs import Origin, as_json, write
from serving.decisions.plan.result import Plan
from serving.decisions.plan.search import make_plan
from serving.decisions.plan.wording import paragraph, table
from serving.decisions.prices import PriceList
from serving.decisions.profile import Profile
from serving.documents.nearest import nearest
from serving.errors import UserError


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
    today = datetime.now(UTC).date().isoformat()
    plan = make_plan(
        model,
        objective,
        profiles,
        prices,
        instances=instances,
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


def _model(options: PlanOptions, profiles: Sequence[Profile]) -> str:
    names = sorted({profile.model for profile in profiles})
    if options.model is None and len(names) > 1:
        raise UserError(f"the profiles are of several models; say which by --model: {', '.join(names)}")
    if options.model is not None and options.model not in names:
        raise UserError(f"--model {options.model}: no profile is of it{nearest(options.model, names)}")
    return options.model or names[0]
