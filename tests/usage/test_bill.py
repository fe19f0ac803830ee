"""A month of servers that come and go, and of tenants that use them: do the bills add up to what was paid?"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import sqlite3
import time
from io import StringIO
from pathlib import Path

import pytest

from serving.cluster.scaler.state import Bill as ScalerBill
from serving.usage.bill import bill, csv_rows, document, since_moment
from serving.usage.ledger import HOUR_S, Batch, Entry
from serving.usage.stores import SLOT_S, Servers, Slot, store_at
from tests.command import tandem

PRICES = {"cpu": 0.4, "gpu": 3.0, "spot": 0.9}
DAYS = 30 if os.environ.get("THOROUGH") else 3
SLOTS_AN_HOUR = HOUR_S // SLOT_S


def month(generator: random.Random, first_hour: int) -> tuple[dict[Entry, list[float]], dict[Slot, Servers], float]:
    """Entries, servers by the minute, and dollars that were paid, added up apart from them."""
    entries: dict[Entry, list[float]] = {}
    servers: dict[Slot, Servers] = {}
    paid = 0.0
    for hour in range(first_hour, first_hour + 24 * DAYS):
        is_day = 8 <= hour % 24 < 20
        for pool, price in PRICES.items():
            present = 2 if pool == "cpu" else generator.choice((0, 1, 3)) if is_day else 0
            num_cold = generator.randrange(10) if present and pool != "cpu" else 0  # minutes
            for minute in range(SLOTS_AN_HOUR):
                slot = Slot(hour * SLOTS_AN_HOUR + minute, pool)
                servers[slot] = Servers(present, 0 if minute < num_cold else present)
                paid += present * price * SLOT_S / HOUR_S
            if not present or (not is_day and generator.random() < 0.5):
                continue
            for tenant in "abcde":
                for model in ("bert", "digits"):
                    device_s = generator.random() * present * HOUR_S / 9
                    entries[Entry(hour, tenant, model, pool)] = [1.0 + int(device_s * 10), device_s, 0.0, 0.0, 1e6]
    return entries, servers, paid


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A tandem.yaml whose usage is a month, and what was paid."""
    folder = tmp_path_factory.mktemp("month")
    entries, servers, paid = month(random.Random(1), int(time.time() // HOUR_S) - 24 * DAYS + 1)
    store = store_at(str(folder / "usage.db"))
    store.add("a", 1, Batch(dict(entries)), servers)
    store.close()
    pools = {name: {"urls": ["http://x:8000"], "device": "cpu", "price_per_hour": it} for name, it in PRICES.items()}
    config = folder / "tandem.yaml"
    config.write_text(json.dumps({"version": 1, "pools": pools, "usage": {"place": str(folder / "usage.db")}}))
    return config, paid


def test_a_month_of_bills_adds_up_to_what_the_servers_cost(kept: tuple[Path, float]) -> None:
    config, paid = kept
    for by in ("tenant", "tenant,model", "model,pool", "tenant,model,pool"):
        done = tandem("cost", "--config", str(config), "--by", by, "--since", "31d", "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        total = (
            sum(line["dollars"] for line in told["lines"]) + told["unused_idle_dollars"] + told["unused_cold_dollars"]
        )
        assert told["paid_dollars"] == pytest.approx(paid, rel=1e-6)
        assert total == pytest.approx(paid, rel=0.01)
        assert all(min(line["used_dollars"], line["idle_dollars"], line["cold_dollars"]) >= 0 for line in told["lines"])


@pytest.mark.parametrize("urls", [{}, {"urls": []}])
def test_a_file_of_tandem_up_has_the_bill_of_the_pools_that_it_starts(
    kept: tuple[Path, float], tmp_path: Path, urls: dict[str, list[str]]
) -> None:
    pools = {"cpu": {**urls, "price_per_hour": PRICES["cpu"], "instances": 2}}
    config = tmp_path / "tandem.yaml"
    config.write_text(json.dumps({"version": 1, "pools": pools, "usage": {"place": str(kept[0].parent / "usage.db")}}))
    done = tandem("cost", "--config", str(config), "--since", "31d", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["paid_dollars"] == pytest.approx(24 * DAYS * 2 * PRICES["cpu"], rel=1e-3)
    assert told["pools_without_price"] == ["gpu", "spot"]


def test_csv_has_the_same_lines_and_the_table_what_nobody_used(kept: tuple[Path, float]) -> None:
    config, paid = kept
    done = tandem("cost", "--config", str(config), "--by", "tenant,model", "--since", "31d", "--csv")
    rows = list(csv.DictReader(StringIO(done.stdout)))
    assert {(row["tenant"], row["model"]) for row in rows} == {(t, m) for t in "abcde" for m in ("bert", "digits")}
    assert sum(float(row["dollars"]) for row in rows) < paid
    table = tandem("cost", "--config", str(config), "--since", "31d").stdout.splitlines()
    assert table[-1].split()[0] == "paid"
    assert float(table[-1].split()[-1]) == pytest.approx(paid, abs=0.01)


def test_no_name_is_a_formula_in_csv() -> None:
    names = "=1+1", "+1", "-1", "@a", "a=b"
    entries = {Entry(0, name, "m", "p"): [1.0, 1.0, 0.0, 0.0, 0.0] for name in names}
    rows = list(csv_rows(bill(entries, {}, {}, ("tenant",)), ("tenant",)))
    assert sorted(row[0] for row in rows[1:]) == ["'+1", "'-1", "'=1+1", "'@a", "a=b"]


def test_a_bill_begins_with_an_hour() -> None:
    assert since_moment("12h", 100 * HOUR_S + 1800.0) == 88 * HOUR_S
    assert since_moment("1970-01-02T00:30", 100.0 * HOUR_S) == 24 * HOUR_S


@pytest.mark.parametrize(
    "arguments",
    [
        ("--by", "tenant,modle"),
        ("--by", ""),
        ("--since", "soon"),
        ("--since", "2999-01-01"),
        ("--since", "0001-01-01T00:00+14:00"),
    ],
)
def test_what_cannot_be_asked_is_the_users_to_fix(kept: tuple[Path, float], arguments: tuple[str, str]) -> None:
    assert tandem("cost", "--config", str(kept[0]), *arguments).returncode == 2


def test_idle_and_cold_time_is_paid_by_use_and_by_nobody_where_nobody_used_anything() -> None:
    entries = {Entry(0, "a", "m", "p"): [1, 900.0, 0, 0, 0], Entry(0, "b", "m", "p"): [1, 300.0, 0, 0, 0]}
    slots = {Slot(minute, "p"): Servers(1, int(minute >= 10)) for minute in range(120)}  # the second hour nobody uses
    told = bill({key: list(map(float, it)) for key, it in entries.items()}, slots, {"p": 3.6}, ("tenant",))
    a, b = told.lines
    assert (a.names, a.used, a.idle, a.cold) == (("a",), *map(pytest.approx, (0.9, 1.35, 0.45)))
    assert (b.names, b.used, b.idle, b.cold) == (("b",), *map(pytest.approx, (0.3, 0.45, 0.15)))
    assert told.idle == pytest.approx(3.6)
    assert told.cold == 0.0
    assert told.total == pytest.approx(told.paid) == pytest.approx(7.2)


def test_counts_beyond_what_there_was_are_scaled_to_it() -> None:
    entries = {
        Entry(0, "a", "m", "p"): [1.0, 5400.0, 0.0, 0.0, 0.0],
        Entry(0, "b", "m", "p"): [1.0, 1800.0, 0.0, 0.0, 0.0],
    }
    told = bill(entries, {Slot(it, "p"): Servers(1, 1) for it in range(60)}, {"p": 4.0}, ("tenant",))
    assert [line.dollars for line in told.lines] == [pytest.approx(3.0), pytest.approx(1.0)]
    assert told.total == pytest.approx(told.paid)


def test_a_month_in_which_a_scaler_bought_nodes_adds_up_to_their_hours_and_cold_starts(tmp_path: Path) -> None:
    """Nodes come and go within minutes; what gateways see of that is whole minutes, and nothing of a node before its pod."""
    generator, price, servers_per_card = random.Random(2), 3.6, 2
    state, first_hour = ScalerBill(price, servers_per_card), int(time.time() // HOUR_S) - 24 * DAYS + 1
    paid_s = cold_s = 0.0
    entries: dict[Entry, list[float]] = {}
    seen: dict[Slot, Servers] = {}
    for hour in range(first_hour, first_hour + 24 * DAYS):
        at, num_cards = hour * HOUR_S + generator.uniform(0, 600), generator.choice((1, 2))
        while at < (hour + 1) * HOUR_S - 900:
            start_s, works_s, rests_s = (generator.uniform(*it) for it in ((20, 200), (30, 600), (30, 900)))
            num_servers = num_cards * servers_per_card
            for moment, wanted, ready in (
                (at, num_servers, 0),
                (at + start_s, num_servers, num_servers),
                (at + start_s + works_s, 0, 0),
            ):
                state.count(moment - first_hour * HOUR_S, max(wanted, ready), ready, moment)
            paid_s += num_cards * (start_s + works_s)
            cold_s += num_cards * start_s
            for minute in range(int(at + start_s - 5) // SLOT_S, int(at + start_s + works_s) // SLOT_S + 1):
                seen[Slot(minute, "gpu")] = Servers(num_servers, num_servers)
            at += start_s + works_s + rests_s
            device_s = works_s * generator.uniform(0.1, 0.9)
            entries[Entry(hour, generator.choice("ab"), "bert", "gpu")] = [100.0, device_s, 0.0, 0.0, 0.0]
    nodes = {
        Slot(minute, "gpu"): Servers(*(it * servers_per_card / SLOT_S for it in seconds))
        for minute, seconds in state.by_minute.items()
    }
    pools = {"gpu": {"urls": ["http://x:8000"], "device": "gpu", "price_per_hour": price, "servers_per_card": 2}}
    config, place = tmp_path / "tandem.yaml", str(tmp_path / "usage.db")
    config.write_text(json.dumps({"version": 1, "pools": pools, "usage": {"place": place}}))
    store = store_at(place)
    store.add("gateway", 1, Batch(dict(entries)), seen)
    alone = bill(entries, seen, {"gpu": price / servers_per_card})
    assert abs(alone.paid / (paid_s * price / HOUR_S) - 1) > 0.05, "gateways alone do not know it"
    store.add("scaler", 1, Batch(), nodes, is_scaler=True)
    store.close()
    done = tandem("cost", "--config", str(config), "--since", "31d", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    unused = told["unused_idle_dollars"] + told["unused_cold_dollars"]
    total = sum(line["dollars"] for line in told["lines"]) + unused
    cold = sum(line["cold_dollars"] for line in told["lines"]) + told["unused_cold_dollars"]
    assert total == pytest.approx(paid_s * price / HOUR_S, rel=0.01)
    assert told["paid_dollars"] == pytest.approx(state.spent, rel=1e-6)
    assert cold == pytest.approx(cold_s * price / HOUR_S, rel=0.01)
    assert told["scaler_hours"] == pytest.approx(told["paid_hours"])


def test_energy_is_shared_out_as_money_is_and_told_only_where_there_is_a_meter(tmp_path: Path) -> None:
    hour = int(time.time() // HOUR_S) - 1
    entries = {
        Entry(hour, who, "m", "p"): [1.0, device_s, 0.0, 0.0, 0.0] for who, device_s in (("a", 900.0), ("b", 300.0))
    }
    first = hour * SLOTS_AN_HOUR
    slots = {Slot(first + minute, "p"): Servers(1, 1, 60_000.0) for minute in range(60)}  # a kilowatt
    pools = {"p": {"urls": ["http://x:8000"], "device": "cpu", "price_per_hour": 4.0}}
    config, place = tmp_path / "tandem.yaml", tmp_path / "usage.db"
    config.write_text(json.dumps({"version": 1, "pools": pools, "usage": {"place": str(place)}}))
    with contextlib.closing(sqlite3.connect(place)) as old, old:  # a file of before there were meters
        old.execute(
            "CREATE TABLE servers (slot INTEGER, pool TEXT, present INTEGER NOT NULL, answering INTEGER NOT NULL, PRIMARY KEY (slot, pool)) WITHOUT ROWID"
        )
        old.execute("INSERT INTO servers VALUES (?, 'p', 1, 1)", (first - 60,))
    store = store_at(str(place))
    store.add("a", 1, Batch(dict(entries)), slots)
    store.close()
    asked = ("cost", "--config", str(config), "--since", "3h")
    told = json.loads(tandem(*asked, "--json").stdout)
    assert [(line["tenant"], line["joules"]) for line in told["lines"]] == [("a", 2.7e6), ("b", 0.9e6)]
    assert (told["joules"], told["unused_joules"]) == (3.6e6, 0.0)
    assert tandem(*asked, "--csv").stdout.splitlines()[0].endswith(",dollars,joules")
    assert [line.split()[-1] for line in tandem(*asked).stdout.splitlines()[1:]] == ["kWh", "0.75", "0.25", "0", "1"]
    assert "joules" not in json.dumps(document(bill(entries, {}, {}, ("tenant",)), ("tenant",), 0.0))
