"""`python -m serving.export.speed_nets`: a repository of untrained variants that Triton may load, and what it refuses."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from serving.errors import GateRefused
from serving.export.speed_nets import NETS, load, mlp, net
from serving.export.speed_nets.__main__ import main, proven
from serving.export.speed_nets.graph import NetBuilder
from serving.repository import UNTRAINED, Repository

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _a_narrow_perceptron() -> Iterator[None]:
    """The same in seconds: how wide it is matters to nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlp, "HIDDEN", (128, 128))
        yield


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untrained") / "models"
    assert main([str(folder), "--net", "mlp"]) == 0
    return folder


def test_every_variant_says_what_it_is_and_is_whole(repository: Path) -> None:
    variants = Repository(repository).variants()
    assert [v.name for v in variants] == ["mlp-fp16", "mlp-fp32", "mlp-int8"]
    for variant in variants:
        variant.verify()
        record = variant.record
        assert record.is_untrained
        assert record.speed == ()
        judged = {check.metric for check in record.gate.checks if check.limit is not None}
        assert judged == {"row_difference"}  # true of any net: a row's answer is its own
        for text in variant.config_files().values():
            assert UNTRAINED in text or "not_allowed" in text


def test_a_variant_may_run_where_its_precision_is_computed(repository: Path) -> None:
    found = {v.name: v.loadable_pools for v in Repository(repository).variants()}
    assert found["mlp-fp32"] == ("cpu", "gpu")
    assert found["mlp-fp16"] == ("gpu",)
    assert found["mlp-int8"] == ("cpu",)


def test_precisions_differ_in_size_and_little_in_answers(repository: Path) -> None:
    sizes = {v.name: v.size_bytes() for v in Repository(repository).variants()}
    assert sizes["mlp-fp16"] / sizes["mlp-fp32"] == pytest.approx(0.5, abs=0.01)
    assert sizes["mlp-int8"] / sizes["mlp-fp32"] == pytest.approx(0.25, abs=0.03)
    for variant in Repository(repository).variants():
        difference = variant.record.gate.check("relative_error")
        assert difference is not None
        assert difference.value < {"fp32": 1e-6, "fp16": 0.05, "int8": 1.0}[variant.record.variant]


def test_no_untrained_net_bears_the_name_of_a_trained_one_that_is_served() -> None:
    assert {name: net(name).model for name in NETS if name != net(name).model} == {"minilm": "minilm-untrained"}


def test_the_batch_size_reaches_the_configuration(tmp_path: Path) -> None:
    assert main([str(tmp_path), "--net", "mlp", "--variant", "fp32", "--max-batch-size", "5"]) == 0
    (variant,) = Repository(tmp_path).variants()
    assert "max_batch_size: 5" in variant.config_files()["config.pbtxt"]


def test_written_again_it_is_the_same_version_and_the_same_file(tmp_path: Path) -> None:
    for _ in range(2):
        assert main([str(tmp_path), "--net", "mlp", "--variant", "fp32"]) == 0
    (variant,) = Repository(tmp_path).variants()
    assert variant.record.model_version == 1
    assert [path.name for path in variant.directory.glob("[0-9]*")] == ["1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--net", "resnet"], "invalid choice: 'resnet'"),
        (["--net", "mlp", "--variant", "bf16"], "invalid choice: 'bf16'"),
        (["--net", "mlp", "--max-batch-size", "many"], "invalid int value: 'many'"),
        (["--nets", "mlp"], "unrecognized arguments: --nets"),
    ],
)
def test_wrong_use_is_exit_code_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["nowhere", *arguments])
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("size", ["0", "-3"])
def test_a_batch_size_that_is_none_is_refused(size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "models"), "--net", "mlp", f"--max-batch-size={size}"]) == 2
    assert f"size is {size}, want 1" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


def test_a_place_that_cannot_be_written_is_said_before_a_net_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / "file"), "--net", "mlp"]) == 2
    told = capsys.readouterr().err
    assert "cannot write" in told
    assert "drawing" not in told


def test_a_model_that_another_process_writes_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / ".tandem-lock-mlp").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main([str(tmp_path), "--net", "mlp"]) == 2
    assert "exporting mlp" in capsys.readouterr().err


def test_a_variant_that_overflows_is_no_variant() -> None:
    graph = NetBuilder("burst", mlp.NET.inputs, seed=1, opset=18)
    graph.node("MatMul", ["features", graph.weight("weights", (1024, 1000), 5e37)], "scores")
    burst = replace(load("mlp"), model=graph.model(mlp.NET.outputs))
    with pytest.raises(GateRefused, match=r"mlp-fp32.*NaN.*infinite"):
        proven("mlp", burst, ["fp32"])


# What a machine with a card has: no torch, and none of what only real models need.
ELSEWHERE = ("torch", "transformers", "tokenizers", "PIL", "sklearn", "skl2onnx", "onnxmltools", "onnxscript", "click")


@pytest.mark.thorough
def test_it_needs_onnx_onnx_runtime_and_numpy_alone(tmp_path: Path) -> None:
    blocked = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ELSEWHERE}:
            raise ImportError(name + " is not here")
sys.meta_path.insert(0, Blocked())
from serving.export.speed_nets import mlp
mlp.HIDDEN = (128,)
from serving.export.speed_nets.__main__ import main
sys.exit(main([{str(tmp_path)!r}, "--net", "mlp", "--variant", "fp16"]))
"""
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert [variant.name for variant in Repository(tmp_path).variants()] == ["mlp-fp16"]
