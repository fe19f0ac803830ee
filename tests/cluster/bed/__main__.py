"""`python -m tests.cluster.bed`: a bed in the foreground until Ctrl-C, to look around in, built if need be."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from tests.cluster.bed.build import NotBuilt, build
from tests.cluster.bed.cluster import Bed


def main() -> int:
    argparse.ArgumentParser("python -m tests.cluster.bed", description=__doc__).parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        programs = build()
    except NotBuilt as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 3
    with Bed(programs, lambda line: print(line, flush=True)) as bed:
        print(f"export KUBECONFIG={bed.layout.kubeconfig} PATH={programs.folder}:$PATH", flush=True)
        try:
            while True:  # not pause(): a signal that comes just before it would be handled only after the next one
                time.sleep(0.2)
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
