"""A test tool that is in no wheel and in no image: pools whose times follow a file, for proofs without a GPU.

The file is read by serving/decisions/files/curves.py, `plan.py` says what such a pool serves;
what holds the answers is backends/emulated/model.py.
Rule: nothing imports this but the verbs that were asked for it by `--emulate`.
"""

from __future__ import annotations

from pathlib import Path

from serving.decisions.files.curves import Curves, read_curves
from serving.local.emulated.plan import plan_emulated

BACKEND = Path(__file__).parents[1] / "backends" / "emulated" / "model.py"

__all__ = ["BACKEND", "Curves", "plan_emulated", "read_curves"]
