"""What does a campaign file say? Strictly: an unknown key stops it with its line and the nearest known key.

Pure but for the one read. The file's form is the table FORM and nothing else; an option that does nothing must not be in it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from loadtest.errors import CampaignFileError
from loadtest.records import Load, Payload
from serving.errors import UserError
from serving.replay.traces import read_trace

KINDS = ("closed", "open")
OPEN_ONLY = ("rate_rps", "arrivals", "trace", "max_in_flight", "processes")
BURSTS_ONLY = ("burst_times", "burst_every_s", "burst_lasting_s")
ENCODINGS = ("json", "binary")
DATA = ("digits", "random")
NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")  # as the gateway's public names; also a directory's and a header's


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    variant: str
    pool: str


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


# A check takes the value and returns what is wrong with it, or None.
Check = Callable[[Any], "str | None"]


def _number(low: float, high: float, kind: type = float) -> Check:
    def check(value: Any) -> str | None:
        is_right = isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
        if is_right and low <= value <= high:
            return None
        return f"must be {'a number' if kind is float else 'a whole number'} from {low:g} to {high:g}"

    return check


def _one_of(*values: str) -> Check:
    return lambda value: None if value in values else f"must be one of {', '.join(values)}"


def _name(value: Any) -> str | None:
    return (
        None
        if isinstance(value, str) and NAME.fullmatch(value)
        else "must be a name of letters, digits, '.', '_' and '-'"
    )


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value.strip() else "must be text"


def _some(check: Check) -> Check:
    """One, or a list of different ones."""

    def check_all(value: Any) -> str | None:
        values = value if isinstance(value, list) else [value]
        if not values or len(set(map(str, values))) < len(values):
            return "must be one value or a list of different ones"
        return next((problem for one in values if (problem := check(one))), None)

    return check_all


REQUIRED = object()

# key -> (check, default), or the form of what is nested. The limits: users and repeats beyond these are a typing mistake on
# one machine (guess); a day of load is another kind of test; 32 images a request is the largest batch `digits` takes.
FORM: dict[str, Any] = {
    "version": (_number(1, 1, int), REQUIRED),
    "name": (_name, REQUIRED),
    "model": (_name, REQUIRED),
    "note": (_text, None),
    "baseline": (_name, None),
    "load": {
        "kind": (_one_of(*KINDS), "closed"),
        "users": (_some(_number(1, 4096, int)), [8]),
        "rate_rps": (_some(_number(0.01, 100_000)), []),
        "arrivals": (_one_of("constant", "poisson", "bursts"), "poisson"),
        "burst_times": (_number(1, 1000), 4.0),
        "burst_every_s": (_number(0.1, 86400), 10.0),
        "burst_lasting_s": (_number(0.01, 86400), 2.0),
        "trace": (_text, None),
        "objective_s": (_number(0.0001, 3600), None),
        "max_in_flight": (_number(1, 100_000, int), 512),
        "processes": (_number(1, 256, int), 1),
        "warmup_s": (_number(0, 3600), 1.0),
        "duration_s": (_number(0.2, 86400), 4.0),
        "repeats": (_number(1, 100, int), 3),
        "seed": (_number(0, 2**31 - 1, int), 1),
    },
    "payload": {
        "data": (_one_of(*DATA), "digits"),
        "encoding": (_one_of(*ENCODINGS), "json"),
        "batch_size": (_number(1, 32, int), 1),
    },
    "arms": [{"name": (_name, None), "variant": (_name, REQUIRED), "pool": (_name, REQUIRED)}],
}


def read_campaign(path: Path) -> Campaign:
    """Raises CampaignFileError with file, line and the way out."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CampaignFileError(f"{path} is not text in UTF-8: byte {error.start} is none of its characters.") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise CampaignFileError(f"{path} cannot be read: {why}; examples are in loadtest/campaigns/.") from error
    return parse_campaign(text, str(path))


def parse_campaign(text: str, file: str) -> Campaign:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise CampaignFileError(f"{file}, line {line}: not YAML: {error.problem}.") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise CampaignFileError(
            f"{file}, line {line}: not YAML: it holds the character {error.character!r}."
        ) from error
    if root is None:
        raise CampaignFileError(f"{file}: the file is empty; loadtest/campaigns/digits.yaml is an example.")
    reader = _Reader(file)
    values = reader.mapping(root, FORM, "the campaign")
    arms = tuple(Arm(a["name"] or f"{a['variant']}-{a['pool']}", a["variant"], a["pool"]) for a in values["arms"])
    reader.distinct(root, [arm.name for arm in arms])
    baseline = values["baseline"] or arms[0].name
    if baseline not in [arm.name for arm in arms]:
        known = [arm.name for arm in arms]
        raise reader.error(reader.key(root, "baseline"), f"no arm is named {baseline!r}{_nearest(baseline, known)}")
    return Campaign(
        values["name"],
        values["model"],
        arms,
        baseline,
        _load(reader, reader.key(root, "load"), values["load"], Path(file).parent),
        Payload(**values["payload"]),
        values["note"],
        Path(file).parent,
    )


def _load(reader: _Reader, node: yaml.Node, values: dict[str, Any], folder: Path) -> Load:
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


def _rate_of(reader: _Reader, node: yaml.Node, file: Path, end_s: float) -> float:
    try:
        return mean_rate_rps([at for at, _ in read_trace(file)], end_s)
    except UserError as error:
        raise reader.error(node, str(error).rstrip(".")) from None


def mean_rate_rps(times_s: Sequence[float], end_s: float) -> float:
    """Of the part of a trace that is sent."""
    return max(0.01, sum(1 for at in times_s if at < end_s) / end_s)


class _Reader:
    """Walks YAML nodes, which know their lines, against a form."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._constructor = yaml.SafeLoader("")

    def error(self, node: yaml.Node, what: str) -> CampaignFileError:
        return CampaignFileError(f"{self.file}, line {node.start_mark.line + 1}: {what}.")

    def mapping(self, node: yaml.Node, form: dict[str, Any], where: str) -> dict[str, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise self.error(node, f"{where} must be keys and values")
        found: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key not in form:
                raise self.error(key_node, f"unknown key {key!r} in {where}{_nearest(key, list(form))}")
            if key in found:
                raise self.error(key_node, f"{key!r} is given twice in {where}")
            found[key] = value_node
        return {key: self._value(node, found.get(key), key, rule, where) for key, rule in form.items()}

    def _value(self, parent: yaml.Node, node: yaml.Node | None, key: str, rule: Any, where: str) -> Any:
        if isinstance(rule, dict):
            return (
                self.mapping(node, rule, f"{key!r}")
                if node is not None
                else {k: default for k, (_, default) in rule.items()}
            )
        if isinstance(rule, list):
            if not isinstance(node, yaml.SequenceNode) or not node.value:
                raise self.error(node or parent, f"{key!r} must be a list with at least one entry")
            return [self.mapping(item, rule[0], f"an entry of {key!r}") for item in node.value]
        check, default = rule
        if node is None:
            if default is REQUIRED:
                raise self.error(parent, f"{key!r} is missing in {where}")
            return default
        try:
            value = self._constructor.construct_object(node, deep=True)
        except yaml.YAMLError:
            raise self.error(node, f"{key!r} {check(object())}, not of YAML's type {node.tag}") from None
        except (ValueError, TypeError, AttributeError, LookupError):  # 2026-13-45, and what is tagged as what it is not
            text = getattr(node, "value", "")
            raise self.error(node, f"{key!r} {check(object())}, not {str(text)[:40]!r}") from None
        if problem := check(value):
            raise self.error(node, f"{key!r} {problem}, not {value!r}")
        return value

    def key(self, root: yaml.Node, name: str) -> yaml.Node:
        assert isinstance(root, yaml.MappingNode)
        return next((value for key, value in root.value if key.value == name), root)

    def distinct(self, root: yaml.Node, names: list[str]) -> None:
        arms = self.key(root, "arms")
        for index, name in enumerate(names):
            if name in names[:index]:
                raise self.error(arms.value[index], f"two arms are named {name!r}; give one a 'name' of its own")


def _nearest(word: str, known: list[str]) -> str:
    matches = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else f"; known are {', '.join(known)}"
