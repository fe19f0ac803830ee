"""`tandem profile`: measures, says what it found in a table, and writes the profile's file.

Exit code 0 measured, 2 a wrong option, 3 the machine could not be measured, 130 interrupted (what there was is written all the same).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from loadtest.bench.processes import CannotMeasure
from loadtest.errors import CampaignError
from loadtest.interrupts import INTERRUPTED, sigterm_as_interrupt
from loadtest.profile.measure import Interrupted, measure
from loadtest.profile.options import ProfileOptions, emulation, shapes, times_s, whole_numbers
from loadtest.profile.table import table
from loadtest.progress import Progress
from serving.errors import UserError
from serving.plan.profile_file import write_profile
from serving.planning.profile import Profile

__all__ = ["CampaignError", "ProfileOptions", "emulation", "run", "shapes", "times_s", "whole_numbers"]


def run(options: ProfileOptions) -> int:
    """Raises UserError before it measures for minutes."""
    output = None if options.output is None else _writable(options.output)
    is_interrupted = False
    try:
        with Progress() as progress, sigterm_as_interrupt():
            profile: Profile | None = measure(options, progress.say, progress)
    except Interrupted as stopped:
        profile, is_interrupted = stopped.profile, True
    except CannotMeasure as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 3
    if profile is None:
        print("tandem: interrupted before anything was measured; nothing was written", file=sys.stderr)
        return INTERRUPTED
    path = output or _default_output(profile)
    write_profile(path, profile)
    if options.as_json:
        print(json.dumps(asdict(profile), indent=1, ensure_ascii=False))
    else:
        print(table(profile))
    print(f"profile: {path}", file=sys.stderr if options.as_json else sys.stdout)
    return INTERRUPTED if is_interrupted else 0


def _writable(path: Path) -> Path:
    if path.is_dir():
        raise UserError(f"--output {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise UserError(f"--output {path}: there is no folder {path.parent}")
    return path


def _default_output(profile: Profile) -> Path:
    folder = Path("results")
    folder.mkdir(exist_ok=True)
    stamp = profile.date[:19].replace("-", "").replace(":", "").replace("T", "-")
    return folder / f"profile-{profile.model}-{stamp}.json"
