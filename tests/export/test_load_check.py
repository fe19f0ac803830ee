"""Before a model is published, a real Triton loads it and answers the rows that its gate ran; it warms up with one of them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto
from onnx.helper import make_node, make_tensor_value_info

from serving import cli
from serving.errors import EnvironmentFault, TandemError, exit_code
from serving.export import pipeline
from serving.export.data.dataset import Dataset
from serving.export.exported_model import Arrays, ExportedModel, SourceOptions
from serving.export.job import ExportSpec
from serving.export.load_check import Load, LoadResult, NotServed
from serving.export.pipeline import ExportResult
from serving.export.publish import writing
from serving.export.sources import onnx_file
from serving.export.sources.graphs import external_data
from serving.local import trial_server
from serving.local.devices import installed
from serving.repository import DigestMismatch, Repository

from .conftest import COMMITTED, MODEL_FILE, PAYLOAD
from .sources import graphs

pytestmark = [pytest.mark.slow, pytest.mark.triton, pytest.mark.usefixtures("untimed")]

FP32 = COMMITTED / "digits-fp32" / MODEL_FILE
QUICK = ("--engine", "cpu", "--seconds", "0.01")


@dataclass(frozen=True)
class Done:
    code: int
    said: str


def export(words: Sequence[str], repository: Path) -> Done:
    """In this process. What it raises becomes the code that `main` would end with."""
    given = ["export", *words, *QUICK, "--model-repository", str(repository)]
    result = CliRunner().invoke(cli.cli, given, standalone_mode=False)
    if isinstance(result.exception, TandemError):
        return Done(exit_code(result.exception), f"{result.output}{result.exception}")
    if isinstance(result.exception, Exception):
        raise result.exception
    return Done(result.exit_code, result.output)


def pooled(path: Path) -> None:
    """image [n, 3, height, width] of 3 pixels at least -> sums [n, 3]: zeros of one pixel do not go through it."""
    nodes = [
        make_node("AveragePool", ["image"], ["pooled"], kernel_shape=[3, 3]),
        make_node("GlobalAveragePool", ["pooled"], ["one"]),
        make_node("Flatten", ["one"], ["sums"]),
    ]
    takes = [make_tensor_value_info("image", graphs.FLOAT, ["n", 3, "height", "width"])]
    onnx.save(graphs.graph(nodes, takes, [make_tensor_value_info("sums", graphs.FLOAT, ["n", 3])], []), path)


def reading(path: Path) -> None:
    """text [n, 1] -> number [n, 1]: an empty text is none."""
    nodes = [make_node("Cast", ["text"], ["number"], to=TensorProto.FLOAT)]
    takes = [make_tensor_value_info("text", TensorProto.STRING, ["n", 1])]
    onnx.save(graphs.graph(nodes, takes, [make_tensor_value_info("number", graphs.FLOAT, ["n", 1])], []), path)


ROWS = {
    "pooled": (pooled, {"image": np.random.default_rng(0).random((6, 3, 12, 16), np.float32)}),
    "reading": (reading, {"text": np.array([["1"], ["22"], ["-3.5"], ["400"], ["5"]])}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "pooled" else [pytest.mark.thorough]) for name in ROWS]
)
def test_a_model_that_takes_neither_one_pixel_nor_an_empty_text_is_loaded_with_the_rows_of_its_gate(
    tmp_path: Path, name: str
) -> None:
    make, rows = ROWS[name]
    make(tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "example.npz", **rows)  # type: ignore[arg-type]
    words = (str(tmp_path / f"{name}.onnx"), "--example", str(tmp_path / "example.npz"), "--i-accept-ungated")
    done = export(words, tmp_path / "repository")
    assert done.code == 0, done.said
    variant = Repository(tmp_path / "repository").variant(f"{name}-fp32")
    assert variant.record.load_check.startswith("triton 2.")
    [tensor] = variant.record.warmup
    [values] = rows.values()
    assert tensor.shape == values.shape[1:]
    assert (variant.directory / "warmup" / "0.bin").stat().st_size == (
        values[0].nbytes if name == "pooled" else 4 + len("1")
    )
    (variant.directory / "warmup" / "0.bin").write_bytes(b"another row")
    with pytest.raises(DigestMismatch, match=r"warmup/0\.bin.*changed"):
        variant.verify()


def remembering(path: Path) -> None:
    """frame [any, any] of 4 numbers, state [2, any, 3], rate [] -> answer [any, 3], after [2, any, 3]: a step of a recurrent net."""
    nodes = [
        make_node("Div", ["frame", "rate"], ["slow"]),
        make_node("MatMul", ["slow", "w"], ["step"]),
        make_node("Add", ["state", "step"], ["after"]),
        make_node("ReduceSum", ["after", "first"], ["answer"], keepdims=0),
    ]
    shapes: dict[str, list[str | int]] = {"frame": ["", ""], "state": [2, "", 3], "rate": []}
    takes = [make_tensor_value_info(name, graphs.FLOAT, shape) for name, shape in shapes.items()]
    gives = [
        make_tensor_value_info("answer", graphs.FLOAT, ["", 3]),
        make_tensor_value_info("after", graphs.FLOAT, [2, "", 3]),
    ]
    onnx.save(graphs.graph(nodes, takes, gives, [graphs.weights("w", 4, 3), graphs.constant("first", 0)]), path)


def test_a_step_with_a_state_that_the_client_keeps_is_served_at_the_lengths_of_its_rows(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    remembering(tmp_path / "step.onnx")
    frame, state = random.random((6, 1, 4), np.float32), random.random((6, 2, 1, 3), np.float32)
    np.savez(tmp_path / "rows.npz", frame=frame, state=state, rate=np.full(6, 8, np.float32))
    words = (str(tmp_path / "step.onnx"), "--data", str(tmp_path / "rows.npz"), "--precision", "fp32")
    done = export(words, tmp_path / "repository")
    assert done.code == 0, done.said
    record = Repository(tmp_path / "repository").variant("step-fp32").record
    assert record.load_check.startswith("triton 2.")
    assert record.max_batch_size == 0
    assert [tensor.shape for tensor in record.inputs] == [(-1, 4), (2, -1, 3), (1,)]
    assert [tensor.name for tensor in record.outputs] == ["answer", "after"]


def test_answers_whose_length_depends_on_their_inputs_are_served_and_compared(tmp_path: Path) -> None:
    nodes = [
        make_node("Greater", ["x", "zero"], ["is"]),
        make_node("Compress", ["x", "kept"], ["some"], axis=0),
        make_node("Squeeze", ["is"], ["kept"]),
    ]
    zero = onnx.numpy_helper.from_array(np.array(0, np.float32), "zero")
    takes = [make_tensor_value_info("x", graphs.FLOAT, [6, 1])]
    model = graphs.graph(
        [nodes[0], nodes[2], nodes[1]], takes, [make_tensor_value_info("some", graphs.FLOAT, ["k", 1])], [zero]
    )
    onnx.save(model, tmp_path / "found.onnx")
    np.savez(tmp_path / "rows.npz", x=np.random.default_rng(0).standard_normal((8, 6, 1)).astype(np.float32))
    words = (str(tmp_path / "found.onnx"), "--data", str(tmp_path / "rows.npz"), "--precision", "fp32")
    done = export(words, tmp_path / "repository")
    assert done.code == 0, done.said
    record = Repository(tmp_path / "repository").variant("found-fp32").record
    assert record.load_check.startswith("triton 2.")
    assert record.outputs[0].shape == (-1, 1)


def remembered(path: Path, seed: int) -> None:
    """ids [n, 1] -> vectors [n, 1, 8], with the table in weights.bin."""
    table = np.random.default_rng(seed).random((2000, 8), np.float32)
    takes = [make_tensor_value_info("ids", TensorProto.INT64, ["n", 1])]
    gives = [make_tensor_value_info("vectors", graphs.FLOAT, ["n", 1, 8])]
    nodes = [make_node("Gather", ["table", "ids"], ["vectors"])]
    model = graphs.graph(nodes, takes, gives, [onnx.numpy_helper.from_array(table, "table")])
    path.with_name("weights.bin").unlink(missing_ok=True)
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)


def test_weights_that_no_one_file_holds_lie_beside_the_model_through_to_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_data, "MAX_BYTES", external_data._HEADROOM_BYTES + 4096)  # instead of 2 GB
    monkeypatch.setattr(external_data, "_SMALL_BYTES", 1024)
    np.savez(tmp_path / "rows.npz", ids=np.arange(12)[:, None])
    words = (str(tmp_path / "table.onnx"), "--data", str(tmp_path / "rows.npz"))
    for version in (1, 2):  # other weights are another version, though the graph is the same
        remembered(tmp_path / "table.onnx", seed=version)
        done = export(words, tmp_path / "repository")
        assert done.code == 0, done.said
        variant = Repository(tmp_path / "repository").variant("table-fp32")
        assert variant.record.model_version == version
        assert variant.record.load_check.startswith("triton 2.")
        weights = variant.directory / str(version) / "weights.bin"
        assert weights.read_bytes() == (tmp_path / "weights.bin").read_bytes()
        assert variant.model_path.stat().st_size < 1000 < variant.size_bytes()
    found = CliRunner().invoke(cli.cli, ["verify", "--model-repository", str(tmp_path / "repository")])
    assert found.exit_code == 0, found.output
    weights.write_bytes(b"others")
    with pytest.raises(DigestMismatch, match="weights"):
        variant.verify()


@pytest.fixture
def spoiling(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], None]:
    """The real Triton and the real export; only what Triton finds in the folder is not what was exported."""

    def spoil(variant: str, content: bytes) -> None:
        load = trial_server.load

        def spoilt(folder: Path, rows: Arrays, say: Any) -> LoadResult:
            file = folder / variant / MODEL_FILE
            file.unlink()
            file.write_bytes(content)
            return load(folder, rows, say)

        monkeypatch.setattr(trial_server, "load", spoilt)

    return spoil


JUDGED = (str(FP32), "--model", "m", "--data", str(PAYLOAD), "--precision")


def other_digits() -> bytes:
    """The committed net with its weights of another sign: it loads, and answers otherwise."""
    model = onnx.load(FP32)
    weights = next(one for one in model.graph.initializer if len(one.dims) == 2)
    array = -onnx.numpy_helper.to_array(weights)
    weights.CopyFrom(onnx.numpy_helper.from_array(array, weights.name))
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"no model", "does not serve it", marks=pytest.mark.thorough),
        (other_digits(), "gives other answers"),
    ],
)
def test_a_variant_that_triton_does_not_load_or_answers_otherwise_is_refused_and_the_model_is_served(
    tmp_path: Path, spoiling: Callable[[str, bytes], None], content: bytes, says: str
) -> None:
    spoiling("m-int8", content)
    with np.load(PAYLOAD) as digits:
        np.savez(tmp_path / "few.npz", **{name: rows[:60] for name, rows in digits.items()})
    done = export((*JUDGED, "int8", "--calibration", str(tmp_path / "few.npz")), tmp_path / "repository")
    assert done.code == 0, done.said
    assert [variant.name for variant in Repository(tmp_path / "repository").variants()] == ["m-fp32"]
    record = Repository(tmp_path / "repository").variant("m-fp32").record
    assert says in record.not_made["int8"]
    assert record.not_made["int8"] in done.said


def test_a_model_that_triton_does_not_load_is_not_published(
    tmp_path: Path, spoiling: Callable[[str, bytes], None]
) -> None:
    spoiling("m-fp32", b"no model")
    done = export((*JUDGED, "fp32"), tmp_path / "repository")
    assert done.code == 1, done.said
    assert "m-fp32 refused: triton 2." in done.said
    assert not (tmp_path / "repository").exists()


@pytest.mark.thorough
def test_a_ready_made_variant_that_triton_does_not_load_is_not_published(
    repository: Path, spoiling: Callable[[str, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(repository / "digits-int8")
    int8 = str(COMMITTED / "digits-int8" / MODEL_FILE)
    words = (int8, "--model", "digits", "--variant", "int8", "--keep-slow")
    spoiling("digits-int8", b"no model")
    done = export(words, repository)
    assert done.code == 1, done.said
    assert re.search(r"digits-int8 refused: .*2\.", done.said)
    monkeypatch.undo()
    assert export(words, repository).code == 0
    both = [Repository(repository).variant(name) for name in ("digits-fp32", "digits-int8")]
    assert both[0].record.warmup == both[1].record.warmup
    assert both[1].record.load_check.startswith("triton 2.")


# -- where nobody can be asked ----------------------------------------------------------------------------------------


def of_pipeline(repository: Path, load: Load | None) -> ExportResult:
    exported: ExportedModel = onnx_file.load(FP32, SourceOptions(), lambda *_: None)
    with np.load(PAYLOAD) as found:
        data = Dataset("digits", {"image": found["image"]}, found["labels"])
    asked = ExportSpec("m", precisions=("fp32", "fp16"), seconds=0.01)
    with writing(repository, "m"):
        return pipeline.export(exported, data, None, asked, repository, {"cpu": installed()["cpu"]}, load=load)


def test_where_no_triton_can_run_the_record_and_the_summary_say_so(tmp_path: Path) -> None:
    def none(_: Path, __: Arrays) -> LoadResult:
        raise EnvironmentFault("this system has no glibc")

    outcome = of_pipeline(tmp_path, none)
    [fp32] = [variant.record for variant in outcome.published if variant.record.variant == "fp32"]
    assert "glibc" in fp32.load_check
    assert [warning for warning in outcome.warnings if "glibc" in warning]


def test_what_a_gpu_alone_runs_is_not_said_to_have_been_loaded(tmp_path: Path) -> None:
    def server(folder: Path, rows: Arrays) -> LoadResult:
        assert {variant.name for variant in Repository(folder).variants()} == {"m-fp32", "m-fp16"}
        raw = Repository(folder).variant("m-fp32").model_path.read_bytes()
        from serving.export.onnx_session import answers

        return LoadResult("a server", {"m-fp32": answers(raw, rows, 32)}, {})

    said = {one.record.variant: one.record.load_check for one in of_pipeline(tmp_path, server).published}
    assert re.match("a server .*cpu: 32 ", said["fp32"])
    assert said["fp16"].startswith("not loaded")


def test_a_model_that_answers_with_nan_on_a_server_is_not_served(tmp_path: Path) -> None:
    def server(_: Path, rows: Arrays) -> LoadResult:
        return LoadResult("a server", {"m-fp32": [np.full((len(rows["image"]), 10), np.nan, np.float32)]}, {})

    with pytest.raises(NotServed, match=r"answers.*measured"):
        of_pipeline(tmp_path / "new", server)
    assert not (tmp_path / "new").exists()


def test_a_record_that_was_written_before_there_were_warm_up_rows_is_still_served(repository: Path) -> None:
    file = repository / "digits-fp32" / "tandem.json"
    content = json.loads(file.read_text())
    del content["warmup"], content["load_check"]
    file.write_text(json.dumps(content))
    record = Repository(repository).variant("digits-fp32").record
    assert (record.warmup, record.load_check) == ((), "")
    assert "random_data: true" in Repository(repository).variant("digits-fp32").config("cpu").to_pbtxt()
