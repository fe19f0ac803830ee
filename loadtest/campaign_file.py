"""What does a campaign file say? Read strictly: an unknown key stops it with its line and the nearest known key.

The file's form is `_CampaignForm` and nothing else; an option that does nothing must not be in it. A claims file has the same kinds of
fields. Not here: whether what is sent fits the model, which only the gateway knows (`sending/prepared.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from loadtest.errors import CampaignFileError
from loadtest.records import Load, Payload
from serving.decisions.traces import read_trace
from serving.documents.nearest import closest, nearest
from serving.documents.reader import Document, read_document
from serving.errors import UserError

NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")  # as the gateway's public names; also a directory's and a header's


def between(low: float, high: float) -> Any:
    return Field(ge=low, le=high)


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(f"must be a name of letters, digits, '.', '_' and '-', not {value[:40]!r}")
    return value


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("must be text that is not empty")
    return value


def _different(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values or len(set(values)) < len(values):
        raise ValueError("must be one value or a list of different ones")
    return values


def require_different(document: Document, key: str, names: Sequence[str]) -> None:
    """Raises the document's error where two entries below `key` have one name."""
    for number, name in enumerate(names):
        if name in names[:number]:
            raise document.wrong((key, number), f"two {key} are named {name!r}; give one a 'name' of its own")


T = TypeVar("T")
Name = Annotated[str, AfterValidator(_name)]
Text = Annotated[str, AfterValidator(_text)]
OneOrMore = Annotated[
    tuple[T, ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else (value,)),
    AfterValidator(_different),
]

# -- what is sent ------------------------------------------------------------------------------------------------------

DATA = ("digits", "random", "photographs", "texts")
ARRAYS, TEXTS = ".npz", ".txt"  # a file of arrays by input name, one of a text a line


def _data(value: str) -> str:
    if value in DATA or value.endswith((ARRAYS, TEXTS)):
        return value
    near = closest(value, DATA)
    what = f"must be one of {', '.join(DATA)}, or a file's name that ends in {ARRAYS} or {TEXTS}, not {value[:40]!r}"
    raise ValueError(f"{what}; did you mean {near!r}?" if near else what)


# 32 rows a request is the largest batch `digits` takes; beyond 65,536 a length is a typing mistake (guess).
@dataclass(frozen=True, slots=True)
class PayloadForm:
    data: Annotated[str, AfterValidator(_data)] = "digits"
    encoding: Literal["json", "binary"] = "json"
    batch_size: Annotated[int, between(1, 32)] = 1
    length: Annotated[int, between(1, 65536)] | None = None
    model_repository: Text | None = None


DEFAULT_PAYLOAD = PayloadForm()


def payload(document: Document, form: PayloadForm, folder: Path) -> Payload:
    """What these data cannot use is an error, not a word without effect; so is a file that is not there."""
    data, repository = form.data, form.model_repository
    if form.length is not None and data != "random":
        raise document.wrong(("payload", "length"), f"it does nothing here: it is of random inputs, not of {data}")
    if repository is not None and (data in ("digits", "random") or data.endswith(ARRAYS)):
        why = "only texts and photographs are made as the model's files say"
        raise document.wrong(("payload", "model_repository"), f"it does nothing here: {why}")
    if data.endswith((ARRAYS, TEXTS)) and not (folder / data).is_file():
        raise document.wrong(("payload", "data"), f"there is no file {folder / data}")
    if repository and not (folder / repository).is_dir():
        raise document.wrong(("payload", "model_repository"), f"there is no directory {folder / repository}")
    return Payload(**asdict(form))


# -- the campaign ------------------------------------------------------------------------------------------------------

OPEN_ONLY = ("rate_rps", "arrivals", "trace", "max_in_flight", "processes")
BURSTS_ONLY = ("burst_times", "burst_every_s", "burst_lasting_s")


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    variant: str
    pool: str
    is_again: bool = False  # the baseline a second time


@dataclass(frozen=True, slots=True)
class Campaign:
    name: str
    model: str
    arms: tuple[Arm, ...]
    baseline: str  # an arm's name
    load: Load
    payload: Payload
    note: str | None
    folder: Path = Path()  # of the file: where a trace is looked for

    @property
    def recorded(self) -> list[tuple[float, int]]:
        """Seconds and rows of the trace's requests, empty without one. Raises UserError."""
        if not self.load.trace:
            return []
        found = read_trace(self.folder / self.load.trace, self.payload.batch_size, self.model)
        return [(at, max(1, round(rows))) for at, rows in found]

    def lasting(self, duration_s: float | None, warmup_s: float | None, repeats: int | None) -> Campaign:
        """With these instead of the file's, None: the file's. Of a trace that is another part, with a rate of its own. Raises UserError."""
        load = self.load
        load = replace(
            load,
            duration_s=load.duration_s if duration_s is None else duration_s,
            warmup_s=load.warmup_s if warmup_s is None else warmup_s,
            repeats=load.repeats if repeats is None else repeats,
        )
        if load.trace:
            load = replace(load, rate_rps=(mean_rate_rps([at for at, _ in self.recorded], load.end_s),))
        return replace(self, load=load)


# The limits: users and repeats beyond these are a typing mistake on one machine (guess); a day of load is another kind of test.
@dataclass(frozen=True, slots=True)
class _LoadForm:
    kind: Literal["closed", "open"] = "closed"
    users: OneOrMore[Annotated[int, between(1, 4096)]] = (8,)
    rate_rps: OneOrMore[Annotated[float, between(0.01, 100_000)]] = ()
    arrivals: Literal["constant", "poisson", "bursts"] = "poisson"
    burst_times: Annotated[float, between(1, 1000)] = 4.0
    burst_every_s: Annotated[float, between(0.1, 86400)] = 10.0
    burst_lasting_s: Annotated[float, between(0.01, 86400)] = 2.0
    trace: Text | None = None
    objective_s: Annotated[float, between(0.0001, 3600)] | None = None
    max_in_flight: Annotated[int, between(1, 100_000)] = 512
    processes: Annotated[int, between(1, 256)] = 1
    warmup_s: Annotated[float, between(0, 3600)] = 1.0
    duration_s: Annotated[float, between(0.2, 86400)] = 4.0
    repeats: Annotated[int, between(1, 100)] = 3
    seed: Annotated[int, between(0, 2**31 - 1)] = 1


@dataclass(frozen=True, slots=True)
class _ArmForm:
    variant: Name
    pool: Name
    name: Name | None = None


@dataclass(frozen=True, slots=True)
class _CampaignForm:
    version: Literal[1]
    name: Name
    model: Name
    arms: Annotated[tuple[_ArmForm, ...], Field(min_length=1)]
    note: Text | None = None
    baseline: Name | None = None
    baseline_twice: bool = False
    load: _LoadForm = _LoadForm()
    payload: PayloadForm = DEFAULT_PAYLOAD


def read_campaign(path: Path, replayed: Path | None = None) -> Campaign:
    """`replayed`: what was recorded there is sent, in the place of the file's load.

    Raises CampaignFileError with file, line and the way out.
    """
    document = read_document(path, "the campaign", CampaignFileError)
    if (
        replayed is not None
        and isinstance(document.data, dict)
        and isinstance(load := document.data.get("load", {}), dict)
    ):
        kept = {key: value for key, value in load.items() if key not in ("users", "rate_rps", "arrivals", *BURSTS_ONLY)}
        data = document.data | {"load": kept | {"kind": "open", "trace": str(replayed.absolute())}}
        document = replace(document, data=data)
    form = document.values(_CampaignForm)
    arms = [Arm(arm.name or f"{arm.variant}-{arm.pool}", arm.variant, arm.pool) for arm in form.arms]
    names = [arm.name for arm in arms]
    require_different(document, "arms", names)
    baseline = form.baseline or names[0]
    if baseline not in names:
        raise document.wrong(("baseline",), f"no arm is named {baseline!r}{nearest(baseline, names)}")
    if form.baseline_twice:  # two equal arms, which a report must not tell apart
        again = replace(arms[names.index(baseline)], name=f"{baseline}-again", is_again=True)
        if again.name in names:
            raise document.wrong(
                ("baseline_twice",), f"the baseline's second arm is named {again.name!r}, and an arm has that name"
            )
        arms.append(again)
    return Campaign(
        form.name,
        form.model,
        tuple(arms),
        baseline,
        _load(document, form.load, path.parent, form.model),
        payload(document, form.payload, path.parent),
        form.note,
        path.parent,
    )


def _load(document: Document, form: _LoadForm, folder: Path, model: str) -> Load:
    """What one kind of load cannot use is an error, not a word without effect."""
    is_open = form.kind == "open"
    unused = ["users"] if is_open else [*OPEN_ONLY, *BURSTS_ONLY]
    if form.arrivals != "bursts":
        unused += BURSTS_ONLY
    if form.trace:
        unused += ["rate_rps", "arrivals"]
    given = document.data.get("load", {})
    for key in unused:
        if key in given:
            why = (
                "a trace has its own times"
                if form.trace and key in ("rate_rps", "arrivals")
                else ("arrivals are not bursts" if is_open and key in BURSTS_ONLY else f"the loop is {form.kind}")
            )
            raise document.wrong(("load", key), f"it does nothing here: {why}")
    if is_open and form.objective_s is None:
        raise document.wrong(
            ("load",), "'objective_s' is missing: an open loop is judged by the latency that is wanted"
        )
    if is_open and not form.trace and not form.rate_rps:
        raise document.wrong(("load",), "'rate_rps' is missing: an open loop sends so many requests per second")
    values = asdict(form) | {
        "users": () if is_open else form.users,
        "rate_rps": form.rate_rps if is_open else (),
    }
    try:
        if form.trace:
            times_s = [at for at, _ in read_trace(folder / form.trace, model=model)]
            values |= {"arrivals": "trace", "rate_rps": (mean_rate_rps(times_s, form.warmup_s + form.duration_s),)}
        load = Load(**values)
        for rate in load.rate_rps:
            load.at(rate, (0.0,))
    except UserError as error:
        raise document.wrong(("load", "trace"), str(error)) from None
    except ValueError as error:
        raise document.wrong(("load",), str(error)) from None
    return load


def mean_rate_rps(times_s: Sequence[float], end_s: float) -> float:
    """Of the part of a trace that is sent."""
    return max(0.01, sum(1 for at in times_s if at < end_s) / end_s)
