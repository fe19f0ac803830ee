"""Why did a child end, or not start? From how it ended, what it said last, and what the kernel says of memory and descriptors.

The cause of nearly every failed start stands in some line of what a program said, seldom in the last. Rule: a cause that is not
known for certain is not made up; then the program's own words are given.
"""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import Sequence

from serving.errors import UserError
from serving.gateway.listeners import raise_file_limit
from serving.local.logs import STAMP
from serving.local.processes import Child, KilledForMemory, exit_text

NUM_FILES = 4096  # descriptors: a gateway with a thousand clients and its pools needs half of it (guess, not measured)
FEWEST_FILES = 256  # a tritonserver with one model opens about 100 (measured), a gateway about 60
LIBRARY = re.compile(r"error while loading shared libraries: ([^:]+): (.*)")
NO_FILES = re.compile(r"Too many open files|EMFILE")
NO_MEMORY = re.compile(
    r"std::bad_alloc|Cannot allocate memory|MemoryError|failed to map segment|[Oo]ut of memory|Resource temporarily unavailable"
)
NO_ROOM = re.compile(r"No space left on device")
ERROR = re.compile(r"^\S+ [EF] \d+ |^[EF]\d{4} |^error: |^tandem|Error\b|: error|^error")
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # whatever it said before
NOISE = ("CudaDriverHelper", "CUDA", "cuda")  # a machine without a card: no cause of anything


def how_ended(child: Child, lines: Sequence[str]) -> str:
    """Its exit code or signal, and why, where that says more."""
    ended, why = exit_text(child.exit_code or 0), why_ended(child, lines)
    return ended if why == ended else f"{ended}: {why}"


def why_ended(child: Child, lines: Sequence[str]) -> str:
    """`lines`: what it said last."""
    status = child.exit_code or 0
    if kill := child.killed_for_memory:
        advice = "give it more, or serve fewer models or smaller batches"
        if kill is KilledForMemory.HERE:
            return f"killed by the kernel because memory ran out: {advice}"
        return f"probably killed by the kernel, which killed something on this machine because memory ran out: {advice}"
    if -status in FROM_OUTSIDE:
        return exit_text(status)
    text = "\n".join(lines)
    if found := LIBRARY.search(text):
        return f"the library {found[1]} is missing or broken ({found[2]})"
    if NO_FILES.search(text):
        return f"too many open files: {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} are allowed; raise `ulimit -n`"
    if NO_MEMORY.search(text):
        return "no more memory or threads may be had: raise the limits (`ulimit -v`, `ulimit -u`, the container's), or serve fewer models"
    if found := NO_ROOM.search(text):
        return f"no space left on a disk: {_words(next(line for line in reversed(lines) if found[0] in line))}"
    if status < 0:
        return exit_text(status)
    errors = [line for line in lines if ERROR.search(line) and not any(word in line for word in NOISE)]
    return _words(errors[-1]) if errors else _words(lines[-1]) if lines else exit_text(status)


def _words(line: str) -> str:
    """Without its time, its place in Triton's source, and the program's name."""
    line = re.sub(r"^\S+\.cc:\d+\] ", "", STAMP.sub("", line)).strip().strip('"')
    return line.removeprefix("tandem triton: ").removeprefix("tandem: ")


def require_files() -> None:
    """`raise_file_limit` for a Triton. Raises UserError where nothing could be served with so few."""
    if (num_files := raise_file_limit(NUM_FILES)) < FEWEST_FILES:
        raise UserError(f"this process may open {num_files} files, and serving needs {FEWEST_FILES}: raise `ulimit -n`")
