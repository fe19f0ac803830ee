"""Writes the example reports of `tandem verdict` in docs/reports/, from the CPU profile that published-results/ keeps.

    python -m scripts.examples

No profile of a card is there, so each is a what-if by others' figures of the same net on a card. A test keeps the pages what this writes.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from loadtest.verdict import page
from loadtest.verdict.build import build
from loadtest.verdict.report import Source, VerdictReport
from scripts.published import ROOT, load
from serving.decisions.plan.result import Objective
from serving.decisions.plan.search import make_plan
from serving.decisions.prices import read_price_lists
from serving.decisions.profile import Profile, ServerProfile
from serving.decisions.published import PUBLISHED, published_profiles

MEASURED = ROOT / "published-results" / "minilm-verdict.json.gz"
P99_S = 0.1
# name -> hours a day and requests per second
EXAMPLES = {
    "what-if": ((24.0, 4000.0),),
    "what-if-does-not-pay": ((24.0, 40.0),),
    "what-if-depends": ((12.0, 40.0), (8.0, 2000.0), (4.0, 20000.0)),
}


def measured() -> tuple[Profile, VerdictReport]:
    """The CPU as it was profiled, and the report that keeps it."""
    report = load(MEASURED)
    assert isinstance(report, VerdictReport)
    source = next(one for one in report.sources if one.provenance == "measured")
    servers = tuple(
        ServerProfile(
            variant=one.variant,
            engine=one.engine,
            device=one.device,
            device_name=one.device_name,
            digest=None,
            settings=one.settings,
            ladder=one.ladder,
            load=one.load,
            max_rates=() if one.max_rate is None else (one.max_rate,),
            cold_start=one.cold_start,
            joules_per_request=one.joules_per_request,
            accuracy=one.accuracy,
            is_untrained=one.is_untrained,
        )
        for one in report.servers
        if report.sources[one.source] is source
    )
    told = source.date, source.command, source.machine, servers, source.versions, source.data, source.note
    return Profile(report.model, source.provenance, *told, source.others_ratio), report


def example(rates: tuple[tuple[float, float], ...]) -> VerdictReport:
    profile, kept = measured()
    objective = Objective(latency_p99_s=P99_S, rates=rates)
    prices = read_price_lists([])
    cards = [Source(one, "shipped", PUBLISHED.name) for one in published_profiles(profile.model, P99_S)]
    sources = [Source(profile, "given", "profile-cpu.json"), *cards]
    plan = make_plan(profile.model, objective, [one.profile for one in sources], prices, today=kept.date[:10])
    report = build(
        plan,
        sources,
        prices,
        check=None,
        check_not_run="this page is made from a profile that was measured before",
        date=kept.date,
        command="python -m scripts.examples",
        versions=kept.versions,
    )
    return replace(report, is_met=bool(plan.pools))


def main(folder: Path = ROOT / "docs" / "reports") -> int:
    for name, rates in EXAMPLES.items():
        (folder / f"{name}.html").write_text(page.render(example(rates)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
