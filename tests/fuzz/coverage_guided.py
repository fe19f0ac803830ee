"""One target under Atheris, which keeps inputs that reach code no other input has reached, and mutates those.

    python -m tests.fuzz.coverage_guided TARGET SECONDS FOLDER

What it finds is written into FOLDER as `TARGET.crash-…`; moved to `tests/fuzz/found/TARGET.what-it-is` it is a regression test. The corpus
stays in FOLDER too, so that a later run begins where this one ended.
"""

from __future__ import annotations

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


def main(target: str, seconds: str, into: str) -> None:
    folder = Path(into)
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
