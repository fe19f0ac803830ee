"""What `tandem up` prints once it is ready: the address, a curl command that works pasted as it is, and where logs are."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from serving.repository import Variant

MAX_INLINE_BYTES = 4096  # a longer body makes a command that nobody wants in a terminal; it is sent from its file then

CURL_PROXIES = ("http_proxy", "all_proxy", "ALL_PROXY")  # that curl would ask for an http:// address


def base_url(host: str, port: int) -> str:
    """An address that can be opened on this machine: where it listens on all, loopback does."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def curl_command(url: str, variants: Iterable[Variant], *, wants_key: bool = False) -> str:
    """A real input of the first model that has one; else a question that every server answers."""
    direct = " --noproxy '*'" if any(os.environ.get(name) for name in CURL_PROXIES) else ""
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
        return f"curl -s{direct} {target}{key} -H 'Content-Type: application/json' -d {shlex.quote(data)}"
    return f"curl -s{direct} {url}/v2{key}"


def expected_answer(variants: Iterable[Variant]) -> str | None:
    """What is right, so that whoever tries it can tell; None where nobody labelled the sample."""
    sample = next((it for variant in variants if (it := variant.record.sample)), None)
    if sample is None or sample.index is None:
        return None
    name = "" if sample.label is None else f"'{sample.label}': "
    return f"right is {name}the largest score is number {sample.index}, counted from 0"


def lines(
    url: str,
    pools: Iterable[tuple[str, str]],
    variants: list[Variant],
    logs: Path,
    took_s: float,
    *,
    grpc: str = "",
    page: str = "",
    wants_key: bool = False,
    is_ready: bool = True,
    not_loaded: Iterable[str] = (),
) -> list[str]:
    """`grpc`: where it is spoken, or why it is not. `page`: the address of the page. `not_loaded`: a line for each."""
    said = [
        f"ready in {took_s:.1f} s: {url}" if is_ready else f"not ready: {url}",
        *(f"  {line}" for line in not_loaded),
    ]
    said += (
        []
        if is_ready
        else ["  the others are served; export what is missing again, or be ready without it: --allow-missing"]
    )
    said += [f"  {grpc}"] if grpc else []
    said += [f"  page: {page}"] if page else []
    said += [f"  {name} pool: {what}" for name, what in pools]
    said += ["", "try it, with an API key in TANDEM_API_KEY:" if wants_key else "try it:"]
    said.append(f"  {curl_command(url, variants, wants_key=wants_key)}")
    if right := expected_answer(variants):
        said += [f"  ({right})"]
    return [*said, "", f"logs: {logs}", "Ctrl-C stops it"]
