"""Triton's environments: an unfinished one is never used, and whatever goes wrong is one line with a way out."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any

import pytest

from serving.errors import EnvironmentFault, UserError
from serving.local import environments, venvs
from serving.local.environments import (
    ENGINES,
    Engine,
    Environment,
    Host,
    check_host,
    ensure,
    find,
    folder_of,
    this_host,
)
from serving.local.venvs import Venv

GOOD = Host("Linux", "x86_64", (2, 36), (3, 11), has_libpython=True, has_venv=True)
TINY = Engine("tiny", ("one==1.0",), "CPUExecutionProvider", 1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own for every test."""
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TANDEM_WHEELS", raising=False)


# -- the machine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"system": "Darwin"},
            "this is Darwin x86_64. Use a Triton that runs elsewhere: tandem up --pool cpu=http://HOST:8000",
        ),
        ({"machine": "riscv64"}, "this is Linux riscv64"),
        (
            {"glibc": (2, 31)},
            "needs glibc 2.35 or newer (Debian 12, Ubuntu 22.04), this system has glibc 2.31. Use a Triton",
        ),
        ({"glibc": None}, "this system has no glibc"),
        ({"python": (3, 13)}, "needs Python 3.11 or 3.12, this is 3.13"),
        ({"python": (3, 10)}, "this is 3.10"),
        ({"has_venv": False}, "lacks the venv module: apt-get install python3-venv"),
        (
            {"has_libpython": False},
            "no shared library libpython3.11.so.1.0, which Triton's stub loads: apt-get install libpython3.11",
        ),
    ],
)
def test_a_machine_that_cannot_run_triton_is_told_why_and_what_to_do(change: dict[str, Any], says: str) -> None:
    with pytest.raises(EnvironmentFault) as fault:
        check_host(dataclasses.replace(GOOD, **change))
    assert says in str(fault.value)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("change", [{}, {"python": (3, 12)}, {"machine": "aarch64"}, {"glibc": (3, 0)}])
def test_a_machine_that_can_is_let_pass(change: dict[str, Any]) -> None:
    check_host(dataclasses.replace(GOOD, **change))


def test_a_python_that_was_built_where_nobody_may_look_is_found_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sysconfig, "get_config_var", lambda _: "/" + "x" * 300
    )  # whose stat fails, as in /root of others
    assert this_host().has_libpython


def test_this_machine_can() -> None:
    check_host(this_host())


# -- what pip says ----------------------------------------------------------------------------------------------------

NO_NETWORK = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError: Failed to establish a new "
    "connection: [Errno -3] Temporary failure in name resolution'\n"
    "ERROR: Could not find a version that satisfies the requirement one==1.0\nERROR: No matching distribution found for one==1.0\n"
)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(
            NO_NETWORK,
            "no network to fetch the wheels of Triton's environment: connect, set pip's proxy",
            id="no network, although pip also says no match",
        ),
        pytest.param("ERROR: Could not install: ProxyError('Cannot connect to proxy.')", "no network", id="proxy"),
        pytest.param(
            "ERROR: No matching distribution found for one==1.0",
            "one==1.0 is not on pip's index for Python 3.",
            id="no wheel",
        ),
        pytest.param(
            "OSError: [Errno 28] No space left on device",
            "for Triton's environment (1 MB); free some or set TANDEM_CACHE",
            id="disk full",
        ),
        pytest.param(
            "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]",
            "set its CA with 'pip config",
            id="certificate",
        ),
        pytest.param(
            "The virtual environment was not created because ensurepip is not available.",
            "apt-get install python3-venv",
            id="venv",
        ),
        pytest.param(
            "Traceback\nKeyError: 'x'\n\n",
            "could not make Triton's environment: KeyError: 'x'",
            id="something else: its last line",
        ),
        pytest.param("", "could not make Triton's environment: no words", id="silence"),
    ],
)
def test_what_pip_says_becomes_one_line_that_names_the_log(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TANDEM_WHEELS", raising=False)
    message = str(venvs.explain(words, Venv(TINY.what, tmp_path / "x", 1)))
    assert says in message
    assert message.endswith(f"(log: {tmp_path / 'x.log'})")
    assert "\n" not in message


def test_a_wheel_that_a_folder_of_wheels_lacks_is_named_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_WHEELS", "/media/wheels")
    message = str(venvs.explain("ERROR: No matching distribution found for one==1.0", TINY.venv))
    assert "one==1.0" in message
    assert "/media/wheels" in message


def test_a_really_missing_wheel_is_exit_code_3_and_leaves_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("TANDEM_WHEELS", str(tmp_path / "wheels"))
    engine = dataclasses.replace(TINY, pins=("tandem-no-such-wheel==1.0",))
    with pytest.raises(EnvironmentFault, match=r"tandem-no-such-wheel==1\.0.*wheels"):
        ensure(engine, lambda _: None)
    assert find(engine) is None
    assert "tandem-no-such-wheel" in Path(f"{folder_of(engine)}.log").read_text()


def test_a_folder_of_wheels_that_is_none_is_the_users_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_WHEELS", "/nowhere/at/all")
    with pytest.raises(UserError, match=r"TANDEM_WHEELS.*/nowhere/at/all.*folder"):
        ensure(TINY, lambda _: None)


def test_a_cache_that_cannot_be_written_says_which_setting_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(EnvironmentFault, match=r"TANDEM_CACHE.*folder"):
        ensure(TINY, lambda _: None)


# -- complete or not there --------------------------------------------------------------------------------------------


def lay_out(folder: Path) -> None:
    """What a finished environment has, without its 300 MB."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "bin" / "python3").symlink_to(sys.executable)
    server = folder / "lib" / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    server.parent.mkdir(parents=True)
    server.touch()


def mark(folder: Path) -> None:
    (folder / "complete.json").write_text(json.dumps({"version": 1, "engine_version": "1.0", "site_packages": "lib"}))


def test_an_environment_without_its_marker_is_not_found() -> None:
    lay_out(folder_of(TINY))
    assert find(TINY) is None
    mark(folder_of(TINY))
    assert find(TINY) == Environment(
        folder=folder_of(TINY),
        python=folder_of(TINY) / "bin" / "python3",
        site=folder_of(TINY) / "lib",
        engine_version="1.0",
    )


def test_an_engine_without_a_triton_needs_its_onnx_runtime_and_no_server() -> None:
    engine = dataclasses.replace(TINY, name="lent", has_triton=False)
    lay_out(folder_of(engine))
    mark(folder_of(engine))
    assert find(engine) is None
    (folder_of(engine) / "lib" / "onnxruntime").mkdir()
    found = find(engine)
    assert found is not None
    assert found.site == folder_of(engine) / "lib"


def test_messages_about_an_engine_without_a_triton_do_not_speak_of_one(tmp_path: Path) -> None:
    engine = dataclasses.replace(TINY, name="lent", has_triton=False)
    for words in ("OSError: [Errno 28] No space left on device", NO_NETWORK, "KeyError: 'x'"):
        message = str(venvs.explain(words, engine.venv))
        assert "engine lent" in message
        assert "Triton" not in message


def test_an_environment_whose_interpreter_has_gone_is_not_found() -> None:
    lay_out(folder_of(TINY))
    mark(folder_of(TINY))
    (folder_of(TINY) / "bin" / "python3").unlink()
    (folder_of(TINY) / "bin" / "python3").symlink_to("/nowhere/python3")
    assert find(TINY) is None


def test_a_marker_that_was_cut_off_does_not_count() -> None:
    lay_out(folder_of(TINY))
    (folder_of(TINY) / "complete.json").write_text('{"version": 1, "eng')
    assert find(TINY) is None


def test_what_an_interrupted_making_left_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(TINY)
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "half a file").touch()

    def step(command: list[str], *_: object) -> str:
        if "venv" in command:
            assert not folder.exists(), "the rest of the last time must be gone before"
            lay_out(folder)
        facts = {
            "engine_version": "1.0",
            "numpy": "1",
            "providers": [TINY.provider],
            "site_packages": str(folder / "lib"),
        }
        return json.dumps(facts)

    monkeypatch.setattr(venvs, "run", step)
    assert ensure(TINY, lambda _: None).engine_version == "1.0"
    assert not (folder / "lib" / "half a file").exists()


def test_of_several_makers_at_once_one_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, made = folder_of(TINY), []

    def step(command: list[str], *_: object) -> str:
        if "venv" in command:
            made.append(threading.get_ident())
            lay_out(folder)
        return json.dumps({"engine_version": "1.0", "providers": [TINY.provider], "site_packages": str(folder / "lib")})

    monkeypatch.setattr(venvs, "run", step)
    makers = [threading.Thread(target=ensure, args=(TINY, lambda _: None)) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len(made) == 1


def test_an_onnx_runtime_without_the_engines_provider_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(TINY)

    def step(command: list[str], *_: object) -> str:
        if "venv" in command:
            lay_out(folder)
        return json.dumps({"engine_version": "1.0", "providers": ["Other"], "site_packages": str(folder / "lib")})

    monkeypatch.setattr(venvs, "run", step)
    with pytest.raises(EnvironmentFault, match="lacks CPUExecutionProvider"):
        ensure(TINY, lambda _: None)
    assert find(TINY) is None


def test_other_pins_are_another_environment() -> None:
    assert folder_of(TINY) != folder_of(dataclasses.replace(TINY, pins=("one==1.1",)))
    assert folder_of(ENGINES["cpu"]) != folder_of(ENGINES["gpu"])


def test_no_engine_lets_numpy_2_in() -> None:
    assert all("numpy==1.26.4" in engine.pins for engine in ENGINES.values())


@pytest.mark.triton
def test_the_real_environment_has_numpy_1_and_nothing_of_this_project(environment: Environment) -> None:
    ask = "import importlib.util as u, numpy; print(numpy.__version__, *[u.find_spec(m) for m in ('pydantic', 'fastapi', 'serving')])"
    said = subprocess.run([str(environment.python), "-I", "-c", ask], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["1.26.4", "None", "None", "None"]


@pytest.mark.triton
def test_the_real_openvino_environment_has_the_same_numpy_and_no_triton(openvino: Environment) -> None:
    ask = "import importlib.util as u, numpy, onnxruntime as o; print(numpy.__version__, u.find_spec('pytriton'), *o.get_available_providers())"
    said = subprocess.run([str(openvino.python), "-I", "-c", ask], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["1.26.4", "None", "OpenVINOExecutionProvider", "CPUExecutionProvider"]


def test_whoever_waits_for_another_maker_says_so_and_gives_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(venvs, "MAKING_S", 0.1)
    said: list[str] = []
    with (
        venvs.only_maker(tmp_path / "e", said.append),
        pytest.raises(EnvironmentFault, match=r"e\.lock"),
        venvs.only_maker(tmp_path / "e", said.append),
    ):
        pass
    assert len(said) == 1
    with venvs.only_maker(tmp_path / "e", said.append):
        assert len(said) == 1


@pytest.mark.parametrize("content", ["", "[]", "{}", "1", '{"site_packages": 3, "engine_version": "1"}'])
def test_a_marker_that_is_not_ours_marks_nothing(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path))
    marker = environments.folder_of(ENGINES["cpu"]) / "complete.json"
    marker.parent.mkdir(parents=True)
    marker.write_text(content)
    assert find(ENGINES["cpu"]) is None


@pytest.mark.parametrize(("variable", "has_cuda"), [({}, True), ({"TANDEM_SYSTEM_CUDA": "1"}, False)])
def test_where_cuda_is_installed_its_wheels_can_be_left_out(variable: dict[str, str], has_cuda: bool) -> None:
    say = "from serving.local.environments import ENGINES; print(*ENGINES['gpu'].pins)"
    there = {**{name: text for name, text in os.environ.items() if name != "TANDEM_SYSTEM_CUDA"}, **variable}
    pins = subprocess.run([sys.executable, "-c", say], capture_output=True, text=True, check=True, env=there).stdout
    assert "onnxruntime-gpu==" in pins
    assert ("nvidia-cublas==" in pins) == has_cuda
