"""`tandem doctor`: each thing that can be wrong is found, with a way out, and what is needed decides the exit code."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.documents.findings import State, lacks_required
from serving.local.doctor import Engine, Facts, Place, collect, findings
from serving.local.environments import Host
from serving.local.runs import Run, announce
from serving.ports import free_ports
from tests.command import tandem

HOST = Host("Linux", "x86_64", (2, 36), (3, 11), has_libpython=True, has_venv=True)
CACHE = Place("environments", Path("/cache"), 9000, "TANDEM_CACHE")
CPU = Engine("cpu", Path("/cache/cpu"), 290, "1.31.1", is_broken=False)
GOOD = Facts(
    host=HOST,
    processor="AMD EPYC",
    num_cores=2,
    memory_mb=8000,
    engines=(CPU,),
    card=None,
    has_card_on_bus=False,
    driver=None,
    ports=((8080, None), (8081, None)),
    own_ports=frozenset(),
    places=(CACHE,),
    shared_memory_mb=8000,
    max_files=4096,
    repository="3 variants",
    repository_fault=None,
)


def test_a_machine_that_has_all_lacks_nothing() -> None:
    assert {it.state for it in findings(GOOD)} == {State.OK}


@pytest.mark.parametrize(
    ("wrong", "name", "is_required", "fix"),
    [
        ({"host": replace(HOST, system="Darwin")}, "system", True, "--pool cpu=http://HOST:8000"),
        ({"host": replace(HOST, glibc=None)}, "C library", True, "--pool cpu=http://HOST:8000"),
        ({"host": replace(HOST, python=(3, 13))}, "Python", True, "install one of them"),
        ({"host": replace(HOST, has_venv=False)}, "venv module", True, "apt-get install python3-venv"),
        (
            {"host": replace(HOST, has_libpython=False)},
            "Python's shared library",
            True,
            "apt-get install libpython3.11",
        ),
        ({"max_files": 64}, "open files", True, "ulimit -n"),
        ({"places": (replace(CACHE, free_mb=None),)}, "environments", True, "TANDEM_CACHE"),
        ({"places": (replace(CACHE, free_mb=20),)}, "environments", True, "TANDEM_CACHE"),
        ({"shared_memory_mb": None}, "shared memory", True, "/dev/shm"),
        ({"shared_memory_mb": 64}, "shared memory", False, "--shm-size"),
        ({"engines": (replace(CPU, version=None),)}, "environment cpu", False, "tandem environment cpu"),
        ({"has_card_on_bus": True}, "NVIDIA card", False, "--gpus all"),
        ({"card": "NVIDIA L4", "driver": "570.1"}, "driver", False, "newer"),
        ({"ports": ((8080, "is taken"), (8081, None))}, "port 8080", True, "--port"),
        ({"ports": ((8080, None), (8081, "is taken"))}, "port 8081", False, "--grpc-port"),
        ({"repository_fault": "there is none"}, "model repository", False, "tandem export"),
    ],
)
def test_what_is_wrong_is_found_with_the_way_out(wrong: dict[str, Any], name: str, is_required: bool, fix: str) -> None:
    found = findings(replace(GOOD, **wrong))
    [one] = [it for it in found if it.state is not State.OK]
    assert (one.name, one.state, one.is_required) == (name, State.MISSING, is_required)
    assert fix in (one.fix or "")
    assert lacks_required(found) is is_required


def test_a_gpu_environment_is_missed_only_where_there_is_a_card() -> None:
    engines = (CPU, Engine("gpu", Path("/cache/gpu"), 2600, None, is_broken=False))
    named = [
        {it.name for it in findings(replace(GOOD, engines=engines, card=card, driver="590.1"))}
        for card in (None, "NVIDIA L4")
    ]
    assert ["environment gpu" in names for names in named] == [False, True]


def test_ports_of_a_tandem_up_of_ours_are_as_they_should_be() -> None:
    taken = replace(GOOD, ports=((8080, "is taken"), (8081, "is taken")), own_ports=frozenset({8080}))
    assert {it.state for it in findings(taken)} == {State.OK}


def test_a_card_without_a_driver_is_seen_on_the_bus(tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    assert collect(free_ports(1)[0], tmp_path).has_card_on_bus is True
    (device / "class").write_text("0x040300\n")  # its sound
    assert collect(free_ports(1)[0], tmp_path).has_card_on_bus is False


def test_the_command_says_3_where_something_needed_is_missing_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, cache = tmp_path / "state", tmp_path / "cache"
    monkeypatch.setenv("TANDEM_STATE", str(state))
    monkeypatch.setenv("TANDEM_CACHE", str(cache))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = tandem("doctor", "--json", "--port", port)
        said = json.loads(done.stdout)
        states = {it["name"]: it["state"] for it in said["findings"]}
        assert (done.returncode, said["is_good"], states[f"port {port}"]) == (3, False, "missing")
        assert states["system"] == states["Python"] == "ok"
        assert not state.exists()
        assert not cache.exists()
        (state / "runs" / "1-1").mkdir(parents=True)
        url = f"http://127.0.0.1:{port}"
        with announce(state / "runs" / "1-1", Run("/models", url, url)):
            assert tandem("doctor", "--port", port).returncode == 0
