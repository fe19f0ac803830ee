"""`tandem plan` as a user meets it: the table, the paragraph, the files, the exit code, and every wrong use."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving import cli
from serving.decisions.profile import Settings
from serving.local.pool_options import UpConfig, for_gateway, overrides_of, read_pools
from tests.decisions.plan.conftest import Files


def tandem(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["tandem", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, files: Files, capsys: pytest.CaptureFixture[str]) -> Any:
    """Exit code, what was printed, what was said of a mistake."""

    def run(*words: object, rate: object = 200) -> tuple[int, str, str]:
        asked = [] if rate is None else ["--rate", rate]
        code = tandem(
            monkeypatch, "plan", "--profile", files.cpu, "--profile", files.gpu, "--p99", "20ms", *asked, *words
        )
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_a_plan_is_a_table_and_one_plain_paragraph(plan: Any) -> None:
    code, out, _ = plan()
    assert code == 0
    facts = (
        "200/s",
        "20 ms",
        "1 server with INT8 on AMD EPYC 9R14 (0.5 of a c7a.xlarge)",
        "900/s each",
        "$0.10 an hour",
    )
    for fact in (*facts, "$0.14 per million", "from 3,150/s on"):
        assert fact in out
    assert re.search(r"published Tesla T4 .*g4dn\.xlarge", out)
    assert re.search(r"what-if: .*Tesla T4.*not measured.*\(a paper\)", out)
    assert re.search("Prices: .*us-east-1, 2026-07-20", out)


def test_a_day_of_rates_takes_cards_for_its_peak(plan: Any, tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text("20,100\n4,6000\n")
    code, out, _ = plan("--rates", tmp_path / "day.csv", "--gateway-per-hour", 0.05, "--json", rate=None)
    made = json.loads(out)
    assert code == 0
    assert [(p["name"], p["min_replicas"], p["max_replicas"]) for p in made["pools"]] == [("cpu", 1, 1), ("gpu", 0, 1)]
    cpu, gpu = 0.10264, 0.526
    assert made["per_hour_at_peak"] == pytest.approx(cpu + gpu + 0.05)
    assert made["per_day"] == pytest.approx(24 * (cpu + 0.05) + 4 * gpu)
    assert made["origin"]["profiles"] == ["cpu.json", "gpu.json"]


# Option -> what it changes in the JSON of the plan.
OPTIONS: dict[str, tuple[list[object], Any]] = {
    "min replicas": (["--min-replicas", 3], lambda made: made["steps"][0]["num_cpu"] == 3),
    "headroom": (["--headroom", 0.1], lambda made: made["steps"][0]["num_cpu"] == 3),
    "instance": (["--instance", "cpu=c7i.xlarge"], lambda made: made["pools"][0]["offer"] == "c7i.xlarge"),
    "gateway": (["--gateway-per-hour", 1], lambda made: made["per_hour_at_peak"] == pytest.approx(1.10264)),
    "model": (["--model", "digits"], lambda made: made["model"] == "digits"),
    "shipped prices": (["--prices", "shipped"], lambda made: made["pools"][0]["offer"] == "c7a.xlarge"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_changes_the_plan(plan: Any, option: str) -> None:
    words, is_changed = OPTIONS[option]
    code, out, _ = plan(*words, "--json")
    assert code == 0
    assert is_changed(json.loads(out))


@pytest.mark.parametrize(
    ("words", "constraint"),
    [
        (["--max-price", 0.05], "price"),
        (["--minimise", "energy"], "energy"),
        (["--batch-size", 8], "profile"),
        (["--max-replicas", 1, "--rate", 50_000], "rate"),
    ],
)
def test_what_is_impossible_is_exit_code_1_with_what_binds(plan: Any, words: list[object], constraint: str) -> None:
    code, out, _ = plan(*words, "--json")
    made = json.loads(out)
    assert (code, made["is_possible"], made["bindings"][0]["constraint"]) == (1, False, constraint)
    code, out, _ = plan(*words)
    assert code == 1
    assert "no plan" in out


def test_prices_of_ones_own_are_laid_over_the_shipped_ones(plan: Any, tmp_path: Path) -> None:
    offer = {"name": "rack", "per_hour": 0.01, "num_vcpus": 2, "processor": "AMD EPYC"}
    mine = {"version": 1, "name": "mine", "source": "us", "date": "2026-11-01", "currency": "$", "offers": [offer]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    code, out, _ = plan("--prices", "shipped", "--prices", tmp_path / "mine.yaml", "--json")
    made = json.loads(out)
    assert (code, made["pools"][0]["offer"], made["pools"][0]["per_hour"]) == (0, "rack", 0.01)
    assert {it["pool"] for it in made["considered"]} == {"cpu", "gpu"}
    code, out, _ = plan("--prices", tmp_path / "mine.yaml", "--json")
    assert {it["pool"] for it in json.loads(out)["considered"]} == {"cpu"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rates", "day.csv"], "say one of --rate"),
        (["--p99", "fast"], "--p99 fast: not a time"),
        (["--rate", "0"], "--rate"),
        (["--rate", "inf"], "inf is not in the range"),
        (["--headroom", "nan"], "no finite number"),
        (["--instance", "c7a.xlarge"], "not of the form cpu=NAME"),
        (["--instance", "cpu=c7a.xlrge"], "did you mean 'c7a.xlarge'?"),
        (["--instance", "cpu=g4dn.xlarge"], "g4dn.xlarge is a gpu machine"),
        (["--instance", "cpu=c7a.xlarge", "--instance", "cpu=c7i.xlarge"], "has c7a.xlarge already"),
        (["--min-replicas", "3", "--max-replicas", "2"], "--max-replicas 2 is less than --min-replicas 3"),
        (["--model", "digit"], "did you mean 'digits'?"),
        (["--prices", "none.yaml"], "cannot read the price list"),
        (["--profile", "none.json"], "cannot read"),
        (["--minimise", "time"], "--minimise"),
    ],
)
def test_a_wrong_use_is_exit_code_2_and_one_line(plan: Any, words: list[str], says: str) -> None:
    code, out, err = plan(*words)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_without_a_rate_or_for_several_models_it_asks(plan: Any, files: Files) -> None:
    assert plan(rate=None)[0] == 2
    files.gpu.write_text(files.gpu.read_text().replace('"model": "digits"', '"model": "minilm"'))
    code, _, err = plan()
    assert code == 2
    assert "--model" in err
    assert "digits, minilm" in err


# -- the files ---------------------------------------------------------------------------------------------------------


def test_the_settings_are_read_by_tandem_up_with_all_that_was_planned(plan: Any, tmp_path: Path) -> None:
    code, out, _ = plan("--output", tmp_path / "planned")
    assert code == 0
    file = tmp_path / "planned" / "tandem.yaml"
    assert f"wrote {file}" in out
    told = UpConfig(file)
    settings = told.settings(read_pools(told.values((), ()), has_gpu=False))
    (pool,) = settings.pools.values()
    assert (pool.min_replicas, pool.max_replicas, pool.price_per_hour, pool.cold_start_s) == (1, 1, 0.10264, 2.0)
    asked = overrides_of(settings, "cpu")
    assert Settings(asked.instances or 0, asked.threads or 0, asked.max_batch or 0, asked.queue_delay_us or 0) == Settings(2, 1, 16, 200)  # fmt: skip
    assert settings.models["digits"].variants == {"cpu": "int8"}
    assert settings.models["digits"].objective.latency_s == 0.02
    assert told.unstarted().pools["cpu"].price_per_hour == 0.10264  # as `tandem cost` reads it


def test_counts_of_tandem_up_are_kept_where_tandem_cost_looks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tandem.yaml"
    file.write_text("version: 1\nusage: {place: usage.db}\n")
    told = UpConfig(file)
    of_gateway = for_gateway(told.settings(read_pools(("cpu",), has_gpu=False)))
    assert of_gateway.usage is not None
    assert of_gateway.usage.place == str(tmp_path / "usage.db")  # a gateway runs in a folder of its own
    assert told.unstarted().usage is not None


def test_buffers_that_were_measured_are_planned_and_the_chart_says_that_it_has_none(
    plan: Any, tmp_path: Path, files: Files
) -> None:
    profile = json.loads(files.cpu.read_text())
    for server in profile["servers"]:
        server["settings"]["tuning"] = ["batch_buckets=1,8", "bucket_lengths=32"]
    files.cpu.write_text(json.dumps(profile))
    assert plan("--output", tmp_path / "planned")[0] == 0
    told = UpConfig(tmp_path / "planned" / "tandem.yaml")
    asked = overrides_of(told.settings(read_pools(told.values((), ()), has_gpu=False)), "cpu")
    assert (asked.batch_buckets, asked.bucket_lengths) == ("1,8", "32")
    assert "tandem.yaml" in (tmp_path / "planned" / "values.yaml").read_text()


def test_each_file_says_from_what_it_came_and_nothing_of_it_can_end_its_comment(
    plan: Any, tmp_path: Path, files: Files
) -> None:
    profile = json.loads(files.gpu.read_text())
    files.gpu.write_text(json.dumps({**profile, "note": "a paper\npools: {}"}))
    plan("--output", tmp_path / "planned")
    for name in ("tandem.yaml", "values.yaml"):
        text = (tmp_path / "planned" / name).read_text()
        for fact in (
            "tandem plan --profile",
            "cpu.json",
            "gpu.json",
            "AWS us-east-1, 2026-07-20",
            "measured 2026-11-21",
        ):
            assert fact in text
        assert "pools: {}" not in [line.strip() for line in text.splitlines()]
    assert json.loads((tmp_path / "planned" / "plan.json").read_text())["is_possible"]


def test_an_impossible_plan_writes_its_reasons_and_no_settings(plan: Any, tmp_path: Path) -> None:
    assert plan("--output", tmp_path / "planned", "--max-price", 0.01)[0] == 1
    assert [path.name for path in (tmp_path / "planned").iterdir()] == ["plan.json"]


def test_a_folder_that_cannot_be_made_is_told(plan: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = plan("--output", tmp_path / "file" / "planned")
    assert code == 2
    assert "cannot be written" in err
