"""Which options of the CUDA provider pay, and do buffers and captured graphs? In turns with plain runs, as the provider is by itself.

Units of stage 2. Rule: what a captured graph answers is held against a plain run, with other rows than it was captured with and with a
batch that is padded: a graph that replays too little is fast, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.claims.values import Findings, Omission, OptionTime
from loadtest.errors import CannotMeasure
from loadtest.gpu.ledger import Check
from loadtest.gpu.unit import Setup, Unit, UnitResult
from serving.export.scratch import scratch
from serving.export.speed import Entrant, Results, contest
from serving.export.speed.process import WorkerLost, WorkerProcess, WorkerRefusal
from serving.export.speed_nets import net
from serving.export.speed_nets.compare import inputs_of
from serving.export.variants import fp16, fusion
from serving.export.variants.candidate import NotMade
from serving.repository import Repository

PLAIN, BUFFERS, GRAPHS, FUSED = "plain", "buffers", "captured graphs", "fused operators"
TRANSFORMERS = ("minilm", "bert-base")
CAPTURE, NHWC = ("enable_cuda_graph", "1"), ("prefer_nhwc", "1")
# Arm -> options of the provider, and whether batches run in buffers.
Arms = Mapping[str, tuple[tuple[tuple[str, str], ...], bool]]
ALL: Arms = {PLAIN: ((), False), BUFFERS: ((), True), GRAPHS: ((CAPTURE,), True)}
CONVOLUTIONS: Arms = {
    "prefer_nhwc": ((NHWC,), False),
    "fuse_conv_bias": ((("fuse_conv_bias", "1"),), False),
    "cudnn_conv_algo_search=HEURISTIC": ((("cudnn_conv_algo_search", "HEURISTIC"),), False),
    f"prefer_nhwc, {GRAPHS}": ((NHWC, CAPTURE), True),
}
ONE_STREAM: Arms = {"use_ep_level_unified_stream": ((("use_ep_level_unified_stream", "1"),), False)}
MEMORY: Arms = {
    "arena_extend_strategy=kSameAsRequested": ((("arena_extend_strategy", "kSameAsRequested"),), False),
    "gpu_mem_limit=4 GiB": ((("gpu_mem_limit", str(4 << 30)),), False),
}
KERNELS = {
    "flash": 1,
    "memory-efficient": 2,
    "cuDNN's": 8,
    "plain": 16,
}  # of fused attention, as the provider adds them up
CASES: tuple[tuple[str, str, Arms], ...] = (
    ("minilm", "fp16", {**ALL, **ONE_STREAM, **MEMORY}),
    ("minilm", "fp32", {**ALL, **ONE_STREAM}),
    ("resnet50", "fp16", {**ALL, **CONVOLUTIONS}),
    ("bert-base", "fp16", ALL),
    ("resnet50", "fp32", {**ALL, **CONVOLUTIONS}),
    ("mlp", "fp32", ALL),
)
QUICK_CASES: tuple[tuple[str, str, Arms], ...] = (("mlp", "fp32", {**ALL, **CONVOLUTIONS, **ONE_STREAM}),)
SIZES, QUICK_SIZES = (1, 8, 32), (1,)
SECONDS, MAX_SECONDS, NUM_ROUNDS = 0.25, 14.0, 3  # an H200 took 5 s a net, 21 s for ResNet-50 (2026-11-26)
QUICK_SECONDS = 0.02
QUICK_MAX_SECONDS = 180.0  # a busy machine begins eight sessions three times in more than 14 s
ANSWER_TIMEOUT_S = 120.0
BUCKET = 8
FULL, PADDED = (0, BUCKET), (BUCKET, BUCKET + 3)  # rows: other ones, so that a graph that replays nothing is seen
# Of the largest value. An H200's graphs were 1.7e-7 away in FP32, and 8e-3 in FP16 where a batch was padded: cuDNN takes another algorithm
# for another size of batch, with graphs or without (2026-11-26). Twice that, and rounding's order in FP32.
MAX_ERROR = {"fp32": 1e-5, "fp16": 2e-2}


def units(setup: Setup) -> Iterator[Unit]:
    """No processor has the fused kernels in FP16, so that a rehearsal times none."""
    for name, variant, arms in QUICK_CASES if setup.is_quick else CASES:
        yield Unit(f"options of {name} {variant} on cuda", partial(_measured, setup, name, variant, arms))
    for name in () if setup.is_quick else TRANSFORMERS:
        yield Unit(f"fused operators of {name} on cuda", partial(_fusion, setup, name))


def _fusion(setup: Setup, name: str) -> UnitResult:
    """FP32 and FP16, each fused beside plain, all in the same turns."""
    plain = {variant: _file(setup, name, variant) for variant in ("fp32", "fp16")}
    fused = fused_files(plain["fp32"], setup.work / "fused", name)
    by_variant: dict[str, dict[str, Entrant]] = {
        variant: {
            PLAIN: Entrant(f"{variant} {PLAIN}", "cuda", plain[variant]),
            FUSED: Entrant(f"{variant} {FUSED}", "cuda", fused[variant]),
            f"{FUSED}, {GRAPHS}": Entrant(f"{variant} {FUSED}, {GRAPHS}", "cuda", fused[variant], (CAPTURE,), True),
        }
        for variant in plain
    }
    for kernel, number in KERNELS.items():
        option = ("sdpa_kernel", str(number))
        arm = f"{FUSED}, sdpa_kernel={number} ({kernel})"
        by_variant["fp16"][arm] = Entrant(f"fp16 {arm}", "cuda", fused["fp16"], (option,))
    results = _contest(setup, name, [one for arms in by_variant.values() for one in arms.values()])
    found = [findings(name, variant, arms, results) for variant, arms in by_variant.items()]
    times = tuple(time for one in found for time in one.options if time.arm != PLAIN)
    if not any(time.arm == FUSED for time in times):
        raise CannotMeasure(next(iter(results.left_out.values()), "nothing was timed"))
    return UnitResult(findings=replace(found[0], options=times))


def fused_files(fp32: Path, folder: Path, name: str) -> dict[str, Path]:
    """FP32 and FP16 with ONNX Runtime's own operators, made where they are not there yet. Raises CannotMeasure."""
    files = {variant: folder / f"{name}-{variant}.onnx" for variant in ("fp32", "fp16")}
    if not all(file.exists() for file in files.values()):
        try:
            found = fusion.fused(fp32.read_bytes())
        except NotMade as error:
            raise CannotMeasure(str(error)) from None
        if found is None:
            raise CannotMeasure(f"{name} has nothing to fuse")
        folder.mkdir(parents=True, exist_ok=True)
        files["fp16"].write_bytes(fp16.to_fp16(found.model, frozenset()))
        files["fp32"].write_bytes(found.model)
    return files


def _file(setup: Setup, name: str, variant: str) -> Path:
    """Raises CannotMeasure."""
    setup.make(name)
    model = net(name).model
    files = [one.model_path for one in Repository(setup.nets).variants() if one.name == f"{model}-{variant}"]
    if not files:
        raise CannotMeasure(f"{model}-{variant} was not made")
    return files[0]


def _contest(setup: Setup, name: str, entrants: Sequence[Entrant]) -> Results:
    setup.say(f"timing {len(entrants)} ways to run {name}")
    return contest(
        entrants,
        engines={"cuda": setup.card.engines["cuda"]},
        batch_sizes=QUICK_SIZES if setup.is_quick else SIZES,
        inputs=inputs_of(net(name).model, max(SIZES)),
        num_threads=setup.claims_setup().num_threads,
        seconds=QUICK_SECONDS if setup.is_quick else SECONDS,
        max_seconds=QUICK_MAX_SECONDS if setup.is_quick else MAX_SECONDS,
        num_rounds=NUM_ROUNDS,
    )


def _measured(setup: Setup, name: str, variant: str, arms: Arms) -> UnitResult:
    model = net(name).model
    file = _file(setup, name, variant)
    entrants = {arm: Entrant(f"{variant} {arm}", "cuda", file, *how) for arm, how in arms.items()}
    results = _contest(setup, name, list(entrants.values()))
    found = findings(name, variant, entrants, results)
    if not any(one.arm == PLAIN for one in found.options):
        raise CannotMeasure(next(iter(results.left_out.values()), "nothing was timed"))
    is_captured = any(one.arm == GRAPHS for one in found.options)
    checks = (answers(setup, model, variant, file),) if is_captured else ()
    return UnitResult(checks, found)


def findings(name: str, variant: str, entrants: Mapping[str, Entrant], results: Results) -> Findings:
    times = []
    plain = entrants[PLAIN].key
    for size, rounds in sorted(results.times.items()):
        for arm, entrant in entrants.items():
            taken = [one[entrant.key] for one in rounds if len(one.get(entrant.key, ()))]
            pairs = [one for one in rounds if {plain, entrant.key} <= one.keys() and len(one[entrant.key])]
            ratios = () if arm == PLAIN else tuple(float(np.median(one[plain] / one[entrant.key])) for one in pairs)
            if taken:
                median_s = float(np.median(np.concatenate(taken)))
                times.append(OptionTime(name, variant, "cuda", size, arm, median_s, ratios))
    left_out = tuple(Omission(name, *key, None, reason) for key, reason in results.left_out.items())
    warnings = tuple(f"{name}: {warning}" for warning in results.warnings)
    return Findings(options=tuple(times), left_out=left_out, warnings=warnings)


def answers(setup: Setup, model: str, variant: str, file: Path) -> Check:
    """Raises CannotMeasure."""
    rows = inputs_of(model, PADDED[1])
    assert rows is not None
    worst = 0.0
    with scratch("graphs") as folder:
        inputs, outputs = folder / "in.npz", folder / "out.npz"
        how: dict[str, Any] = {"file": str(file), "engine": "cuda", "precision": variant, "inputs": None}
        how |= {"num_threads": setup.claims_setup().num_threads, "allow_spinning": False}
        try:
            worker = WorkerProcess(setup.card.engines["cuda"])
            try:
                worker.ask(ANSWER_TIMEOUT_S, "open", name=PLAIN, **how)
                worker.ask(ANSWER_TIMEOUT_S, "open", name=GRAPHS, cuda=dict([CAPTURE]), has_buffers=True, **how)
                for first, end in (FULL, PADDED):
                    given: Any = {name: values[first:end] for name, values in rows.items()}
                    np.savez(inputs, **given)
                    both = []
                    for name in (PLAIN, GRAPHS):
                        ask = {"inputs": str(inputs), "outputs": str(outputs), "batch_size": BUCKET}
                        worker.ask(ANSWER_TIMEOUT_S, "run", name=name, **ask)
                        with np.load(outputs) as found:
                            both.append([found[str(place)].astype(np.float64) for place in range(len(found.files))])
                    worst = max(worst, *(apart(*pair) for pair in zip(*both, strict=True)))
            finally:
                worker.end()
        except (WorkerLost, WorkerRefusal) as failure:
            raise CannotMeasure(f"{model} {variant}: {failure}") from None
    bound = MAX_ERROR[variant]
    text = f"at most {worst:.1e} of the largest value apart, {BUCKET} rows and {PADDED[1] - PADDED[0]} padded to them; bound {bound:.0e}"
    return Check(f"{model} {variant}: captured graphs answer what plain runs answer", worst <= bound, text)


def apart(plain: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """The largest difference, of the largest value; infinite where one is no number."""
    error = float(np.abs(plain - other).max() / (np.abs(plain).max() or 1.0))
    return error if np.isfinite(error) else float("inf")
