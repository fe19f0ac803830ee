"""Why a torch module does not export, in one line: which operator, and which line of whose code.

torch's own messages are pages of advice for its developers; what a user can mend is in the exception's frames and in the
stack trace of the graph's node. Rule: an answer without a line is better than a wrong line.
"""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from serving.errors import UserError

_TORCH = Path(torch.__file__).parent
_STANDARD = Path(sysconfig.get_path("stdlib"))
_INSTALLED = (_STANDARD, Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib")))
_OURS = Path(__file__).parents[1]
_PLACE = re.compile(r'File "([^"\n]+)", line (\d+)')
_CUT = 200  # characters of a message that is not ours

Place = tuple[str, int]


def capture(error: Exception, dynamic: Mapping[str, Mapping[int, str]]) -> UserError:
    """The module's own code failed while it ran on shapes."""
    line = line_of(error)
    message = first_line(error)
    if "data-dependent" in message:
        return UserError(
            f"the model takes different ways for different values, which one graph cannot hold{line}; "
            "replace the condition by torch.where"
        )
    if fixed := re.search(r"Constraints violated.*?specialized it to be a constant \((\d+)\)", str(error), re.DOTALL):
        names = " or ".join(sorted({name for axes in dynamic.values() for name in axes.values()}))
        return UserError(
            f"the model's code fixes the size of a dimension that is to be dynamic ({names}) at the example's {fixed[1]}{line}; "
            "look for a reshape or a loop that uses this number"
        )
    return UserError(f"PyTorch cannot turn the model into a graph: {message}{line}")


def conversion(error: Exception) -> UserError:
    """A torch operator has no ONNX counterpart, or not with these arguments."""
    causes = list(_chain(error))
    node = _failing_node(causes)
    if node is None:
        return UserError(f"PyTorch's exporter failed: {first_line(causes[-1])}{line_of(causes[-1])}")
    operator = str(node.meta.get("original_aten") or node.target).removesuffix(".default")
    line = _place_text(_of_user(_places(node.meta.get("stack_trace") or "")))
    return UserError(
        f"operator {operator} does not export to ONNX{line}; write it with other operators, or bring the model as FILE.onnx"
    )


def first_line(error: BaseException) -> str:
    """The kind and first line of a foreign message."""
    text = (str(error).strip().splitlines() or [""])[0].strip()
    text = text if len(text) <= _CUT else f"{text[:_CUT]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def line_of(error: BaseException) -> str:
    """' (FILE:LINE: code)' of the innermost line that a user wrote, or ''."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return _place_text((error.filename, error.lineno))
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    return _place_text(_of_user(frames) or _of_user(_places(str(error))))


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


def _failing_node(causes: list[BaseException]) -> Any:
    """The exporter names it in its message only as text, but its frames hold it."""
    for cause in causes:
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            node = frame.f_locals.get("node")
            if isinstance(node, torch.fx.Node) and node.op == "call_function":
                return node
    return None


def _places(text: str) -> list[Place]:
    return [(file, int(line)) for file, line in _PLACE.findall(text)]


def _of_user(places: list[Place]) -> Place | None:
    """The innermost place in code that is not installed; else in an installed package other than torch."""
    known = [
        place for place in places if Path(place[0]).is_file() and not _is_in(place, _OURS) and not _is_in(place, _TORCH)
    ]
    own = [place for place in known if not any(_is_in(place, root) for root in _INSTALLED)]
    packages = [place for place in known if not _is_in(place, _STANDARD)]
    return next(reversed(own or packages), None)


def _is_in(place: Place, root: Path) -> bool:
    return Path(place[0]).is_relative_to(root)


def _place_text(place: Place | None) -> str:
    if place is None:
        return ""
    file, line = place
    path = Path(file)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    code = linecache.getline(file, line).strip()
    return f" ({shown}:{line}: {code})" if code else f" ({shown}:{line})"
