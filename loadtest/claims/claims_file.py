"""Which claims are put to the test, by which experiment, and which number answers each? A strict file, as campaigns are.

A claim's `number` is one of NUMBERS, which says what else may be chosen for it; a choice that would do nothing is an error. Rule: a claim
has its source and its own threshold in the file, so that whoever disagrees changes the file and not the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtest.errors import CampaignFileError
from loadtest.strict_yaml import REQUIRED, Reader, a_name, a_number, a_text, compose, one_of, one_or_more, read_text
from serving.documents.nearest import nearest

KIND = "claims"
MODELS = ("mlp", "minilm", "resnet50", "efficientnet-b2", "bert-base")
CPU_ENGINES, GPU_ENGINES = ("cpu", "openvino"), ("cuda", "tensorrt")
ENGINES = CPU_ENGINES + GPU_ENGINES
VARIANTS = ("fp32", "bf16", "fp16", "int8")
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
FORM: dict[str, Any] = {
    "version": (a_number(1, 1, int), REQUIRED),
    "kind": (one_of(KIND), REQUIRED),
    "name": (a_name, REQUIRED),
    "note": (a_text, None),
    "experiments": {
        "speeds": {
            "batch_sizes": (one_or_more(a_number(1, 1024, int)), [1, 2, 4, 8, 16, 32]),
            "seconds": (a_number(0.01, 600), 0.4),
            "max_seconds": (a_number(0.1, 3600), 12.0),
            "rounds": (a_number(2, 100, int), 5),
        },
        "bandwidth": {"rounds": (a_number(2, 1000, int), 15)},
        "trees": {
            "batch_sizes": (one_or_more(a_number(1, 100_000, int)), [1, 32, 1024]),
            "seconds": (a_number(0.01, 600), 2.0),
        },
        "scaling": {
            "scenario": (a_text, "../../docs/scenarios/bert-large.yaml"),
            "rate_rps": (a_number(0.1, 10_000), 30.0),
            "duration_s": (a_number(60, 86400), 3600.0),
            "burst_times": (a_number(1, 1000), 10.0),
            "burst_every_s": (a_number(1, 86400), 900.0),
            "burst_lasting_s": (a_number(1, 86400), 120.0),
            "seeds": (one_or_more(a_number(0, 2**31 - 1, int)), [1, 2, 3, 4, 5]),
        },
        "served": {
            "batch_sizes": (one_or_more(a_number(1, 32, int)), [1, 8, 32]),
            "outstanding": (a_number(1, 64, int), 4),
            "seconds": (a_number(0.1, 600), 1.5),
            "rounds": (a_number(2, 100, int), 5),
        },
    },
    "claims": [
        {
            "name": (a_name, REQUIRED),
            "says": (a_text, REQUIRED),
            "source": (a_text, REQUIRED),
            "url": (a_text, None),
            "note": (a_text, None),
            "number": (one_of(*NUMBERS), REQUIRED),
            "at_least": (a_number(0, 1e9), None),
            "at_most": (a_number(0, 1e9), None),
            "models": (one_or_more(one_of(*MODELS, "digits")), None),
            "variant": (one_of(*VARIANTS), None),
            "engine": (one_of(*ENGINES), None),
            "against_variant": (one_of(*VARIANTS), None),
            "against_engine": (one_of(*ENGINES), None),
            "batch_sizes": (one_or_more(a_number(1, 100_000, int)), None),
            "policies": (one_or_more(one_of(*POLICIES)), None),
        }
    ],
}


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
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return False
    keys = {key.value: value.value for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
    return keys.get("kind") == KIND


def read_suite(path: Path) -> Suite:
    """Raises CampaignFileError with file, line and the way out."""
    return parse_suite(read_text(path), str(path))


def parse_suite(text: str, file: str) -> Suite:
    root = compose(text, file, "loadtest/campaigns/claims.yaml")
    reader = Reader(file)
    values = reader.mapping(root, FORM, "the claims file")
    reader.distinct(root, "claims", [claim["name"] for claim in values["claims"]])
    nodes = reader.key(root, "claims").value
    claims = tuple(_claim(reader, node, value) for node, value in zip(nodes, values["claims"], strict=True))
    experiments = {name: _lists(settings) for name, settings in values["experiments"].items()}
    return Suite(values["name"], values["note"], experiments, claims, Path(file).parent)


def _lists(settings: dict[str, Any]) -> dict[str, Any]:
    plural = ("batch_sizes", "seeds")
    return {key: _tuple(value) if key in plural else value for key, value in settings.items()}


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _claim(reader: Reader, node: yaml.Node, values: dict[str, Any]) -> Claim:
    number = values["number"]
    allowed, _ = NUMBERS[number]
    for key in sorted(_CHOICES - allowed):
        if values[key] is not None:
            what = f"{key!r} does nothing for {number!r}, which takes {', '.join(sorted(allowed))}"
            raise reader.error(reader.key(node, key), what)
    if values["at_least"] is None and values["at_most"] is None:
        raise reader.error(node, "a claim needs a threshold: 'at_least', 'at_most' or both")
    if None not in (values["at_least"], values["at_most"]) and values["at_least"] > values["at_most"]:
        raise reader.error(reader.key(node, "at_least"), "'at_least' is above 'at_most', which no number is")
    filled = {key: DEFAULTS[key] if values[key] is None and key in allowed else values[key] for key in DEFAULTS}
    plural = {key: () if values[key] is None else _tuple(values[key]) for key in ("models", "batch_sizes", "policies")}
    if "models" in allowed and not plural["models"]:
        raise reader.error(node, f"'models' is missing: {number!r} is of models")
    if "policies" in allowed and not plural["policies"]:
        raise reader.error(node, f"'policies' is missing: {number!r} is of policies")
    known = SERVED_MODELS if number.startswith("served") else MODELS
    for model in plural["models"]:
        if model not in known:
            raise reader.error(
                reader.key(node, "models"), f"{number!r} is not of {model!r}{nearest(model, list(known))}"
            )
    taken = ("name", "says", "source", "number", "at_least", "at_most", "url", "note")
    fields: dict[str, Any] = {key: values[key] for key in taken}
    fields |= {key: value or "" for key, value in filled.items()} | plural
    return Claim(**fields)
