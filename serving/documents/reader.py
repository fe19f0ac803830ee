"""Reads a YAML or JSON file of ours into values, strictly.

A schema is a dataclass or a pydantic model. An unknown name is fatal and the nearest known one is offered; so is a name that stands twice,
a missing one and a wrong value. Every message says where: the file, the line where it is known, and the path, such as `runs[2].rate`.
Not here: what any file means. Rule: nothing that anybody can write into such a file is a traceback.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from serving.documents.nearest import nearest
from serving.errors import UserError

T = TypeVar("T")
Place = tuple[str | int, ...]  # names and positions from the top of a document down
Part = tuple[Place, Any, Any]  # of a document: its place, its schema, and its data
_MAX_QUOTED = 60  # letters of a wrong value in a message


class _Wrong(Exception):
    """A text that is not of its format: what is wrong, and in which line."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """What stands in a file, unchecked, with the lines of YAML."""

    file: str
    data: Any
    root: yaml.Node | None = None  # of YAML
    error: Callable[[str], Exception] = field(default=UserError)

    def values(
        self, schema: type[T], *, strict: bool = True, quote: bool = True, elsewhere: Mapping[str, str] | None = None
    ) -> T:
        """The document as an instance of `schema`.

        `strict` False also takes a number or a flag that is written as text. `quote` False keeps wrong values, which may be secrets, out
        of messages. `elsewhere`: of names that another file has, which one. Raises `error`, UserError unless it was chosen otherwise.
        """
        form: Any = schema
        if (known := _fields(form)) is not None and not isinstance(self.data, dict):
            raise self.wrong((), f"expected a mapping with {', '.join(known)}")
        for place, number in _not_finite(self.data):
            raise self.wrong(place, f"must be a number, not {_quoted(number)}")
        parts = list(_parts(schema, self.data))
        for place, names in _unknown_names(parts):
            name = str(place[-1])
            other = (elsewhere or {}).get(name)
            meant = nearest(_cut(name), names) if other is None else f"; it belongs to {other}"
            raise self.wrong(place, f"unknown key {_quoted(name)}{meant}", at_key=True)
        for place, flag, kind in _flags_for_numbers(parts):
            raise self.wrong(place, f"must be {kind}, not {str(flag).lower()}")
        try:
            made: T = _adapter(form).validate_json(json.dumps(self.data), strict=strict)
            return made
        except ValidationError as error:
            problems = [(self._place(one["loc"]), one) for one in error.errors(include_url=False)]
            place, problem = max(problems, key=_depth)  # of a union, that of the member that fits best
            raise self.wrong(place, _sentence(problem, quote=quote)) from None

    def version(self, latest: int, what: str, way_out: str) -> None:
        """Requires a mapping that is `what` in this version. Raises `error`."""
        found = self.data.get("version") if isinstance(self.data, dict) else None
        if type(found) is not int or found != latest:
            raise self.wrong((), f"not {what} of version {latest} (its version is {found!r}); {way_out}")

    def wrong(self, place: Place, problem: str, *, at_key: bool = False) -> Exception:
        """The error that says what is wrong at a place. `at_key`: in the line of the place's own name, not of its value."""
        line = None if self.root is None or not place else _line(self.root, place, at_key)
        where = self.file if line is None else f"{self.file}, line {line}"
        return self.error(": ".join(part for part in (where, path(place[:-1] if at_key else place), problem) if part))

    def _place(self, loc: Place) -> Place:
        """A place in the document from pydantic's, which also names members of unions, and what is missing."""
        place: list[str | int] = []
        data: Any = self.data
        for part in loc:
            if isinstance(data, dict | list) and part in (data if isinstance(data, dict) else range(len(data))):
                place.append(part)
                data = data[part]  # type: ignore[index]
        return tuple(place)


def read_document(file: Path, what: str, error: Callable[[str], Exception] = UserError) -> Document:
    """The document in a file: JSON where its name ends so, else YAML. `what` it is to be: `the scenario`. Raises `error`."""
    return parse_document(read_text(file, what, error), str(file), is_json=file.suffix == ".json", error=error)


def read_text(file: Path, what: str, error: Callable[[str], Exception] = UserError, *, encoding: str = "utf-8") -> str:
    """The text of a file that is to be `what`. `encoding`: utf-8-sig for what spreadsheets write. Raises `error`."""
    try:
        return file.read_text(encoding=encoding)
    except UnicodeDecodeError as fault:
        raise error(f"cannot read {what} {file}: it is not text in UTF-8 (byte {fault.start})") from None
    except (OSError, ValueError) as fault:
        raise error(f"cannot read {what} {file}: {getattr(fault, 'strerror', None) or fault}") from None


def parse_document(text: str, file: str, *, is_json: bool, error: Callable[[str], Exception] = UserError) -> Document:
    """The document in a text that came from `file`. Raises `error`."""
    try:
        if is_json:
            return Document(file, _json(text), None, error)
        root, data = _yaml(text)
        return Document(file, data, root, error)
    except _Wrong as wrong:
        where = file if wrong.line is None else f"{file}, line {wrong.line}"
        raise error(f"{where}: not valid {'JSON' if is_json else 'YAML'}: {' '.join(str(wrong).split())}") from None


def path(place: Place) -> str:
    """`runs[2].rate`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


# -- text to data -----------------------------------------------------------------------------------------------------


def _json(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            names = [name for name, _ in pairs]
            raise _Wrong(f"{_quoted(next(name for name in names if names.count(name) > 1))} is given twice")
        return made

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise _Wrong(error.msg, error.lineno) from None
    except (ValueError, RecursionError) as error:
        raise _Wrong(str(error)) from None


class _Loader(yaml.SafeLoader):
    """Makes of YAML what JSON can hold: a day is text, a name stands once, and there are no sets and no bytes."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        letter: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
        for letter, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, LookupError):  # a value that its tag does not fit
            text = f"{_quoted(getattr(node, 'value', ''))} is not of the type {node.tag}"
            raise _Wrong(text, node.start_mark.line + 1) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002
        names: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise _Wrong("a name must be text", key.start_mark.line + 1)
            if key.value in names:
                raise _Wrong(f"{_quoted(key.value)} is given twice", key.start_mark.line + 1)
            names.add(key.value)
        self.flatten_mapping(node)
        return {str(key.value): self.construct_object(value, deep=True) for key, value in node.value}


_JSON_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null", "merge", "value")
)
for _tag in set(yaml.SafeLoader.yaml_constructors) - _JSON_TAGS - {None}:
    _Loader.add_constructor(
        _tag, yaml.SafeLoader.yaml_constructors[None]
    )  # "could not determine a constructor for the tag"


def _yaml(text: str) -> tuple[yaml.Node | None, Any]:
    loader = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        data = None if root is None else loader.construct_document(root)
        json.dumps(data)  # no value holds itself
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise _Wrong(str(error.problem), mark.line + 1 if mark else None) from None
    except yaml.reader.ReaderError as error:
        raise _Wrong(f"it holds the character {error.character!r}", text.count("\n", 0, error.position) + 1) from None
    except (
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        RecursionError,
    ) as error:  # what its own reader lets through
        raise _Wrong(str(error)) from None
    finally:
        if loader is not None:
            loader.dispose()
    return root, data


def _line(node: yaml.Node, place: Place, at_key: bool) -> int:
    """Of the place's value, or of its name; of the nearest thing above it that is there."""
    line = node.start_mark.line + 1
    for depth, part in enumerate(place, start=1):
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode) and (pair := next((p for p in node.value if p[0].value == part), None)):
            node = pair[1]
            line = pair[0 if at_key and depth == len(place) else 1].start_mark.line + 1
        else:
            break
    return int(line)


# -- data to values ---------------------------------------------------------------------------------------------------


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def _not_finite(data: Any, place: Place = ()) -> Iterator[tuple[Place, float]]:
    """NaN, the infinities, and whole numbers that no float holds."""
    if isinstance(data, int | float) and not abs(data) <= sys.float_info.max:
        yield place, data
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        yield from _not_finite(value, (*place, name))


def _unknown_names(parts: list[Part]) -> Iterator[tuple[Place, list[str]]]:
    """Names in the data that no field of the schema has, with those that it has there."""
    for place, at, value in parts:
        if isinstance(value, dict) and (known := _fields(_form(at, value))) is not None:
            yield from (((*place, name), list(known)) for name in value if name not in known)


def _flags_for_numbers(parts: list[Part]) -> Iterator[tuple[Place, bool, str]]:
    """`true` and `false` where a number is to stand, and what kind of one: pydantic takes them for 1 and 0 unless it is strict."""
    for place, at, value in parts:
        if isinstance(value, bool) and bool not in (kinds := _kinds(at)) and kinds & {int, float}:
            yield place, value, "a number" if float in kinds else "a whole number"


def _parts(schema: Any, data: Any, place: Place = ()) -> Iterator[Part]:
    """The data and all that is in them; what has an unknown name is left out."""
    yield place, schema, data
    if not isinstance(data, dict | list):
        return
    schema = _form(schema, data)
    if isinstance(data, dict):
        known = _fields(schema)
        of_value = get_args(schema)[-1] if get_args(schema) else Any
        for name, value in data.items():
            if known is None or name in known:
                yield from _parts(of_value if known is None else known[name], value, (*place, name))
    else:
        inner = [argument for argument in get_args(schema) if argument is not Ellipsis]
        for index, value in enumerate(data):
            if inner:
                yield from _parts(inner[min(index, len(inner) - 1)], value, (*place, index))


def _kinds(schema: Any) -> set[Any]:
    """The types that a value may have."""
    while get_origin(schema) is Annotated:
        schema = get_args(schema)[0]
    if get_origin(schema) is Literal:
        return {type(value) for value in get_args(schema)}
    if get_origin(schema) in (Union, types.UnionType):
        return set().union(*map(_kinds, get_args(schema)))
    return {schema}


def _form(schema: Any, data: Any) -> Any:
    """What of a union data of this kind belong to: the member that shares most names with them."""
    while get_origin(schema) is Annotated:
        schema = get_args(schema)[0]
    if get_origin(schema) not in (Union, types.UnionType):
        return schema
    members = [_form(member, data) for member in get_args(schema)]
    if isinstance(data, dict):
        fitting = [member for member in members if _fields(member) is not None or _is_mapping(member)]
        return max(fitting, key=lambda member: len(set(data) & set(_fields(member) or ())), default=Any)
    fitting = [m for m in members if isinstance(get_origin(m), type) and issubclass(get_origin(m), list | tuple)]
    return fitting[0] if fitting else Any


def _is_mapping(schema: Any) -> bool:
    origin = get_origin(schema) or schema
    return isinstance(origin, type) and issubclass(origin, Mapping)


@cache
def _fields(schema: Any) -> dict[str, Any] | None:
    """Name -> type of a dataclass or a pydantic model; None of anything else."""
    if not isinstance(schema, type):
        return None
    if issubclass(schema, BaseModel):
        return {of.alias or name: of.annotation for name, of in schema.model_fields.items()}
    if is_dataclass(schema):
        hints = get_type_hints(schema, include_extras=True)
        return {of.name: hints[of.name] for of in fields(schema) if of.init}
    return None


def _depth(problem: tuple[Place, Any]) -> int:
    place, told = problem
    return len(place) + int(told["type"].startswith("missing"))


def _sentence(problem: Any, *, quote: bool) -> str:
    """What pydantic says, in the words of a file."""
    kind, value = problem["type"], problem["input"]
    if kind.startswith("missing"):
        name = problem["loc"][-1]
        return f"{name!r} is missing" if isinstance(name, str) else f"it needs more than {len(value)} values"
    if kind in ("too_short", "too_long"):
        bound = "least" if kind == "too_short" else "most"
        limit = problem["ctx"]["min_length" if bound == "least" else "max_length"]
        return f"it must have at {bound} {limit} value{'s'[: limit != 1]}"
    said = _SENTENCES.get(kind) or problem["msg"].removeprefix("Value error, ").replace("Input should", "must")
    if not quote or kind == "value_error" or isinstance(value, dict | list):
        return said
    is_number = kind in ("float_type", "int_type") and isinstance(value, str) and value[:1].isdigit()
    return f"{said}, not {_quoted(value)}" + " (write it without quotes, and 5e-3 as 0.005)" * is_number


_SENTENCES = {
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "dataclass_type"), "must be a mapping"),
}


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 1] + "…"


def _quoted(value: object) -> str:
    return _cut(repr(value))
