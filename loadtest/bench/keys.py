"""What does a request pay for its API key, and how long does a gateway read a file of many?

    python -m loadtest.bench.keys [--keys N]

One process, no network, the kinds of callers in turns. The least of seven rounds counts, because what disturbs only ever adds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from serving import errors
from serving.gateway.access import Access
from serving.gateway.key_watch import KeyWatch
from serving.keys.key import INFER, Key, digest_of, id_of, make_text
from serving.keys.key_file import render
from serving.measure.machine import this_machine
from serving.measure.rounds import least_s, stopped

NUM_ROUNDS, NUM_CALLS = 7, 100_000  # a round of one kind takes a quarter of a second


def refused(access: Access, headers: dict[bytes, bytes]) -> None:
    try:
        access.caller_of(headers)
    except errors.Unauthenticated:
        return
    raise AssertionError("a key that nobody has was let in")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000, help="How many keys there are.")
    num_keys = parser.parse_args().keys
    texts = [make_text() for _ in range(num_keys)]
    now = datetime.now(UTC)
    keys = [Key(id_of(text) or "", "bench", digest_of(text), frozenset({INFER}), now) for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.json"
        file.write_bytes(render(keys))
        access, read_s = stopped(lambda: KeyWatch(file).access)
        size_mb = file.stat().st_size / 1e6
    good = {b"authorization": b"Bearer " + texts[-1].encode()}
    bad = {b"authorization": b"Bearer " + make_text().encode()}
    open_to_all = Access()
    calls: dict[str, Callable[[], object]] = {
        "a good key": lambda: access.caller_of(good),
        "an unknown key": lambda: refused(access, bad),
        "a gateway without keys": lambda: open_to_all.caller_of(good),
    }
    print(f"{this_machine().processor}; {num_keys:,} keys")
    print(f"reading them ({size_mb:.1f} MB): {read_s:.2f} s")
    for name, seconds in least_s(calls, NUM_ROUNDS, NUM_CALLS).items():
        print(f"{name}: {seconds * 1e6:.2f} µs")


if __name__ == "__main__":
    main()
