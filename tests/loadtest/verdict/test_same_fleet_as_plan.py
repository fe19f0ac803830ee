"""`tandem plan` and `tandem verdict` take the same servers for the same money, within the same limits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving import cli
from serving.decisions.profile import write_profile
from tests.loadtest.verdict.made import cpu_profile, gpu_profile, rate, server

PRICES = {
    "version": 1,
    "name": "list",
    "source": "nobody's",
    "date": "2026-07-20",
    "currency": "$",
    "offers": [
        {"name": "cpu.large", "per_hour": 0.472, "num_vcpus": 4, "processor": "Processor X"},
        {"name": "t4.large", "per_hour": 2.944, "num_vcpus": 4, "device": "gpu", "num_cards": 1, "card": "T4"},
    ],
}


def test_both_verbs_find_the_forty_cpu_servers_and_thirty_three_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search that tries few numbers of cards takes 37 and 35 of them, for 4.5 dollars an hour more."""
    write_profile(tmp_path / "cpu.json", cpu_profile(servers=(server("int8", "cpu", "cpu", rate(231.9), 0.002),)))
    write_profile(tmp_path / "gpu.json", gpu_profile(servers=(server("fp16", "cuda", "gpu", rate(349.6), 0.001),)))
    (tmp_path / "prices.yaml").write_text(yaml.safe_dump(PRICES))
    asked = ["--rate", "10365", "--p99", "20ms", "--headroom", "0.5", "--max-replicas", "40"]
    files = [
        f"--profile={tmp_path / 'cpu.json'}",
        f"--profile={tmp_path / 'gpu.json'}",
        f"--prices={tmp_path / 'prices.yaml'}",
    ]

    def run(*words: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["tandem", *words, *asked, *files, "--instance=cpu=cpu.large", "--json"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        made: dict[str, Any] = json.loads(capsys.readouterr().out)
        return made

    plan = run("plan")
    (step,) = plan["steps"]
    verdict = run("verdict", "digits", "--no-measure", f"--output={tmp_path / 'out'}")
    side = verdict["verdict"]["at_rates"][0]["gpu"]
    assert (step["num_cpu"], step["num_gpu"]) == (40, 33)
    assert [count for _, count in side["servers"]] == [33, 40]
    assert plan["per_hour_at_peak"] == side["per_hour"] == pytest.approx(40 * 0.472 + 33 * 2.944)
