"""Is a YAML file as strict as ours are? An unknown key stops it with its line and the nearest known key.

A form is a table of keys with a check and a default each, or the form of what is nested. Not here: what any file says. Rule: pure but for
the one read; every message names the file, the line and the way out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from loadtest.errors import CampaignFileError
from serving.documents.nearest import nearest

NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")  # as the gateway's public names; also a directory's and a header's

# A check takes the value and returns what is wrong with it, or None.
Check = Callable[[Any], "str | None"]


def a_number(low: float, high: float, kind: type = float) -> Check:
    def check(value: Any) -> str | None:
        is_right = isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
        if is_right and low <= value <= high:
            return None
        return f"must be {'a number' if kind is float else 'a whole number'} from {low:g} to {high:g}"

    return check


def one_of(*values: str) -> Check:
    return lambda value: None if value in values else f"must be one of {', '.join(values)}"


def a_name(value: Any) -> str | None:
    return (
        None
        if isinstance(value, str) and NAME.fullmatch(value)
        else "must be a name of letters, digits, '.', '_' and '-'"
    )


def a_flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def a_text(value: Any) -> str | None:
    return None if isinstance(value, str) and value.strip() else "must be text"


def one_or_more(check: Check) -> Check:
    """One, or a list of different ones."""

    def check_all(value: Any) -> str | None:
        values = value if isinstance(value, list) else [value]
        if not values or len(set(map(str, values))) < len(values):
            return "must be one value or a list of different ones"
        return next((problem for one in values if (problem := check(one))), None)

    return check_all


REQUIRED = object()


def read_text(path: Path) -> str:
    """Raises CampaignFileError."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CampaignFileError(f"{path} is not text in UTF-8: byte {error.start} is none of its characters.") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise CampaignFileError(f"{path} cannot be read: {why}; examples are in loadtest/campaigns/.") from error


def compose(text: str, file: str, example: str) -> yaml.Node:
    """The nodes, which know their lines. Raises CampaignFileError."""
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
        raise CampaignFileError(f"{file}: the file is empty; {example} is an example.")
    return root


class Reader:
    """Walks YAML nodes, which know their lines, against a form."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._constructor = yaml.SafeLoader("")

    def error(self, node: yaml.Node, what: str) -> CampaignFileError:
        return CampaignFileError(
            f"{self.file}, line {node.start_mark.line + 1}: {what}{'' if what.endswith('?') else '.'}"
        )

    def mapping(self, node: yaml.Node, form: dict[str, Any], where: str) -> dict[str, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise self.error(node, f"{where} must be keys and values")
        found: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key not in form:
                raise self.error(key_node, f"unknown key {key!r} in {where}{nearest(key, list(form))}")
            if key in found:
                raise self.error(key_node, f"{key!r} is given twice in {where}")
            found[key] = value_node
        return {key: self._value(node, found.get(key), key, rule, where) for key, rule in form.items()}

    def _value(self, parent: yaml.Node, node: yaml.Node | None, key: str, rule: Any, where: str) -> Any:
        if isinstance(rule, dict):
            if node is not None:
                return self.mapping(node, rule, f"{key!r}")
            return {inner: self._value(parent, None, inner, below, f"{key!r}") for inner, below in rule.items()}
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

    def distinct(self, root: yaml.Node, key: str, names: list[str]) -> None:
        """The entries of the list under `key` have these names."""
        entries = self.key(root, key)
        for index, name in enumerate(names):
            if name in names[:index]:
                raise self.error(entries.value[index], f"two {key} are named {name!r}; give one a 'name' of its own")
