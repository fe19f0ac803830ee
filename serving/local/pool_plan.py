"""What does a pool serve: which variants of a repository, on which engine, and with which configuration, on this machine?

Reads the repository and proves its digests; starts nothing but a quick contest. Keep: a variant whose files changed
after its gate, or whose gate did not pass on this pool, never gets a configuration, so it can never be loaded; and a
configuration names the engine that really computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from serving.cores import usable_cores
from serving.decisions.batch_buckets import MOST_PADDING_RATIO, batch_buckets
from serving.decisions.engines import BASELINE, ONLY_ENGINE, POOL, EnginePython, best_engine, clear_ratio, gains
from serving.errors import UserError
from serving.export.gates.likeness import recorded
from serving.local import measure
from serving.local.devices import device_name, of_pool
from serving.local.environments import ENGINES, find
from serving.local.measure import MeasurementSite
from serving.local.pool_options import GRAPHS, NO_OVERRIDES, TritonOverrides
from serving.local.venvs import Say
from serving.measure.machine import has_bf16, has_instructions
from serving.repository import DigestMismatch, Record, Repository, Speed, Variant
from serving.repository.layout import Stamp
from serving.repository.record import GPU_ENGINES
from serving.repository.triton_config import ModelConfig
from serving.scheduling.curve import Curve

UNMEASURED = "unmeasured"
HOW_TO_INSTALL = {"openvino": ": tandem environment openvino"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a variant of the repository is not loaded although this pool may serve it. `version` 1 where its record cannot be read."""

    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """`configs` maps a model's name in Triton to the configuration (JSON) that it is loaded with, `refused` one to why it is not.

    `prove` raises UserError where the files of a model are not what passed the gate; it is asked before every load.
    """

    pool: str
    configs: Mapping[str, str]
    prove: Callable[[str], None]
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    variants: Mapping[str, Variant] = field(
        default_factory=dict
    )  # of `configs`, where their answers can be judged here
    repository: Repository | None = None  # that is looked at for later exports
    stamps: Mapping[str, Stamp] = field(default_factory=dict)  # of its variants, from before the plan was made
    again: Callable[[], PoolPlan] | None = None  # the plan of what the repository holds now. Raises UserError
    older: Callable[[Mapping[str, int]], PoolPlan] | None = (
        None  # of these models alone, in the newest version below this one whose files are kept. Raises UserError
    )


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine that a variant runs on here, and how many times as fast as FP32 on its best engine it clearly is then."""

    engine: str
    ratio: str


@dataclass(frozen=True, slots=True)
class Share:
    """What every model of a pool gets: instances × threads = the cores of the pool, unless something else was asked for.

    An instance is always given its number of threads: ONNX Runtime would start one for each core of the machine.
    """

    num_instances: int
    num_threads: int

    def __post_init__(self) -> None:
        if self.num_instances < 1 or self.num_threads < 1:
            raise ValueError(f"a model needs an instance and a thread, got {self}")


def share(pool: str, num_cores: int, overrides: TritonOverrides = NO_OVERRIDES) -> Share:
    """On the CPU one instance that uses every core, more share them; on a GPU one thread, because the card computes."""
    num_instances = overrides.instances or 1
    num_threads = overrides.threads or (max(1, num_cores // num_instances) if pool == "cpu" else 1)
    return Share(num_instances, num_threads)


def crowded(each: Share, num_cores: int) -> str | None:
    """What to say where instances and threads are more than there are cores."""
    total = each.num_instances * each.num_threads
    if total <= num_cores:
        return None
    return (
        f"warning: {each.num_instances} × {each.num_threads} threads of a model are more than the {num_cores} cores that may be "
        "used here; they wait for one another"
    )


def known_speeds(variants: Sequence[Variant]) -> dict[tuple[str, str], tuple[Speed, ...]]:
    """(name, engine) -> what a CPU pool that starts here with nothing asked knows without measuring: of every engine that is
    installed here and that may run the variant, also where that is nothing.
    """
    if (place := _cpu_place()) is None:
        return {}
    found: dict[tuple[str, str], tuple[Speed, ...]] = {}
    for model in {variant.record.model for variant in variants}:
        members = {v.record.variant: v for v in variants if v.record.model == model and "cpu" in v.record.pools}
        known = measure.speeds(members, place, may_measure=False, say=lambda _: None)
        for precision, variant in members.items():
            found |= {(variant.name, it): known.get((precision, it), ()) for it in place.engines_of(variant)}
    return found


def left_out_here(variants: Sequence[Variant]) -> dict[str, str]:
    """Variants that a CPU pool on this machine leaves out although their gate allows them there -> why."""
    if (place := _cpu_place()) is None:
        return {}
    reasons = {v.name: _cannot_run(v, place) for v in variants if "cpu" in v.loadable_pools}
    return {name: f"it {reason}" for name, reason in reasons.items() if reason is not None}


def _cpu_place() -> MeasurementSite | None:
    """A CPU pool that starts here with nothing asked; None before its environment was made."""
    environment = find(ENGINES["cpu"])
    if environment is None:
        return None
    return measure.place_here("cpu", of_pool("cpu", environment), share("cpu", usable_cores()).num_threads)


def loadable(repository: Repository, pool: str, say: Say) -> tuple[list[Variant], dict[str, Refusal]]:
    """The variants that passed on this pool and are still what passed, and why others are left out, which is said as well."""
    good, refused = whole(repository, lambda variant: pool in variant.loadable_pools, say)
    if refused and not good:
        reasons = "; ".join(f"{name}: {refusal.reason}" for name, refusal in refused.items())
        raise UserError(f"no variant in {repository.path} may be served on the {pool} pool: {reasons}")
    return _some(good, repository, pool), refused


def whole(
    repository: Repository, is_wanted: Callable[[Variant], bool], say: Say
) -> tuple[list[Variant], dict[str, Refusal]]:
    """Those that are wanted, of FP32's version, and still what passed; and why others are left out, which is said as well."""
    everything, unreadable = repository.readable()
    good, refused = [], {name: Refusal(1, reason) for name, reason in unreadable.items()}
    newest = {v.record.model: v.record.model_version for v in everything if v.record.variant == BASELINE}
    for variant in everything:
        if not variant.loadable_pools or not is_wanted(variant):
            continue
        version, fp32_version = variant.record.model_version, newest.get(variant.record.model, 0)
        if version < fp32_version:
            reason = f"it is of version {version}, and FP32 is of version {fp32_version}; export it again"
            refused[variant.name] = Refusal(version, reason)
            continue
        try:
            variant.verify()
        except DigestMismatch as error:
            refused[variant.name] = Refusal(version, str(error).removeprefix(f"{variant.name}: "))
            continue
        good.append(variant)
    for name, refusal in refused.items():
        say(f"not loaded: {name}: {refusal.reason}")
    for name in repository.ungated():
        say(f"not loaded: {name} has no gate record (tandem.json)")
    return good, refused


def plan_pool(
    repository: Repository,
    pool: str,
    engines: Mapping[str, EnginePython],
    num_cores: int,
    *,
    may_measure: bool,
    say: Say,
    overrides: TritonOverrides = NO_OVERRIDES,
    engine: str | None = None,
    below: Mapping[str, int] | None = None,
) -> PoolPlan:
    """`engines`: those of this pool that are installed here. `engine`: the one that computes everything, whatever is fastest.

    `below`: of these models alone, in their newest kept version below this one.
    """
    if engine is not None:
        require_engine(engine, pool, engines)
    each, device, configs = share(pool, num_cores, overrides), device_name(pool), {}
    if warning := crowded(each, num_cores):
        say(warning)
    place = measure.place_here(pool, engines, each.num_threads)
    proven, refused = loadable(repository, pool, say)
    if below is not None:
        proven = _some(older(proven, pool, below), repository, pool)
    good, left_out = runnable(proven, place, say)
    refused |= left_out
    if engine is not None:
        good, left_out = on_engine(_some(good, repository, pool), engine, pool, say)
        refused |= left_out
    variants = _some(good, repository, pool)
    require_batches(variants, overrides)
    for model in dict.fromkeys(variant.record.model for variant in variants):
        members = {v.record.variant: v for v in variants if v.record.model == model}
        known = measure.speeds(members, place, may_measure=may_measure, say=say)
        for variant in members.values():
            choice = choose(variant, known, place, say)
            if engine is not None and engine != choice.engine:
                choice = EngineChoice(engine, choice.ratio if variant.record.variant == BASELINE else UNMEASURED)
            config = variant.config(
                pool, engine=choice.engine, num_instances=each.num_instances, num_threads=each.num_threads
            )
            config = bucketed(
                batched(config, overrides, say), overrides, say, known.get((variant.record.variant, choice.engine), ())
            )
            if num_beside := (overrides.versions or 1) - 1:
                config = config.with_earlier(beside(variant, place, config.max_batch_size, num_beside, say))
            computes_in = measure.dtype(variant, config.engine, members.get(BASELINE), place, may_measure=may_measure)
            ours = {
                **({"tandem_dtype": computes_in} if computes_in else {}),
                "tandem_processor": place.processor,
                "tandem_speed_ratio": choice.ratio,
                "tandem_device_name": device,
                "tandem_task": variant.record.task,
                "tandem_loss": f"{recorded(variant.record.task, variant.record.gate):.6g}",
            }
            configs[variant.name] = config.with_parameters(ours).to_json()
    proofs = {variant.name: variant.verify_served for variant in variants}
    return PoolPlan(pool, configs, lambda name: proofs[name](), refused, {it.name: it for it in variants})


def older(variants: Sequence[Variant], pool: str, below: Mapping[str, int]) -> list[Variant]:
    """Of the models in `below`, as they were in the newest version below that number whose files are kept: all in FP32's."""
    found: dict[str, list[Variant]] = {}
    for variant in variants:
        for record in variant.earlier() if variant.record.model in below else ():
            gate, digest = record.pools.get(pool), variant.record.files.get(record.model_file)
            is_kept = variant.has_files_of(record.model_version) and digest == record.digest
            if record.model_version < below[record.model] and is_kept and gate is not None and gate.is_loadable:
                found.setdefault(record.model, []).append(replace(variant, record=record))
    good = list[Variant]()
    for each in found.values():
        version = max(it.record.model_version for it in each if it.record.variant == BASELINE or not _has_fp32(each))
        good += [it for it in each if it.record.model_version == version]
    return good


def _has_fp32(variants: Iterable[Variant]) -> bool:
    return any(variant.record.variant == BASELINE for variant in variants)


def require_engine(engine: str, pool: str, engines: Mapping[str, EnginePython]) -> None:
    """Raises UserError where it cannot compute in this pool."""
    if engine not in engines:
        how = HOW_TO_INSTALL.get(engine, "") if POOL.get(engine) == pool else ""
        raise UserError(f"--engine {engine}: not here for the {pool} pool, which has {', '.join(engines)}{how}")


def on_engine(
    variants: Iterable[Variant], engine: str, pool: str, say: Say
) -> tuple[list[Variant], dict[str, Refusal]]:
    """Those that this engine computes as what they are, and why others are left out, which is said as well."""

    def why_not(variant: Variant) -> str | None:
        only = ONLY_ENGINE.get((pool, variant.record.variant), engine)
        return None if only == engine else f"is computed by {only} alone, and {engine} was asked for"

    return _parted(variants, why_not, say)


def require_batches(variants: Iterable[Variant], overrides: TritonOverrides) -> None:
    """Raises UserError where none was exported for batches of the size that is asked for; the others take what they can."""
    largest = max(variants, key=lambda variant: variant.record.max_batch_size)
    most = largest.record.max_batch_size
    if overrides.max_batch is not None and overrides.max_batch > most:
        how = f"was exported for batches of at most {most} rows" if most else "was exported without batches"
        raise UserError(
            f"max batch {overrides.max_batch}: {largest.name} {how}; ask for no more, or export it again with "
            f"--max-batch {overrides.max_batch}"
        )


def rows_at_most(exported: int, overrides: TritonOverrides) -> int:
    """Rows of a batch, of a model that was exported for so many; 0 without batches."""
    return exported if overrides.max_batch is None else min(exported, overrides.max_batch)


def batched(config: ModelConfig, overrides: TritonOverrides, say: Say) -> ModelConfig:
    """With the batches that are asked for."""
    if overrides.queue_delay_us and config.max_batch_size == 0:
        say(f"{config.name} takes no batches, so that a queue delay does nothing for it")
    max_batch_size = rows_at_most(config.max_batch_size, overrides)
    if overrides.max_batch is not None and overrides.max_batch > max_batch_size:
        how = f"batches of {max_batch_size} rows, as it was exported" if max_batch_size else "no batches"
        say(f"{config.name} takes {how}, where {overrides.max_batch} were asked for")
    queue_delay_us = config.queue_delay_us if overrides.queue_delay_us is None else overrides.queue_delay_us
    return config.with_batching(max_batch_size, queue_delay_us)


def bucketed(config: ModelConfig, overrides: TritonOverrides, say: Say, speeds: Sequence[Speed] = ()) -> ModelConfig:
    """With the buffers for batches and the options of the card that are asked for, where this model can have them.

    `speeds`: what is known here of this variant on this engine, by which `auto` chooses sizes.
    """
    cuda = dict(overrides.cuda) if config.engine in GPU_ENGINES else {}
    if why := _no_buckets(config, overrides):
        say(f"{config.name} {why}, so that it gets no buffers of its own by batch_buckets")
    if why is not None or config.engine != "cuda":
        cuda.pop(GRAPHS, None)
    if why is None and overrides.batch_buckets is not None:
        ours = {"batch_buckets": _fitting(overrides.batch_buckets, config.max_batch_size)}
        if overrides.batch_buckets == "auto" and (chosen := buckets_by(speeds, config.max_batch_size)):
            ours["batch_buckets"] = ",".join(map(str, chosen))
            listed = " and ".join(", ".join(map(str, chosen)).rsplit(", ", 1))
            say(
                f"{config.name} has buffers for batches of {listed} rows: by its speeds here, padding costs at most "
                f"{MOST_PADDING_RATIO:.0%} of a batch's time"
            )
        if any(-1 in tensor.shape for tensor in config.inputs):
            ours["bucket_lengths"] = overrides.bucket_lengths or ""
        config = config.with_parameters(ours)
    return config.with_cuda(cuda)


def buckets_by(speeds: Sequence[Speed], max_batch_size: int) -> tuple[int, ...]:
    """The sizes of batches that these speeds ask for; none where they are of fewer than two sizes and so tell no shape."""
    points = sorted({speed.batch_size: speed.latency_s for speed in speeds}.items())
    return batch_buckets(Curve(tuple(points)), max_batch_size) if len(points) > 1 else ()


def _no_buckets(config: ModelConfig, overrides: TritonOverrides) -> str | None:
    """Why it cannot have those that are asked for; None where it can, or none are."""
    if overrides.batch_buckets is None:
        return None
    if config.max_batch_size == 0:
        return "takes no batches"
    if no_numbers := {tensor.datatype for tensor in (*config.inputs, *config.outputs)} & {"BYTES", "BF16"}:
        return f"has tensors of {' and '.join(sorted(no_numbers))}"
    if overrides.bucket_lengths is None and any(-1 in tensor.shape for tensor in config.inputs):
        return "takes inputs of any length, and bucket_lengths names none"
    if not _fitting(overrides.batch_buckets, config.max_batch_size):
        return f"takes batches of {config.max_batch_size} rows at most"
    return None


def _fitting(sizes: str, max_batch_size: int) -> str:
    """Those that a batch can have."""
    return sizes if sizes == "auto" else ",".join(size for size in sizes.split(",") if int(size) <= max_batch_size)


def _some(variants: list[Variant], repository: Repository, pool: str) -> list[Variant]:
    if not variants:
        raise UserError(
            f"no variant in {repository.path} may be served on the {pool} pool: none passed its gate there, or none can "
            "run here; see `tandem models`, or make some with `tandem export`"
        )
    return variants


def runnable(variants: Iterable[Variant], place: MeasurementSite, say: Say) -> tuple[list[Variant], dict[str, Refusal]]:
    """Those that this machine computes as what they are, and why others are left out, which is said as well."""
    return _parted(variants, lambda variant: _cannot_run(variant, place), say)


def _parted(
    variants: Iterable[Variant], why_not: Callable[[Variant], str | None], say: Say
) -> tuple[list[Variant], dict[str, Refusal]]:
    good, refused = list[Variant](), dict[str, Refusal]()
    for variant in variants:
        if reason := why_not(variant):
            say(f"not loaded: {variant.name} {reason}")
            refused[variant.name] = Refusal(variant.record.model_version, f"it {reason}")
        else:
            good.append(variant)
    return good, refused


def _cannot_run(variant: Variant, place: MeasurementSite) -> str | None:
    only = ONLY_ENGINE.get((place.pool, variant.record.variant))
    if only is not None and only not in place.engines:
        return f"is computed by {only} alone, which is not installed here{HOW_TO_INSTALL.get(only, '')}"
    if place.pool != "cpu":
        return None
    if variant.record.variant == "bf16" and not has_bf16():
        return "needs a processor with AMX-BF16 or AVX512-BF16, which this one lacks: it would compute in FP32"
    if lacking := [name for name in variant.record.needs if not has_instructions(name)]:
        return f"needs a processor with {' and '.join(lacking)}, which this one lacks: its answers would be wrong"
    return None


def beside(variant: Variant, place: MeasurementSite, max_batch_size: int, most: int, say: Say) -> dict[int, str]:
    """Version -> digest of the newest ones before it that can be served beside it, `most` of them: Triton has one configuration for all.
    Says why others are not.
    """
    record, found = variant.record, dict[int, str]()
    kept = [
        earlier for earlier in variant.earlier() if variant.has_files_of(earlier.model_version)
    ]  # of the others the record alone is
    for earlier in kept[:most]:
        was = replace(variant, record=earlier)
        gate = earlier.pools.get(place.pool)
        if record.files[earlier.model_file] != earlier.digest:
            reason = "its file is not the one that passed its gate"
        elif gate is None or not gate.is_loadable:
            reason = f"it did not pass its gate for the {place.pool} pool"
        elif (earlier.inputs, earlier.outputs) != (record.inputs, record.outputs):
            reason = "its inputs or outputs are others"
        elif earlier.max_batch_size < max_batch_size or bool(earlier.max_batch_size) != bool(max_batch_size):
            reason = f"it takes batches of at most {earlier.max_batch_size} rows"
        elif _of_labels(earlier) != _of_labels(record):
            reason = "its classes are others"
        elif (lacks := _cannot_run(was, place)) is not None:
            reason = f"it {lacks}"
        else:
            found[earlier.model_version] = earlier.digest
            continue
        say(
            f"not loaded: version {earlier.model_version} of {variant.name} beside version {record.model_version}: {reason}"
        )
    return found


def _of_labels(record: Record) -> str | None:
    return None if record.labels is None else record.files[record.labels]


def choose(
    variant: Variant, known: Mapping[measure.Key, tuple[Speed, ...]], place: MeasurementSite, say: Say
) -> EngineChoice:
    """The engine that is fastest here, else the one that the record names if it is installed, else the plain one."""
    fp32 = _of(BASELINE, known)
    mine = _of(variant.record.variant, known)
    is_baseline = variant.record.variant == BASELINE
    named = variant.record.pools[place.pool].engine
    engine = best_engine(mine, place.plain, is_baseline=is_baseline)
    if named not in place.engines and engine is None:
        engine = ONLY_ENGINE.get((place.pool, variant.record.variant), place.plain)
    if named not in place.engines:
        how = HOW_TO_INSTALL.get(named, "")
        say(f"{variant.name} runs on {engine}: its record names {named}, which is not installed here{how}")
    if is_baseline:
        return EngineChoice(engine or named, "1.00")
    ratio = clear_ratio(gains(mine.get(engine or named, ()), fp32, place.plain))
    return EngineChoice(engine or named, UNMEASURED if ratio is None else f"{ratio:.2f}")


def _of(variant: str, known: Mapping[measure.Key, tuple[Speed, ...]]) -> dict[str, tuple[Speed, ...]]:
    """Engine -> what is known of this variant on it."""
    return {engine: rows for (name, engine), rows in known.items() if name == variant}
