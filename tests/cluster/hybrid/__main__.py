"""`python -m tests.cluster.hybrid --report FILE`: plays the story once and writes what was seen. Exit code 1: something of it failed."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

from serving.errors import EnvironmentFault
from serving.local.environments import ENGINES, ensure
from tests.cluster.bed.build import NotBuilt, built
from tests.cluster.bed.cluster import Bed
from tests.cluster.hybrid import quick_day, three_pools
from tests.cluster.hybrid.alone import NotAlone, go_inside, settle
from tests.cluster.hybrid.chart import NAMESPACE
from tests.cluster.hybrid.excused import unexcused
from tests.cluster.hybrid.names import TTL_S
from tests.cluster.hybrid.story import Story, play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, required=True, help="JSON: phases, errors, timeline")
    parser.add_argument("--logs", type=Path, help="keeps the pods' folders and logs here")
    parser.add_argument("--dns-ttl-s", type=float, default=TTL_S, help="how old an answer of the cluster's DNS may be")
    parser.add_argument(
        "--day-s", type=float, help="plays no story but a day of demand in so many seconds (docs/story.md: 480)"
    )
    parser.add_argument(
        "--three-pools", action="store_true", help="plays no story but three pools of different size and price"
    )
    given = parser.parse_args()
    try:
        programs = built()
        ensure(ENGINES["cpu"])  # which takes a network, and inside there is none
        go_inside("tests.cluster.hybrid", sys.argv[1:])
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with tempfile.TemporaryDirectory(prefix="hybrid-") as temporary:
            folder = given.logs or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            settle(folder, NAMESPACE)
            with Bed(programs) as bed:
                act = three_pools.play if given.three_pools else Story.play
                act = act if given.day_s is None else partial(quick_day.play, lasting_s=given.day_s)
                report = play(bed, folder, lambda line: print(line, flush=True), given.dns_ttl_s, act)
                (folder / "karpenter.log").write_text(bed.log("karpenter"))
    except (NotBuilt, NotAlone, EnvironmentFault) as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 3
    given.report.write_text(json.dumps(report, indent=1) + "\n")
    wrong = three_pools.errors(report) if given.three_pools else unexcused(report)
    return 1 if report["failed"] or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
