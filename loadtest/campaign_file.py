"""What does a campaign file say? Strictly: an unknown key stops it with its line and the nearest known key.

Pure but for the one read. The file's form is the table FORM and nothing else; an option that does nothing must not be in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from loadtest.records import Load, Payload
from loadtest.sending import payload_file
from loadtest.strict_yaml import (
    REQUIRED,
    Reader,
    a_flag,
    a_name,
    a_number,
    a_text,
    compose,
    one_of,
    one_or_more,
    read_text,
)
from serving.decisions.files.traces import read_trace
from serving.documents.nearest import nearest
from serving.errors import UserError

KINDS = ("closed", "open")
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
    def times_s(self) -> list[float]:
        """Of the trace, empty without one. Raises UserError."""
        return [at for at, _ in read_trace(self.folder / self.load.trace)] if self.load.trace else []

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
            load = replace(load, rate_rps=(mean_rate_rps(self.times_s, load.end_s),))
        return replace(self, load=load)


# key -> (check, default), or the form of what is nested. The limits: users and repeats beyond these are a typing mistake on
# one machine (guess); a day of load is another kind of test.
FORM: dict[str, Any] = {
    "version": (a_number(1, 1, int), REQUIRED),
    "name": (a_name, REQUIRED),
    "model": (a_name, REQUIRED),
    "note": (a_text, None),
    "baseline": (a_name, None),
    "baseline_twice": (a_flag, False),
    "load": {
        "kind": (one_of(*KINDS), "closed"),
        "users": (one_or_more(a_number(1, 4096, int)), [8]),
        "rate_rps": (one_or_more(a_number(0.01, 100_000)), []),
        "arrivals": (one_of("constant", "poisson", "bursts"), "poisson"),
        "burst_times": (a_number(1, 1000), 4.0),
        "burst_every_s": (a_number(0.1, 86400), 10.0),
        "burst_lasting_s": (a_number(0.01, 86400), 2.0),
        "trace": (a_text, None),
        "objective_s": (a_number(0.0001, 3600), None),
        "max_in_flight": (a_number(1, 100_000, int), 512),
        "processes": (a_number(1, 256, int), 1),
        "warmup_s": (a_number(0, 3600), 1.0),
        "duration_s": (a_number(0.2, 86400), 4.0),
        "repeats": (a_number(1, 100, int), 3),
        "seed": (a_number(0, 2**31 - 1, int), 1),
    },
    "payload": payload_file.FORM,
    "arms": [{"name": (a_name, None), "variant": (a_name, REQUIRED), "pool": (a_name, REQUIRED)}],
}


def read_campaign(path: Path) -> Campaign:
    """Raises CampaignFileError with file, line and the way out."""
    return parse_campaign(read_text(path), str(path))


def parse_campaign(text: str, file: str) -> Campaign:
    root = compose(text, file, "loadtest/campaigns/digits.yaml")
    reader = Reader(file)
    values = reader.mapping(root, FORM, "the campaign")
    arms = tuple(Arm(a["name"] or f"{a['variant']}-{a['pool']}", a["variant"], a["pool"]) for a in values["arms"])
    reader.distinct(root, "arms", [arm.name for arm in arms])
    baseline = values["baseline"] or arms[0].name
    if baseline not in [arm.name for arm in arms]:
        known = [arm.name for arm in arms]
        raise reader.error(reader.key(root, "baseline"), f"no arm is named {baseline!r}{nearest(baseline, known)}")
    if values["baseline_twice"]:
        arms = _with_again(reader, reader.key(root, "baseline_twice"), arms, baseline)
    return Campaign(
        values["name"],
        values["model"],
        arms,
        baseline,
        _load(reader, reader.key(root, "load"), values["load"], Path(file).parent),
        payload_file.payload(reader, reader.key(root, "payload"), values["payload"], Path(file).parent),
        values["note"],
        Path(file).parent,
    )


def _with_again(reader: Reader, node: yaml.Node, arms: tuple[Arm, ...], baseline: str) -> tuple[Arm, ...]:
    """The baseline a second time, as an arm of its own: two equal arms, which a report must not tell apart."""
    again = replace(next(arm for arm in arms if arm.name == baseline), name=f"{baseline}-again", is_again=True)
    if again.name in [arm.name for arm in arms]:
        raise reader.error(node, f"the baseline's second arm is named {again.name!r}, and an arm has that name")
    return (*arms, again)


def _load(reader: Reader, node: yaml.Node, values: dict[str, Any], folder: Path) -> Load:
    """What one kind of load cannot use is an error, not a word without effect."""
    given = {key.value: key for key, _ in node.value} if isinstance(node, yaml.MappingNode) else {}
    is_open = values["kind"] == "open"
    unused = ["users"] if is_open else [*OPEN_ONLY, *BURSTS_ONLY]
    if values["arrivals"] != "bursts":
        unused += BURSTS_ONLY
    if values["trace"]:
        unused += ["rate_rps", "arrivals"]
    for key in unused:
        if key in given:
            why = (
                "a trace has its own times"
                if values["trace"] and key in ("rate_rps", "arrivals")
                else ("arrivals are not bursts" if is_open and key in BURSTS_ONLY else f"the loop is {values['kind']}")
            )
            raise reader.error(given[key], f"{key!r} does nothing here: {why}")
    if is_open and values["objective_s"] is None:
        raise reader.error(
            node, "'objective_s' is missing in 'load': an open loop is judged by the latency that is wanted"
        )
    if is_open and not values["trace"] and not values["rate_rps"]:
        raise reader.error(node, "'rate_rps' is missing in 'load': an open loop sends so many requests per second")
    rates = values["rate_rps"] if isinstance(values["rate_rps"], list) else [values["rate_rps"]]
    users = values["users"] if isinstance(values["users"], list) else [values["users"]]
    end_s = values["warmup_s"] + values["duration_s"]
    if values["trace"]:
        rates = [_rate_of(reader, given["trace"], folder / values["trace"], end_s)]
    shared = {
        **values,
        "users": () if is_open else tuple(users),
        "rate_rps": tuple(map(float, rates)) if is_open else (),
    }
    load = Load(**(shared | {"arrivals": "trace"} if values["trace"] else shared))
    try:
        for rate in load.rate_rps:
            load.at(rate, (0.0,))
    except ValueError as error:
        raise reader.error(node, f"'load': {error}") from None
    return load


def _rate_of(reader: Reader, node: yaml.Node, file: Path, end_s: float) -> float:
    try:
        return mean_rate_rps([at for at, _ in read_trace(file)], end_s)
    except UserError as error:
        raise reader.error(node, str(error).rstrip(".")) from None


def mean_rate_rps(times_s: Sequence[float], end_s: float) -> float:
    """Of the part of a trace that is sent."""
    return max(0.01, sum(1 for at in times_s if at < end_s) / end_s)
