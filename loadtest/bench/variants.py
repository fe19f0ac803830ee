"""What does a variant, or an engine, buy where it is served? Images per second beside FP32 on ONNX Runtime's own provider.

A net with random weights (speed only), ResNet-50 by default, is exported twice: with ONNX Runtime's own provider alone, and
with all engines that are installed, whose fastest its speed gate then names. Both are served at once, and asked in alternating
rounds as `compute` asks: through gateway and Triton, binary tensors, the client on the same cores. Rule: what is divided was
asked in one round.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.bench.compute import NUM_OUTSTANDING
from loadtest.bench.verdicts import Reach, Verdict, exit_code, result_file, table
from loadtest.errors import CannotMeasure
from loadtest.nets import Net, request_to, served_rps
from loadtest.processes import TANDEM, Moment, run_command
from loadtest.stack import Server, stack
from serving.http_client import Connection
from serving.measure.machine import Machine, head, this_machine
from serving.measure.rounds import Spread, ratio, rounds, spread

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
    machine: Machine
    command: str
    date: str
    plan: Plan
    images_per_s: Mapping[Entry, Sequence[float]]
    not_made: Mapping[str, str]
    others_ratio: float

    def gain(self, entry: Entry) -> Spread:
        return ratio(self.images_per_s[entry], self.images_per_s[PLAIN])

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Only for the net, and where the processor has the instructions, that the aims are about."""
        if self.plan.net != "resnet50":
            return ()
        sets, made = self.machine.instruction_sets, []
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

    def to_json(self) -> dict[str, object]:
        return {
            "machine": asdict(self.machine),
            "command": self.command,
            "date": self.date,
            "net": self.plan.net,
            "batch_size": self.plan.batch_size,
            "round_s": self.plan.round_s,
            "others_ratio": self.others_ratio,
            "images_per_s": {
                f"{variant} on {engine}": list(rates) for (variant, engine), rates in self.images_per_s.items()
            },
            "not_made": dict(self.not_made),
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
        }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.variants", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--net", choices=NETS, default="resnet50")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--round-s", type=float, default=4.0)
    parser.add_argument("--export-s", type=float, default=0.3, help="of timing per batch size, to choose the engine")
    parser.add_argument("--json", type=result_file, metavar="FILE", help="also write every round to this file")
    options = parser.parse_args(arguments)
    plan = Plan(options.net, options.batch_size, options.rounds, options.round_s, options.export_s)
    try:
        result = run(plan, shlex.join(["python", "-m", "loadtest.bench.variants", *arguments]))
    except CannotMeasure as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    print(report(result))
    if options.json:
        options.json.write_text(json.dumps(result.to_json(), indent=1) + "\n")
    return exit_code(result.verdicts)


def run(plan: Plan, command: str) -> Result:
    """Raises CannotMeasure."""
    machine, began = this_machine(), Moment.now()
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name, ExitStack() as running:
        folder = Path(name)
        requests: dict[Entry, tuple[bytes, Server]] = {}
        not_made: dict[str, str] = {}
        for kind, options in (("plain", ["--engine", "cpu"]), ("all", [])):
            repository = folder / kind
            said = export(plan, repository, options)
            not_made |= said
            (folder / f"{kind}-logs").mkdir()
            gateway = running.enter_context(stack(repository, folder / f"{kind}-logs")).gateway
            for variant in served(plan, repository):
                net = Net(plan.net, repository, "random", plan.batch_size, variant)
                request = request_to(net, gateway)
                requests.setdefault((variant, engine_of(request, gateway)), (request, gateway))
        rates = _rates(plan, requests)
    others_ratio = began.others_ratio(Moment.now(), machine.num_cores)  # the servers have ended, and count as ours
    made = {variant for variant, _ in rates}
    left = {variant: reason for variant, reason in not_made.items() if variant not in made}
    return Result(machine, command, datetime.date.today().isoformat(), plan, rates, left, others_ratio)


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
    names = {f"{variant} on {engine}": (variant, engine) for variant, engine in requests}
    rates: dict[Entry, list[float]] = {entry: [] for entry in requests}
    for index, order in enumerate(rounds(list(names), plan.num_rounds)):
        print(f"round {index + 1} of {plan.num_rounds}: {', '.join(order)}", file=sys.stderr)
        for name in order:
            request, gateway = requests[names[name]]
            rates[names[name]].append(served_rps(request, gateway, plan.round_s, NUM_OUTSTANDING) * plan.batch_size)
    return rates


def report(result: Result) -> str:
    first = head(
        result.machine,
        result.date,
        result.command,
        f"{result.plan.net} (random weights: speed only), batch {result.plan.batch_size}, through gateway and Triton, "
        f"{result.plan.num_rounds} alternating rounds of {result.plan.round_s} s; median (min..max)",
        others_ratio=result.others_ratio,
    )
    rows = [("variant", "images/s", "÷ FP32 on cpu", "engine")]
    for variant, engine in sorted(result.images_per_s, key=lambda entry: spread(result.images_per_s[entry]).median):
        rate, gain = spread(result.images_per_s[variant, engine]), result.gain((variant, engine))
        rows.append((variant, _cell(rate, 1), _cell(gain, 2), engine))
    parts = [first, table(rows)]
    parts += [f"{variant}: not made: {reason}" for variant, reason in result.not_made.items()]
    if result.verdicts:
        parts.append(
            table([("verdicts", "value", "aim", "outcome"), *(verdict.cells() for verdict in result.verdicts)])
        )
    return "\n\n".join(parts)


def _cell(values: Spread, digits: int) -> str:
    return f"{values.median:.{digits}f} ({values.low:.{digits}f}..{values.high:.{digits}f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
