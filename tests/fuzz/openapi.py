"""Schemathesis: cases made from the document that a gateway gives of itself, each answered as the document says, in time, without a fault."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

CONFIG = Path(__file__).with_name("schemathesis.toml")
MIN_S = 15  # two side by side; less, and a busy machine makes no case at all


def run(name: str, url: str, seconds: float, seed: int, into: Path, *, model: str = "", key: str = "") -> list[str]:
    """What was found. `model`: the only one that is asked for, in version 1, or else any name at all; `key`: an API key that is sent along."""
    config, log, report = (into / f"{name}.{kind}" for kind in ("toml", "log", "json"))
    report.unlink(missing_ok=True)
    config.write_text(
        CONFIG.read_text() + (f'\n[parameters]\n"path.model" = "{model}"\n"path.version" = "1"\n' if model else "")
    )
    command = [sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", str(config)]
    command += ["run", f"{url}/openapi.json", "--max-time", str(max(MIN_S, int(seconds))), "--seed", str(seed)]
    command += ["--report-json-path", str(report)]
    command += ["-H", f"Authorization: Bearer {key}"] if key else []
    command += ["--exclude-path-regex", "unload$"] if model else []  # or nothing else would have a model to ask
    began = time.monotonic()
    with log.open("wb") as output:
        ended = subprocess.run(command, cwd=into, stdout=output, stderr=output)
    told = report.read_text() if report.exists() else ""
    made = json.loads(told)["test_cases"]["generated"] if told else 0
    print(f"{name:18} {made} cases in {time.monotonic() - began:.0f} s", flush=True)
    if not made:
        return [f"{name}: Schemathesis made no cases; it may want more --seconds (results/fuzz/{log.name})"]
    return (
        []
        if ended.returncode == 0
        else [f"{name}: the gateway is not what its document says (results/fuzz/{log.name})"]
    )
