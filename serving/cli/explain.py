"""`tandem explain`: why a request went to the pool that answered it."""

from __future__ import annotations

import json
import os
import re
from datetime import datetime
from typing import Any

import click

from serving.cli.help import Verb
from serving.cli.lazy import room
from serving.cli.options import JSON
from serving.errors import UserError

REASONS = {
    "only_pool": "no other pool serves it",
    "cheapest_in_time": "the cheapest that would be in time",
    "spill": "cheaper ones would have been late",
    "bridged": "it answers in place of a pool that is cold",
    "pinned": "the request named it",
}
VERDICTS = {
    "chosen": "chosen",
    "dearer": "in time too, and dearer",
    "late": "would have been late",
    "no_server": "had no server",
    "warming": "takes a share of the requests only while it warms up",
}
HEADS = ("pool", "variant", "predicted", "per million", "what became of it")


@click.command(cls=Verb)
@click.argument("request_id", metavar="ID")
@click.option(
    "--url",
    metavar="URL",
    help="A gateway, as http://127.0.0.1:8080; its admin listener, where it has one. With keys, TANDEM_API_KEY holds one. Default: each "
    "`tandem up` of this machine.",
)
@JSON
def explain(request_id: str, url: str | None, as_json: bool) -> None:
    """Say why a request went where it went: the pools that could answer it, what each would have taken and cost, and what it took.

    ID is the Tandem-Request-Id of its answer, or its first letters: of its traceparent where it had one. A gateway remembers its last
    8,192 inferences, until it ends.
    """
    if not re.fullmatch(r"[0-9a-f]{1,32}", request_id):
        raise UserError(f"'{request_id}' is no request's id: those are up to 32 of the letters 0–9 and a–f")
    found: list[dict[str, Any]] = []
    asked = (
        [each for it in room("serving.local.runs").found() if it.is_alive for each in it.run.urls]
        if url is None
        else [url.rstrip("/")]
    )
    if not asked:
        raise UserError("no `tandem up` runs on this machine; --url names a gateway elsewhere")
    untold: tuple[str, Exception] | None = None  # a gateway that is being started again, beside others
    for each in asked:
        try:
            found += room("serving.local.console").read_decisions(each, os.environ.get("TANDEM_API_KEY"), request_id)
        except (OSError, ValueError, LookupError) as error:
            untold = untold or (each, error)
    if untold and not found:
        raise UserError(
            f"{untold[0]} does not tell its decisions ({untold[1]}): give the address of its admin listener with --url, and a key with the "
            "scope admin in TANDEM_API_KEY where it has keys"
        )
    if not found:
        raise UserError(
            f"{' and '.join(asked)} remembers no request '{request_id}': it went to another gateway, was refused before a pool was "
            "chosen, or was too long ago"
        )
    if as_json:
        click.echo(json.dumps({"version": 1, "decisions": found}))
        return
    click.echo("\n\n".join(_text(decision) for decision in found))


def _text(d: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(d["at"]).astimezone().isoformat(" ", "milliseconds")
    lines = [f"{d['id']}  {d['model']}, {d['rows']:.4g} row{'' if d['rows'] == 1 else 's'}, {at}"]
    if d["pool"] is not None:
        lines.append(f"went to {d['pool']} ({d['variant']}): {d['reason']}, {REASONS[d['reason']]}")
    if d["actual_s"] is not None:
        lines.append(
            f"predicted {_ms(d['predicted_s'])}, took {_ms(d['actual_s'])} (waited {_ms(d['queue_s'])}, then worked on for "
            f"{_ms(d['backend_s'])}){_priced(d['price_per_million'])}"
        )
    else:
        lines.append(f"{d['outcome']}: {d['error']}")
    if d["servers_lost"]:
        lines.append(f"servers that lost it before: {d['servers_lost']}")
    if d["candidates"]:
        rows = [
            (c["pool"], c["variant"], _ms(c["predicted_s"]), _price(c["price_per_million"]), VERDICTS[c["verdict"]])
            for c in d["candidates"]
        ]
        lines += ["", room("serving.documents.tables").columns([HEADS, *rows], align="<<>><")]
    else:
        lines.append(
            "what other pools would have taken was not forecast: above 200 requests a second only a sample is, and every request whose "
            "traceparent has the sampled flag"
        )
    return "\n".join(lines)


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.2f} ms"


def _price(per_million: float | None) -> str:
    return "no prices" if per_million is None else f"{per_million:.3g}"


def _priced(per_million: float | None) -> str:
    return "" if per_million is None else f", {per_million:.3g} per million such requests"
