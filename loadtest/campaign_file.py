"""What does a campaign file say? Strictly: an unknown key stops it with its line and the nearest known key.

Pure but for the one read. The file's form is the table FORM and nothing else; an option that does nothing must not be in it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtest.errors import CampaignFileError
from loadtest.records import Load, Payload

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
        "users": (_number(1, 4096, int), 8),
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
        Load(**values["load"]),
        Payload(**values["payload"]),
        values["note"],
    )


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
        value = self._constructor.construct_object(node, deep=True)
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
