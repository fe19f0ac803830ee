"""`make fuzz`: every fuzzer in turn, and what each found. Exit code 1 where one found something.

    python -m tests.fuzz [--seconds 50] [--only targets,openapi,framing,memory,cost] [--seed N] [--input NAME] [--short]

The seconds are shared out; what is found lies in results/fuzz/ with the bytes that found it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tests.fuzz import cost, framing, memory, openapi
from tests.fuzz.models import repository
from tests.fuzz.served import ROOT, Served, served, served_with_keys
from tests.fuzz.targets import GOOD, TARGETS

RESULTS = ROOT / "results" / "fuzz"
# What of the time each part gets; memory takes as long as its requests do, a minute or so on two cores, and cost some minutes.
SHARES = {"targets": 0.5, "openapi": 0.3, "framing": 0.2}
PARTS = [*SHARES, "memory", "cost"]
NUM_REQUESTS = 100_000
SIDE_BY_SIDE = 2  # fuzzers of targets


def main() -> int:
    options = _options()
    RESULTS.mkdir(parents=True, exist_ok=True)
    found: list[str] = []
    parts = options.only.split(",")
    with ThreadPoolExecutor(1) as beside:
        targets = beside.submit(_targets, options.seconds * SHARES["targets"]) if "targets" in parts else None
        if set(parts) - {"targets"}:
            found += _served(options, parts, targets)
        if targets is not None:
            found += targets.result()
    for one in found:
        print(f"found: {one}")
    print(f"{len(found)} findings" + (f", in {RESULTS.relative_to(ROOT)}/" if found else ""))
    return 1 if found else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=…")
    parser.add_argument("--seconds", type=float, default=600.0, help="in all, but for the parts `memory` and `cost`")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by commas")
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS, help="of the part `memory`")
    parser.add_argument("--seed", type=int, default=1, help="of the parts that send requests")
    parser.add_argument("--input", default="", help="of the part `cost`: only those with that in their names")
    parser.add_argument("--short", action="store_true", help="of the part `cost`: a dozen inputs, half a minute")
    options = parser.parse_args()
    if unknown := set(options.only.split(",")) - set(PARTS):
        parser.error(f"unknown part {min(unknown)}; there are {', '.join(PARTS)}")
    return options


def _targets(seconds: float) -> list[str]:
    if importlib.util.find_spec("atheris") is None:
        print("targets       not run: Atheris has no wheel for this machine (x86_64 only)")
        return []
    each = max(2, int(seconds * SIDE_BY_SIDE / len(TARGETS)))
    names = list(TARGETS)
    for name in names:
        (RESULTS / f"{name}.log").unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.coverage_guided", str(each), str(RESULTS)]
    with (RESULTS / "targets.log").open("wb") as log:
        side_by_side = [
            subprocess.Popen([*command, *names[n::SIDE_BY_SIDE]], cwd=ROOT, stdout=log, stderr=log)
            for n in range(SIDE_BY_SIDE)
        ]
        for process in side_by_side:
            process.wait()
    return [one for name in names for one in _found_by(name)]


def _found_by(name: str) -> list[str]:
    log = RESULTS / f"{name}.log"
    said = log.read_text(errors="replace") if log.exists() else ""
    runs = re.findall(r"stat::number_of_executed_units:\s+(\d+)", said)
    reached = re.findall(r"cov: (\d+)", said)
    print(
        f"{name:18} {runs[-1] if runs else '?':>8} inputs, {reached[-1] if reached else '?'} places reached", flush=True
    )
    lines = [line for line in said.splitlines() if line.strip()]
    if lines and lines[-1] == GOOD:
        return []
    why = next(
        (line for line in lines if "Finding" in line or "Error" in line or "Exception" in line), "it ended badly"
    )
    return [f"{name}: {why.strip()} (results/fuzz/{name}.log)"]


def _served(options: argparse.Namespace, parts: list[str], targets: Future[list[str]] | None) -> list[str]:
    """The parts that send requests to gateways that run; these start while the targets are fuzzed, and are asked after them."""
    found: list[str] = []
    with contextlib.ExitStack() as running:
        if "cost" in parts:
            models = repository(RESULTS / "repository")
            options_of = ("--model-repository", str(models))
            by_default = running.enter_context(
                served(RESULTS / "served-by-default", *options_of, limits={}, repository=models)
            )
        if {"openapi", "framing", "memory"} & set(parts):
            with_limits = running.enter_context(served(RESULTS / "served"))
        if "openapi" in parts:
            with_keys, key = running.enter_context(served_with_keys(RESULTS / "served-with-keys"))
        wait([targets] if targets else [])
        if "cost" in parts:
            found += cost.run(by_default, options.input, is_short=options.short) + _faults(by_default)
        if "openapi" in parts:
            seconds = options.seconds * SHARES["openapi"]
            with ThreadPoolExecutor(1) as beside:
                keyed = beside.submit(
                    openapi.run, "openapi-keys", with_keys.url, seconds, options.seed, RESULTS, model="digits", key=key
                )
                found += openapi.run("openapi", with_limits.url, seconds, options.seed, RESULTS) + keyed.result()
            found += _faults(with_keys)
        if "framing" in parts:
            seconds = options.seconds * SHARES["framing"]
            sent, problems = asyncio.run(framing.run(with_limits, seconds, options.seed, RESULTS))
            print(f"{'framing':18} {sent} requests, {len(problems)} findings", flush=True)
            found += problems
        if "memory" in parts:
            told, problems = asyncio.run(memory.run(with_limits, options.requests))
            print(f"{'memory':18} {told}", flush=True)
            found += problems
        if {"openapi", "framing", "memory"} & set(parts):
            found += _faults(with_limits)
    return found


def _faults(here: Served) -> list[str]:
    """What the gateway itself wrote about what went wrong: strangers must not be able to make it say anything."""
    told = [
        line for line in here.log.read_text(errors="replace").splitlines() if "Traceback" in line or "ERROR" in line
    ]
    return [f"the gateway's log has {len(told)} errors ({here.log.relative_to(ROOT)})"] if told else []


if __name__ == "__main__":
    sys.exit(main())
