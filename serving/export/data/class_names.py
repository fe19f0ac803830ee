"""Which class a written label means: a name that the model knows, or an index.

Rule: a name that could mean two classes is an error, and so is one that the model does not know.
"""

from __future__ import annotations

from serving.documents.nearest import nearest
from serving.errors import UserError

_LARGEST = 2**53  # the last whole number up to which 64-bit floats have each one
_MAX_DIGITS = 16  # of an index
_FEW = 12  # names that fit into a sentence; of a thousand only one that is near helps


class ClassNames:
    """`num_labels` None: the model has no classes, and a label is any number."""

    def __init__(self, names: tuple[str, ...] | None, num_labels: int | None) -> None:
        self.num_labels = num_labels
        self._names = names or ()
        self._indices: dict[str, list[int]] = {}
        for index, name in enumerate(self._names):
            self._indices.setdefault(name, []).append(index)

    def value(self, written: str | int | float, where: str) -> int | float:
        """`where` begins the message of the error."""
        if isinstance(written, str):
            return self._of_text(written.strip(), where)
        if self.num_labels is None:
            return self._number(written, str(written), where)
        if isinstance(written, float):
            raise UserError(f"{where}: label {written:g} is neither the name nor the index of a class")
        return self._index(written, where)

    def _of_text(self, text: str, where: str) -> int | float:
        if len(found := self._indices.get(text, [])) > 1:
            indices = " and ".join(map(str, found))
            raise UserError(f"{where}: label {text!r} is the name of classes {indices}; give the index")
        if found:
            return found[0]
        if text.isascii() and text.isdecimal() and len(text) < _MAX_DIGITS:
            return self._index(int(text), where)
        if self.num_labels is None:
            try:
                return self._number(float(text), text, where)
            except ValueError:
                raise UserError(
                    f"{where}: label {text!r} is not a number, and the model has no class names to look it up in"
                ) from None
        raise UserError(f"{where}: unknown label {text!r}{self._hint(text)}")

    def _hint(self, text: str) -> str:
        if not self._names:
            return f"; the model's classes have no names, so give an index, 0..{(self.num_labels or 1) - 1}"
        hint = nearest(text, self._names)
        is_near = "did you mean" in hint
        return hint if is_near or len(self._names) <= _FEW else f"; it is none of the {len(self._names)} classes"

    def _number(self, number: int | float, text: str, where: str) -> int | float:
        if not abs(number) <= _LARGEST:
            raise UserError(f"{where}: label {text[:40]} is no number that fits into 64 bits exactly")
        return number

    def _index(self, index: int, where: str) -> int:
        if self.num_labels is not None and not 0 <= index < self.num_labels:
            raise UserError(f"{where}: label {index} is outside 0..{self.num_labels - 1}")
        return index
