"""What does an emulated pool serve? A test tool that is in no wheel and in no image, for proofs without a GPU.

Its variants compute on the processor and answer when the file of curves says (`serving/decisions/curves.py`); what holds the
answers back is `backends/emulated/model.py`. Digests and gates count as on any pool. Keep: every configuration names the backend
`emulated`, so that no Triton but one that was started for it can load it, and says `tandem_emulated`, so that no gateway takes it for a
device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving.decisions.curves import Curves
from serving.decisions.engines import BASELINE, EnginePython
from serving.errors import UserError
from serving.local.devices import processor_name
from serving.local.measure import place_here
from serving.local.pool_options import NO_OVERRIDES, TritonOverrides
from serving.local.pool_plan import UNMEASURED, PoolPlan, batched, require_batches, rows_at_most, runnable, whole
from serving.local.venvs import Say
from serving.repository import Repository, Variant
from serving.scheduling.curve import Curve

BACKEND = Path(__file__).parent / "backends" / "emulated" / "model.py"
MAX_ROWS = 4096  # each number of rows has its seconds in the configuration: 100 kB of text at most


def plan_emulated(
    repository: Repository,
    pool: str,
    curves: Curves,
    engines: Mapping[str, EnginePython],
    say: Say,
    overrides: TritonOverrides = NO_OVERRIDES,
) -> PoolPlan:
    """Raises UserError where a curve is of nothing that is there, or nothing that is there has a curve."""
    curves.require_known(repository.readable()[0])
    here = place_here("cpu", engines, num_threads=1)
    wanted, refused = whole(repository, lambda variant: curves.of(variant) is not None, say)
    good, left_out = runnable(wanted, here, say)
    chosen = {v.name: (v, curve) for v in good if (curve := curves.of(v)) is not None}
    if not chosen:
        raise UserError(
            f"{curves.file} gives no curve for a variant of {repository.path} that this machine can compute; '*' means "
            "those that a CPU pool would serve"
        )
    require_batches([variant for variant, _ in chosen.values()], overrides)
    configs = {
        name: _config(variant, curve, curves.name, _fp32(variant, list(chosen.values())), overrides, say)
        for name, (variant, curve) in chosen.items()
    }
    return PoolPlan(pool, configs, lambda name: chosen[name][0].verify(), refused | left_out)


def _fp32(variant: Variant, chosen: Sequence[tuple[Variant, Curve]]) -> Curve | None:
    """The curve of the same model's FP32."""
    model = variant.record.model
    return next((c for v, c in chosen if v.record.model == model and v.record.variant == BASELINE), None)


def _config(
    variant: Variant, curve: Curve, emulated: str, fp32: Curve | None, overrides: TritonOverrides, say: Say
) -> str:
    max_rows = max(1, rows_at_most(variant.record.max_batch_size, overrides))
    if max_rows > MAX_ROWS:
        raise UserError(f"{variant.name} takes {max_rows} rows at once; more than {MAX_ROWS} cannot be emulated")
    rows = range(1, max_rows + 1)
    seconds = [curve.seconds(count) for count in rows]
    measured = {int(count) for count, _ in curve.points if count <= max_rows and count == int(count)}
    ours = {
        "tandem_emulated": emulated,
        "tandem_emulated_curve": json.dumps({"seconds": seconds, "check_rows": sorted({1, *measured, max_rows})}),
        "tandem_device_name": processor_name(),  # which computed the answer
        "tandem_speed_ratio": _ratio(variant, seconds, [fp32.seconds(count) for count in rows] if fp32 else []),
    }
    # One thread: other pools compute on the same cores, and what is left of the time is slept through.
    gate_pool = "cpu" if "cpu" in variant.loadable_pools else variant.loadable_pools[0]
    config = variant.config(gate_pool, engine=f"emulated-{emulated}", num_instances=1, num_threads=1)
    message = json.loads(batched(config.with_parameters(ours), overrides, say).to_json())
    return json.dumps({**message, "backend": "emulated"})


def _ratio(variant: Variant, seconds: Sequence[float], fp32: Sequence[float]) -> str:
    """How many times as fast as FP32 it clearly is: at some number of rows faster, at none slower."""
    if variant.record.variant == BASELINE:
        return "1.00"
    ratios = [theirs / ours for ours, theirs in zip(seconds, fp32, strict=False)]
    return f"{max(ratios):.2f}" if ratios and min(ratios) >= 1 and max(ratios) > 1 else UNMEASURED
