"""Which claims are put to the test, by which experiment, and which number answers each? A strict file, as campaigns are.

A claim's `number` is one of NUMBERS, which says what else may be chosen for it; a choice that would do nothing is an error. Rule: a claim
has its source and its own threshold in the file, so that whoever disagrees changes the file and not the code.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from loadtest.campaign_file import Name, OneOrMore, Text, between, require_different
from loadtest.errors import CampaignFileError
from serving.documents.nearest import nearest
from serving.documents.reader import Document, Place, read_document
from serving.errors import UserError

KIND = "claims"
MODELS = ("mlp", "minilm", "resnet50", "efficientnet-b2", "bert-base")
CPU_ENGINES, GPU_ENGINES = ("cpu", "openvino"), ("cuda", "tensorrt")
ENGINES = CPU_ENGINES + GPU_ENGINES
VARIANTS = ("fp32", "bf16", "tf32", "fp16", "int8")
POLICIES = ("tandem", "hold", "no-bridge")
# number -> what else may be said of it
_PAIR = frozenset({"models", "variant", "engine", "against_variant", "against_engine"})
NUMBERS: dict[str, tuple[frozenset[str], str]] = {
    "speed_up": (_PAIR | {"batch_sizes"}, "how many times as fast, in process, at the same batch size"),
    "batch_gain": (frozenset({"models", "variant", "engine"}), "rows/s at the best batch size, divided by rows/s at 1"),
    "weights_share": (
        frozenset({"models", "variant", "engine"}),
        "time to read the weights once at the bandwidth measured, as a share of the latency at batch 1",
    ),
    "trees_latency": (frozenset({"batch_sizes"}), "seconds for a batch through boosted trees, in process"),
    "price_gain": (_PAIR, "how many times cheaper a million rows are at full load"),
    "energy_gain": (_PAIR, "how many times fewer joules a million rows take"),
    "gpu_hours_saved": (frozenset({"policies"}), "share of the GPU hours of GPUs for the peak that is not used"),
    "served_gain": (
        frozenset({"models", "variant", "engine", "against_variant", "against_engine"}),
        "how many times the rows/s, served, one row at a time",
    ),
    "served_share": (
        frozenset({"models", "variant", "engine"}),
        "rows/s through gateway and Triton, divided by rows/s in process",
    ),
}
SERVED_MODELS = ("digits", "resnet50")  # one input of fixed size, as the load test sends them
_CHOICES = frozenset().union(*(keys for keys, _ in NUMBERS.values()))
DEFAULTS: dict[str, Any] = {
    "variant": "fp32",
    "engine": "cpu",
    "against_variant": "fp32",
    "against_engine": "cpu",
}


# The limits: more than these is a typing mistake (guess).
@dataclass(frozen=True, slots=True)
class _Speeds:
    batch_sizes: OneOrMore[Annotated[int, between(1, 1024)]] = (1, 2, 4, 8, 16, 32)
    seconds: Annotated[float, between(0.01, 600)] = 0.4
    max_seconds: Annotated[float, between(0.1, 3600)] = 12.0
    rounds: Annotated[int, between(2, 100)] = 5


@dataclass(frozen=True, slots=True)
class _Bandwidth:
    rounds: Annotated[int, between(2, 1000)] = 15


@dataclass(frozen=True, slots=True)
class _Trees:
    batch_sizes: OneOrMore[Annotated[int, between(1, 100_000)]] = (1, 32, 1024)
    seconds: Annotated[float, between(0.01, 600)] = 2.0


@dataclass(frozen=True, slots=True)
class _Scaling:
    scenario: Text = "../../docs/scenarios/bert-large.yaml"
    rate_rps: Annotated[float, between(0.1, 10_000)] = 30.0
    duration_s: Annotated[float, between(60, 86400)] = 3600.0
    burst_times: Annotated[float, between(1, 1000)] = 10.0
    burst_every_s: Annotated[float, between(1, 86400)] = 900.0
    burst_lasting_s: Annotated[float, between(1, 86400)] = 120.0
    seeds: OneOrMore[Annotated[int, between(0, 2**31 - 1)]] = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class _Latencies:
    batch_sizes: OneOrMore[Annotated[int, between(1, 32)]] = (1, 8, 32)
    outstanding: Annotated[int, between(1, 64)] = 4
    seconds: Annotated[float, between(0.1, 600)] = 1.5
    rounds: Annotated[int, between(2, 100)] = 5


@dataclass(frozen=True, slots=True)
class _Experiments:
    speeds: _Speeds = _Speeds()
    bandwidth: _Bandwidth = _Bandwidth()
    trees: _Trees = _Trees()
    scaling: _Scaling = _Scaling()
    served: _Latencies = _Latencies()


def one_of(*values: str) -> Any:
    def check(value: str) -> str:
        if value not in values:
            raise ValueError(f"must be one of {', '.join(values)}, not {value[:40]!r}")
        return value

    return AfterValidator(check)


@dataclass(frozen=True, slots=True)
class _ClaimForm:
    name: Name
    says: Text
    source: Text
    number: Annotated[str, one_of(*NUMBERS)]
    url: Text | None = None
    note: Text | None = None
    at_least: Annotated[float, between(0, 1e9)] | None = None
    at_most: Annotated[float, between(0, 1e9)] | None = None
    models: OneOrMore[Annotated[str, one_of(*MODELS, "digits")]] = ()
    variant: Annotated[str, one_of(*VARIANTS)] | None = None
    engine: Annotated[str, one_of(*ENGINES)] | None = None
    against_variant: Annotated[str, one_of(*VARIANTS)] | None = None
    against_engine: Annotated[str, one_of(*ENGINES)] | None = None
    batch_sizes: OneOrMore[Annotated[int, between(1, 100_000)]] = ()
    policies: OneOrMore[Annotated[str, one_of(*POLICIES)]] = ()


@dataclass(frozen=True, slots=True)
class _SuiteForm:
    version: Literal[1]
    kind: Literal["claims"]
    name: Name
    claims: Annotated[tuple[_ClaimForm, ...], Field(min_length=1)]
    note: Text | None = None
    experiments: _Experiments = _Experiments()


@dataclass(frozen=True, slots=True)
class Claim:
    """What is chosen and of no use for its number is empty. `batch_sizes` empty: all that were timed."""

    name: str
    says: str
    source: str
    number: str
    at_least: float | None = None
    at_most: float | None = None
    url: str | None = None
    note: str | None = None
    models: tuple[str, ...] = ()
    variant: str = ""
    engine: str = ""
    against_variant: str = ""
    against_engine: str = ""
    batch_sizes: tuple[int, ...] = ()
    policies: tuple[str, ...] = ()

    @property
    def experiment(self) -> str:
        """Which of the file's experiments has its number."""
        special = {"trees_latency": "trees", "gpu_hours_saved": "scaling"}
        return special.get(self.number, "served" if self.number.startswith("served") else "speeds")

    @property
    def asks_for(self) -> str:
        """Which number answers, in words."""
        own, other = f"{self.variant} on {self.engine}", f"{self.against_variant} on {self.against_engine}"
        words = NUMBERS[self.number][1]
        if self.against_engine:
            return f"{own} against {other}: {words}"
        return f"{own}: {words}" if self.engine else words

    @property
    def threshold(self) -> str:
        """In words."""
        both = [
            f"{word} {value:g}" for word, value in (("at least", self.at_least), ("at most", self.at_most)) if value
        ]
        return " and ".join(both)


@dataclass(frozen=True, slots=True)
class Suite:
    """`experiments`: name -> its settings, all of them filled."""

    name: str
    note: str | None
    experiments: dict[str, dict[str, Any]]
    claims: tuple[Claim, ...]
    folder: Path = Path()  # of the file: where a scenario is looked for

    def only(self, names: tuple[str, ...]) -> tuple[Claim, ...]:
        """All without names. Raises CampaignFileError."""
        known = [claim.name for claim in self.claims]
        for name in names:
            if name not in known:
                raise CampaignFileError(f"--only: no claim is named {name!r}{nearest(name, known)}")
        return tuple(claim for claim in self.claims if not names or claim.name in names)


def is_claims_file(path: Path) -> bool:
    """By its own word. What cannot be read is no such file, and its reader says why."""
    try:
        data = read_document(path, "the file").data
    except UserError:
        return False
    return isinstance(data, dict) and data.get("kind") == KIND


def read_suite(path: Path) -> Suite:
    """Raises CampaignFileError with file, line and the way out."""
    document = read_document(path, "the claims", CampaignFileError)
    form = document.values(_SuiteForm)
    require_different(document, "claims", [claim.name for claim in form.claims])
    claims = tuple(_claim(document, ("claims", number), claim) for number, claim in enumerate(form.claims))
    return Suite(form.name, form.note, asdict(form.experiments), claims, path.parent)


def _claim(document: Document, place: Place, form: _ClaimForm) -> Claim:
    number = form.number
    allowed, _ = NUMBERS[number]
    for key in sorted(_CHOICES - allowed):
        if getattr(form, key):
            what = f"it does nothing for {number!r}, which takes {', '.join(sorted(allowed))}"
            raise document.wrong((*place, key), what)
    if form.at_least is None and form.at_most is None:
        raise document.wrong(place, "a claim needs a threshold: 'at_least', 'at_most' or both")
    if form.at_least is not None and form.at_most is not None and form.at_least > form.at_most:
        raise document.wrong((*place, "at_least"), "it is above 'at_most', which no number is")
    for key in ("models", "policies"):
        if key in allowed and not getattr(form, key):
            raise document.wrong(place, f"{key!r} is missing: {number!r} is of {key}")
    known = SERVED_MODELS if number.startswith("served") else MODELS
    for model in form.models:
        if model not in known:
            raise document.wrong((*place, "models"), f"{number!r} is not of {model!r}{nearest(model, known)}")
    filled = {key: getattr(form, key) or (value if key in allowed else "") for key, value in DEFAULTS.items()}
    return Claim(**asdict(form) | filled)
