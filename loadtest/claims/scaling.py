"""How many GPU hours does scaling to demand save? By `tandem simulate`, beside GPUs for the peak that are always on.

Simulated, never measured, and said so wherever it is shown. Each seed has its own arrivals and cold starts, the same for every policy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest.claims.values import Findings, Simulated
from loadtest.processes import run_command

ALWAYS = "gpu-always"
LIMIT_S = 600.0  # of one seed; 10 s on two busy cores
OPTIONS = ("rate_rps", "duration_s", "burst_times", "burst_every_s", "burst_lasting_s")


def measure(settings: dict[str, Any], folder: Path, policies: Sequence[str], say: Callable[[str], None]) -> Findings:
    """`folder`: of the file, where the scenario's path begins. Raises CannotMeasure."""
    scenario = folder / settings["scenario"]
    found: list[Simulated] = []
    for seed in settings["seeds"]:
        say(f"simulating {scenario.stem}, seed {seed}")
        command = [
            sys.executable,
            "-m",
            "serving",
            "simulate",
            str(scenario.resolve()),
            "--arrivals",
            "bursts",
            "--json",
        ]
        for option in OPTIONS:
            name = option.removesuffix("_s").removesuffix("_rps").replace("_", "-")
            command += [f"--{name}", f"{settings[option]:g}"]
        for policy in (*policies, ALWAYS):
            command += ["--policy", policy]
        said = run_command([*command, "--seed", str(seed)], f"{scenario.name} could not be simulated", LIMIT_S)
        found += compared(json.loads(said), seed)
    return Findings(simulated=tuple(found))


def compared(told: dict[str, Any], seed: int) -> list[Simulated]:
    """Each policy beside the one that is always on. `told`: what `tandem simulate --json` prints."""
    by_name = {outcome["policy"]: outcome for outcome in told["policies"]}
    always = by_name.pop(ALWAYS)
    return [
        Simulated(
            policy=name,
            seed=seed,
            gpu_hours=outcome["gpu_hours"],
            always_gpu_hours=always["gpu_hours"],
            in_time_ratio=outcome["attainment_ratio"],
            always_in_time_ratio=always["attainment_ratio"],
            cost=outcome["cost"],
            always_cost=always["cost"],
        )
        for name, outcome in by_name.items()
    ]
