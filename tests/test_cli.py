"""The command line: exit codes, and one line that says the way out."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from serving.measure.machine import processor_key
from serving.ports import free_ports
from tests.command import tandem

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`

ROOT = Path(__file__).parents[1]
FP32 = "model_repo/digits-fp32/1/model.onnx"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["verfy"], 2, "Did you mean 'verify'?"),
        (["up", "--prot", "1"], 2, "--port"),
        (["up", "--port", "0"], 2, "--port"),
        (["gateway"], 2, "--config"),
        (["models", "--model-repository", "/nonexistent"], 2, "/nonexistent"),
        (["verify", "--model-repository", "/nonexistent"], 2, "/nonexistent"),
        (["export", "thing"], 2, "sources are: hf:DIR_OR_ID"),
        (["export", "sklern:x.pkl"], 2, "did you mean 'sklearn'"),
        (["export", "x.onnx", "--variant", "int8"], 2, "--model and --variant"),
        (["export", "x.onnx"], 2, "x.onnx"),
        (["export", "x.onnx", "--max-drop", "2"], 2, "--max-drop"),
        (["export", "x.onnx", "--precision", "int4"], 2, "--precision"),
        (["export", "x.onnx", "--model", "digits", "--variant", "int8"], 2, "x.onnx"),
        (["export", "x.onnx", "--model", "a-int8", "--variant", "int8"], 2, "a-int8"),
        (["export", "digits", "--model", "digits", "--variant", "int8"], 2, "--precision"),
        (["export", "speed:resnet"], 2, "did you mean 'resnet50'"),
        (["export", "sklearn:x.pkl"], 2, "--trust"),
        (["export", "digits", "--model", ""], 2, "model name ''"),
        (["export", "digits", "--model", ".."], 2, "begin with none of"),
        (["export", "digits", "--data", ""], 2, "nothing at --data ''"),
        (["export", "digits", "--payload", "README.md/y.npz"], 2, "--payload README.md/y.npz cannot be written"),
        (["export", "digits", "--max-batch", "100000000"], 2, "--max-batch"),
        (["export", FP32, "--example", "README.md"], 2, "README.md is not an npz file"),
        (["export", FP32], 2, "no data to judge the variants on"),
        (["export", "digits", "--max-bad-images", "1"], 2, "--max-bad-images"),
        (["export", "digits"], 2, "pip install -e '.[export]'"),
        (["export", "hf:somewhere"], 2, "no data to judge the variants on"),
        (["export", "hf:somewhere", "--i-accept-ungated"], 2, "--yes"),
        (["verify", "--server", "kserve"], 2, "--server"),
        (["verify", "--model", "digit"], 2, "did you mean 'digits'"),
        (["up", "--pool", "tpu"], 2, "did you mean 'gpu'?"),
        (["triton", "--pool", "tpu"], 2, "pools are"),
        (["simulate", "none.yaml"], 2, "none.yaml"),
        (["simulate", "docs/scenarios/bert-large.yaml", "--polcy", "hold"], 2, "--policy"),
        (["simulate", "docs/scenarios/bert-large.yaml", "--policy", "tandm"], 2, "--policy"),
        (["simulate", "docs/scenarios/bert-large.yaml", "--rate", "0"], 2, "--rate"),
        (["simulate", "docs/scenarios/bert-large.yaml", "--trace", "none.csv"], 2, "none.csv"),
        (["simulate", "docs/scenarios/bert-large.yaml", "--trace", "none.csv", "--rate", "5"], 2, "leave out"),
        (["campaign", "run", "none.yaml"], 2, "none.yaml"),
        (
            ["campaign", "run", "loadtest/campaigns/minilm.yaml", "--model-repository", "/nonexistent"],
            2,
            "there is no model repository at /nonexistent",
        ),
        (["campaign", "run", "loadtest/campaigns/claims.yaml", "--only", "int8-suits-cpu"], 2, "int8-suits-cpus'?\n"),
        (["campaign", "run", "loadtest/campaigns/digits.yaml", "--url", "127.0.0.1:8080"], 2, "http://HOST:PORT"),
        (["campaign", "report", "none"], 2, "none"),
        (["campaign", "report", "none", "--fail-if", "p98_s > 1"], 2, "did you mean 'p99_s'?"),
        (
            ["campaign", "run", "loadtest/campaigns/digits.yaml", "--fail-if", "fp23-cpu.p99_s > 1"],
            2,
            "did you mean 'fp32-cpu'?",
        ),
        (["verdict", "digits", "--p99", "20ms", "--rate", "1e12"], 2, "--rate"),
        (["verdict", "digits", "--p99", "20ms", "--rate", "nan"], 2, "no finite number"),
        (["verdict", "digits", "--p99", "20ms", "--rate", "1", "--fail-if", "p98_s > 1"], 2, "did you mean 'p99_s'?"),
        (["plan", "--p99", "20ms", "--rate", "1"], 2, "--profile"),
        (["plan", "--profile", "none.json", "--p99", "20ms", "--rate", "1"], 2, "none.json"),
        (["profile", "digts"], 2, "did you mean 'digits'?"),
        (["profile", "digits", "--p99", "nan"], 2, "write 20ms"),
        (["compare", "none", "none"], 2, "none is not there; name a results directory, or its report.json"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line_and_the_right_code(words: list[str], code: int, said: str) -> None:
    done = tandem(*words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("tandem: ")
    assert not done.stdout


def test_an_unknown_variable_stops_every_verb() -> None:
    done = tandem("models", TANDEM_PROT="1")
    assert (done.returncode, "TANDEM_PORT" in done.stderr) == (2, True)


def test_help_and_version_work_without_any_room() -> None:
    assert "Serves a model" in tandem("--help").stdout
    assert tandem("--version").stdout.startswith("tandem, version ")


@pytest.mark.thorough
def test_a_terminal_that_lacks_a_sign_shows_a_question_mark_for_it(tmp_path: Path) -> None:
    """Whatever the locale: `models` writes µs and ×."""
    own = dict.fromkeys(("TANDEM_CACHE", "TANDEM_STATE"), str(tmp_path))  # without what other tests measure and serve
    for variant in ("fp32", "int8"):  # the committed speeds, as if this processor had been measured
        shutil.copytree(ROOT / "model_repo" / f"digits-{variant}", tmp_path / "models" / f"digits-{variant}")
        record = tmp_path / "models" / f"digits-{variant}" / "tandem.json"
        record.write_text(record.read_text().replace("x86_64-avx512_vnni", processor_key()))
    done = subprocess.run(
        [sys.executable, "-m", "serving", "models", "--model-repository", str(tmp_path / "models")],
        cwd=ROOT,
        env={**os.environ, **own, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.search(rb"int8 \d+ \?s, \d+\.\d\? fp32", done.stdout)


@pytest.mark.parametrize(
    ("group", "verbs"),
    [
        ([], ["up", "export", "verdict"]),
        (["keys"], ["add", "revoke"]),
        (["campaign"], ["run", "report"]),
        (["cluster"], ["preflight", "status", "scaler"]),
    ],
)
def test_a_group_alone_prints_its_help_and_is_exit_code_2_because_nothing_was_done(
    group: list[str], verbs: list[str]
) -> None:
    done = tandem(*group)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout == tandem(*group, "--help").stdout
    lines = done.stdout.splitlines()
    assert all(any(line.split()[:1] == [verb] for line in lines) for verb in verbs)


def test_models_and_verify_speak_json() -> None:
    models = json.loads(tandem("models", "--json").stdout)
    assert models["version"] == 1
    assert {row["name"] for row in models["variants"]} >= {"digits-fp32", "digits-fp16", "digits-int8"}
    verified = json.loads(tandem("verify", "--json").stdout)
    assert (verified["version"], verified["is_whole"], verified["has_passed"]) == (1, True, True)


def test_a_changed_file_makes_verify_fail_with_code_1(tmp_path: Path) -> None:
    import shutil

    shutil.copytree(ROOT / "model_repo", tmp_path / "repo")
    model = tmp_path / "repo" / "digits-int8" / "1" / "model.onnx"
    content = bytearray(model.read_bytes())
    content[100] ^= 1
    model.write_bytes(content)
    done = tandem("verify", "--model-repository", str(tmp_path / "repo"))
    assert done.returncode == 1
    assert "digits-int8: 1/model.onnx" in done.stdout


def test_an_empty_folder_is_nothing_to_verify(tmp_path: Path) -> None:
    done = tandem("verify", "--model-repository", str(tmp_path))
    assert (done.returncode, "holds no variant" in done.stderr) == (2, True)


def test_a_path_that_triton_cannot_start_from_is_refused(tmp_path: Path) -> None:
    spaced = tmp_path / "with space"
    spaced.mkdir()
    done = tandem("up", "--model-repository", str(spaced), "--port", str(free_ports(1)[0]))
    assert (done.returncode, "holds ' '" in done.stderr) == (2, True)


INTERRUPTED = """
import importlib, os, signal, sys, tomllib
wanted, sys.argv = sys.argv[1], ["tandem", *sys.argv[2:]]

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
entry, _, name = tomllib.load(open("pyproject.toml", "rb"))["project"]["scripts"]["tandem"].partition(":")
getattr(importlib.import_module(entry), name)()
"""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("click", ["--version"]),
        pytest.param("serving.cli", ["--version"], marks=pytest.mark.thorough),
        ("serving.cli.serve", ["up"]),
        pytest.param("pydantic", ["verify"], marks=pytest.mark.thorough),
        pytest.param("serving.export.options", ["export", "x.onnx"], marks=pytest.mark.thorough),
        pytest.param("numpy", ["export", FP32, "--i-accept-ungated"], marks=pytest.mark.thorough),
        pytest.param("onnx", ["export", FP32, "--i-accept-ungated"], marks=pytest.mark.thorough),
        pytest.param("onnxruntime", ["export", FP32, "--i-accept-ungated"], marks=pytest.mark.thorough),
        pytest.param("serving.local.up", ["up"], marks=pytest.mark.thorough),
        pytest.param(
            "serving.decisions.simulate", ["simulate", "docs/scenarios/bert-large.yaml"], marks=pytest.mark.thorough
        ),
        pytest.param("loadtest", ["campaign", "run", "none.yaml"], marks=pytest.mark.thorough),
    ],
)
def test_ctrl_c_while_something_is_imported_ends_in_silence(module: str, words: list[str]) -> None:
    command = [sys.executable, "-c", INTERRUPTED, module, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")
