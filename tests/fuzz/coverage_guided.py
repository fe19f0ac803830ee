"""Targets in turn under Atheris, which keeps inputs that reach code no other input has reached, and mutates those.

    python -m tests.fuzz.coverage_guided SECONDS FOLDER TARGET…

Each is a fork of the process that has imported everything, and writes FOLDER/TARGET.log. What it finds is FOLDER/TARGET.crash-…; moved to `tests/fuzz/found/TARGET.what-it-is` it is a regression test. The corpus
stays in FOLDER too, so that a later run begins where this one ended.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["serving.protocol", "serving.gateway.http"]):
    from tests.fuzz.seeds import WORDS, seeds
    from tests.fuzz.targets import TARGETS

MAX_BYTES = 2048  # of an input; longer ones are slower and reach nothing more
LIMIT_S = 5  # for one input; more is a hang
MAX_MEMORY_MB = 1024  # of the fuzzer


def dictionary(folder: Path) -> Path:
    """The words that mean something, as libFuzzer reads them."""
    path = folder / "words.dict"
    path.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in WORDS))
    return path


def main(seconds: str, into: str, *targets: str) -> None:
    for target in targets:
        log = Path(into, f"{target}.log")
        if (child := os.fork()) == 0:
            for standard in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), standard)
            fuzz(target, seconds, Path(into))
        _, status = os.waitpid(child, 0)
        with log.open("a") as said:
            said.write(f"\nexit code {os.waitstatus_to_exitcode(status)}\n")


def fuzz(target: str, seconds: str, folder: Path) -> None:
    """Ends the process."""
    corpus = folder / f"{target}.corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(target)):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-artifact_prefix={folder / target}.",
        f"-dict={dictionary(folder)}",
        f"-max_len={MAX_BYTES}",
        f"-timeout={LIMIT_S}",
        f"-rss_limit_mb={MAX_MEMORY_MB}",
        "-print_final_stats=1",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *options], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
