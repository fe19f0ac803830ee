"""Which known word did somebody mean by an unknown one? Every message about an unknown name ends with the answer."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Set

CUTOFF = 0.6  # of difflib's 0..1, its own default


def closest(word: str, known: Iterable[str], cutoff: float = CUTOFF) -> str | None:
    """The known word that is most like this one in any case of letters; None where none is at least `cutoff` alike."""
    spelling = {name.lower(): name for name in known}
    with_unit = [name for name in spelling if name.startswith(f"{word.lower()}_")]
    if word.lower() not in spelling and len(with_unit) == 1:  # `rate` is rather `rate_rps` than `trace`
        return spelling[with_unit[0]]
    matches = difflib.get_close_matches(word.lower(), spelling, n=1, cutoff=cutoff)
    return spelling[matches[0]] if matches else None


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where a known word is near, else `; known are x, y`."""
    names = sorted(known) if isinstance(known, Set) else list(known)
    meant = closest(word, names)
    return f"; did you mean {meant!r}?" if meant else f"; known are {', '.join(names)}"
