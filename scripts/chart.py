"""What is generated from the Helm chart, and whether it is still fresh: schema, values table and the plain rendering.

    python -m scripts.chart write      rewrites values.schema.json, the table in README.md and everything in k8s/rendered/
    python -m scripts.chart check      exits 1 and names what is stale; writes nothing

Needs the `dev` extra (helm-python-sdk), no Helm and no cluster. Rule: nobody edits what this writes; edit values.yaml or a template.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import yaml

from scripts.chart_schema import comment_above, is_group, plain, schema

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm" / "tandem"
README = CHART / "README.md"
SCHEMA = CHART / "values.schema.json"
RENDERED = ROOT / "k8s" / "rendered"
BEGIN, END = "<!-- values: made by scripts/chart.py -->", "<!-- end of values -->"
# The chart installs only with keys, or when told to do without; everything else is the default.
RENDERED_VALUES: dict[str, Any] = {
    "auth": {"existingSecret": "tandem-keys", "client": {"existingSecret": "tandem-client-key"}}
}
# True of an object that Helm made, false of one that `kubectl apply` made.
HELM_ONLY_LABELS = ("app.kubernetes.io/managed-by", "helm.sh/chart")


@dataclass(frozen=True, slots=True)
class Value:
    """One documented value: `gateway.service.port`, its default as text ("" for a group), and its sentence."""

    path: str
    default: str
    sentence: str


# -- the values table -------------------------------------------------------------------------------------------------


def documented_values(text: str) -> list[Value]:
    """Every value that has a comment above it. Raises ValueError for one that has none among siblings that do."""
    root = yaml.compose(text, yaml.CSafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_walk(root, "", text.splitlines()))


def _walk(node: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        sentence = comment_above(key.start_mark.line, lines)[0]
        if not sentence:
            raise ValueError(f"values.yaml: {path} has no sentence above it")
        if is_group(value, lines):
            yield Value(path, "", sentence)
            yield from _walk(value, f"{path}.", lines)
        else:
            yield Value(path, json.dumps(plain(value)), sentence)


def values_table(values: list[Value]) -> str:
    rows = ["| value | default | what it does |", "| --- | --- | --- |"]
    for value in values:
        default = f"`{value.default}`" if value.default else ""
        rows.append(f"| `{value.path}` | {default} | {value.sentence.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def readme(text: str, table: str) -> str:
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{README.name} lacks the lines {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


# -- the plain rendering ----------------------------------------------------------------------------------------------


def rendered_objects(values: dict[str, Any], *, release: str = "tandem") -> list[dict[str, Any]]:
    """The chart's objects for these values, hooks and notes left out, by kind and name."""
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(values, name=release, namespace="default")
    documents = (
        document
        for path, text in texts.items()
        if path.endswith(".yaml")
        for document in yaml.load_all(text, yaml.CSafeLoader)
        if document and "helm.sh/hook" not in document["metadata"].get("annotations", {})
    )
    return sorted(documents, key=lambda it: (it["kind"], it["metadata"]["name"]))


def rendered_files() -> dict[str, str]:
    """File name -> text of everything in k8s/rendered/."""
    files = {}
    for document in rendered_objects(RENDERED_VALUES):
        for labels in (document["metadata"]["labels"], _pod_labels(document)):
            for label in HELM_ONLY_LABELS:
                labels.pop(label, None)
        files[f"{document['kind'].lower()}-{document['metadata']['name']}.yaml"] = _dump(document)
    listing = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": sorted(files)}
    return {**files, "kustomization.yaml": _dump(listing)}


def _pod_labels(document: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = document.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})
    return labels


def _dump(document: dict[str, Any]) -> str:
    header = "# Made by `make chart` from helm/tandem with API keys from the secret tandem-keys. Do not edit.\n"
    return header + yaml.safe_dump(document, sort_keys=False, width=1000)


# -- both -------------------------------------------------------------------------------------------------------------


def made_of_values() -> dict[Path, str]:
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    shapes = (CHART / "shapes.yaml").read_text(encoding="utf-8")
    return {
        README: readme(README.read_text(encoding="utf-8"), values_table(documented_values(values))),
        SCHEMA: json.dumps(schema(values, shapes), indent=2) + "\n",
    }


def generated() -> dict[Path, str]:
    """Path -> the text that should be there. The rendering is that of the schema which lies there."""
    return {**made_of_values(), **{RENDERED / name: text for name, text in rendered_files().items()}}


def stale() -> list[Path]:
    """What is missing, different, or there without a reason."""
    wanted = generated()
    extra = [path for path in sorted(RENDERED.glob("*")) if path not in wanted]
    return [
        path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text
    ] + extra


def write() -> None:
    for path, text in made_of_values().items():  # first, because Helm renders nothing that the schema refuses
        path.write_text(text, encoding="utf-8")
    wanted = generated()
    RENDERED.mkdir(parents=True, exist_ok=True)
    for path in RENDERED.glob("*"):
        if path not in wanted:
            path.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    if arguments == ["write"]:
        write()
        return 0
    if arguments == ["check"]:
        old = [str(path.relative_to(ROOT)) for path in stale()]
        if old:
            print(f"stale: {', '.join(old)}; run `make chart`", file=sys.stderr)
        return 1 if old else 0
    print("usage: python -m scripts.chart write|check", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
