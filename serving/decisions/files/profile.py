"""Profiles as files: JSON that says `version: 1`, read strictly. What a profile holds is `decisions/profile.py`'s."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from serving.decisions.profile import Profile
from serving.documents.reader import read_document

SHIPPED = (
    Path(__file__).parents[1] / "shipped" / "profiles"
)  # others' published figures, by which a what-if can be told


def read_profile(path: Path) -> Profile:
    """Raises UserError with the file, the place in it and what is wrong there."""
    document = read_document(path, "the profile")
    document.version(1, "a profile", "`tandem profile` writes one")
    return document.values(Profile)


def write_profile(path: Path, profile: Profile) -> None:
    """Replaces the file in one step."""
    text = json.dumps(asdict(profile), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    fresh = path.with_name(path.name + ".part")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
