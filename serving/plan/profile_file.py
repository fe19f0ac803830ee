"""Profiles as files: JSON that says `version: 1`, read strictly. What a profile holds is `planning/profile.py`'s."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from serving.documents.reader import read_document
from serving.errors import UserError
from serving.planning.profile import Profile

SHIPPED = Path(__file__).parent / "profiles"  # others' published figures, by which a what-if can be told
_PROFILE = TypeAdapter(Profile)


def read_profile(path: Path) -> Profile:
    """Raises UserError with the file, the place in it and what is wrong there."""
    raw = read_document(path, "the profile")
    if not isinstance(raw, dict) or raw.get("version") != 1:
        found = raw.get("version") if isinstance(raw, dict) else None
        raise UserError(f"{path}: not a profile of version 1 (its version is {found!r}); `tandem profile` writes one")
    try:
        return _PROFILE.validate_python(raw)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the profile"
        raise UserError(f"{path}: {where}: {problem['msg'].removeprefix('Value error, ')}") from None


def write_profile(path: Path, profile: Profile) -> None:
    """Replaces the file in one step."""
    text = json.dumps(asdict(profile), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    fresh = path.with_name(path.name + ".part")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
