"""A file of a precision that the gates may judge, or why none could be made, in one line. Foreign failures become ours here alone.

Rule: the message names the operator where the library names one, and never shows a traceback.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from serving.errors import EnvironmentFault, TandemError, UserError
from serving.export.data.dataset import MIN_ROWS_TO_DIVIDE


@dataclass(frozen=True, slots=True)
class Candidate:
    precision: str
    model: bytes
    how: str  # in words, for progress, refusals and the record
    needs: frozenset[str] = frozenset()  # where alone its answers are right: {"vnni"} of a processor, {"tensorrt"}
    is_calibrated: bool = False  # it was made by looking at the calibration rows
    key: str = ""  # of the attempt that it is
    fused: Mapping[str, int] = field(
        default_factory=dict
    )  # ONNX Runtime's own operators in it that the source has not, and how many
    not_fused: str = ""  # why what could be fused is not


# "…running Conv node. Name:'conv_3' Status…", "Node (conv_3) Op (Conv) …", "…(op_type:Conv, node name: conv_3): …"
_OPERATORS = (
    re.compile(r"running (?P<kind>\w+) node\. Name:'(?P<name>[^']*)'"),
    re.compile(r"[Nn]ode ?\((?P<name>[^)]*)\) [Oo]p ?\((?P<kind>\w+)\)"),
    re.compile(r"op_type:(?P<kind>\w+), node name: (?P<name>[^)]*)\)"),
    re.compile(r"implementation for (?P<kind>\w+)\(\d+\) node with name '(?P<name>[^']*)'"),
)
_SLIPS = (TypeError, AttributeError, LookupError, NameError, ArithmeticError, AssertionError)  # of a program
_ORT_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_MAX_REASON = 200  # characters: a line that is still read


class NothingToQuantise(UserError):
    """The net has no arithmetic that the precision would speed up."""

    def __init__(self, precision: str, reason: str) -> None:
        super().__init__(f"{precision}: {reason}; leave {precision} out")
        self.precision, self.reason = precision, reason


class CalibrationMissing(UserError):
    """A static INT8 file needs to see inputs."""

    def __init__(self, reason: str, num_judging: int = 0) -> None:
        """`num_judging`: rows of --data, which are too few to give any away."""
        self.reason = reason
        given = f"--data of {MIN_ROWS_TO_DIVIDE} rows or more (it has {num_judging})" if num_judging else "--data"
        super().__init__(
            f"int8: {reason} needs calibration data; give some inputs with --calibration, or {given}, whose part that "
            "the gate does not use is then taken"
        )


NET, TOOL, TANDEM = "net", "tool", "tandem"  # whose fault it is that a variant was not made


class NotMade(UserError):
    """The variant could not be made. `fault`: the net's, the quantiser's (TOOL) or our own code's."""

    def __init__(self, precision: str, how: str, operator: str, reason: str, fault: str = NET) -> None:
        at = f" at {operator}" if operator else ""
        way_out = f"leave {precision} out{', or change that operator' if operator else ''}"
        if fault == TANDEM:
            way_out = f"a fault of Tandem's, not of the net: report it, and leave {precision} out"
        elif fault == TOOL:
            way_out = f"a fault of ONNX Runtime's tool, not of the net: leave {precision} out"
        super().__init__(f"{precision}: {how} failed{at}: {reason}; {way_out}")
        self.precision, self.how, self.operator, self.reason, self.fault = precision, how, operator, reason, fault


@contextlib.contextmanager
def translated(precision: str, how: str) -> Iterator[None]:
    """Turns whatever the block raises into NotMade, with whose fault it is, or EnvironmentFault where it is the machine's."""
    try:
        yield
    except TandemError:
        raise
    except (MemoryError, OSError) as error:
        raise _machine(precision, how, error) from None
    except Exception as error:  # the libraries raise nearly every class, down to bare Exception
        if "bad_alloc" in str(error) or "Failed to allocate memory" in str(error):
            raise _machine(precision, how, error) from None
        raise NotMade(precision, how, _operator(str(error)), _line(error), _fault(error)) from None


def _machine(precision: str, how: str, error: BaseException) -> EnvironmentFault:
    return EnvironmentFault(
        f"{precision}: {how} failed: {_line(error)}; free memory, and disk space in {tempfile.gettempdir()}"
    )


def _fault(error: Exception) -> str:
    """Says whose fault it is, by who raised it. What ONNX Runtime says of a graph is the net's; Python tripping over itself never is."""
    if type(error).__module__.partition(".")[0] in ("onnx", "onnxruntime", "google") or _operator(str(error)):
        return NET
    frames = [frame.filename.replace("\\", "/") for frame in traceback.extract_tb(error.__traceback__)]
    ours = max((place for place, name in enumerate(frames) if "/serving/export/" in name), default=-1)
    tools = max((place for place, name in enumerate(frames) if "/onnxruntime/" in name), default=-1)
    if tools > ours:
        return TOOL if isinstance(error, _SLIPS) or _is_numpys(error) else NET
    return NET if any("/onnx/" in name for name in frames[ours + 1 :]) else TANDEM


def _is_numpys(error: Exception) -> bool:
    """NumPy raises plain ValueErrors about arrays, from C, so that no frame of it is there."""
    return isinstance(error, ValueError) and re.search(r"\barrays?\b", str(error)) is not None


def _operator(message: str) -> str:
    for pattern in _OPERATORS:
        if found := pattern.search(message):
            return f"{found['kind']} {found['name']!r}"
    return ""


def _line(error: BaseException) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    words = _ORT_CODE.sub("", words)
    return words if len(words) <= _MAX_REASON else words[: _MAX_REASON - 1] + "…"
