"""`tandem profile`: measures, says what it found in a table, and writes the profile's file.

Exit code 0 measured, 2 a wrong option, 3 the machine could not be measured, 130 interrupted (what there was is written all the same).
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from loadtest.errors import CampaignError, CannotMeasure
from loadtest.profile.measure import Interrupted, measure
from loadtest.profile.options import ProfileOptions, emulation, shapes, times_s, whole_numbers
from loadtest.profile.wording import table
from loadtest.progress import INTERRUPTED, Progress, sigterm_as_interrupt
from serving.decisions.profile import Profile, write_profile
from serving.errors import UserError

__all__ = ["CampaignError", "ProfileOptions", "emulation", "run", "shapes", "times_s", "whole_numbers"]


def run(options: ProfileOptions) -> int:
    """Raises UserError before it measures for minutes."""
    output = _default_folder() if options.output is None else _writable(options.output)
    is_interrupted = False
    try:
        with Progress() as progress, sigterm_as_interrupt():
            profile: Profile | None = measure(options, progress.say, progress)
    except Interrupted as stopped:
        profile, is_interrupted = stopped.profile, True
    except CannotMeasure as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 3
    except OSError as error:  # no room for what is measured with
        print(f"tandem: {_cannot_write(error)}; nothing was written", file=sys.stderr)
        return 3
    if profile is None:
        print("tandem: interrupted before anything was measured; nothing was written", file=sys.stderr)
        return INTERRUPTED
    path = output / _name(profile) if options.output is None else output
    try:
        write_profile(path, profile)
    except OSError as error:
        print(json.dumps(asdict(profile), indent=1, ensure_ascii=False))
        print(f"tandem: {_cannot_write(error)}; the profile is printed instead", file=sys.stderr)
        return 3
    if options.as_json:
        print(json.dumps(asdict(profile), indent=1, ensure_ascii=False))
    else:
        print(table(profile))
    print(f"profile: {path}", file=sys.stderr if options.as_json else sys.stdout)
    return INTERRUPTED if is_interrupted else 0


def _writable(path: Path) -> Path:
    if path.is_dir():
        raise UserError(f"--output {path} is a folder; name a file")
    if path.exists() and not path.is_file():  # it is replaced in one step, which would do away with a device
        raise UserError(f"--output {path} is no plain file; name one, or use --json")
    if not path.parent.is_dir():
        raise UserError(f"--output {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"--output {path}: nothing can be written into {path.parent}")
    return path


def _default_folder() -> Path:
    folder = Path("results")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{_cannot_write(error)}; name a file with --output") from None
    return folder


def _name(profile: Profile) -> str:
    stamp = profile.date[:19].replace("-", "").replace(":", "").replace("T", "-")
    return f"profile-{profile.model}-{stamp}.json"


def _cannot_write(error: OSError) -> str:
    return f"{error.filename or 'a file'} cannot be written: {error.strerror or error}"
