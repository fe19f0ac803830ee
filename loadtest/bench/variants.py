"""What does a variant, or an engine, buy where it is served? Images per second beside FP32 on ONNX Runtime's own provider.

A net with random weights (speed only), ResNet-50 by default, is exported twice: with ONNX Runtime's own provider alone, and
with all engines that are installed, whose fastest its speed gate then names. Both are served at once, and asked in alternating
rounds as `compute` asks: through gateway and Triton, binary tensors, the client on the same cores. Rule: what is divided was
asked in one round.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadtest.bench.command import BenchReport, bench_parser, run_bench
from loadtest.bench.compute import NUM_OUTSTANDING
from loadtest.bench.verdicts import Reach, Verdict, spread_text, table
from loadtest.errors import CannotMeasure
from loadtest.nets import Net, request_to, served_rps
from loadtest.processes import TANDEM, run_command
from loadtest.stack import Server, stack
from serving.http_client import Connection
from serving.measure.machine import this_machine
from serving.measure.rounds import Spread, in_turn, ratio, spread

MODULE = "loadtest.bench.variants"
NETS = ("resnet50", "efficientnet-b2", "mlp")  # of `speed:`, those that take numbers and no tokens
EXPORT_TIMEOUT_S = 1200.0  # of all variants on two engines: 200 s on two cores
ANSWER_TIMEOUT_S = 60.0
INT8_WITH_VNNI, BEST_WITH_AMX = 3.0, 5.0  # times FP32 on ONNX Runtime's own provider
PLAIN = ("fp32", "cpu")

Entry = tuple[str, str]  # variant, engine as the receipt names it


@dataclass(frozen=True, slots=True)
class Plan:
    net: str
    batch_size: int
    num_rounds: int
    round_s: float
    export_s: float  # of timing per batch size, when the fastest engine is chosen


@dataclass(frozen=True, slots=True)
class Result:
    instruction_sets: Sequence[str]
    plan: Plan
    images_per_s: Mapping[Entry, Sequence[float]]
    not_made: Mapping[str, str]

    def gain(self, entry: Entry) -> Spread:
        return ratio(self.images_per_s[entry], self.images_per_s[PLAIN])

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Only for the net, and where the processor has the instructions, that the aims are about."""
        if self.plan.net != "resnet50":
            return ()
        sets, made = self.instruction_sets, []
        int8 = ("int8", "cpu")
        if any("vnni" in name for name in sets) and int8 in self.images_per_s:
            made.append(
                Verdict(
                    "INT8 ÷ FP32, ONNX Runtime's own provider", self.gain(int8).median, Reach(INT8_WITH_VNNI, "times")
                )
            )
        if any(name.startswith("amx") for name in sets):
            best = max((self.gain(entry).median for entry in self.images_per_s), default=None)
            made.append(Verdict("best variant and engine ÷ that FP32", best, Reach(BEST_WITH_AMX, "times")))
        return tuple(made)

    def report(self) -> BenchReport:
        conditions = (
            f"{self.plan.net} (random weights: speed only), batch {self.plan.batch_size}, through gateway and Triton, "
            f"{self.plan.num_rounds} alternating rounds of {self.plan.round_s} s; median (min..max)"
        )
        rows = [("variant", "images/s", "÷ FP32 on cpu", "engine")]
        for variant, engine in sorted(self.images_per_s, key=lambda entry: spread(self.images_per_s[entry]).median):
            rate = spread(self.images_per_s[variant, engine])
            rows.append((variant, spread_text(rate), spread_text(self.gain((variant, engine)), 2), engine))
        left_out = [f"{variant}: not made: {reason}" for variant, reason in self.not_made.items()]
        facts = {
            "net": self.plan.net,
            "batch_size": self.plan.batch_size,
            "round_s": self.plan.round_s,
            "images_per_s": {f"{v} on {engine}": list(rates) for (v, engine), rates in self.images_per_s.items()},
            "not_made": dict(self.not_made),
        }
        return BenchReport([conditions], [table(rows), *left_out], self.verdicts, facts)


def main(arguments: Sequence[str]) -> int:
    parser = bench_parser(MODULE, __doc__)
    parser.add_argument("--net", choices=NETS, default="resnet50")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--round-s", type=float, default=4.0)
    parser.add_argument("--export-s", type=float, default=0.3, help="of timing per batch size, to choose the engine")
    options = parser.parse_args(arguments)
    plan = Plan(options.net, options.batch_size, options.rounds, options.round_s, options.export_s)
    return run_bench(MODULE, arguments, options.json, lambda: run(plan).report(), is_quick=False)


def run(plan: Plan) -> Result:
    """Raises CannotMeasure."""
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name, ExitStack() as running:
        folder = Path(name)
        requests: dict[Entry, tuple[bytes, Server]] = {}
        not_made: dict[str, str] = {}
        for kind, options in (("plain", ["--engine", "cpu"]), ("all", [])):
            repository = folder / kind
            not_made |= export(plan, repository, options)
            (folder / f"{kind}-logs").mkdir()
            gateway = running.enter_context(stack(repository, folder / f"{kind}-logs")).gateway
            for variant in served(plan, repository):
                net = Net(plan.net, repository, "random", plan.batch_size, variant)
                request = request_to(net, gateway)
                requests.setdefault((variant, engine_of(request, gateway)), (request, gateway))
        rates = _rates(plan, requests)
    made = {variant for variant, _ in rates}
    left = {variant: reason for variant, reason in not_made.items() if variant not in made}
    return Result(this_machine().instruction_sets, plan, rates, left)


def export(plan: Plan, repository: Path, options: Sequence[str]) -> Mapping[str, str]:
    """Variants that were not made, with the reasons."""
    print(f"exporting {plan.net} {' '.join(options)}", file=sys.stderr)
    command = [
        *TANDEM,
        "export",
        f"speed:{plan.net}",
        "--model-repository",
        str(repository),
        "--seconds",
        str(plan.export_s),
    ]
    for precision in ("fp32", "bf16", "int8"):  # FP16 is for GPUs
        command += ["--precision", precision]
    run_command(
        [*command, "--max-batch", str(plan.batch_size), *options],
        f"{plan.net} could not be exported",
        EXPORT_TIMEOUT_S,
    )
    record = json.loads((repository / f"{plan.net}-fp32" / "tandem.json").read_text())
    not_made: Mapping[str, str] = record["not_made"]
    return not_made


def served(plan: Plan, repository: Path) -> list[str]:
    return sorted(path.parent.name.rpartition("-")[2] for path in repository.glob(f"{plan.net}-*/tandem.json"))


def engine_of(request: bytes, gateway: Server) -> str:
    """What the receipt says."""
    connection = Connection(gateway.url, ANSWER_TIMEOUT_S, frozenset({b"tandem-engine"}))
    try:
        answer = connection.send(request)
    except OSError as error:
        raise CannotMeasure(f"the gateway does not answer: {error}") from None
    finally:
        connection.close()
    engine = answer.headers.get(b"tandem-engine")
    if answer.status != 200 or engine is None:
        raise CannotMeasure(f"the gateway answered {answer.status} without a receipt")
    return engine


def _rates(plan: Plan, requests: Mapping[Entry, tuple[bytes, Server]]) -> dict[Entry, list[float]]:
    def rate(entry: Entry) -> float:
        request, gateway = requests[entry]
        print(f"asking {' on '.join(entry)}", file=sys.stderr)
        return served_rps(request, gateway, plan.round_s, NUM_OUTSTANDING) * plan.batch_size

    return in_turn({entry: partial(rate, entry) for entry in requests}, plan.num_rounds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
