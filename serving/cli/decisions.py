"""`tandem simulate`, `profile`, `plan`, `verdict`: what is measured and decided before anything is rented."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from serving.cli.help import Verb
from serving.cli.lazy import complete_for_load, loadtest, room
from serving.cli.options import FILE, JSON, MODEL_REPOSITORY, YES, Finite

# The names of the policies in decisions/simulate/scenario.py.
SIMULATED = ("tandem", "cpu-only", "gpu-always", "no-bridge", "hold", "oracle")
# What `plan` and `verdict` are both told of the load and of what may be rented.
RATE = click.option(
    "--rate", "rate_rps", type=Finite(0, 1e7, min_open=True), help="Requests per second, around the clock."
)
RATES = click.option("--rates", type=FILE, help="A day instead: a CSV with lines of hours a day,requests per second.")
P99 = click.option("--p99", required=True, metavar="TIME", help="The 99th percentile that is wanted, as 20ms.")
ROWS = click.option(
    "--batch-size", default=1, show_default=True, type=click.IntRange(1, 65536), help="Rows of a request."
)
MAX_PRICE = click.option(
    "--max-price",
    "max_price_per_hour",
    type=Finite(0, min_open=True),
    help="Highest price per hour, at the highest rate.",
)
INSTANCE = click.option(
    "--instance",
    "instances",
    multiple=True,
    metavar="POOL=NAME",
    help="The machine of the list that stands for a pool's, as cpu=c7a.xlarge. Default: the one that fits the profile's.",
)
LIKE = click.option(
    "--like",
    metavar="NAME",
    help="Where no card was measured: take others' published figures of this net, as bert-base, for the model's. Always a what-if.",
)
MAX_REPLICAS = click.option(
    "--max-replicas", type=click.IntRange(1, 10_000), help="Most servers of a pool that can be had."
)
MIN_REPLICAS = click.option(
    "--min-replicas",
    default=1,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Fewest servers of the pool that is always there.",
)
HEADROOM = click.option(
    "--headroom",
    "headroom_ratio",
    default=0.7,
    show_default=True,
    type=Finite(0, 1, min_open=True),
    help="Share of a server's highest rate that is planned with.",
)


@click.command(cls=Verb)
@click.argument("scenario", type=FILE)
@click.option(
    "--trace", type=FILE, help="Arrivals from a CSV: a column TIMESTAMP (Azure's LLM traces), or seconds first."
)
@click.option(
    "--copies", default=1, show_default=True, type=click.IntRange(1), help="How many times each arrival is sent."
)
@click.option(
    "--jitter", "jitter_s", type=Finite(0, 86_400), help="Most seconds by which a copy comes later. Default: 1."
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "bursts", "daily"]),
    help="Arrivals to generate where there is no trace. Default: poisson.",
)
@click.option(
    "--rate", "rate_rps", type=Finite(0, min_open=True), help="Mean requests per second, bursts included. Default: 10."
)
@click.option(
    "--duration",
    "duration_s",
    type=Finite(0, 31 * 86_400, min_open=True),
    help="Seconds to simulate, a month at most. Default: 3600.",
)
@click.option("--burst-times", type=Finite(1), help="The rate in a burst, as a multiple of that outside. Default: 5.")
@click.option(
    "--burst-every",
    "burst_every_s",
    type=Finite(0, min_open=True),
    help="Seconds from the start of a burst to that of the next, on average. Default: 600.",
)
@click.option(
    "--burst-lasting",
    "burst_lasting_s",
    type=Finite(0, min_open=True),
    help="Seconds of a burst, on average. Default: 60.",
)
@click.option(
    "--swing", type=Finite(0, 1), help="How far a day's rate swings around its mean, as a share of it. Default: 0.8."
)
@click.option(
    "--per-second",
    type=click.IntRange(1),
    help="Requests of a second that are looked at while nothing changes, each for its like. Default: all, 100 above two million.",
)
@click.option(
    "--noise",
    "noise_ratio",
    type=Finite(0, 10),
    help="Coefficient of variation of execution times, lognormal, in both pools instead of the file's.",
)
@click.option(
    "--objective", "objective_s", type=Finite(0, min_open=True), help="Objective in seconds, instead of the file's."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(SIMULATED),
    help="Simulate this policy only; may be given several times.",
)
@click.option("--seed", default=1, show_default=True, type=int, help="Seed of arrivals, cold starts and noise.")
@click.option("--picture", type=FILE, help="Also draw the run over time into this SVG file.")
@click.option("--report", type=FILE, help="Also write the answer, the table and the picture into this HTML file.")
@click.option(
    "--flow",
    is_flag=True,
    default=None,
    help="By a flow of work instead of requests: the regret of the scaler, beside HPA, KEDA, Knative.",
)
@click.option(
    "--recommend",
    is_flag=True,
    default=None,
    help="The same, and which rules of `scaling` would have been charged least.",
)
@JSON
def simulate(**options: Any) -> None:
    """Replay a trace through the code that decides, for the pools in SCENARIO, beside other policies; a what-if."""
    replay = room("serving.decisions.simulate.command")
    sys.exit(replay.run(replay.SimulateOptions.of(**options)))


@click.command(cls=Verb)
@click.argument("model")
@MODEL_REPOSITORY
@click.option(
    "--variant",
    "variants",
    multiple=True,
    help="Measure this variant only, as int8; may be given several times. Default: all.",
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    type=click.Choice(["cpu", "openvino", "cuda"]),
    help="Measure on this engine; may be given several times. Default: the one that is fastest for each variant here.",
)
@click.option(
    "--p99",
    metavar="TIMES",
    help="Objectives, as 20ms,50ms: the highest rate is searched for each. Default: one that all variants could meet.",
)
@click.option(
    "--batch-size", "batch_sizes", default="1,8", show_default=True, metavar="ROWS", help="Rows of a request, as 1,8."
)
@click.option(
    "--rate-batch-size", "rate_batch_sizes", metavar="ROWS", help="The same for the search. Default: the smallest."
)
@click.option(
    "--settings",
    metavar="IxT[/batch=N][/delay=Nus][/NAME=VALUE…]",
    help="Instances × threads of Triton, largest batch, wait for fuller ones, as 1x2,2x1/batch=8; buckets=auto, lengths=32+128 and "
    "options of a card. Default: as it is served.",
)
@click.option(
    "--data", help="What to send: an .npz of the model's inputs, 'digits' or 'random'. Default: what its gate saw."
)
@click.option(
    "--encoding",
    type=click.Choice(["binary", "json"]),
    default="binary",
    show_default=True,
    help="Encoding of the search's requests; the ladder measures both.",
)
@click.option("--pool", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True, help="Pool to measure.")
@click.option("--emulate", metavar="NAME=FILE", help="For proofs: a pool whose times follow a file, as of `tandem up`.")
@click.option("--quick", "is_quick", is_flag=True, help="A first impression, in a minute and a half.")
@click.option("--seconds", type=Finite(0.5, 600), help="Seconds of each run of the search. Default: 4; 2 with --quick.")
@click.option(
    "--no-search",
    "has_search",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Measure the ladder only, without searching rates.",
)
@click.option(
    "--no-cold-start", "has_cold_start", is_flag=True, flag_value=False, default=True, help="Leave out cold starts."
)
@click.option("--output", type=FILE, help="File to write the profile to. Default: results/profile-MODEL-DATE.json.")
@YES
@JSON
def profile(
    is_yes: bool,
    p99: str | None,
    batch_sizes: str,
    rate_batch_sizes: str | None,
    settings: str | None,
    emulate: str | None,
    **options: Any,
) -> None:
    """Measure MODEL here: what a request costs on every rung from the bare engine to the gateway, and the most a server carries in time."""
    complete_for_load(is_yes=is_yes)
    profiling = room("loadtest.profile.command")
    most = 65536  # rows, as `export --max-batch` takes them
    options["objectives_s"] = profiling.times_s(p99, "--p99") if p99 else ()
    options["batch_sizes"] = profiling.whole_numbers(batch_sizes, "--batch-size", most)
    if rate_batch_sizes:
        options["rate_batch_sizes"] = profiling.whole_numbers(rate_batch_sizes, "--rate-batch-size", most)
    if settings:
        options["settings"] = profiling.shapes(settings, "--settings")
    if emulate:
        options["pool"], options["emulate"] = profiling.emulation(emulate, "--emulate")
    sys.exit(loadtest(profiling, lambda: profiling.run(profiling.ProfileOptions(**options))))


@click.command(cls=Verb)
@click.option(
    "--profile",
    "profiles",
    type=FILE,
    multiple=True,
    required=True,
    help="A profile of `tandem profile`, or with published figures; several for several machines.",
)
@RATE
@RATES
@P99
@click.option("--model", help="The model to plan for, if the profiles are of several.")
@ROWS
@MAX_PRICE
@click.option(
    "--minimise",
    type=click.Choice(["price", "energy"]),
    default="price",
    show_default=True,
    help="energy: with one kind of server, by the joules in the profiles.",
)
@click.option(
    "--prices",
    multiple=True,
    metavar="FILE",
    help="Price lists; a later one adds machines or replaces those of its names. 'shipped' is the one that comes with Tandem, the default.",
)
@INSTANCE
@LIKE
@MIN_REPLICAS
@MAX_REPLICAS
@HEADROOM
@click.option(
    "--gateway-per-hour",
    default=0.0,
    show_default=True,
    type=Finite(0),
    help="What the gateway costs, to count it in the plan's prices.",
)
@click.option("--output", type=FILE, help="Folder for tandem.yaml, values.yaml of the chart and plan.json.")
@JSON
def plan(**options: Any) -> None:
    """Plan from profiles and prices: variants, machines, how many, their settings and costs, and from which rate on a GPU pays.

    Exit code 1: there is no such plan, and what keeps it from being possible.
    """
    planning = room("serving.decisions.plan.command")
    sys.exit(planning.run(planning.PlanOptions(**options, command=shlex.join(["tandem", *sys.argv[1:]]))))


@click.command(cls=Verb)
@click.argument("model")
@RATE
@RATES
@P99
@MODEL_REPOSITORY
@click.option(
    "--profile",
    "profiles",
    type=FILE,
    multiple=True,
    help="A profile of another machine, or of this one, which is then not measured again; may be given several times.",
)
@click.option("--prices", multiple=True, metavar="FILE", help="Price lists, as of `tandem plan`.")
@INSTANCE
@LIKE
@click.option("--data", help="What to send, as of `tandem profile`. Default: what the model's gate saw.")
@ROWS
@MIN_REPLICAS
@MAX_REPLICAS
@HEADROOM
@MAX_PRICE
@click.option("--quick", "is_quick", is_flag=True, help="A first impression: too few runs for an answer.")
@click.option(
    "--no-measure",
    "may_measure",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Judge by the profiles that are given, and measure nothing.",
)
@click.option(
    "--no-check", "has_check", is_flag=True, flag_value=False, default=True, help="Do not run the planned rate."
)
@click.option("--output", type=FILE, help="New folder for the results. Default: results/verdict-MODEL-DATE.")
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help='Exit code 1 if this holds, as "p99_s > 0.05", also if it is not known; several times for several.',
)
@YES
@JSON
def verdict(is_yes: bool, **options: Any) -> None:
    """Does the GPU pay for MODEL at this rate and p99? Measures this machine, plans, checks the plan by a run, and reports.

    Exit code 1: nothing meets the objective, or a --fail-if holds.
    """
    if options["may_measure"] or options["has_check"]:
        complete_for_load(is_yes=is_yes)
    judging = room("loadtest.verdict.command")
    asked = judging.VerdictOptions(**options, command=shlex.join(["tandem", *sys.argv[1:]]))
    sys.exit(loadtest(judging, lambda: judging.run(asked)))
