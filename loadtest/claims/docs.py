"""docs/claims.md is the committed run, docs/claims.json, as `page.py` shows it, behind a page of how to read it and how to run it.

    python -m loadtest.claims.docs               writes docs/claims.md anew
    python -m loadtest.claims.docs results/…     takes that run's claims.json first

Rule: no number in the page that is not in the file.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.claims import page, stored
from loadtest.claims.values import Report

DOCS = Path(__file__).resolve().parents[2] / "docs"
DATA, PAGE = DOCS / "claims.json", DOCS / "claims.md"
INTRO = """# Claims put to the test

Articles say that GPUs are so many times faster, that INT8 suits CPUs, that larger batches pay. Each is true of something, somewhere. This
suite asks for *here*: your processor, your card if there is one, with intervals, and with a threshold for each claim that stands in a
file.

```sh
tandem campaign run loadtest/campaigns/claims.yaml                          # about a quarter of an hour on two cores
tandem campaign run loadtest/campaigns/claims.yaml --only int8-suits-cpus   # one claim
tandem campaign run loadtest/campaigns/claims.yaml --quick                  # two minutes, to try it
```

It needs a checkout with `make setup` and the packages of an export (`onnx`, `onnxruntime`; `scikit-learn` and `skl2onnx` for the trees),
and writes `claims.json`, `claims.md` and `claims.html` into `results/`. Ctrl-C keeps what was measured. Nothing else should run
meanwhile; how much did is told.

[claims.yaml](../loadtest/campaigns/claims.yaml) holds claims, sources, experiments and thresholds; whoever means something else by a
claim changes it there. On a machine with a card, [loadtest/gpu/run.sh](../loadtest/gpu/README.md) runs the suite with it. **No GPU has
been measured yet**: every cell of one says *not measured here*. Joules are not measured at all. A row marked *simulated* comes from [the
simulator](simulate.md), not from a machine.

This page is the committed run; on a quiet machine these two commands make it anew:

```sh
tandem campaign run loadtest/campaigns/claims.yaml --output results/claims
python -m loadtest.claims.docs results/claims
```

## This run

"""


def render(report: Report) -> str:
    return INTRO + page.markdown(report)


def main(arguments: Sequence[str]) -> int:
    if arguments:
        shutil.copyfile(Path(arguments[0]) / DATA.name, DATA)
    PAGE.write_text(render(stored.from_json(DATA.read_text(encoding="utf-8"), str(DATA))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
