"""`tandem export`: every option changes something, every option that would change nothing is refused, and exit codes.

One row for each option, run through the command line on the committed digits; a test says that no option lacks one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx.helper import make_node, make_tensor_value_info
from PIL import Image
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped, unused-ignore]

import serving.local.devices
import serving.local.frameworks
from serving import cli
from serving.cli import models as verbs
from serving.errors import EnvironmentFault, TandemError, UserError, exit_code
from serving.export import command, pipeline, pool_gates, recipes, sources
from serving.export.data.dataset import Dataset
from serving.export.data.reading import digits
from serving.export.exported_model import SourceOptions
from serving.export.job import ExportSpec
from serving.export.publish import writing
from serving.export.sources import checks, onnx_file
from serving.export.speed_nets import bert
from serving.export.variant_files import ProvenVariant
from serving.measure.machine import has_instructions
from serving.repository import Record, Repository, Speed
from serving.repository.preprocessing import ImagePreprocessing
from serving.repository.preprocessing import to_json as preprocessing_json

from . import spoil
from .conftest import COMMITTED, MODEL_FILE, PAYLOAD, ROOT, by_size
from .sources import graphs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("untimed")]  # exports for seconds: not in `make check`

FP32 = COMMITTED / "digits-fp32" / MODEL_FILE
FP16 = COMMITTED / "digits-fp16" / MODEL_FILE
QUICK = ("--engine", "cpu", "--seconds", "0.01")
JUDGED = (str(FP32), "--data", str(PAYLOAD), "--precision", "fp32", *QUICK)
UNGATED = (str(FP32), "--i-accept-ungated", *QUICK)
METRIC = "def mine(reference, answers, labels):\n    return 0.25\n"


@dataclass(frozen=True)
class Done:
    """What an export came to. `code` is the process's; `said` is all that it wrote, `out` what of it is a result."""

    code: int
    said: str
    repository: Path
    out: str

    @property
    def names(self) -> list[str]:
        return [variant.name for variant in Repository(self.repository).variants()]

    def record(self, name: str = "model-fp32") -> Record:
        return Repository(self.repository).variant(name).record

    def sample(self) -> dict[str, Any]:
        [given] = json.loads((self.repository / "model-fp32" / "sample.json").read_text())["inputs"]
        return dict(given)


@pytest.fixture(autouse=True, scope="module")
def without_triton() -> Iterator[None]:
    """A hundred exports, of which none asks what Triton makes of it: that is test_load_check.py's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verbs, "loader", lambda: None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the exports run; every file that a row names by a relative path lies in it."""
    made, before = tmp_path_factory.mktemp("exports"), Path.cwd()
    (made / "metric.py").write_text(METRIC)
    learn = digits()[0]
    assert learn.labels is not None
    np.savez(made / "learn.npz", image=learn.inputs["image"][:150], labels=learn.labels[:150])
    np.savez(made / "example.npz", image=np.stack([np.full((1, 8, 8), row / 8, np.float32) for row in range(8)]))
    half = np.random.default_rng(1).standard_normal((60, 2)).astype(np.float32)
    joblib.dump(LogisticRegression().fit(half, half[:, 0] > 0), made / "plain.pkl")
    onnx.save(graphs.convolution("n", "edge"), made / "open-images.onnx")
    onnx.save(_of_either_layout(), made / "either-layout.onnx")
    (made / "ten.txt").write_text("nil\n" + "".join(f"{number}\n" for number in range(1, 10)))
    how = ImagePreprocessing("image", 8, 8, None, "box", (0.0,), (1.0,), "L", "probabilities")
    (made / "how.json").write_text(preprocessing_json(how))
    onnx.save(_of_any_length(), made / "open-length.onnx")
    small = bert.BertShape("small", num_layers=1, width=32, num_heads=4, is_pooled=True, vocabulary=60)
    (made / "encoder.onnx").write_bytes(bert.build(small, seed=3, opset=18))
    (made / "worse.onnx").write_bytes(spoil.perturbed(FP32.read_bytes()))
    (made / "scores.onnx").write_bytes(spoil.without_softmax(FP32.read_bytes()))
    (made / "slow.onnx").write_bytes(spoil.slowed(FP32.read_bytes(), 6))
    (made / "half.onnx").write_bytes(FP16.read_bytes())
    os.chdir(made)
    yield made
    os.chdir(before)


def _of_either_layout() -> onnx.ModelProto:
    x, y = (make_tensor_value_info(name, graphs.FLOAT, ["n", 3, 8, 3]) for name in "xy")
    return graphs.graph([make_node("Relu", ["x"], ["y"])], [x], [y])


def _of_any_length() -> onnx.ModelProto:
    """ids int64 [n, length] -> vector [n, 6]."""
    nodes = [make_node("Gather", ["table", "ids"], ["all"]), make_node("ReduceMean", ["all", "axis"], ["vector"])]
    nodes[1].attribute.append(onnx.helper.make_attribute("keepdims", 0))
    return graphs.graph(
        nodes,
        [make_tensor_value_info("ids", graphs.INT64, ["n", "length"])],
        [make_tensor_value_info("vector", graphs.FLOAT, ["n", 6])],
        [graphs.weights("table", 5, 6), graphs.constant("axis", 1)],
    )


def run(words: Sequence[str], repository: Path) -> Done:
    """In this process; what it raises becomes the code that `main` would end with."""
    given = ["export", *words]
    if "--model-repository" not in words:
        given += ["--model-repository", str(repository)]
    result = CliRunner().invoke(cli.cli, given, standalone_mode=False)
    code, said = result.exit_code, result.output
    if isinstance(result.exception, TandemError):
        code, said = exit_code(result.exception), f"{said}{result.exception}"
    elif isinstance(result.exception, Exception):
        raise result.exception
    return Done(code, said, repository, result.stdout)


@pytest.fixture(scope="module")
def exports(folder: Path) -> Callable[[tuple[str, ...], str], Done]:
    """Runs the same words once only. The second: a repository to begin with."""

    @cache
    def done(words: tuple[str, ...], begin: str = "") -> Done:
        repository = folder / f"repository-{abs(hash((words, begin)))}"
        if begin:
            _begin(begin, repository)
        return run(words, repository)

    return done


def _begin(begin: str, repository: Path) -> None:
    """`digits`: FP32 of the committed file, in batches that wait 500 µs; `images`: one that says how it wants images."""
    if begin == "digits":
        assert run((*JUDGED, "--model", "model", "--queue-delay-us", "500"), repository).code == 0
        return
    onnx.save(graphs.convolution("n", 8), "fixed-images.onnx")
    exported = onnx_file.load(Path("fixed-images.onnx"), SourceOptions(), lambda *_: None)
    Path("fixed-images.onnx").write_bytes(exported.model)
    takes = ImagePreprocessing(
        "image", 8, 8, None, "bilinear", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "RGB", "probabilities"
    )
    exported = replace(exported, preprocessing=takes, labels=tuple("abcde"), task="classification")
    data = Dataset("drawn", {"image": np.random.default_rng(3).random((20, 3, 8, 8), np.float32)}, None)
    asked = ExportSpec("model", precisions=("fp32",), seconds=0.01)
    with writing(repository, "model"):
        pipeline.export(exported, data, None, asked, repository, {"cpu": serving.local.devices.installed()["cpu"]})
    for name in range(4):
        path = Path("pictures", "a" if name % 2 else "b", f"{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (name * 50, 20, 90)).save(path)
    Path("pictures", "a", "broken.png").write_bytes(b"no picture")


# -- every option changes something -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """`effect` of an export with `words` behind `base` is `expected`; of one without them it is not."""

    option: str
    words: tuple[str, ...]
    effect: Callable[[Done], Any]
    expected: Any
    base: tuple[str, ...] = JUDGED
    begin: str = ""


def _opset(done: Done) -> int:
    model = onnx.load(done.repository / "model-fp32" / MODEL_FILE)
    return max(int(one.version) for one in model.opset_import if one.domain in ("", "ai.onnx"))


def _how(done: Done) -> str:
    """How INT8 was made, or why that is not good enough."""
    return done.said + (done.record("model-int8").source if "model-int8" in done.names else "")


def _told(done: Done) -> Any:
    """What is told for programs, if anything is."""
    if not done.out.startswith("{"):
        return None
    told = json.loads(done.out)
    assert {it["name"]: it["digest"] for it in told["published"]} == {
        it.name: it.digest for it in Repository(done.repository).variants()
    }
    return told["model"], [it["name"] for it in told["published"]], told["refused"]


def _is_full_or_refused(done: Done) -> bool:
    """Weights of the full 8 bits cannot be judged on a processor that computes them wrongly."""
    return "8 bits" in _how(done) if has_instructions("vnni") else (done.code, "no VNNI" in done.said) == (2, True)


INT8 = (str(FP32), "--data", str(PAYLOAD), "--precision", "int8", *QUICK)
IMPOSSIBLE = ("--int8-range", "7bit", "--min-agreement", "1", "--max-probability-difference", "0")
WORSE = ("worse.onnx", "--model", "model", "--data", str(PAYLOAD), "--precision", "fp32", *QUICK)
IMAGES = ("fixed-images.onnx", "--model", "model", "--variant", "fp16", "--data", "pictures", *QUICK)
SLOW = ("slow.onnx", "--model", "model", "--variant", "int8", *QUICK)
ROWS = (
    Row("model", ("--model", "other"), lambda done: done.names, ["other-fp32"]),
    Row("model_repository", ("--model-repository", "elsewhere"), lambda _: Path("elsewhere/model-fp32").is_dir(), True),
    Row("precisions", ("--precision", "fp16"), lambda done: done.names, ["model-fp16", "model-fp32"]),
    Row(
        "variant",
        ("--model", "model", "--variant", "fp16"),
        lambda done: done.names,
        ["model-fp16", "model-fp32"],
        ("half.onnx", *QUICK),
        "digits",
    ),
    Row("data", ("--data", str(PAYLOAD)), lambda done: done.code, 0, (str(FP32), "--precision", "fp32", *QUICK)),
    Row("calibration", ("--calibration", "learn.npz"), lambda done: done.record().gate.num_samples, 450, INT8),
    Row("example", ("--example", "example.npz"), lambda done: sum(done.sample()["data"]), 0.0, UNGATED),
    Row("labels", ("--labels", "ten.txt"), lambda done: done.record().labels, "labels.txt"),
    Row("preprocessing", ("--preprocessing", "how.json"), lambda done: done.record().preprocessing, "preprocessing.json"),
    Row(
        "layout",
        ("--layout", "NHWC"),
        lambda done: done.record().inputs[0].layout,
        "NHWC",
        ("either-layout.onnx", "--model", "model", "--i-accept-ungated", *QUICK),
    ),
    Row(
        "dims",
        ("--dim", "length=4"),
        lambda done: done.record().inputs[0].shape,
        (4,),
        ("open-length.onnx", "--model", "model", "--i-accept-ungated", *QUICK),
    ),
    Row("is_trusted", ("--trust",), lambda done: done.code, 0, ("sklearn:plain.pkl", "--i-accept-ungated", *QUICK)),
    Row("task", ("--task", "embedding"), lambda done: done.record().task, "embedding"),
    Row("opset", ("--opset", "20"), _opset, 20),
    Row("max_batch_size", ("--max-batch", "4"), lambda done: done.record().max_batch_size, 4),
    Row(
        "max_length",
        ("--max-length", "4"),
        lambda done: done.sample()["shape"],
        [1, 4],
        ("open-length.onnx", "--model", "model", "--i-accept-ungated", *QUICK),
    ),
    Row(
        "image_size",
        ("--image-size", "12"),
        lambda done: (done.repository / "model-fp32" / "sample.json").is_file() and done.sample()["shape"],
        [1, 3, 12, 12],
        ("open-images.onnx", "--model", "model", "--i-accept-ungated", "--max-batch", "2", *QUICK),
    ),
    Row(
        "metric",
        ("--metric", "metric.py:mine", "--trust"),
        lambda done: [check.value for check in done.record().gate.checks if check.metric == "mine"],
        [0.25],
    ),
    Row("max_bad_ratio", ("--max-bad-images", "0.5"), lambda done: done.code, 0, IMAGES, "images"),
    Row("accepts_ungated", ("--i-accept-ungated",), lambda done: done.code, 0, (str(FP32), *QUICK)),
    Row("keeps_data", ("--no-keep-data",), lambda done: (done.repository / "model-fp32/gate.npz").exists(), False),
    Row(
        "num_kept",
        ("--keep-versions", "1"),
        lambda done: (done.repository / "model-fp32/1/model.onnx").exists(),
        False,
        (*WORSE, "--worse-is-fine"),
        "digits",
    ),
    Row("queue_delay_us", ("--queue-delay-us", "700"), lambda done: done.record().queue_delay_us, 700),
    Row(
        "queue_delay_us",
        ("--queue-delay-us", "0"),
        lambda done: done.record("model-fp16").queue_delay_us,
        0,
        ("half.onnx", "--model", "model", "--variant", "fp16", *QUICK),
        "digits",
    ),
    Row("int8_range", ("--int8-range", "full"), _is_full_or_refused, True, (*INT8, "--calibration", "learn.npz")),
    Row(
        "fuses",
        ("--no-fuse",),
        lambda done: dict(done.record("model-fp16").fused),
        {},
        ("encoder.onnx", "--model", "model", "--i-accept-ungated", "--precision", "fp16", *QUICK),
    ),
    Row(
        "budget_s",
        ("--budget", "1e-3s", *IMPOSSIBLE),
        lambda done: "budget of 0.001 s ended" in done.said,
        True,
        INT8,
    ),
    Row("accepts_worse", ("--worse-is-fine",), lambda done: done.code, 0, WORSE, "digits"),
    Row("is_for_tensorrt", ("--tensorrt",), lambda done: done.record().pools["gpu"].engine, "tensorrt"),
    Row("payload", ("--payload", "new/payload.npz"), lambda _: Path("new/payload.npz").is_file(), True),
    Row("as_json", ("--json",), _told, ("model", ["model-fp32"], {})),
    Row("keeps_slow", ("--keep-slow",), lambda done: (done.code, done.names), (0, ["model-fp32", "model-int8"]), SLOW, "digits"),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row.words[:2]))
def test_an_option_changes_what_it_says(exports: Callable[..., Done], row: Row) -> None:
    without = exports(row.base, row.begin)
    before = row.effect(without) if without.code == 0 or row.expected == 0 or row.option == "keeps_slow" else None
    assert before != row.expected, without.said
    done = exports((*row.base, *row.words), row.begin)
    assert row.effect(done) == row.expected, done.said


LIMITS = {  # task -> limits that its gate has, each with a value that the digits keep and no default is
    "classification": {
        "max_drop": 0.05,
        "min_agreement": 0.9,
        "max_probability_difference": 0.7,
        "max_row_difference": 0.2,
    },
    "embedding": {"min_cosine_mean": 0.9, "min_cosine_worst": 0.8, "min_recall_at_10": 0.7},
    "other": {"max_absolute_error": 0.9, "max_relative_error": 0.8, "max_noise_ratio": 0.7},
}
METRICS = {
    "max_drop": "top1",
    "min_agreement": "agreement",
    "max_probability_difference": "probability_difference",
    "max_row_difference": "row_difference",
    "min_cosine_mean": "cosine_mean",
    "min_cosine_worst": "cosine_worst",
    "min_recall_at_10": "recall_at_10",
    "max_noise_ratio": "noise_ratio",
    "max_absolute_error": "absolute_error",
    "max_relative_error": "relative_error",
}


@pytest.mark.parametrize(
    ("task", "limit", "value"), [(task, *pair) for task, limits in LIMITS.items() for pair in limits.items()]
)
def test_a_limit_is_judged_by_and_recorded_as_the_users(
    exports: Callable[..., Done], task: str, limit: str, value: float
) -> None:
    words = [word for name, given in LIMITS[task].items() for word in (f"--{name.replace('_', '-')}", str(given))]
    source = "scores.onnx" if task == "other" else JUDGED[0]  # of probabilities it is judged how far they moved
    done = exports((source, *JUDGED[1:], "--model", "model", "--task", task, *words))
    assert done.code == 0, done.said
    check = done.record().gate.check(METRICS[limit])
    assert check is not None
    assert check.is_default_limit is False
    assert check.limit == pytest.approx((check.reference or 0) - value if limit == "max_drop" else value)


def test_seconds_are_of_timing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def contest(entrants: Sequence[Any], *, seconds: float, **how: Any) -> Any:
        given.append(seconds)
        return by_size(entrants, **how)

    monkeypatch.setattr(pool_gates, "contest", contest)
    assert run((*JUDGED[:-1], "0.25"), tmp_path).code == 0
    assert given == [0.25]


@pytest.mark.parametrize(
    ("words", "asked"), [((), {"cpu", "openvino", "cuda"}), (("--engine", "cpu"), {"cpu", "cuda"})]
)
def test_engines_are_those_that_are_asked_for_and_never_without_a_gpus(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], asked: set[str]
) -> None:
    given: list[set[str]] = []

    def noted(_: object, engines: dict[str, object], *__: object, **___: object) -> int:
        given.append(set(engines))
        return 0

    here = serving.local.devices.installed()["cpu"]
    monkeypatch.setattr(serving.local.devices, "installed", lambda: dict.fromkeys(("cpu", "openvino", "cuda"), here))
    monkeypatch.setattr(command, "run", noted)
    assert run((str(FP32), "--i-accept-ungated", *words), folder / "none").code == 0
    assert given == [asked]


@pytest.mark.parametrize("is_yes", [False, True])
def test_yes_makes_the_environment_that_a_source_needs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_yes: bool
) -> None:
    asked: list[tuple[str, bool]] = []

    def made(extra: str, *, is_yes: bool, say: object) -> Path:
        asked.append((extra, is_yes))
        raise EnvironmentFault("as far as this goes")

    monkeypatch.setattr(sources, "missing", lambda _: "export")
    monkeypatch.setattr(serving.local.frameworks, "ensure", made)
    words = ("module:some.where:net", "--trust", "--i-accept-ungated", *(["--yes"] if is_yes else []))
    assert run(words, folder / "none").code == 3
    assert asked == [("export", is_yes)]


OF_TORCH = {  # what they change is tested beside torch, in tests/export/sources
    "pooling": (("--pooling", "cls"), "cls"),
    "is_normalised": (("--no-normalise",), False),
}


@pytest.mark.parametrize("option", OF_TORCH)
def test_what_only_folders_of_transformers_read_gets_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    got: list[SourceOptions] = []

    def load(_: str, options: SourceOptions, progress: object) -> None:
        got.append(options)
        raise UserError("as far as this goes")

    monkeypatch.setattr(sources, "missing", lambda _: None)
    monkeypatch.setattr(sources, "load", load)
    words, value = OF_TORCH[option]
    assert run(("hf:some/where", "--task", "embedding", "--i-accept-ungated", *words), folder / "none").code == 2
    [options] = got
    assert getattr(options, option) == value


def test_every_option_of_the_command_has_a_test_that_it_changed_something() -> None:
    tested = {row.option for row in ROWS} | {*METRICS, *OF_TORCH, "seconds", "engine_names", "is_yes", "source", "form"}
    assert {parameter.name for parameter in cli.cli.commands["export"].params} == tested
    assert {name for limits in LIMITS.values() for name in limits} == {*verbs.LIMITS}


# -- what would change nothing is refused -----------------------------------------------------------------------------


def test_every_field_stands_in_the_table_of_what_reads_it_and_every_kind_is_in_it() -> None:
    made = {"framework_python"}  # no option: the command makes that environment
    fields = set(command.ExportOptions.__dataclass_fields__) - made
    assert fields - {"source", "repository", "model", "kind"} == {*checks.OPTIONS}
    of_source = set(SourceOptions.__dataclass_fields__) - made
    assert of_source - {"example_name", "is_from_data", "weights"} <= {*checks.OPTIONS}
    kinds = {kind for kind in sources.KINDS if kind not in checks.FINER} | {*checks.HF, *recipes.TRAINED}
    assert kinds | {checks.SPEED, checks.READY_MADE} == {*checks.KINDS}


DATA = ("--data", str(PAYLOAD))
MADE = (str(FP16), "--model", "digits", "--variant", "fp16")
SK = ("sklearn:plain.pkl", "--trust", "--i-accept-ungated")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((str(FP32), *DATA, "--pooling", "mean"), "--pooling does not apply to an ONNX file; leave it off"),
        ((str(FP32), *DATA, "--no-normalise"), "--normalise does not apply to an ONNX file"),
        ((str(FP32), *DATA, "--keep-slow"), "--keep-slow does not apply to an ONNX file"),
        ((*SK, "--pooling", "mean"), "--pooling does not apply to a pickled estimator"),
        ((*SK, "--image-size", "9"), "--image-size does not apply to a pickled estimator"),
        ((*SK, "--max-length", "9"), "--max-length does not apply to a pickled estimator"),
        ((*SK, "--normalise"), "--normalise does not apply to a pickled estimator"),
        ((*SK, "--int8-range", "full"), "--int8-range does not apply to a pickled estimator"),
        ((*SK, "--calibration", "learn.npz"), "--calibration does not apply to a pickled estimator"),
        ((*SK, "--tensorrt"), "--tensorrt does not apply to a pickled estimator"),
        (("speed:mlp", "--task", "other"), "--task does not apply to an untrained net"),
        (("speed:mlp", "--example", "example.npz"), "--example does not apply to an untrained net"),
        (("speed:mlp", "--max-length", "9"), "speed:mlp takes no text"),
        (("speed:mlp", "--max-drop", "0.1"), "--max-drop does not apply: random weights are not judged"),
        (("speed:mlp", "--metric", "metric.py:mine"), "--metric does not apply to an untrained net"),
        (("speed:mlp", "--payload", "p.npz"), "--payload is about the data, and there is none"),
        (("speed:mlp", "--no-keep-data"), "--keep-data is about the data, and there is none"),
        ((*MADE, "--precision", "fp16"), "--precision does not apply to a ready-made variant"),
        ((*MADE, "--calibration", "learn.npz"), "--calibration does not apply to a ready-made"),
        ((*MADE, "--opset", "13"), "--opset does not apply to a ready-made"),
        ((*MADE, "--opset", "18"), "--opset does not apply to a ready-made"),
        ((*MADE, "--example", "example.npz"), "--example does not apply to a ready-made"),
        ((*MADE, "--task", "embedding"), "--task does not apply to a ready-made"),
        ((*MADE, "--payload", "p.npz"), "--payload does not apply to a ready-made"),
        ((*MADE, "--max-batch", "32"), "--max-batch does not apply to a ready-made"),
        ((*MADE, "--int8-range", "auto"), "--int8-range does not apply to a ready-made"),
        ((*MADE, "--i-accept-ungated"), "--i-accept-ungated does not apply to a ready-made"),
        ((*MADE, "--no-keep-data"), "--keep-data does not apply to a ready-made"),
        ((*MADE, "--keep-data"), "--keep-data does not apply to a ready-made"),
        ((*MADE, "--max-length", "3"), "--max-length does not apply to a ready-made"),
        ((str(FP32), *DATA, "--max-length", "9"), "--max-length does not apply to model.onnx: it takes nothing whose"),
        (
            (str(FP32), *DATA, "--image-size", "9"),
            "--image-size does not apply to model.onnx: it takes no images whose",
        ),
        (("open-length.onnx", *UNGATED[1:], "--image-size", "9"), "--image-size does not apply to open-length.onnx"),
        (("open-images.onnx", *UNGATED[1:], "--max-length", "9"), "--max-length does not apply to open-images.onnx"),
        ((*UNGATED, "--example", "example.npz", "--image-size", "8"), "--image-size is for inputs that are made up"),
        ((*UNGATED, "--max-drop", "0.1"), "--max-drop does not apply: without --data nothing is judged"),
        ((*UNGATED, "--metric", "metric.py:mine"), "--metric does not apply: without --data nothing is judged"),
        ((*UNGATED, "--payload", "p.npz"), "--payload is about the data, and there is none"),
        ((*UNGATED, *DATA), "--i-accept-ungated is for a model that there is no data for"),
        ((*JUDGED, "--int8-range", "full"), "--int8-range is for INT8, which --precision leaves out"),
        ((*JUDGED, "--no-fuse"), "--fuse is for FP16, which --precision leaves out"),
        ((*UNGATED, "--no-fuse", "--tensorrt"), "--fuse is for the CUDA provider"),
        ((*JUDGED, "--calibration", "learn.npz"), "--calibration is for INT8, which --precision leaves out"),
        (
            (*JUDGED, "--min-recall-at-10", "0.5"),
            "--min-recall-at-10 does not apply: that is not measured on this model",
        ),
        ((*JUDGED, "--task", "embedding", "--max-drop", "0.1"), "limits are --max-row-difference, --min-cosine-mean,"),
        ((*JUDGED, "--max-bad-images", "0.5"), "--max-bad-images is for a folder of images"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused_by_name(
    folder: Path, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    done = run(words, tmp_path / "repository")
    assert (done.code, says in done.said) == (2, True), done.said
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("digits", "--pooling", "mean"), "--pooling does not apply to digits, which is built as it is"),
        (("digits", "--task", "embedding"), "--task does not apply to digits"),
        (("digits", "--image-size", "99"), "--image-size does not apply to digits"),
        (("digits", "--max-length", "3"), "--max-length does not apply to digits"),
        (("digits", "--example", "example.npz"), "--example does not apply to digits"),
        (("digits", "--i-accept-ungated"), "--i-accept-ungated does not apply to digits"),
        (("efficientnet-lite0", "--image-size", "224"), "--image-size does not apply to efficientnet-lite0"),
        (("minilm", "--task", "other"), "--task does not apply to minilm"),
        (("keras:net.keras", "--pooling", "mean", "--i-accept-ungated"), "--pooling does not apply to a Keras file"),
        (("hf:some/where", "--example", "example.npz"), "--example does not apply to a folder of transformers"),
        (("module:a.b:c", "--image-size", "9"), "--image-size does not apply to a module"),
    ],
)
def test_what_needs_torch_is_refused_before_torch_is_fetched(folder: Path, words: tuple[str, ...], says: str) -> None:
    done = run(words, folder / "none")
    assert (done.code, says in done.said) == (2, True), done.said


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


ONE_TENSOR = {"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
CONTENTS = {
    "model.safetensors": safetensors(ONE_TENSOR, bytes(4)),
    "tokenizer.json": b'{"model": {"vocab": {"a": 0}}}',
    "preprocessor_config.json": b"{}",
}


def saved(folder: Path, config: dict[str, Any], *files: str) -> Path:
    """A folder of transformers."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in files:
        (folder / name).write_bytes(CONTENTS[name])
    return folder


WEIGHTS, IMAGES_OF, WORDS = "model.safetensors", "preprocessor_config.json", "tokenizer.json"
VIT = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "id2label": {"0": "cat", "1": "dog"}}
BERT = {"architectures": ["BertForSequenceClassification"], "model_type": "bert", "id2label": {"0": "no", "1": "yes"}}
DATA_FILES = {  # name -> its content
    "unknown.csv": "text,label\nhello,perhaps\n",
    "known.csv": "text,label\nhello,yes\n",
    "empty.csv": "text\n,\n",
    "words.jsonl": "no JSON\n",
    "broken.npz": "no archive",
    "data.parquet": "",
}


@pytest.mark.parametrize("has_onnx", [True, False])
@pytest.mark.parametrize(
    ("config", "files", "words", "says"),
    [
        ({}, (WEIGHTS, WORDS), (), "config.json has no 'architectures'"),
        (
            {"architectures": ["BertModel"]},
            (WEIGHTS, WORDS),
            ("--task", "embedding", "--pooling", "mean"),
            "no model_type",
        ),
        ({"architectures": ["BertForSequenceClassification"]}, (WEIGHTS, WORDS), (), "no model_type"),
        (BERT, (WORDS,), (), "holds no model.safetensors"),
        (BERT, (WEIGHTS,), (), "holds no tokenizer"),
        (VIT, (WEIGHTS,), (), "holds no image processor"),
        (BERT, (WEIGHTS, WORDS), ("--data", "unknown.csv"), "unknown label 'perhaps'"),
        (BERT, (WEIGHTS, WORDS), ("--data", "empty.csv"), "want 1 values as in the header, got 2"),
        (BERT, (WEIGHTS, WORDS), ("--data", "words.jsonl"), "words.jsonl line 1"),
        (BERT, (WEIGHTS, WORDS), ("--data", "broken.npz"), "broken.npz"),
        (BERT, (WEIGHTS, WORDS), ("--data", "data.parquet"), "cannot be read: its kind is unknown"),
        (VIT, (WEIGHTS, IMAGES_OF), ("--data", "hollow"), "holds no image"),
        (VIT, (WEIGHTS, IMAGES_OF), ("--data", "birds"), "unknown label 'eagle'"),
        (BERT, (WEIGHTS, WORDS), ("--data", "known.csv", "--metric", "none.py:mine"), "none.py is not there"),
        (BERT, (WEIGHTS, WORDS), ("--data", "known.csv", "--metric", "metric.py:mine"), "then say --trust"),
        (BERT, (WEIGHTS, WORDS), ("--data", "known.csv", "--model", "theirs"), "so Tandem did not write it"),
        (BERT, (WEIGHTS, WORDS), ("--data", "known.csv", "--model", "a/b"), "model name 'a/b'"),
    ],
)
def test_what_the_files_say_by_themselves_is_refused_before_a_framework_is_fetched(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    files: tuple[str, ...],
    words: tuple[str, ...],
    says: str,
    has_onnx: bool,
) -> None:
    for name, content in DATA_FILES.items():
        (folder / name).write_text(content)
    for place in ("hollow", "birds/eagle", "birds/cat"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    for name in ("eagle", "cat"):
        Image.new("RGB", (8, 8)).save(folder / "birds" / name / "1.png")
    (tmp_path / "repository" / "theirs-fp32" / "1").mkdir(parents=True)
    monkeypatch.setattr(sources, "missing", lambda _: "export")
    monkeypatch.setattr(sources, "is_here", lambda _: has_onnx)
    monkeypatch.setattr(serving.local.frameworks, "ensure", lambda *_, **__: pytest.fail("it was fetched all the same"))
    given = words if "--data" in words else (*words, "--i-accept-ungated")
    done = run((f"hf:{saved(tmp_path / 'model', config, *files)}", *given), tmp_path / "repository")
    assert (done.code, says in done.said) == (2, True), done.said


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        (WEIGHTS, b"garbage", "model.safetensors is not a safetensors file"),
        (WEIGHTS, b"", "model.safetensors is not a safetensors file"),
        (WEIGHTS, safetensors({}), "its header names no tensor"),
        (WEIGHTS, safetensors({"__metadata__": {}}), "its header names no tensor"),
        (WEIGHTS, safetensors([1]), "its header names no tensor"),
        (WEIGHTS, safetensors({"weight": {}}), "its header is not readable"),
        (WEIGHTS, safetensors(ONE_TENSOR, bytes(3)), "download it again"),
        (WEIGHTS, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "run `git lfs pull`"),
        (WORDS, b"{}", "tokenizer.json is not a tokenizer"),
        (WORDS, b'{"model": {}}', "tokenizer.json is not a tokenizer"),
        (WORDS, b"garbage", "tokenizer.json cannot be read"),
    ],
)
def test_a_broken_file_of_a_folder_is_refused_before_a_framework_is_fetched(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: bytes, says: str
) -> None:
    monkeypatch.setattr(sources, "missing", lambda _: "export")
    monkeypatch.setattr(serving.local.frameworks, "ensure", lambda *_, **__: pytest.fail("it was fetched all the same"))
    model = saved(tmp_path / "model", BERT, WEIGHTS, WORDS)
    (model / file).write_bytes(content)
    done = run((f"hf:{model}", "--i-accept-ungated"), tmp_path / "repository")
    assert (done.code, says in done.said) == (2, True), done.said


@pytest.mark.parametrize(
    ("code", "code_of_exit", "says"),
    [
        ("def f(:\n", 2, "m.py line 1: SyntaxError: "),
        ("\0", 2, "null bytes"),
        ("", 2, "m.py has no 'f'"),
        ("def g(): pass\n", 2, "m.py has no 'f'; known are g"),
        ("class Net:\n    def f(self): pass\n", 2, "m.py has no 'f'"),
        ("def g():\n    f = 1\n", 2, "m.py has no 'f'"),
        ("def f(): pass\n", 3, ""),
        ("class f: pass\n", 3, ""),
        ("from somewhere import g as f\n", 3, ""),
        ("import f.g\n", 3, ""),
        ("from somewhere import *\n", 3, ""),
        ("if 1:\n    f, g = 1, 2\n", 3, ""),
        ("for f in (1, 2): pass\n", 3, ""),
        ("def g():\n    global f\n    f = 1\n", 3, ""),
        ("globals()['f'] = 1\n", 3, ""),
        ("def g():\n    globals()['f'] = 1\n", 3, ""),
        ("def __getattr__(name): return 1\n", 3, ""),
        ("match 1:\n    case f: pass\n", 3, ""),
    ],
)
@pytest.mark.parametrize("place", ["m.py", "m"])
def test_a_module_that_cannot_give_the_name_is_refused_before_a_framework_is_fetched(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    code: str,
    code_of_exit: int,
    says: str,
) -> None:
    def made(*_: object, **__: object) -> Path:
        raise EnvironmentFault("as far as this goes")

    monkeypatch.setattr(sources, "missing", lambda _: "export")
    monkeypatch.setattr(serving.local.frameworks, "ensure", made)
    monkeypatch.chdir(tmp_path)
    Path("m.py").write_text(code)
    done = run((f"module:{place}:f", "--trust", "--i-accept-ungated"), tmp_path / "repository")
    assert (done.code, says in done.said) == (code_of_exit, True), done.said


def test_what_may_be_right_is_fetched_for(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def made(extra: str, **_: object) -> Path:
        asked.append(extra)
        raise EnvironmentFault("as far as this goes")

    (folder / "known.csv").write_text(DATA_FILES["known.csv"])
    monkeypatch.setattr(sources, "missing", lambda _: "export")
    monkeypatch.setattr(serving.local.frameworks, "ensure", made)
    model = saved(tmp_path / "model", BERT, WEIGHTS, WORDS)
    assert run((f"hf:{model}", "--data", "known.csv"), tmp_path / "repository").code == 3
    assert asked == ["export"]


def test_what_is_refused_before_needs_neither_onnx_nor_torch() -> None:
    heavy = ("onnx", "onnxruntime", "torch", "transformers", "sklearn")
    code = f"import sys; sys.modules.update(dict.fromkeys({heavy})); import serving.export.options"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


# -- what is known at once is told at once ----------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("hf:some/where",), (str(FP32),), ("sklearn:plain.pkl", "--trust")])
def test_without_data_nothing_long_begins(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sources, "load", lambda *_: pytest.fail("it was read all the same"))
    done = run(words, folder / "none")
    assert (done.code, "no data" in done.said) == (2, True), done.said


def test_a_repository_that_is_written_to_or_cannot_be_is_told_before_the_model_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "load", lambda *_: pytest.fail("it was read all the same"))
    (tmp_path / "file").write_text("")
    assert "not a folder" in run(JUDGED, tmp_path / "file").said
    with writing(tmp_path / "repository", "model"):
        assert "another process" in run(JUDGED, tmp_path / "repository").said


def test_a_ready_made_file_goes_into_no_repository_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    done = run(("net.onnx", "--variant", "int8", "--model", "digits"), tmp_path / "deep" / "nowhere")
    assert (done.code, "no model repository" in done.said) == (2, True), done.said
    assert not (tmp_path / "deep").exists()


def test_from_before_the_model_is_read_nobody_else_may_write(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, num_read = sources.load, []

    def meddling(*given: Any) -> Any:
        with (
            pytest.raises(UserError, match=r"process.*exporting"),
            writing(tmp_path / "repository", "model"),
        ):
            pass
        num_read.append(1)
        return load(*given)

    monkeypatch.setattr(sources, "load", meddling)
    assert run((*JUDGED, "--precision", "fp32"), tmp_path / "repository").code == 0
    assert num_read == [1]


# -- exit codes and data ----------------------------------------------------------------------------------------------


def test_a_variant_that_does_not_pass_is_told_and_the_model_that_is_served_makes_it_code_0(
    exports: Callable[..., Done],
) -> None:
    done = exports((*JUDGED, "--precision", "fp16", "--max-probability-difference", "1e-7"))
    assert done.code == 0
    assert "fp16: not written: " in done.said
    assert done.names == ["model-fp32"]
    assert done.record().not_made["fp16"] in done.said
    assert "gpu passed (the baseline; answers judged on a CPU stand-in, not timed)" in done.said


def test_a_model_is_exported_into_a_repository_while_another_model_is(folder: Path, tmp_path: Path) -> None:
    with writing(tmp_path, "first"):
        done = run((*JUDGED, "--model", "second"), tmp_path)
        assert done.code == 0, done.said
        assert run((*JUDGED, "--model", "first"), tmp_path).code == 2
    assert done.names == ["second-fp32"]


@pytest.mark.thorough
def test_the_digits_that_tandem_knows_judge_and_calibrate_every_source(exports: Callable[..., Done]) -> None:
    done = exports((str(FP32), "--data", "digits", "--calibration", "digits", "--precision", "int8", *QUICK))
    assert done.code == 0, done.said
    gate = done.record("model-fp32").gate
    assert (gate.dataset, gate.num_samples) == ("scikit-learn digits, held-out part", 450)


def test_the_digits_go_into_no_model_that_takes_something_else(exports: Callable[..., Done]) -> None:
    done = exports(("open-length.onnx", "--data", "digits", *QUICK))
    assert done.code == 2
    assert re.search(r"image \[1, 8, 8\].* ids", done.said)


@pytest.mark.parametrize(
    ("highest", "is_slower"), [((), False), ((0.9, 0.95), True), ((0.9, 1.0), False), ((1.2, 0.9), False)]
)
def test_slower_is_what_is_so_at_every_batch_size(highest: tuple[float, ...], is_slower: bool) -> None:
    record = Repository(COMMITTED).variant("digits-fp32").record
    one = Speed("xeon", "cpu", "1.31.1", "cpu", 1, 1, 0.8, 0.7, 0.9, 0.001, 0.0008, "2026-11-21")
    speed = tuple(replace(one, ratio=0.7, ratio_low=0.7, ratio_high=high) for high in highest)
    assert ProvenVariant("int8", b"", "", record.gate, record.pools, speed).is_slower is is_slower


@pytest.mark.parametrize(("package", "extra"), [("skl2onnx", "onnx"), ("torch.nn", "export"), ("psutil", "local")])
def test_a_package_that_turns_out_to_be_missing_late_is_named_with_its_extra(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    package: str,
    extra: str,
) -> None:
    def lacks(*_: object, **__: object) -> int:
        raise ModuleNotFoundError(f"No module named '{package}'", name=package)

    monkeypatch.setattr(command, "run", lacks)
    monkeypatch.setattr("sys.argv", ["tandem", "export", *UNGATED, "--model-repository", str(folder / "none")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert said.endswith(f"[{extra}]'\n")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("package", ["sklearn", "skl2onnx", "onnxmltools"])
def test_a_pickle_asks_for_the_packages_that_convert_it(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    assert sources.missing("sklearn:plain.pkl") == "onnx"
    assert sources.missing("net.onnx") is None


ENDLESS = """
import sys, threading
from serving.export.sources.graphs.runnable import Trial
run = Trial.run
def told(self, inputs):
    threading.Timer(0.5, print, ["running"], {"flush": True}).start()
    return run(self, inputs)
Trial.run = told
from serving.cli import main
main()
"""


def test_ctrl_c_in_the_middle_of_a_run_of_onnx_runtime_ends_it_at_once(folder: Path, tmp_path: Path) -> None:
    """A Loop of 10¹¹ rounds, one operator: its run comes back to Python after an hour."""
    body = onnx.helper.make_graph(
        [make_node("Identity", ["go"], ["goes_on"]), make_node("Sin", ["in"], ["out"])],
        "body",
        [
            make_tensor_value_info("round", onnx.TensorProto.INT64, []),
            make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            make_tensor_value_info("in", onnx.TensorProto.FLOAT, ["n", 4]),
        ],
        [
            make_tensor_value_info("goes_on", onnx.TensorProto.BOOL, []),
            make_tensor_value_info("out", onnx.TensorProto.FLOAT, ["n", 4]),
        ],
    )
    ports = [make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    nodes = [make_node("Loop", ["rounds", "", "x"], ["y"], body=body)]
    model = graphs.graph(nodes, ports[:1], ports[1:], [onnx.numpy_helper.from_array(np.array(10**11), "rounds")])
    (tmp_path / "endless.onnx").write_bytes(model.SerializeToString())
    words = ["export", "endless.onnx", "--model-repository", "new", "--i-accept-ungated"]
    environment = os.environ | {"PYTHONPATH": str(COMMITTED.parent), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS, *words], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"running\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()
    assert [path.name for path in tmp_path.iterdir()] == ["endless.onnx"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"input": "zz"}, "--preprocessing is for the input 'zz'"),
        ({"width": 9, "height": 9}, "--preprocessing makes NCHW images [1, 9, 9]"),
        ({"mode": "RGB", "mean": (0.0,) * 3, "std": (1.0,) * 3}, "--preprocessing makes NCHW images [3, 8, 8]"),
        ({"scores": "logits"}, '--preprocessing says "scores": "logits"'),
    ],
)
@pytest.mark.parametrize("is_folder", [True, False])
def test_a_preprocessing_that_does_not_fit_the_model_is_blamed_and_not_the_data(
    folder: Path, tmp_path: Path, change: dict[str, Any], says: str, is_folder: bool
) -> None:
    how = ImagePreprocessing("image", 8, 8, None, "box", (0.0,), (1.0,), "L", "probabilities")
    (tmp_path / "how.json").write_text(preprocessing_json(replace(how, **change)))
    for name in range(8):
        Image.new("L", (8, 8), name * 20).save(tmp_path / f"{name}.png")
    data = tmp_path if is_folder else PAYLOAD
    done = run(
        (str(FP32), "--data", str(data), "--preprocessing", str(tmp_path / "how.json"), *QUICK), tmp_path / "new"
    )
    assert (done.code, says in done.said) == (2, True), done.said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("scalar", ["input 'k'", "output 's'"])
def test_a_scalar_that_takes_a_models_batch_away_is_named(folder: Path, tmp_path: Path, scalar: str) -> None:
    floats, is_input = onnx.TensorProto.FLOAT, scalar.startswith("input")
    model = graphs.graph(
        [make_node("Mul", ["x", "k"], ["y"])]
        if is_input
        else [make_node("Relu", ["x"], ["y"]), make_node("ReduceSum", ["x"], ["s"], keepdims=0)],
        [
            make_tensor_value_info("x", floats, ["n", 4]),
            *([make_tensor_value_info("k", floats, [])] if is_input else []),
        ],
        [
            make_tensor_value_info("y", floats, ["n", 4]),
            *([] if is_input else [make_tensor_value_info("s", floats, [])]),
        ],
    )
    onnx.save(model, tmp_path / "scalar.onnx")
    arrays = {"x": np.ones((64, 4), np.float32), **({"k": np.ones(64, np.float32)} if is_input else {})}
    np.savez(tmp_path / "rows.npz", **arrays)
    words = (str(tmp_path / "scalar.onnx"), "--data", str(tmp_path / "rows.npz"), *QUICK)
    done = run(words, tmp_path / "new")
    assert done.code == 0, done.said
    assert "served without batches" in done.said
    assert scalar in done.said
    record = done.record("scalar-fp32")
    assert (record.max_batch_size, record.inputs[0].shape) == (0, (-1, 4))


def test_an_onnx_file_is_tried_on_the_rows_of_the_data_first(folder: Path, tmp_path: Path) -> None:
    """It takes lengths that 5 divides, which none that Tandem makes up is."""
    model = graphs.graph(
        [make_node("Reshape", ["x", "fives"], ["f"]), make_node("ReduceMean", ["f", "axes"], ["y"], keepdims=0)],
        [make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", "l"])],
        [make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 5])],
        [graphs.constant("fives", 0, -1, 5), graphs.constant("axes", 1)],
    )
    (tmp_path / "fives.onnx").write_bytes(model.SerializeToString())
    rows = np.random.default_rng(0).standard_normal((2, 10)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=rows)
    np.savez(tmp_path / "misnamed.npz", z=rows)
    words = ["export", str(tmp_path / "fives.onnx"), "--model-repository", str(tmp_path / "new"), *QUICK]
    tried = CliRunner().invoke(cli.cli, [*words, "--data", str(tmp_path / "rows.npz")])
    assert tried.exit_code == 0, tried.output + str(tried.exception)
    assert Repository(tmp_path / "new").variant("fives-fp32").record.inputs[0].shape == (-1,)
    misnamed = CliRunner().invoke(cli.cli, [*words, "--data", str(tmp_path / "misnamed.npz")])
    assert "--data has 'z'" in str(misnamed.exception)
    made_up = CliRunner().invoke(cli.cli, [*words, "--i-accept-ungated"])
    assert "--data or --example" in str(made_up.exception)
