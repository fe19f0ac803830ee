"""Why a variant cannot be made, in one line each. Foreign failures become ours here and nowhere else.

Rule: the message names the operator where the library names one, and never shows a traceback.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator

from serving.errors import EnvironmentFault, TandemError, UserError

# "…running Conv node. Name:'conv_3' Status…", "Node (conv_3) Op (Conv) …", "…(op_type:Conv, node name: conv_3): …"
_OPERATORS = (
    re.compile(r"running (?P<kind>\w+) node\. Name:'(?P<name>[^']*)'"),
    re.compile(r"[Nn]ode ?\((?P<name>[^)]*)\) [Oo]p ?\((?P<kind>\w+)\)"),
    re.compile(r"op_type:(?P<kind>\w+), node name: (?P<name>[^)]*)\)"),
    re.compile(r"implementation for (?P<kind>\w+)\(\d+\) node with name '(?P<name>[^']*)'"),
)
_ORT_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_MAX_REASON = 200  # characters: a line that is still read


class NothingToQuantise(UserError):
    """The net has no arithmetic that the precision would speed up."""

    def __init__(self, precision: str, reason: str) -> None:
        super().__init__(f"{precision}: {reason}; leave {precision} out")
        self.precision, self.reason = precision, reason


class CalibrationMissing(UserError):
    """A static INT8 file needs to see inputs."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"int8: {reason} needs calibration data; give some inputs with --calibration, or --data, whose part that "
            "the gate does not use is then taken"
        )


class NotMade(UserError):
    """The library that makes the variant failed on this net."""

    def __init__(self, precision: str, how: str, operator: str, reason: str) -> None:
        at = f" at {operator}" if operator else ""
        way_out = f"leave {precision} out{', or change that operator' if operator else ''}"
        super().__init__(f"{precision}: {how} failed{at}: {reason}; {way_out}")
        self.precision, self.how, self.operator, self.reason = precision, how, operator, reason


@contextlib.contextmanager
def translated(precision: str, how: str) -> Iterator[None]:
    """Whatever is raised inside comes out as one of ours: the net's fault as NotMade, the machine's as EnvironmentFault."""
    try:
        yield
    except TandemError:
        raise
    except (MemoryError, OSError) as error:
        raise _machine(precision, how, error) from None
    except Exception as error:  # the libraries raise nearly every class, down to bare Exception
        if "bad_alloc" in str(error) or "Failed to allocate memory" in str(error):
            raise _machine(precision, how, error) from None
        raise NotMade(precision, how, _operator(str(error)), _line(error)) from None


def _machine(precision: str, how: str, error: BaseException) -> EnvironmentFault:
    return EnvironmentFault(
        f"{precision}: {how} failed: {_line(error)}; free memory, and disk space in {tempfile.gettempdir()}"
    )


def _operator(message: str) -> str:
    for pattern in _OPERATORS:
        if found := pattern.search(message):
            return f"{found['kind']} {found['name']!r}"
    return ""


def _line(error: BaseException) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    words = _ORT_CODE.sub("", words)
    return words if len(words) <= _MAX_REASON else words[: _MAX_REASON - 1] + "…"
