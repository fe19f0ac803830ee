"""What `tandem up` prints once it is ready: the address, a curl command that works pasted as it is, and where logs are."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path

from serving.repository import Variant

MAX_INLINE_BYTES = 4096  # a longer body makes a command that nobody wants in a terminal; it is sent from its file then


def base_url(host: str, port: int) -> str:
    """An address that can be opened on this machine: where it listens on all, loopback does."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def curl_command(url: str, variants: Iterable[Variant], *, wants_key: bool = False) -> str:
    """A real input of the first model that has one; else a question that every server answers."""
    key = ' -H "Authorization: Bearer $TANDEM_API_KEY"' if wants_key else ""
    for variant in variants:
        sample = variant.record.sample
        if sample is None:
            continue
        file = variant.directory / sample.file
        body = file.read_text(encoding="utf-8")
        compact = json.dumps(json.loads(body), separators=(",", ":"))
        data = compact if len(compact) <= MAX_INLINE_BYTES else f"@{file}"
        target = f"{url}/v2/models/{variant.record.model}/infer"
        return f"curl -s {target}{key} -H 'Content-Type: application/json' -d {shlex.quote(data)}"
    return f"curl -s {url}/v2{key}"


def expected_answer(variants: Iterable[Variant]) -> str | None:
    """What is right, so that whoever tries it can tell."""
    for variant in variants:
        if sample := variant.record.sample:
            return f"right is '{sample.label}': the largest score is number {sample.index}, counted from 0"
    return None


def lines(
    url: str,
    pools: Iterable[tuple[str, str]],
    variants: list[Variant],
    logs: Path,
    took_s: float,
    *,
    grpc: str = "",
    wants_key: bool = False,
) -> list[str]:
    """`grpc`: where it is spoken, or why it is not."""
    said = [f"ready in {took_s:.1f} s: {url}", *([f"  {grpc}"] if grpc else [])]
    said += [f"  {name} pool: {what}" for name, what in pools]
    said += ["", "try it, with an API key in TANDEM_API_KEY:" if wants_key else "try it:"]
    said.append(f"  {curl_command(url, variants, wants_key=wants_key)}")
    if right := expected_answer(variants):
        said += [f"  ({right})"]
    return [*said, "", f"logs: {logs}", "Ctrl-C stops it"]
