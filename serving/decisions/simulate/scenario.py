"""What is to be simulated, from a file: pools with curves, prices and cold starts, an objective, and the policies that are compared.

Every name is checked and everything is required that has no harmless default; a number has its unit in its name. Rule: what a scenario says
is an assumption; nothing of it is taken for measured, so every result is a what-if.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Literal

from serving.decisions.curves import ALL, Points, read_curves
from serving.decisions.fleet import Quota, Supply
from serving.decisions.sizes import Sizes
from serving.documents.nearest import nearest
from serving.documents.reader import read_document
from serving.errors import UserError
from serving.scheduling.bridge import RULES, Rules
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from serving.settings import SCALING_RULES, ScalingRules

MAX_NOISE_RATIO = 10.0  # half of all executions would take less than a tenth of their mean; a guess, not measured
DEVICES = ("cpu", "gpu")
Scaler = Literal["none", "wake", "always", "demand", "oracle"]


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Seconds from asking for a server to its first answer: between `least_s` and `most_s`, most often `usual_s` (triangular)."""

    least_s: float
    usual_s: float
    most_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.least_s <= self.usual_s <= self.most_s:
            raise ValueError(
                f"a cold start goes from least to usual to most, not {self.least_s}, {self.usual_s}, {self.most_s}"
            )

    @property
    def mean_s(self) -> float:
        return (self.least_s + self.usual_s + self.most_s) / 3

    def at(self, share: float) -> float:
        """The duration that this share of all cold starts does not exceed."""
        width = self.most_s - self.least_s
        if width == 0:
            return self.usual_s
        rise = (self.usual_s - self.least_s) / width
        if share < rise:
            return self.least_s + sqrt(share * width * (self.usual_s - self.least_s))
        return self.most_s - sqrt((1 - share) * width * (self.most_s - self.usual_s))


@dataclass(frozen=True, slots=True)
class PoolSetting:
    """One pool. `first_replicas` None: as many as the first minute needs, as far as the policy allows."""

    name: str
    service: Service  # of one server
    price_per_hour: float
    min_replicas: int
    max_replicas: int
    cold_start: ColdStart
    first_replicas: int | None = None
    has_gpu: bool = False
    min_billing_s: float = 0.0
    consolidation_s: float = 0.0
    servers_per_card: int = 1
    noise_ratio: float = 0.0  # coefficient of variation of the time that an execution takes, around its curve

    def __post_init__(self) -> None:
        if not 0 <= self.noise_ratio <= MAX_NOISE_RATIO:
            raise ValueError(f"noise is a ratio of 0 or more, at most {MAX_NOISE_RATIO:g}, not {self.noise_ratio:g}")

    @property
    def supply(self) -> Supply:
        return Supply(
            self.price_per_hour,
            self.min_replicas,
            self.max_replicas,
            self.cold_start.mean_s,
            self.min_billing_s,
            self.has_gpu,
            self.servers_per_card,
            consolidation_s=self.consolidation_s,
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """`scaler`: who says how many GPU servers there are. `holds`: a request waits for a cold pool instead of being refused."""

    name: str
    has_cpu: bool
    scaler: Scaler
    holds: bool = False
    says: str = ""


POLICIES = (
    Policy("tandem", True, "wake", says="the CPU bridges, the GPU is woken when it pays"),
    Policy("cpu-only", True, "none", says="as many CPU servers as it takes"),
    Policy("gpu-always", False, "always", says="GPU servers for the peak, always warm"),
    Policy("no-bridge", False, "wake", says="the GPU alone, woken when needed; refused while it is cold"),
    Policy("hold", False, "demand", holds=True, says="the GPU alone, to zero when idle; requests wait for it"),
    Policy("oracle", True, "oracle", says="both, with the future known"),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """Pools with a GPU come and go, the others are always there. `quotas`: cards that several pools may have together."""

    pools: tuple[PoolSetting, ...]
    objective_s: float  # from arrival to answer
    rows: float = 1.0  # of each request, where arrivals do not say
    wake: ScalingRules = SCALING_RULES
    bridge: Rules = RULES
    cooldown_s: float = 300.0  # of `hold`, without a request before the GPU goes: KEDA's default cooldownPeriod
    quotas: tuple[Quota, ...] = ()

    def __post_init__(self) -> None:
        if not self.objective_s > 0 or not self.rows > 0:
            raise ValueError("an objective is more than 0 seconds, and a request at least a part of a row")
        if not self.cooldown_s >= 0:
            raise ValueError(f"cooldown_s is 0 or more seconds, not {self.cooldown_s:g}")

    @property
    def gpus(self) -> tuple[PoolSetting, ...]:
        return tuple(it for it in self.pools if it.has_gpu)

    @property
    def cpus(self) -> tuple[PoolSetting, ...]:
        return tuple(it for it in self.pools if not it.has_gpu)

    @property
    def sizes(self) -> Sizes:
        supplies = {it.name: it.supply for it in self.pools}
        return Sizes(supplies, frozenset(it.name for it in self.gpus), self.quotas)

    def used_by(self, policy: Policy) -> tuple[PoolSetting, ...]:
        """Who holds requests knows one pool: the cheapest with a GPU."""
        cpus, gpus = self.cpus * policy.has_cpu, self.gpus * (policy.scaler != "none")
        return (min(gpus, key=lambda it: it.price_per_hour),) if policy.holds else cpus + gpus


@dataclass(frozen=True, slots=True)
class _CurveFile:
    """Beside the scenario."""

    file: str
    variant: str = ALL


@dataclass(frozen=True, slots=True)
class _Pool:
    curve: Points | _CurveFile
    price_per_hour: float
    replicas: tuple[int, int]  # fewest, most
    cold_start_s: tuple[float, float, float]  # least, usual, most
    instances: int = 1
    max_batch: int = 1
    noise_ratio: float = 0.0
    device: Literal["cpu", "gpu"] | None = None  # None: as the pool is called
    min_billing_s: float = 0.0
    consolidation_s: float = 0.0
    servers_per_card: int = 1


@dataclass(frozen=True, slots=True)
class _Quota:
    pools: tuple[str, ...]
    max_cards: int


@dataclass(frozen=True, slots=True)
class _Scenario:
    version: Literal[1]
    objective_s: float
    pools: dict[str, _Pool]
    rows: float = 1.0
    cooldown_s: float = 300.0
    quotas: dict[str, _Quota] = field(default_factory=dict)
    wake: ScalingRules = SCALING_RULES


def read_scenario(path: Path) -> Setting:
    """Raises UserError with the file, the place in it and the way out."""
    document = read_document(path, "the scenario")
    read = document.values(_Scenario)
    pools = {}
    for name, pool in read.pools.items():
        if pool.device is None and name not in DEVICES:
            raise document.wrong(
                ("pools", name), "say its device, cpu or gpu, where a pool has another name than these"
            )
        try:
            pools[name] = _setting(name, pool, path.parent)
        except ValueError as error:
            raise document.wrong(("pools", name), str(error)) from None
        except UserError as error:
            raise document.wrong(("pools", name, "curve"), str(error)) from None
    for device in DEVICES:
        if not any(it.has_gpu == (device == "gpu") for it in pools.values()):
            raise document.wrong(("pools",), f"none has the device '{device}'; one of each is weighed at least")
    for name, quota in read.quotas.items():
        if unknown := [pool for pool in quota.pools if pool not in pools]:
            raise document.wrong(("quotas", name, "pools"), f"no pool '{unknown[0]}'{nearest(unknown[0], pools)}")
    try:
        return Setting(
            tuple(sorted(pools.values(), key=lambda it: it.has_gpu)),
            objective_s=read.objective_s,
            rows=read.rows,
            cooldown_s=read.cooldown_s,
            wake=read.wake,
            quotas=tuple(Quota(frozenset(it.pools), it.max_cards) for it in read.quotas.values()),
        )
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _setting(name: str, pool: _Pool, folder: Path) -> PoolSetting:
    """Raises ValueError for what cannot be, UserError for a file of curves."""
    least, most = pool.replicas
    curve = pool.curve
    setting = PoolSetting(
        name,
        Service(
            read_curves(folder / curve.file).named(curve.variant) if isinstance(curve, _CurveFile) else Curve(curve),
            pool.instances,
            pool.max_batch,
        ),
        pool.price_per_hour,
        least,
        most,
        ColdStart(*pool.cold_start_s),
        has_gpu=(pool.device or name) == "gpu",
        min_billing_s=pool.min_billing_s,
        consolidation_s=pool.consolidation_s,
        servers_per_card=pool.servers_per_card,
        noise_ratio=pool.noise_ratio,
    )
    setting.supply  # noqa: B018  (checks itself)
    return setting
