"""What a plan writes: a tandem.yaml for `tandem up`, values for the chart, and itself as JSON.

Each file says from which profiles, prices and command it came. Rule: nothing is written that its reader refuses; what it cannot say
stands in a comment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from serving.decisions.plan.result import Plan, PoolPlan, PricedServer
from serving.decisions.profile import SHORT, Settings
from serving.decisions.wording import machine
from serving.errors import UserError

TANDEM_YAML, VALUES_YAML, PLAN_JSON = "tandem.yaml", "values.yaml", "plan.json"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a plan comes from, for whoever reads its files later."""

    command: str
    profiles: tuple[str, ...]  # names of the files
    prices: str
    date: str  # of the plan


def write(folder: Path, plan: Plan, origin: Origin) -> list[Path]:
    """The files, made. A plan that is impossible writes its JSON alone."""
    texts = {PLAN_JSON: json.dumps(as_json(plan, origin), indent=1, ensure_ascii=False, allow_nan=False) + "\n"}
    if plan.pools:
        texts |= {TANDEM_YAML: tandem_yaml(plan, origin), VALUES_YAML: values_yaml(plan, origin)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output {folder}: cannot be written: {error.strerror}") from None
    return [folder / name for name in texts]


def tandem_yaml(plan: Plan, origin: Origin) -> str:
    """Pools without urls: `tandem up --config` starts one Triton of each."""
    content = {
        "version": 1,
        "pools": {pool.name: _pool_settings(pool) for pool in plan.pools},
        "models": {
            plan.model: {
                "variants": {pool.name: pool.chosen.server.variant for pool in plan.pools},
                "objective": {"latency_s": plan.objective.latency_p99_s},
            }
        },
    }
    use = ["`tandem up --config` with this file starts one Triton of each pool, on a machine that has its device."]
    return _commented([*_head(plan, origin), *use, *_engines(plan)], content)


def _pool_settings(pool: PoolPlan) -> dict[str, Any]:
    said = {
        "device": pool.name,
        "price_per_hour": _price(pool.chosen),
        "min_replicas": pool.min_replicas,
        "max_replicas": pool.max_replicas,
    }
    if (cold_start_s := pool.chosen.server.cold_start_s) is not None:
        said["cold_start_s"] = round(cold_start_s, 3)
    return said | _triton(pool.chosen.server.settings) | _tuning(pool.chosen.server.settings)


def _price(priced: PricedServer) -> float:
    """Six digits, and above 0 however little it is."""
    return float(f"{priced.per_hour:.6g}")


def _triton(settings: Settings) -> dict[str, int]:
    """A model without batches takes neither of the last two."""
    batches = {"queue_delay_us": settings.queue_delay_us, "max_batch": settings.max_batch_size}
    of_batches = batches if settings.max_batch_size > 0 else {}
    return {"instances": settings.num_instances, "threads": settings.num_threads, **of_batches}


def _tuning(settings: Settings) -> dict[str, Any]:
    """As tandem.yaml has it."""
    said: dict[str, Any] = {}
    for word in settings.tuning:
        name, _, value = word.partition("=")
        if name in SHORT:
            said[name] = value if value == "auto" else [int(number) for number in value.split(",")]
        else:
            said.setdefault("cuda", {})[name] = value
    return said


# -- the chart ---------------------------------------------------------------------------------------------------------


def values_yaml(plan: Plan, origin: Origin) -> str:
    names = [pool.name for pool in plan.pools]
    content = {
        "gateway": {
            "variants": {plan.model: {pool.name: pool.chosen.server.variant for pool in plan.pools}},
            "objectives": {plan.model: {"latencyS": plan.objective.latency_p99_s}},
        },
        "pools": {
            **({} if "cpu" in names else {"cpu": {"enabled": False}}),
            **{pool.name: _pool_values(plan, pool) for pool in plan.pools},
        },
    }
    notes = [
        "For `helm install -f`, which makes API keys unless auth.existingSecret names yours. Set modelRepository for models that are not "
        "in the image."
    ]
    if any(pool.chosen.server.settings.tuning for pool in plan.pools):
        notes.append(
            "Buffers for batches and options of a card, which this plan was measured with, are in tandem.yaml and not in the chart."
        )
    if "gpu" in names:
        notes.append(
            "GPU pools run NVIDIA's image, which takes instances, threads, batches and delay from the model repository, not from here. "
            "Nothing scales them by the load yet: `replicas` is what the highest rate needs."
        )
    return _commented([*_head(plan, origin), *notes, *_engines(plan)], content)


def _pool_values(plan: Plan, pool: PoolPlan) -> dict[str, Any]:
    chosen = pool.chosen
    models = [f"{plan.model}-{variant}" for variant in dict.fromkeys((chosen.server.variant, "fp32"))]
    said: dict[str, Any] = {
        "enabled": True,
        "device": pool.name,
        "models": models,
        "pricePerHour": _price(chosen),
    }
    if (cold_start_s := chosen.server.cold_start_s) is not None:
        said["coldStartS"] = round(cold_start_s, 3)
    if pool.name == "gpu":
        return said | {
            "models": models[:1],
            "replicas": pool.max_replicas,
            "minReplicas": pool.min_replicas,
            "maxReplicas": pool.max_replicas,
        }
    triton = _triton(chosen.server.settings)
    names = {"instances": "instances", "threads": "threads", "queue_delay_us": "queueDelayUs", "max_batch": "maxBatch"}
    said |= {"server": "tandem", **{names[key]: value for key, value in triton.items()}, **_cores(chosen)}
    if pool.min_replicas < pool.max_replicas:
        percent = max(1, min(100, round(plan.objective.headroom_ratio * 100)))
        bounds = {"minReplicas": max(1, pool.min_replicas), "maxReplicas": pool.max_replicas}
        return said | {"autoscaling": {"enabled": True, **bounds, "targetCpuPercent": percent}}
    return said | {"replicas": pool.max_replicas, "minReplicas": pool.min_replicas, "maxReplicas": pool.max_replicas}


def _cores(priced: PricedServer) -> dict[str, Any]:
    """As many as it was measured with."""
    cores = priced.profile.machine.num_cores
    if cores <= 0:
        return {}
    text = f"{cores:g}" if cores == int(cores) else f"{cores * 1000:.0f}m"
    return {"resources": {"requests": {"cpu": text}, "limits": {"cpu": text}}}


# -- what each file says of itself -------------------------------------------------------------------------------------


def _head(plan: Plan, origin: Origin) -> Iterator[str]:
    yield f"Made by Tandem on {origin.date}: {origin.command}"
    yield f"Prices: {origin.prices}"
    yield from (f"Profile: {name}" for name in origin.profiles)
    for pool in plan.pools:
        profile = pool.chosen.profile
        yield (
            f"{pool.name}: {pool.chosen.server.label}, {machine(pool.chosen)}, {profile.provenance} {profile.date[:10]}"
        )
    for caveat in plan.caveats:
        yield f"Mind: {caveat}"


def _engines(plan: Plan) -> Iterator[str]:
    for pool in plan.pools:
        yield (
            f"{pool.name}: planned with the engine {pool.chosen.server.engine}; a Triton takes the fastest one of those that are "
            "installed where it runs"
        )


def _commented(lines: Iterable[str], content: dict[str, Any]) -> str:
    head = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    return head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


# -- JSON --------------------------------------------------------------------------------------------------------------


def as_json(plan: Plan, origin: Origin) -> dict[str, Any]:
    """All of it but the profiles' own tables."""
    return {
        "version": 1,
        "model": plan.model,
        "is_possible": bool(plan.pools),
        "objective": asdict(plan.objective),
        "currency": plan.currency,
        "pools": [_pool_json(pool) for pool in plan.pools],
        "steps": [asdict(step) for step in plan.steps],
        "per_hour_at_peak": plan.per_hour_at_peak,
        "per_day": plan.per_day,
        "gateway_per_hour": plan.gateway_per_hour,
        "joules_per_day": plan.joules_per_day,
        "break_even_rps": plan.break_even_rps,
        "per_million": dict(plan.per_million),
        "curve": [asdict(point) for point in plan.curve],
        "curve_of_two": [asdict(point) for point in plan.curve_of_two],
        "considered": [_priced_json(priced) for priced in plan.considered],
        "what_ifs": [asdict(one) for one in plan.what_ifs],
        "bindings": [asdict(binding) for binding in plan.bindings],
        "caveats": list(plan.caveats),
        "origin": asdict(origin),
    }


def _pool_json(pool: PoolPlan) -> dict[str, Any]:
    replicas = {"min_replicas": pool.min_replicas, "max_replicas": pool.max_replicas}
    return {"name": pool.name, **replicas, **_priced_json(pool.chosen)}


def _priced_json(priced: PricedServer) -> dict[str, Any]:
    server = priced.server
    return {
        "pool": priced.pool,
        "variant": server.variant,
        "engine": server.engine,
        "device_name": server.device_name,
        "provenance": priced.profile.provenance,
        "profile_date": priced.profile.date,
        "settings": asdict(server.settings),
        "max_rate": asdict(priced.max_rate),
        "accuracy": server.accuracy,
        "joules_per_request": server.joules_per_request,
        "offer": priced.offer.name,
        "share": priced.share,
        "per_hour": priced.per_hour,
        "per_million": priced.per_million(),
    }
