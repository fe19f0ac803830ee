"""Before a model is published, a real Triton loads it and answers the rows that its gate ran; it warms up with one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_node, make_tensor_value_info

from serving.errors import EnvironmentFault
from serving.export import pipeline
from serving.export.data.dataset import Dataset
from serving.export.exported_model import Arrays, ExportedModel, SourceOptions
from serving.export.job import ExportSpec
from serving.export.load_check import Load, LoadResult, NotServed
from serving.export.pipeline import Outcome
from serving.export.publish import writing
from serving.export.sources import onnx_file
from serving.local.engines import installed
from serving.repository import DigestMismatch, Repository

from .conftest import COMMITTED, MODEL_FILE, PAYLOAD, ROOT
from .sources import graphs

pytestmark = [pytest.mark.slow, pytest.mark.triton]

FP32 = COMMITTED / "digits-fp32" / MODEL_FILE
QUICK = ("--engine", "cpu", "--seconds", "0.01")


def export(
    words: Sequence[str], repository: Path, program: Sequence[str] = ("-m", "serving")
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *program, "export", *words, *QUICK, "--model-repository", str(repository)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=100)


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


@pytest.mark.parametrize("name", ROWS)
def test_a_model_that_takes_neither_one_pixel_nor_an_empty_text_is_loaded_with_the_rows_of_its_gate(
    tmp_path: Path, name: str
) -> None:
    make, rows = ROWS[name]
    make(tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "example.npz", **rows)  # type: ignore[arg-type]
    words = (str(tmp_path / f"{name}.onnx"), "--example", str(tmp_path / "example.npz"), "--i-accept-ungated")
    done = export(words, tmp_path / "repository")
    assert done.returncode == 0, done.stderr
    variant = Repository(tmp_path / "repository").variant(f"{name}-fp32")
    assert variant.record.load_check.startswith("triton 2.")
    [tensor] = variant.record.warmup
    [values] = rows.values()
    assert tensor.shape == values.shape[1:]
    assert (variant.directory / "warmup" / "0.bin").stat().st_size == (
        values[0].nbytes if name == "pooled" else 4 + len("1")
    )
    (variant.directory / "warmup" / "0.bin").write_bytes(b"another row")
    with pytest.raises(DigestMismatch, match=r"warmup/0\.bin changed after its gate"):
        variant.verify()


# The real Triton and the real export; only what Triton finds in the folder is not what was exported.
SPOILING = """
import sys
from pathlib import Path
from serving import cli
from serving.local import load_check

load, wanted, content = load_check.load, sys.argv.pop(1), Path(sys.argv.pop(1)).read_bytes()

def spoilt(folder, rows, say):
    file = folder / wanted / "1" / "model.onnx"
    file.unlink()
    file.write_bytes(content)
    return load(folder, rows, say)

load_check.load = spoilt
cli.main()
"""
JUDGED = (str(FP32), "--model", "m", "--data", str(PAYLOAD), "--precision", "int8", "--calibration", str(PAYLOAD))


def other_digits(path: Path) -> None:
    """The committed net with its weights of another sign: it loads, and answers otherwise."""
    model = onnx.load(FP32)
    weights = next(one for one in model.graph.initializer if len(one.dims) == 2)
    array = -onnx.numpy_helper.to_array(weights)
    weights.CopyFrom(onnx.numpy_helper.from_array(array, weights.name))
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("is_file", "says"), [(False, "does not serve it"), (True, "gives other answers than the gate measured")]
)
def test_a_variant_that_triton_does_not_load_or_answers_otherwise_is_refused_and_the_model_is_served(
    tmp_path: Path, is_file: bool, says: str
) -> None:
    other_digits(tmp_path / "other") if is_file else (tmp_path / "other").write_bytes(b"no model")
    (tmp_path / "spoiling.py").write_text(SPOILING)
    program = (str(tmp_path / "spoiling.py"), "m-int8", str(tmp_path / "other"))
    done = export(JUDGED, tmp_path / "repository", program)
    assert done.returncode == 0, done.stderr
    assert [variant.name for variant in Repository(tmp_path / "repository").variants()] == ["m-fp32"]
    record = Repository(tmp_path / "repository").variant("m-fp32").record
    assert says in record.not_made["int8"]
    assert record.not_made["int8"] in done.stdout


def test_a_model_that_triton_does_not_load_is_not_published(tmp_path: Path) -> None:
    (tmp_path / "spoiling.py").write_text(SPOILING)
    (tmp_path / "other").write_bytes(b"no model")
    program = (str(tmp_path / "spoiling.py"), "m-fp32", str(tmp_path / "other"))
    done = export(JUDGED, tmp_path / "repository", program)
    assert done.returncode == 1, done.stderr
    assert "m-fp32 refused: triton 2." in done.stderr
    assert not (tmp_path / "repository").exists()


def test_a_ready_made_variant_that_triton_does_not_load_is_not_published(tmp_path: Path) -> None:
    (tmp_path / "spoiling.py").write_text(SPOILING)
    (tmp_path / "other").write_bytes(b"no model")
    assert export((*JUDGED[:5], "--precision", "fp32"), tmp_path / "repository").returncode == 0
    int8 = str(COMMITTED / "digits-int8" / MODEL_FILE)
    words = (int8, "--model", "m", "--variant", "int8", "--keep-slow")
    done = export(words, tmp_path / "repository", (str(tmp_path / "spoiling.py"), "m-int8", str(tmp_path / "other")))
    assert done.returncode == 1, done.stderr
    assert "m-int8 refused: triton 2." in done.stderr
    assert export(words, tmp_path / "repository").returncode == 0
    both = [Repository(tmp_path / "repository").variant(name) for name in ("m-fp32", "m-int8")]
    assert both[0].record.warmup == both[1].record.warmup
    assert both[1].record.load_check.startswith("triton 2.")


# -- where nobody can be asked ----------------------------------------------------------------------------------------


def of_pipeline(repository: Path, load: Load | None) -> Outcome:
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
    assert fp32.load_check == "no Triton could be asked: this system has no glibc"
    assert [warning for warning in outcome.warnings if "this system has no glibc" in warning]


def test_what_a_gpu_alone_runs_is_not_said_to_have_been_loaded(tmp_path: Path) -> None:
    def server(folder: Path, rows: Arrays) -> LoadResult:
        assert {variant.name for variant in Repository(folder).variants()} == {"m-fp32", "m-fp16"}
        raw = Repository(folder).variant("m-fp32").model_path.read_bytes()
        from serving.export.gates.session import answers

        return LoadResult("a server", {"m-fp32": answers(raw, rows, 32)}, {})

    said = {one.record.variant: one.record.load_check for one in of_pipeline(tmp_path, server).published}
    assert said["fp32"] == "a server on cpu: 32 rows answered as its gate saw"
    assert said["fp16"].startswith("not loaded by any server")


def test_a_model_that_answers_with_nan_on_a_server_is_not_served(tmp_path: Path) -> None:
    def server(_: Path, rows: Arrays) -> LoadResult:
        return LoadResult("a server", {"m-fp32": [np.full((len(rows["image"]), 10), np.nan, np.float32)]}, {})

    with pytest.raises(NotServed, match="gives other answers than the gate measured"):
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
