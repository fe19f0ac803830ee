"""What does a pool serve: which variants of a repository, and with which configuration, on this machine?

Reads the repository and proves its digests; starts nothing but a quick measurement. Keep: a variant whose files changed
after its gate, or whose gate did not pass on this pool, never gets a configuration, so it can never be loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from serving.errors import UserError
from serving.local import measure
from serving.local.devices import device_name
from serving.local.environments import Environment, Say
from serving.local.limits import share
from serving.planning.preference import BASELINE, clear_ratio
from serving.repository import DigestMismatch, Repository, Variant

UNMEASURED = "unmeasured"


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """`configs` maps a model's name in Triton to the configuration (JSON) that it is loaded with.

    `prove` raises UserError where the files of a model are not what passed the gate; it is asked before every load.
    """

    pool: str
    configs: Mapping[str, str]
    prove: Callable[[str], None]


def loadable(repository: Repository, pool: str, say: Say) -> list[Variant]:
    """The variants that passed on this pool and are still what passed. Says why others are left out."""
    good = []
    for variant in repository.variants():
        if pool not in variant.loadable_pools:
            continue
        try:
            variant.verify()
        except DigestMismatch as error:
            say(f"not loaded: {error}")
            continue
        good.append(variant)
    for name in repository.ungated():
        say(f"not loaded: {name} has no gate record (tandem.json)")
    if not good:
        raise UserError(
            f"no variant in {repository.path} may be served on the {pool} pool: none passed its gate there; "
            "see `tandem models`, or make some with `tandem export`"
        )
    return good


def plan_pool(
    repository: Repository, pool: str, environment: Environment, num_cores: int, *, may_measure: bool, say: Say
) -> PoolPlan:
    variants = loadable(repository, pool, say)
    baselines = {v.record.model: v for v in variants if v.record.variant == BASELINE}
    each, device, configs = share(pool, num_cores), device_name(pool), {}
    for variant in variants:
        engine = variant.record.pools[pool].engine
        place = measure.place_here(engine, environment.engine_version, each.num_threads)
        config = variant.config(pool, num_instances=each.num_instances, num_threads=each.num_threads)
        ours = {
            "tandem_processor": place.processor,
            "tandem_speed_ratio": _ratio(variant, baselines, environment, place, may_measure and pool == "cpu", say),
            "tandem_device_name": device,
        }
        configs[variant.name] = config.with_parameters(ours).to_json()
    proofs = {variant.name: variant.verify for variant in variants}
    return PoolPlan(pool, configs, lambda name: proofs[name]())


def _ratio(
    variant: Variant,
    baselines: Mapping[str, Variant],
    environment: Environment,
    place: measure.Place,
    may_measure: bool,
    say: Say,
) -> str:
    """How many times as fast as FP32 here, in words for the configuration; a gain that is not clear counts as none."""
    baseline = baselines.get(variant.record.model)
    if variant.record.variant == BASELINE:
        return "1.00"
    if may_measure and baseline is not None:
        known = measure.speeds(environment, variant, baseline, place, say)
    else:
        known = measure.recorded(variant, place)
    ratio = clear_ratio(known, processor=place.processor, engine=place.engine, engine_version=place.engine_version)
    return UNMEASURED if ratio is None else f"{ratio:.2f}"
