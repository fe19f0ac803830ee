"""What may values.yaml say? The chart's JSON Schema, made from values.yaml itself and the shapes beside it.

A plain default says its own type: a text, a flag, a whole number. What it cannot say (a bound, what goes into an empty list) stands in a
line `# schema:` above it, with `$name` for a shape of shapes.yaml. A group of values refuses every name that it does not have.
Rule: a default from which nothing follows, such as [] or null, is an error here, never "anything goes".
"""

from __future__ import annotations

import re
from typing import Any

import yaml

SCHEMA_LINE = "schema:"
PLAIN_TYPES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}


def schema(values: str, shapes: str) -> dict[str, Any]:
    """The schema of these two texts. Raises ValueError for a value that needs a `# schema:` line and has none."""
    definitions = {name: _references(shape) for name, shape in yaml.load(shapes, yaml.CSafeLoader).items()}
    root = yaml.compose(values, yaml.CSafeLoader)
    assert isinstance(root, yaml.MappingNode)
    properties = _members(root, "", values.splitlines(), definitions)
    properties["global"] = {"type": "object", "description": "Helm itself hands this to every chart."}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the tandem chart; made by scripts/chart.py",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "allOf": [_needed(root, values.splitlines(), definitions)],
        "definitions": dict(sorted(definitions.items())),
    }


def comment_above(line: int, lines: list[str]) -> tuple[str, dict[str, Any] | str | None]:
    """The sentence and what the `# schema:` line says, of the comment that ends above a line (counted from 0)."""
    sentences: list[str] = []
    said = None
    for text in reversed(lines[:line]):
        if not text.lstrip().startswith("#"):
            break
        words = text.strip().removeprefix("#").strip()
        if words.startswith(SCHEMA_LINE):
            said = yaml.load(words.removeprefix(SCHEMA_LINE), yaml.CSafeLoader)
        else:
            sentences.insert(0, words)
    return " ".join(sentences), said


def plain(node: yaml.Node) -> Any:
    """The value that a node writes down."""
    return yaml.constructor.SafeConstructor().construct_document(node)


def is_group(node: yaml.Node, lines: list[str]) -> bool:
    """A mapping whose first member has a sentence of its own; other mappings are shown whole, as a default."""
    if not isinstance(node, yaml.MappingNode) or node.flow_style or not node.value:
        return False
    return bool(comment_above(node.value[0][0].start_mark.line, lines)[0])


def _members(
    node: yaml.MappingNode, prefix: str, lines: list[str], definitions: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    return {
        key.value: _of_value(
            value, f"{prefix}{key.value}", comment_above(key.start_mark.line, lines)[1], lines, definitions
        )
        for key, value in node.value
    }


def _needed(node: yaml.MappingNode, lines: list[str], definitions: dict[str, Any]) -> dict[str, Any]:
    """What may not be taken away: null deletes a default, and `--reuse-values` does not know new ones. Lists and free maps may go."""
    required, below = [], {}
    for key, value in node.value:
        said = comment_above(key.start_mark.line, lines)[1] if not node.flow_style else None
        if isinstance(value, yaml.ScalarNode):
            may_be_null = isinstance(said, dict) and "null" in said.get("type", "")
            if not may_be_null and plain(value) not in (None, ""):
                required.append(key.value)
            continue
        shape = definitions.get(said.removeprefix("$"), {}) if isinstance(said, str) else {}
        grouped = is_group(value, lines) and (said is None or "define" in said)
        if isinstance(value, yaml.MappingNode) and (
            grouped or (value.value and shape.get("additionalProperties") is False)
        ):
            required.append(key.value)
            if said != "$resources":
                needed = _needed(value, lines, definitions)
                named = [it for it in needed.get("required", []) if not _may_be_null(shape, it)]
                below[key.value] = {it: of for it, of in (needed | {"required": named}).items() if of}
    of_members = {name: needed for name, needed in below.items() if needed}
    return {key: it for key, it in (("required", required), ("properties", of_members)) if it}


def _may_be_null(shape: Any, member: str) -> bool:
    said = shape.get("properties", {}).get(member)
    return isinstance(said, dict) and ("null" in said.get("type", "") or None in said.get("enum", []))


def _of_value(
    node: yaml.Node, path: str, said: dict[str, Any] | str | None, lines: list[str], definitions: dict[str, Any]
) -> dict[str, Any]:
    defines = said.get("define") if isinstance(said, dict) else None
    if said is not None and not defines:
        found = _references(said)
        assert isinstance(found, dict)
        return found
    if is_group(node, lines):
        assert isinstance(node, yaml.MappingNode)
        group = {
            "type": "object",
            "additionalProperties": False,
            "properties": _members(node, f"{path}.", lines, definitions),
        }
        if not defines:
            return group
        definitions[defines] = group
        return {"$ref": f"#/definitions/{defines}"}
    kind = PLAIN_TYPES.get(type(plain(node)))
    if kind is None:
        raise ValueError(
            f"values.yaml: {path} needs a line `# schema:`, because its default does not say what it may be"
        )
    return {"type": kind}


def _references(shape: Any) -> Any:
    """`$name` as JSON Schema writes it, wherever it stands for a schema."""
    if isinstance(shape, str) and re.fullmatch(r"\$[A-Za-z]+", shape):
        return {"$ref": f"#/definitions/{shape[1:]}"}
    if isinstance(shape, dict):
        return {name: _references(value) for name, value in shape.items()}
    if isinstance(shape, list):
        return [_references(value) for value in shape]
    return shape
