#!/usr/bin/env python3
"""The reference pages that are made from the code: docs/settings.md, docs/cli.md, docs/endpoints.md
and docs/limits.md.

    scripts/reference.py write      makes them anew
    scripts/reference.py check      exits 1 and names what is stale; writes nothing

Rule: nobody edits what this writes; edit `serving/settings.py`, `serving/cli/`, `serving/gateway/endpoints.py` or
`serving/protocol/budget.py`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args, get_origin

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from serving import environment, settings  # noqa: E402
from serving.cli import cli  # noqa: E402
from serving.control.document import Control  # noqa: E402
from serving.gateway.app import Gateway  # noqa: E402
from serving.gateway.http.endpoint import Endpoint  # noqa: E402
from serving.protocol.budget import LIMITS  # noqa: E402

MADE = "<!-- Made by scripts/reference.py; edit the code instead. -->"


def settings_page() -> str:
    lines = [
        MADE,
        "# Settings",
        "",
        "## tandem.yaml",
        "",
        "What a gateway is told. Unknown names are errors that give the nearest known one.",
        "",
        "| setting | default | what it is |",
        "| --- | --- | --- |",
        *_fields(settings.GatewaySettings, ""),
        "",
        "## The control document",
        "",
        "What of models and tenants changes while gateways run ([rollouts.md](rollouts.md)). Unknown names are errors here, too.",
        "",
        "| setting | default | what it is |",
        "| --- | --- | --- |",
        *_fields(Control, ""),
        "",
        "## Environment variables",
        "",
        "A variable that begins with `TANDEM_` and is not in this table stops the program with a message.",
        "",
        "Proxies (`http_proxy`, `https_proxy`, `grpc_proxy`, `all_proxy`) are for what is fetched: loopback is always reached without one.",
        "",
        "| variable | what it is |",
        "| --- | --- |",
        *(f"| `{name}` | {text} |" for name, text in environment.ENVIRONMENT.items()),
    ]
    return "\n".join(lines) + "\n"


def _fields(model: type[settings.Strict], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else ""
        inner = next(filter(_is_settings, _within(field.annotation)), None)
        if inner is None and not field.is_required():
            default = f"`{field.get_default(call_default_factory=True)}`"
        yield f"| `{prefix}{name}` | {default} | {field.description} |"
        if inner is not None:
            named = f"{prefix}{name}.<name>." if _is_by_name(field.annotation) else f"{prefix}{name}."
            yield from _fields(inner, named)


def _is_by_name(annotation: object) -> bool:
    """Of a setting that holds others: whether it has them by names that are the user's."""
    origins = [get_origin(it) for it in _within(annotation)]
    return any(isinstance(it, type) and issubclass(it, Mapping) for it in origins)


def _within(annotation: object) -> Iterator[object]:
    """The annotation and all that it is made of, as RateQuota of `Annotated[RateQuota, ...] | None`."""
    yield annotation
    for part in get_args(annotation):
        yield from _within(part)


def _is_settings(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, settings.Strict)


def cli_page() -> str:
    lines = [
        MADE,
        "# Command line",
        "",
        "Exit codes: 0 good, 1 a verdict or gate failed, 2 the user's to fix (one line on stderr that says how), 3 the environment's.",
        "A group without a verb (`tandem`, `tandem keys`, `tandem campaign`, `tandem cluster`) prints its help and exits with 2.",
    ]
    for path, command in _commands(cli, "tandem"):
        context = click.Context(command, info_name=path, max_content_width=100, terminal_width=100)
        help_text = command.get_help(context).replace("\b", "")
        lines += ["", f"## {path}", "", "```text", help_text, "```"]
    return "\n".join(lines) + "\n"


def _commands(group: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, group
    if isinstance(group, click.Group):
        for name in sorted(group.commands):
            yield from _commands(group.commands[name], f"{path} {name}")


def endpoints_page() -> str:
    lines = [
        MADE,
        "# HTTP endpoints",
        "",
        "What each path does, the scope that an [API key](keys.md) needs for it, and where it is served: at the address for clients,",
        "at the operator's (`--admin-port`; a gateway on loopback has both in one), or at both. A `{model}` must be one that the key",
        "may ask. HEAD works wherever GET does. Bodies are described in [http.md](http.md) and, for tools, in `/openapi.json`.",
        "",
        "| endpoint | what | scope | where |",
        "| --- | --- | --- | --- |",
        *_rows(asyncio.run(_endpoints())),
    ]
    return "\n".join(lines) + "\n"


async def _endpoints() -> Sequence[Endpoint]:
    raw = {"version": 1, "pools": {"cpu": {"urls": ["http://127.0.0.1:9"], "device": "cpu"}}}
    return Gateway(settings.GatewaySettings.model_validate(raw), admin_here=True).endpoints.rows


def _rows(endpoints: Sequence[Endpoint]) -> Iterator[str]:
    for row in endpoints:
        method = " ".join(name for name in row.methods if name != "HEAD")
        what = "refused" if row.operation is None else row.operation.summary.removesuffix(".")
        if row.path == "/v2/":
            what = "as /v2"
        yield f"| `{method} {row.path}` | {what} | {f'`{row.scope}`' if row.scope else 'no key'} | {row.listener} |"


def limits_page() -> str:
    lines = [
        MADE,
        "# What one request may hold",
        "",
        "Counted before anything is made of its bytes, over HTTP and gRPC. More is 400, or 413 where it is a size; the error",
        "names the limit and its value. None is a setting, because no model needs more; bounds on bodies, memory, connections",
        "and times are [settings](settings.md). Data of JSON tensors is bounded by their shapes and by `limits.max_body_bytes`.",
        "",
        "| at most | of | because |",
        "| --- | --- | --- |",
        *(f"| {limit.most:,} | {limit.what} | {limit.reason} |" for limit in LIMITS),
    ]
    return "\n".join(lines) + "\n"


PAGES = {
    "docs/settings.md": settings_page,
    "docs/cli.md": cli_page,
    "docs/endpoints.md": endpoints_page,
    "docs/limits.md": limits_page,
}


def stale() -> list[str]:
    """The pages that are not what the code says."""
    return [
        name for name, page in PAGES.items() if not (ROOT / name).exists() or (ROOT / name).read_text("utf-8") != page()
    ]


def main() -> int:
    if sys.argv[1:] == ["write"]:
        for name, page in PAGES.items():
            (ROOT / name).write_text(page(), "utf-8")
        return 0
    if sys.argv[1:] == ["check"]:
        found = stale()
        print("\n".join(f"{name} is stale: run `make reference`" for name in found) or "fresh")
        return 1 if found else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
