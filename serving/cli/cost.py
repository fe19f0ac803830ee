"""`tandem cost`: what servers cost, by who used them, out of the counts that gateways keep (`usage` in tandem.yaml)."""

from __future__ import annotations

import csv
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from serving.cli.help import Verb
from serving.cli.lazy import room
from serving.cli.options import FILE, JSON
from serving.errors import UserError


@click.command(cls=Verb)
@click.option(
    "--config",
    type=FILE,
    required=True,
    help="The tandem.yaml of the gateways or of `tandem up`: where counts are, and pools' prices.",
)
@click.option(
    "--by", default="tenant", show_default=True, metavar="tenant,model,pool", help="A line for each of these."
)
@click.option(
    "--since",
    default="30d",
    show_default=True,
    metavar="30d|12h|2026-11-01",
    help="From the hour of this moment on, in UTC.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print the lines as CSV.")
@JSON
def cost(config: Path, by: str, since: str, as_csv: bool, as_json: bool) -> None:
    """Print what servers cost and who used them: each tenant's own seconds, and its part of idle and cold ones.

    All lines and what nobody used add up to the servers' price times their hours.
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json: choose one")
    bills = room("serving.usage.bill")
    names, began = bills.names_of(by), bills.since_moment(since, time.time())
    settings = room("serving.settings")
    given = room("serving.local.pool_options").UpConfig(config).unstarted()
    if given.usage is None:
        raise UserError(
            f"{config} keeps no counts: give it `usage: {{place: FILE or redis://HOST:PORT}}`, and gateways begin to count"
        )
    prices = {name: settings.price_of_one(pool) for name, pool in given.pools.items()}
    told = bills.bill_at(given.usage.place, prices, names, began)
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(bills.csv_rows(told, names))
    elif as_json:
        click.echo(json.dumps(bills.document(told, names, began), indent=2))
    else:
        click.echo(_table(told, names, began))


def _table(told: Any, names: tuple[str, ...], began: float) -> str:
    is_metered = told.joules > 0
    rows = [[*names, "requests", "device s", "used", "idle", "cold", "dollars", *(["kWh"] if is_metered else [])]]
    for line in told.lines:
        dollars = (line.used, line.idle, line.cold, line.dollars)
        rows.append(
            [
                *(name or "-" for name in line.names),
                f"{line.num_requests:.0f}",
                f"{line.device_s:.1f}",
                *map(_dollars, dollars),
                *([_kwh(line.joules)] if is_metered else []),
            ]
        )
    rest = [""] * (len(names) - 1)
    rows.append(
        [
            "(nobody)",
            *rest,
            "",
            "",
            "",
            _dollars(told.idle),
            _dollars(told.cold),
            _dollars(told.idle + told.cold),
            *([_kwh(told.unused_joules)] if is_metered else []),
        ]
    )
    rows.append(["paid", *rest, "", "", "", "", "", _dollars(told.paid), *([_kwh(told.joules)] if is_metered else [])])
    lines = [
        f"since {datetime.fromtimestamp(began, UTC):%Y-%m-%d %H}:00 UTC: {told.paid_h:.1f} hours of servers"
        + (f", {told.scaler_h:.1f} of them as the scaler saw them" if told.scaler_h else ""),
        room("serving.documents.tables").columns(rows, align="<" * len(names) + ">" * (7 if is_metered else 6)),
    ]
    if told.unpriced:
        lines.append(f"without price_per_hour, and so for nothing: {', '.join(told.unpriced)}")
    return "\n".join(lines)


def _dollars(value: float) -> str:
    return f"{value:.2f}" if value >= 1 or value == 0 else f"{value:.4f}"


def _kwh(joules: float) -> str:
    return f"{joules / 3.6e6:.3g}"
