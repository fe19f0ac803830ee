"""Real models from where people keep them, through every gate and a real Triton, to a client. Needs torch: `make test-models`.

Nothing here says which variant or engine wins: that is the processor's to say. What is served must answer as the framework does.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import tritonclient.http as triton_http
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tritonclient.utils import np_to_triton_dtype

from serving.export import command, recipes, speed_nets, verify
from serving.export.command import ExportOptions
from serving.export.exported_model import SourceOptions
from serving.export.recipes import RecipeModel
from serving.local.devices import installed
from serving.local.environments import ENGINES
from serving.local.folders import cache_dir
from serving.ports import free_ports
from serving.repository import Repository
from tests.home import in_users_cache, link
from tests.local.harness import Program

from ..gateway.conftest import TANDEM, Running

# The limit is of a test without its fixtures: those of the module would count for whichever test comes first. See `within`.
pytestmark = [pytest.mark.models, pytest.mark.thorough, pytest.mark.triton, pytest.mark.timeout(600, func_only=True)]

SECONDS = 0.1  # of timing: what wins is not asserted
# The first INT8 file passes: which ones are tried, and how long that takes, is not asked here.
LOOSE: dict[str, dict[str, float]] = {"minilm": {}, "efficientnet-lite0": {"min_agreement": 0.5}}
LARGE = ("efficientnet-b2", "bert-base")  # their INT8 takes minutes to make
BUILD_S = 1800  # of one fixture: environments are downloaded, nets quantised; a busy machine takes minutes (guess)
COSINE = 0.9999  # of a served FP32 vector to the framework's


@contextmanager
def within(limit_s: int) -> Iterator[None]:
    """A limit of a fixture's own."""

    def late(*_: object) -> None:
        raise TimeoutError(f"not made within {limit_s} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with within(BUILD_S):
        for engine in ("cpu", "openvino"):
            link(in_users_cache(ENGINES[engine]), cache_dir())
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[str, RecipeModel]:
    """The recipes with their own data and framework, built once more than the repository builds them."""
    made = {}
    for name in ("minilm", "efficientnet-lite0"):
        options = ExportOptions(name, folder / "models", seconds=SECONDS, limits=LOOSE[name])
        with within(BUILD_S):
            # 1: a variant did not pass its gate, which is the processor's to say; FP32 has to
            assert command.run(options, installed()) in (0, 1)
            made[name] = recipes.build(name, SourceOptions(), lambda *_: None)
    return made


@pytest.fixture(scope="module")
def trees(folder: Path) -> tuple[Any, np.ndarray]:
    """A gradient-boosted model in a pipeline, pickled, exported and gated on rows that it did not learn from."""
    values, labels = load_breast_cancer(return_X_y=True)
    values = values.astype(np.float32)
    model = make_pipeline(StandardScaler(), HistGradientBoostingClassifier(random_state=0)).fit(
        values[:400], labels[:400]
    )
    joblib.dump(model, folder / "trees.joblib")
    np.savez(folder / "trees.npz", features=values[400:], labels=labels[400:])
    options = ExportOptions(
        f"sklearn:{folder / 'trees.joblib'}",
        folder / "models",
        data=str(folder / "trees.npz"),
        is_trusted=True,
        seconds=SECONDS,
    )
    with within(BUILD_S):
        assert command.run(options, installed()) == 0
    return model, values[400:]


@pytest.fixture(scope="module")
def speed_repository(folder: Path) -> Path:
    for name in speed_nets.NETS:
        options = ExportOptions(
            f"speed:{name}",
            folder / "models",
            precisions=("fp32",) if name in LARGE else ("fp32", "int8"),
            max_batch_size=4,
            seconds=0.01,
        )
        with within(BUILD_S):
            assert command.run(options, {"cpu": installed()["cpu"]}) == 0  # one engine: which wins is not asked here
    return folder / "models"


@pytest.fixture(scope="module")
def gateway(folder: Path, trained: object, trees: object, speed_repository: Path) -> Iterator[Running]:
    port = free_ports(1)[0]
    options = ["--port", str(port), "--no-measure", "--model-repository", str(speed_repository)]
    program = Program([*TANDEM, "up", *options], folder / "up.log")
    try:
        program.wait_for("ready in ", limit_s=300)
        yield Running(program, port)
    finally:
        program.end()


def ask(gateway: Running, model: str, inputs: dict[str, np.ndarray], output: str) -> np.ndarray:
    """Row by row in batches of 8, as a client of Triton would."""
    client = triton_http.InferenceServerClient(gateway.url, network_timeout=120)
    answers = []
    num_rows = len(next(iter(inputs.values())))
    for start in range(0, num_rows, 8):
        tensors = []
        for name, values in inputs.items():
            rows = values[start : start + 8]
            tensors.append(triton_http.InferInput(name, list(rows.shape), np_to_triton_dtype(rows.dtype)))
            tensors[-1].set_data_from_numpy(rows)
        answers.append(client.infer(model, tensors).as_numpy(output))
    client.close()
    return np.concatenate(answers)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def variants_of(folder: Path, model: str) -> list[str]:
    found = [v for v in Repository(folder / "models").variants() if v.record.model == model]
    return [variant.name for variant in found if "cpu" in variant.loadable_pools]


def test_served_sentence_vectors_are_those_of_transformers(gateway: Running, trained: dict[str, RecipeModel]) -> None:
    built = trained["minilm"]
    assert built.data is not None
    assert built.exported.run is not None
    inputs = {name: values[:32] for name, values in built.data.inputs.items()}
    theirs = built.exported.run(inputs)[0]
    ours = ask(gateway, "minilm-fp32", inputs, built.exported.outputs[0].name)
    assert cosines(ours, theirs).min() >= COSINE


def test_a_sentence_alone_has_the_vector_that_it_has_in_a_batch(
    gateway: Running, trained: dict[str, RecipeModel]
) -> None:
    built = trained["minilm"]
    assert built.data is not None
    inputs = {name: values[:8] for name, values in built.data.inputs.items()}
    output = built.exported.outputs[0].name
    together = ask(gateway, "minilm-fp32", inputs, output)
    alone = [ask(gateway, "minilm-fp32", {k: v[i : i + 1] for k, v in inputs.items()}, output) for i in range(8)]
    assert np.allclose(np.concatenate(alone), together, atol=1e-5)


def test_the_int8_and_bf16_records_hold_cosine_and_recall(trained: dict[str, RecipeModel], folder: Path) -> None:
    checked = 0
    for variant in Repository(folder / "models").variants():
        if variant.record.model == "minilm" and variant.record.variant in ("int8", "bf16", "fp16"):
            metrics = {check.metric for check in variant.record.gate.checks}
            assert {"cosine_mean", "cosine_worst", "recall_at_10"} <= metrics
            assert variant.record.space is not None
            checked += 1
    assert checked >= 1


def test_every_served_variant_answers_as_well_as_its_record_says(
    gateway: Running, trained: dict[str, RecipeModel], folder: Path
) -> None:
    built = trained["minilm"]
    assert built.data is not None
    assert built.exported.run is not None
    theirs = built.exported.run(built.data.inputs)[0]
    for name in variants_of(folder, "minilm"):
        worst = Repository(folder / "models").variant(name).record.gate.check("cosine_worst")
        assert worst is not None
        ours = ask(gateway, name, dict(built.data.inputs), built.exported.outputs[0].name)
        assert cosines(ours, theirs).min() >= worst.value - 0.03  # another engine and another batch than at the gate


def test_photographs_are_told_apart_as_the_framework_does(
    gateway: Running, trained: dict[str, RecipeModel], folder: Path
) -> None:
    built = trained["efficientnet-lite0"]
    assert built.data is not None
    assert built.exported.run is not None
    inputs = {name: values[:8] for name, values in built.data.inputs.items()}
    theirs = built.exported.run(inputs)[0]
    ours = ask(gateway, "efficientnet-lite0-fp32", inputs, built.exported.outputs[0].name)
    assert np.allclose(ours, theirs, atol=1e-3)
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).all()


def test_trees_answer_as_scikit_learn_does_and_are_a_cpu_model(
    gateway: Running, trees: tuple[Any, np.ndarray], folder: Path
) -> None:
    model, rows = trees
    [variant] = [v for v in Repository(folder / "models").variants() if v.record.model == "trees"]
    assert variant.record.pools["gpu"].status == "not_allowed"
    name = variant.record.inputs[0].name
    ours = ask(gateway, "trees", {name: rows}, "probabilities")
    assert np.allclose(ours, model.predict_proba(rows), atol=1e-4)


@pytest.mark.parametrize("name", speed_nets.NETS)
def test_random_nets_are_served_and_marked_in_every_answer(gateway: Running, folder: Path, name: str) -> None:
    model = speed_nets.net(name).model
    record = Repository(folder / "models").variant(f"{model}-fp32").record
    assert record.is_untrained
    assert "untrained: speed only" in record.source
    assert record.speed
    reply = gateway.ask(f"/v2/models/{model}/config")
    assert reply.json()["parameters"]["tandem_gate"]["string_value"] == "untrained: speed only"
    net = speed_nets.net(name)
    example = net.examples(2, 1, net.num_tokens)
    answers = ask(gateway, model, dict(example), record.outputs[0].name)
    assert np.isfinite(answers).all()
    assert answers.std() > 0


def test_the_whole_repository_verifies_with_its_gates(gateway: Running, folder: Path) -> None:
    found = verify.verify(folder / "models")
    assert found.has_passed, [(variant.name, variant.problems) for variant in found.variants]
