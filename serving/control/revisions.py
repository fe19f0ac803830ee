"""Revisions of a control document: which is in force, which were before it, and what an undo brings back.

A store keeps a text and, beside it, what `tandem apply` recorded of it and of those before. A text that somebody else put there (GitOps,
an editor) is a revision as well: it has the next number, and its digest tells it apart from another such. Rule: pure, and reading never
fails for a record that is broken, because a gateway goes by the text alone.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256

from serving.errors import UserError

MAX_BYTES = 256 * 1024  # of all texts that are kept, as JSON has them; a ConfigMap holds 1 MiB
MAX_KEPT = 50
OUTSIDE = "outside of tandem apply"


@dataclass(frozen=True, slots=True)
class Revision:
    """`digest`: SHA-256 of the text, hexadecimal. `at`: UTC, as ISO 8601 has it; empty where nobody recorded it.

    `origin`: of which document it is a revision, by when that was begun, so that of two the later one is greater; empty where nobody knows.
    Numbers begin anew with a document.
    """

    number: int
    digest: str
    text: str
    at: str = ""
    by: str = OUTSIDE
    why: str = ""
    origin: str = ""

    @property
    def name(self) -> str:
        """`7-4f1d2c3b9a0e`: number and digest, as receipts and metrics tell it."""
        return f"{self.number}-{self.digest[:12]}"


NOTHING = Revision(0, digest=sha256(b"").hexdigest(), text="", by="nobody")


def _size(text: str) -> int:
    """Of JSON: a letter that is not ASCII's has six bytes there, or twelve."""
    return len(json.dumps(text)) - 2


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def in_force(text: str, newest: str | None) -> Revision:
    """The revision of a text that a store holds. `newest`: what was recorded last, as `Kept.newest` writes it."""
    recorded, digest = _read(newest), digest_of(text)
    if recorded is None:
        return Revision(1, digest, text)
    if recorded.digest == digest:
        return replace(recorded, text=text)
    return Revision(recorded.number + 1, digest, text, origin=recorded.origin)


@dataclass(frozen=True, slots=True)
class History:
    """Oldest first; the last is in force. Empty where nothing was ever applied."""

    revisions: tuple[Revision, ...] = ()

    @classmethod
    def of(cls, text: str | None, all_recorded: str | None) -> History:
        """What a store holds. `all_recorded`: as `recorded` wrote it."""
        try:
            found = json.loads(all_recorded or "[]")
            kept = tuple(one for it in found if (one := _revision(it)) is not None)
        except (ValueError, TypeError):
            kept = ()
        if text is None:  # what was applied is not there any more
            gone = [Revision(it.number + 1, digest_of(""), "", origin=it.origin) for it in kept[-1:] if it.text]
            return cls((*kept, *gone))
        last = in_force(text, json.dumps(asdict(kept[-1])) if kept else None)
        return cls(kept if kept and kept[-1].number == last.number else (*kept, last))

    @property
    def current(self) -> Revision:
        return self.revisions[-1] if self.revisions else NOTHING

    def then(self, text: str, *, at: str, by: str, why: str = "") -> History:
        """With one more, and as many of those before it as are kept."""
        digest = digest_of(text)
        origin = self.current.origin if self.revisions else f"{at} {digest[:12]}"
        following = Revision(self.current.number + 1, digest, text, at, by, why, origin)
        kept, size = [following], _size(text)
        for revision in reversed(self.revisions):
            size += _size(revision.text)
            if len(kept) >= MAX_KEPT or size > MAX_BYTES:
                break
            kept.append(revision)
        return History(tuple(reversed(kept)))

    def before(self, number: int | None = None) -> Revision:
        """What an undo brings back: the one before the one in force, or `number`. Raises UserError."""
        if not self.revisions:
            raise UserError("there is no revision, so there is nothing to undo")
        if number is None:
            if len(self.revisions) < 2:
                raise UserError(f"revision {self.current.number} is the only one that is kept; nothing is before it")
            return self.revisions[-2]
        for revision in self.revisions[:-1]:
            if revision.number == number:
                return revision
        if number == self.current.number:
            raise UserError(f"revision {number} is in force already")
        kept = ", ".join(str(revision.number) for revision in self.revisions[:-1]) or "none"
        raise UserError(f"revision {number} is not kept; these are: {kept}")

    @property
    def newest(self) -> str:
        """Of the one in force, without its text."""
        return json.dumps({**asdict(self.current), "text": ""})

    @property
    def recorded(self) -> str:
        return json.dumps([asdict(revision) for revision in self.revisions])


def difference(before: Revision, text: str, name: str) -> str:
    """As `diff -u` writes it; empty where nothing differs. `name`: of the text."""
    lines: Sequence[str] = list(
        difflib.unified_diff(
            before.text.splitlines(keepends=True),
            text.splitlines(keepends=True),
            f"revision {before.number}",
            name,
        )
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _read(text: str | None) -> Revision | None:
    try:
        return _revision(json.loads(text or "null"))
    except ValueError:
        return None


def _revision(it: object) -> Revision | None:
    """None for what is none."""
    if not isinstance(it, dict) or type(it.get("number")) is not int:
        return None
    texts = {field.name: it.get(field.name, "") for field in fields(Revision) if field.name != "number"}
    return Revision(it["number"], **texts) if all(isinstance(text, str) for text in texts.values()) else None
