"""A what-if without a card: what would be rented for ResNet-50 at each rate, by figures that others published.

python examples/which_card.py [--p99 15ms] [--rates 1000 10000 100000]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from serving.decisions.plan.command import seconds
from serving.decisions.profile import write_profile
from serving.decisions.published import published_profiles

TANDEM = [sys.executable, "-m", "serving"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--p99", default="15ms", help="the 99th percentile that is wanted")
    parser.add_argument("--rates", nargs="+", default=["1000", "10000", "100000"], help="requests per second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        profiles = []
        for number, card in enumerate(published_profiles("resnet50", seconds(options.p99, "--p99"))):
            write_profile(file := Path(folder) / f"{number}.json", card)
            profiles += ["--profile", str(file)]
        tell(options, profiles)


def tell(options: argparse.Namespace, profiles: list[str]) -> None:
    for rate in options.rates:
        if not profiles:
            print(f"{rate}/s: no card that anybody published does that within {options.p99}")
            continue
        words = ["plan", *profiles, "--rate", rate, "--p99", options.p99, "--json"]
        done = subprocess.run([*TANDEM, *words], capture_output=True, text=True, check=False)
        if done.returncode > 1:
            sys.exit(done.stderr)
        plan = json.loads(done.stdout)
        if not plan["is_possible"]:
            print(f"{rate}/s: no card of these does that within {options.p99}")
            continue
        [pool] = plan["pools"]
        [step] = plan["steps"]
        print(f"{rate}/s: {step['num_gpu']} × {pool['device_name']} ({pool['offer']}), ${step['per_hour']:.2f} an hour")
    print("By published figures, not measured by Tandem: what stands against them is told by `tandem plan` in words.")


if __name__ == "__main__":
    main()
