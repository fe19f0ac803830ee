"""How tritonserver is started: flags that decide behaviour, its variables, its ports, its shared memory, its backends."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from pathlib import Path

import pytest

from serving.errors import EnvironmentFault, UserError
from serving.local.environments import Environment
from serving.local.launch import (
    Launch,
    Ports,
    assemble,
    backend_directory,
    command,
    region_prefix_of,
    remove_shared_memory,
    remove_shared_memory_of_dead,
    sources,
    variables,
)
from serving.ports import free_ports, require_free

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def made_up(tmp_path: Path) -> Environment:
    """The files that are taken from Triton's wheel, empty."""
    triton = tmp_path / "site" / "pytriton" / "tritonserver"
    names = ["backends/python/libtriton_python.so", "backends/python/triton_python_backend_utils.py"]
    for name in [*names, f"python_backend_stubs/{HERE}/triton_python_backend_stub"]:
        (triton / name).parent.mkdir(parents=True, exist_ok=True)
        (triton / name).write_text(name)
    return Environment(tmp_path, tmp_path / "bin" / "python3", tmp_path / "site", "1.31.1")


@pytest.fixture
def launch(made_up: Environment, tmp_path: Path) -> Launch:
    return Launch(made_up, tmp_path / "backends", tmp_path / "repository", "cpu", "127.0.0.1", Ports(1, 2, 3), 30)


@pytest.mark.parametrize(
    "flag",
    [
        "--model-control-mode=explicit",
        "--model-config-name=cpu",
        "--disable-auto-complete-config",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        "--http-port=1",
        "--grpc-port=2",
        "--metrics-port=3",
        "--strict-readiness=false",
        "--exit-on-error=false",
        "--exit-timeout-secs=30",
    ],
)
def test_the_command_line_says(launch: Launch, flag: str) -> None:
    assert flag in command(launch)


def test_spans_are_made_where_a_collector_is_named_and_of_no_request_by_itself(launch: Launch) -> None:
    assert not any("trace" in flag for flag in command(launch))
    traced = command(dataclasses.replace(launch, otel_endpoint="http://c:4318"))
    flags = {"mode=opentelemetry", "rate=0", "opentelemetry,url=http://c:4318/v1/traces"}
    assert {f"--trace-config={it}" for it in flags} < set(traced)


def test_no_model_is_loaded_but_by_name(launch: Launch) -> None:
    assert not any(flag.startswith("--load-model") for flag in command(launch))


def test_no_two_servers_share_a_prefix_of_shared_memory(launch: Launch) -> None:
    other = dataclasses.replace(
        launch, region_prefix=Launch(**{f: getattr(launch, f) for f in LAUNCH_FIELDS}).region_prefix
    )
    assert other.region_prefix != launch.region_prefix


LAUNCH_FIELDS = [f.name for f in dataclasses.fields(Launch) if f.name != "region_prefix"]


def test_the_stub_finds_its_own_python_first_and_none_of_ours(launch: Launch) -> None:
    inherited = {"PATH": "/usr/bin", "PYTHONPATH": "/x", "PYTHONHOME": "/y", "LD_LIBRARY_PATH": "/z", "LANG": "C"}
    given = variables(launch, inherited)
    assert given["PATH"] == f"{launch.environment.python.parent}:/usr/bin"
    assert given["LD_LIBRARY_PATH"].split(":")[0] == str(launch.environment.libraries)
    assert given["LD_LIBRARY_PATH"].split(":")[-1] == "/z"
    assert given["LANG"] == "C"
    assert not {"PYTHONPATH", "PYTHONHOME"} & set(given)


def test_the_stub_is_told_where_openvino_lies_only_where_it_is_installed(launch: Launch) -> None:
    inherited = {"TANDEM_OPENVINO_SITE": "/of/somebody/else"}
    assert "TANDEM_OPENVINO_SITE" not in variables(launch, inherited)
    there = dataclasses.replace(launch, openvino=Path("/ov/site-packages"))
    assert variables(there, inherited)["TANDEM_OPENVINO_SITE"] == "/ov/site-packages"


@pytest.mark.parametrize(("inherited", "said"), [({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")])
def test_onnx_runtime_sends_no_usage_data_unless_somebody_wants_it(
    launch: Launch, inherited: dict[str, str], said: str
) -> None:
    assert variables(launch, inherited)["ORT_DISABLE_TELEMETRY"] == said


def test_a_taken_port_is_told_with_the_option_that_changes_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"{port}.*127\.0\.0\.1.*choose.*--http-port"):
            require_free("127.0.0.1", port, "--http-port")


def test_an_address_that_is_not_ours_is_told() -> None:
    with pytest.raises(UserError, match=r"port.*8080.*203\.0\.113\.1"):
        require_free("203.0.113.1", 8080, "--port")


def test_free_ports_are_free_and_differ() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        require_free("127.0.0.1", port, "--port")


def test_no_connection_of_another_program_gets_a_free_port_before_its_server_listens() -> None:
    """The system gives connections, and who asks for port 0, a number of this range."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not {*range(first, last + 1)}.intersection(free_ports(50))


def test_only_what_bears_the_servers_prefix_is_removed_from_shared_memory(tmp_path: Path) -> None:
    for name in ("tandem-1-a-one", "tandem-1-a-two", "tandem-1-b-one", "other"):
        (tmp_path / name).touch()
    assert remove_shared_memory("tandem-1-a-", tmp_path) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"tandem-1-b-one", "other"}


def test_what_a_supervisor_left_that_is_no_more_is_removed_from_shared_memory(tmp_path: Path) -> None:
    proc, shared = tmp_path / "proc", tmp_path / "shm"
    (proc / "77").mkdir(parents=True)
    shared.mkdir()
    elsewhere = "tandem-triton-1-7-a-one"  # of a container that shares /dev/shm and not our processes
    names = [f"{region_prefix_of(7)}a-one", f"{region_prefix_of(7)}b-device", f"{region_prefix_of(77)}a-one", elsewhere]
    odd = [f"{region_prefix_of(1)[:-2]}{number}-one" for number in ("²", "", "x")]  # as anybody on the machine can make
    for name in names + odd:
        (shared / name).touch()
    (shared / f"{region_prefix_of(7)}folder").mkdir()
    assert remove_shared_memory_of_dead(shared, proc) == 2
    assert {path.name for path in shared.iterdir()} == {*names[2:], *odd, f"{region_prefix_of(7)}folder"}


# -- the backend directory --------------------------------------------------------------------------------------------


def test_the_backend_directory_holds_copies_and_no_links(made_up: Environment, tmp_path: Path) -> None:
    assemble(made_up.triton, tmp_path / "target")
    for place in sources(made_up.triton):
        assert (tmp_path / "target" / place).is_file()
        assert not (tmp_path / "target" / place).is_symlink()


def test_a_file_that_changed_is_replaced_and_not_written_over(made_up: Environment, tmp_path: Path) -> None:
    """A stub that runs cannot be written over."""
    assemble(made_up.triton, tmp_path / "target")
    utils = "python/triton_python_backend_utils.py"
    with (tmp_path / "target" / utils).open() as still_used:
        (made_up.triton / "backends" / utils).write_text("newer")
        assemble(made_up.triton, tmp_path / "target")
        assert still_used.read() == f"backends/{utils}"
    assert (tmp_path / "target" / utils).read_text() == "newer"


def test_a_file_that_is_the_same_is_left_alone(made_up: Environment, tmp_path: Path) -> None:
    assemble(made_up.triton, tmp_path / "target")
    before = {path: path.stat().st_ino for path in (tmp_path / "target").rglob("*")}
    assemble(made_up.triton, tmp_path / "target")
    assert {path: path.stat().st_ino for path in (tmp_path / "target").rglob("*")} == before


def test_a_wheel_without_this_pythons_stub_is_an_error_of_the_environment(made_up: Environment, tmp_path: Path) -> None:
    (made_up.triton / "python_backend_stubs" / HERE / "triton_python_backend_stub").unlink()
    with pytest.raises(EnvironmentFault, match="triton_python_backend_stub is missing"):
        assemble(made_up.triton, tmp_path / "target")


def test_where_the_environment_is_somebody_elses_the_backends_lie_in_a_temporary_directory(
    made_up: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert backend_directory(made_up).parent == tmp_path
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    assert backend_directory(made_up).parent == tmp_path / "tmp"
