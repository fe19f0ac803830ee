"""`tandem up` and `tandem triton` as a user meets them: ready, the curl, the end, and every way not to start."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from tritonclient.grpc import InferenceServerClient

from serving.errors import UserError
from serving.keys import changes
from serving.local import console
from serving.local.devices import gpu_name
from serving.local.environments import Environment
from serving.local.logs import MAX_KEPT_RUNS, run_folder
from serving.local.processes import children_of
from serving.local.recycling import IN_VAIN
from serving.local.up import Grpc, UpOptions
from serving.ports import free_ports, hold
from serving.repository import Repository
from tests.command import tandem
from tests.local.harness import ROOT, Program, black_hole, segments, still_there, wait_until
from tests.local.repository import BROKEN, publish_digits

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`

COMMITTED = ROOT / "model_repo"
TANDEM = [sys.executable, "-m", "serving"]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def start(tmp_path: Path, state: Path) -> Iterator[Callable[..., Program]]:
    """Runs `tandem WORD…`; whatever still runs at the end is stopped."""
    started: list[Program] = []

    def run(*words: str, **environment: str) -> Program:
        given = {"TANDEM_STATE": str(state), **environment}
        program = Program([*TANDEM, *words], tmp_path / f"log-{len(started)}", given)
        started.append(program)
        return program

    yield run
    for program in started:
        program.end()


def refused(words: list[str], state: Path) -> tuple[int, list[str]]:
    """Exit code and lines of a `tandem` that must not start, in this process: none of them comes as far as a child."""
    done = tandem(*words, TANDEM_STATE=str(state))
    return done.returncode, [line for line in (done.stdout + done.stderr).splitlines() if line]


# -- ways not to start ------------------------------------------------------------------------------------------------


def empty(repository: Path) -> None:
    shutil.rmtree(repository)
    repository.mkdir()


def broken(repository: Path) -> None:
    for record in repository.glob("*/tandem.json"):
        record.write_text("{")


def without_proof(repository: Path) -> None:
    for record in repository.glob("*/tandem.json"):
        record.unlink()


def flipped(repository: Path) -> None:
    for file in repository.glob("*/1/model.onnx"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize(
    ("verb", "spoil", "says"),
    [
        ("up", empty, "no variant in"),
        ("up", broken, "tandem.json"),
        ("up", without_proof, "none passed its gate there"),
        ("up", flipped, "changed after its gate"),
        ("up", shutil.rmtree, "there is no model repository at"),
        ("triton", broken, "tandem.json"),
        ("triton", flipped, "changed after its gate"),
    ],
)
@pytest.mark.triton  # makes Triton's environment
def test_a_repository_that_cannot_be_served_is_exit_code_2_with_the_reason_last(
    verb: str, spoil: Callable[[Path], None], says: str, tmp_path: Path, state: Path
) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(COMMITTED, repository)
    spoil(repository)
    code, lines = refused([verb, "--model-repository", str(repository), *free(verb)], state)
    assert code == 2
    assert lines[-1].startswith("tandem: ")
    assert says in lines[-1]


@pytest.mark.parametrize(("tried", "told"), [("digit", "did you mean 'digits'?"), ("nope", "known are digits")])
def test_a_model_to_try_that_is_not_there_is_exit_code_2_and_the_nearest_name(
    tried: str, told: str, state: Path
) -> None:
    code, lines = refused(["up", *free("up"), "--model-repository", str(COMMITTED), "--try", tried], state)
    assert (code, len(lines)) == (2, 1)
    assert told in lines[0]


def free(verb: str) -> list[str]:
    ports = [str(port) for port in free_ports(3)]
    if verb == "up":
        return ["--port", ports[0]]
    return ["--http-port", ports[0], "--grpc-port", ports[1], "--metrics-port", ports[2]]


@pytest.mark.parametrize(
    ("verb", "option"),
    [("up", "--port"), ("up", "--grpc-port"), ("triton", "--http-port"), ("triton", "--grpc-port")],
)
def test_a_taken_port_is_one_line_that_names_the_option(verb: str, option: str, state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [verb, *free(verb), option, str(port)]
        code, lines = refused(words, state)
        assert code == 2
        assert [re.findall(r"\bport \d+|--\S+", line) for line in lines] == [[f"port {port}", option]]


def test_an_open_address_without_keys_is_refused_before_anything_is_started(state: Path) -> None:
    code, lines = refused(["up", *free("up"), "--host", "0.0.0.0"], state)
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith("tandem: --host 0.0.0.0 ")
    assert not state.exists()


@pytest.mark.skipif(gpu_name() is not None, reason="this machine has a card")
@pytest.mark.parametrize("verb", ["up", "triton"])
def test_a_gpu_pool_without_a_card_is_one_line(verb: str, state: Path) -> None:
    code, lines = refused([verb, *free(verb), "--pool", "gpu"], state)
    assert code == 2
    assert len(lines) == 1
    assert "NVIDIA" in lines[0]


def test_a_pool_whose_triton_does_not_answer_is_one_line(state: Path) -> None:
    command = [*TANDEM, "up", *free("up"), "--pool", "cpu=http://127.0.0.1:1"]
    environment = {**os.environ, "TANDEM_STATE": str(state)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("tandem: --pool cpu=http://127.0.0.1:1: ")
    assert done.stderr.count("\n") == 1


def test_a_state_folder_that_cannot_be_written_says_which_setting_moves_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        url = f"cpu=http://127.0.0.1:{somebody.getsockname()[1]}"
        code, lines = refused(["up", *free("up"), "--pool", url], tmp_path / "file")
    assert code == 3
    assert "TANDEM_STATE" in lines[-1]


# -- up, and down again -----------------------------------------------------------------------------------------------


@pytest.mark.triton
def test_up_serves_its_own_curl_and_leaves_nothing_after_ctrl_c(
    start: Callable[..., Program], state: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(COMMITTED, repository)
    for file in repository.glob("*/tandem.json"):  # so that speeds are those that a start measures and remembers
        file.write_text(json.dumps(json.loads(file.read_text()) | {"speed": []}))
    (grpc_port,) = free_ports(1)
    words = ["--grpc-port", str(grpc_port), "--model-repository", str(repository)]
    program = start("up", *free("up"), *words)
    program.wait_for("Ctrl-C stops it")
    lines = program.lines()
    command = lines[lines.index("try it:") + 1]
    answer = json.loads(subprocess.run(command, shell=True, capture_output=True, check=True).stdout)
    scores = answer["outputs"][0]["data"]
    right = Repository(COMMITTED).variant("digits-fp32").record.sample
    assert right is not None
    assert scores.index(max(scores)) == right.index
    assert f"right is '{right.label}'" in program.log.read_text()
    [grpc] = [line.split()[-1] for line in lines if line.startswith("  gRPC: ")]
    with InferenceServerClient(grpc) as client:
        assert client.is_model_ready("digits")
    [page] = [line.split()[-1] for line in lines if line.startswith("  page: ")]
    with urllib.request.urlopen(page, timeout=60) as answer:
        assert answer.headers.get_content_type() == "text/html"
    with urllib.request.urlopen(f"{page}admin/status", timeout=60) as answer:
        served = {v["name"]: v["speed_ratio"] for v in json.load(answer)["models"]["digits"]["variants"]}
    words = [*TANDEM, "models", "--json", "--model-repository", str(repository)]
    listed = json.loads(subprocess.run(words, capture_output=True, check=True, cwd=ROOT).stdout)["variants"]
    speeds = {row["name"]: [speed["ratio"] for speed in row["speed"]] for row in listed}
    assert speeds["digits-int8"], "measured by this start, and so not 'unmeasured here'"
    for name, ratio in served.items():
        assert name == "digits-fp32" or ratio is None or pytest.approx(ratio, abs=0.01) in speeds[name]

    family = program.family()
    assert program.end(signal.SIGINT) == 0
    assert still_there(family) == []
    assert segments(family) == []
    assert {path.name for path in state.glob("runs/*/*")} == {
        "tandem.yaml",
        "gateway.log",
        "gateway.ready",
        "up.log",
        "triton-cpu.log",
        "triton-cpu.ready",
    }


@pytest.mark.thorough
@pytest.mark.triton
def test_what_the_file_says_of_a_triton_is_what_it_serves_with(
    start: Callable[..., Program], state: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tandem.yaml"
    file.write_text(
        "version: 1\npools:\n  cpu: {instances: 2, threads: 1, queue_delay_us: 300, max_batch: 8, price_per_hour: 0.2, "
        "max_memory_mb: 64}\naccess_log: {path: missing/access.jsonl}\n"
    )
    program = start("up", *free("up"), "--config", str(file), "--no-measure")
    program.wait_for("Ctrl-C stops it")
    (written,) = state.glob("runs/*/tandem.yaml")
    (url,) = yaml.safe_load(written.read_text())["pools"]["cpu"]["urls"]
    with urllib.request.urlopen(f"{url}/v2/models/digits-fp32/config", timeout=60) as answer:
        config = json.load(answer)
    assert config["instance_group"][0]["count"] == 2
    assert config["parameters"]["intra_op_thread_count"]["string_value"] == "1"
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 300
    assert config["max_batch_size"] == 8
    assert "missing/access.jsonl" in program.wait_for("gateway: the access log")
    assert "64 MiB" in program.wait_for(f"cpu pool: {IN_VAIN}")
    line = f"{url}: its processes take "
    wait_until(lambda: line in tandem("status", TANDEM_STATE=str(state)).stdout, "the status tells it")
    assert sum(IN_VAIN in text for text in program.lines()) == 1


@pytest.mark.triton
def test_when_up_is_killed_everything_leaves_by_itself(start: Callable[..., Program]) -> None:
    program = start("up", *free("up"), "--no-measure")
    program.wait_for("Ctrl-C stops it")
    family = program.family()
    assert len(family) >= 5, "up, gateway, supervisor, server, stubs"
    assert program.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: not still_there(family), "all gone")
    wait_until(lambda: not segments(family), "shared memory gone")


@pytest.mark.thorough
@pytest.mark.triton
def test_up_before_a_triton_that_runs_already_starts_none_and_leaves_it_running(start: Callable[..., Program]) -> None:
    """The environment names a proxy that answers nobody, for everything: loopback, all of it, is reached without it."""
    with black_hole() as (proxies, num_callers):
        ports = free("triton")
        triton = start("triton", *ports, "--model-repository", str(COMMITTED), **proxies)
        triton.wait_for("ready:")
        url = f"http://127.0.0.1:{ports[1]}"
        program = start("up", *free("up"), "--host", "127.0.0.2", "--pool", f"cpu={url}", **proxies)
        program.wait_for("Ctrl-C stops it")
        curl = program.lines()[program.lines().index("try it:") + 1]
        done = subprocess.run(
            curl, shell=True, capture_output=True, check=True, env={**os.environ, **proxies}, timeout=60
        )
        assert json.loads(done.stdout)["outputs"]
        assert len(program.family()) == 2, "up and the gateway"
        assert program.end() == 0
        assert num_callers() == 0
    with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=60) as answer:
        assert answer.status == 200


@pytest.mark.thorough
@pytest.mark.triton
@pytest.mark.parametrize("with_keys", [False, True])
def test_up_on_an_open_address_tells_of_its_pools_too_and_shows_no_admin_paths(
    start: Callable[..., Program], tmp_path: Path, with_keys: bool
) -> None:
    keys = tmp_path / "keys.json"
    key = changes.add(keys, "test", frozenset({"infer"}), datetime.now(UTC)).text
    triton_ports, port = free("triton"), free("up")[1]
    served = ["--model-repository", str(COMMITTED), "--no-measure", "--exit-timeout-s", "1"]
    triton = start("triton", *triton_ports, *served)
    triton.wait_for("ready:")
    words = [
        "--host",
        "0.0.0.0",
        *(["--keys", str(keys)] if with_keys else ["--insecure-no-auth"]),
        "--port",
        port,
        "--pool",
        f"cpu=http://127.0.0.1:{triton_ports[1]}",
    ]
    program = start("up", *words)
    program.wait_for("Ctrl-C stops it")
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/admin/status", headers={"X-API-Key": key})
    with pytest.raises(urllib.error.HTTPError, match="403" if with_keys else "404"):
        urllib.request.urlopen(asked, timeout=60)
    if with_keys:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2", timeout=60)
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in program.family()]
        assert not any(b"tdm_" in command for command in commands)
    assert any("$TANDEM_API_KEY" in line for line in program.lines()) == with_keys
    triton.end()
    program.wait_for("cpu: down")


@pytest.mark.thorough
@pytest.mark.triton
def test_a_gateway_that_is_slow_to_start_is_waited_for(start: Callable[..., Program]) -> None:
    """As on a busy machine: what it is to see of a Triton that serves already counts from when it answers."""
    ports = free("triton")
    triton = start("triton", *ports, "--model-repository", str(COMMITTED), "--no-measure", "--exit-timeout-s", "1")
    triton.wait_for("ready:")
    program = start("up", *free("up"), "--pool", f"cpu=http://127.0.0.1:{ports[1]}")
    gateway = wait_until(lambda: member(program, "gateway"), "it starts a gateway")
    os.kill(gateway, signal.SIGSTOP)
    wait_until(lambda: sum("still starting" in line for line in program.lines()) >= 2, "it says twice that it waits")
    os.kill(gateway, signal.SIGCONT)
    program.wait_for("Ctrl-C stops it")


def member(program: Program, word: str) -> int:
    """The process below it that has this word on its command line."""
    named = f"\0{word}\0".encode()
    for pid in program.family():
        with contextlib.suppress(OSError):
            if named in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return 0


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v2/models/digits/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.thorough
@pytest.mark.triton
def test_a_gateway_and_a_supervisor_that_are_killed_are_started_again_and_leave_nothing(
    start: Callable[..., Program],
) -> None:
    program = start("up", *free("up"), "--no-measure")
    url = program.wait_for("ready in").split()[-1]
    program.wait_for("Ctrl-C stops it")
    before = {word: member(program, word) for word in ("gateway", "triton")}
    family = program.family()
    os.kill(before["gateway"], signal.SIGKILL)
    program.wait_for("the gateway is up again")
    wait_until(lambda: answers(url), "the gateway answers")
    assert member(program, "triton") == before["triton"], "the pool was left alone"
    os.kill(before["triton"], signal.SIGKILL)
    program.wait_for("the cpu pool is up again")
    wait_until(lambda: answers(url), "the pool answers")
    assert not {before["gateway"], before["triton"]} & program.family().keys()
    family |= program.family()
    assert program.end() == 0
    assert still_there(family) == []
    assert segments(family) == []


def num_requests(url: str) -> float:
    """That the gateway at this address has answered."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        return sum(map(float, re.findall(rb"^tandem_requests_total\{.*\} (\S+)$", answer.read(), re.MULTILINE)))


@pytest.mark.triton
def test_gateways_share_a_port_one_that_is_killed_is_missed_by_nobody_and_their_stop_loses_nothing(
    start: Callable[..., Program], state: Path
) -> None:
    program = start("up", *free("up"), "--gateways", "2", "--no-measure")
    url = program.wait_for("ready in").split()[-1]
    program.wait_for("Ctrl-C stops it")
    body = (COMMITTED / "digits-fp32" / "sample.json").read_bytes()
    is_over = threading.Event()

    took_s: list[float] = []

    def infer() -> int:
        is_over.wait(0.005)  # or what starts meanwhile has no core for itself
        began_s = time.monotonic()
        with urllib.request.urlopen(f"{url}/v2/models/digits/infer", data=body, timeout=60) as answer:
            took_s.append(time.monotonic() - began_s)
            return int(answer.status)

    [run] = json.loads(tandem("status", "--json", TANDEM_STATE=str(state)).stdout)["runs"]
    assert [gateway["is_ready"] for gateway in run["gateways"]] == [True, True]
    urls = [gateway["url"] for gateway in run["gateways"]]
    num_sent = 0
    while not all(num_requests(each) for each in urls):
        assert infer() == 200
        num_sent += 1
    assert sum(num_requests(each) for each in urls) == num_sent
    said = json.loads(tandem("logs", "--json", TANDEM_STATE=str(state)).stdout)["logs"]
    assert said.keys() == {"up", "gateway-1", "gateway-2", "triton-cpu"}

    [ready] = state.glob("runs/*/gateway-1.ready")
    family = program.family()
    os.kill(member(program, str(ready)), signal.SIGKILL)
    program.wait_for("the gateway-1 died")  # with all its threads: until the last one ends, its sockets are open
    took_s.clear()
    statuses = {infer()}
    while not program.says("the gateway-1 is up again"):
        statuses.add(infer())
    assert len(took_s) > 3, "the other answers meanwhile, and none waits for the new one"
    while not num_requests(urls[0]):
        statuses.add(infer())
    assert statuses == {200}
    assert sorted(took_s)[-2] < 10, "none hangs; a busy machine may hold up one"

    lost: list[OSError] = []

    def ask() -> None:
        while not is_over.is_set():
            try:
                assert infer() == 200
            except OSError as error:
                refused = isinstance(error, urllib.error.URLError) and isinstance(error.reason, ConnectionRefusedError)
                lost.extend([] if refused else [error])
                return

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    family |= program.family()
    try:
        assert program.end() == 0
    finally:
        is_over.set()
        for client in clients:
            client.join()
    assert lost == []
    assert still_there(family) == []


@pytest.mark.thorough
@pytest.mark.triton
def test_a_stranger_on_the_gateways_port_is_not_taken_for_it(start: Callable[..., Program]) -> None:
    program = start("up", *free("up"), "--no-measure")
    url = program.wait_for("ready in").split()[-1]
    program.wait_for("Ctrl-C stops it")
    address = "127.0.0.1", int(url.rpartition(":")[2])
    asked: list[str] = []

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

    os.kill(member(program, "gateway"), signal.SIGKILL)
    with contextlib.ExitStack() as opened:

        def take_port() -> bool:
            with contextlib.suppress(OSError):
                servers.append(opened.enter_context(ThreadingHTTPServer(address, Stranger)))
            return bool(servers)

        servers: list[ThreadingHTTPServer] = []
        wait_until(take_port, "the port of the gateway is free")
        (stranger,) = servers
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        program.wait_for("the gateway died (exit code 2")
        stranger.shutdown()
    assert not program.says("gateway is up again")
    program.wait_for("gateway is up again")
    assert asked == []
    wait_until(lambda: answers(url), "the gateway answers")
    assert program.end() == 0


@pytest.mark.thorough
@pytest.mark.triton
def test_a_pool_that_dies_before_the_gateway_has_seen_it_is_started_again(
    start: Callable[..., Program], state: Path
) -> None:
    program = start("up", *free("up"), "--no-measure")
    wait_until(lambda: list(state.glob("runs/*/triton-*.ready")), "the pool serves")
    os.kill(member(program, "triton"), signal.SIGKILL)
    program.wait_for("Ctrl-C stops it")
    assert program.end() == 0


@pytest.mark.thorough
@pytest.mark.triton
def test_clients_of_a_healthy_pool_do_not_notice_that_another_is_killed(
    start: Callable[..., Program], tmp_path: Path
) -> None:
    (tmp_path / "curves.yaml").write_text('version: 1\nname: t4\nvariants:\n  "*": [[1, 0.005], [9, 0.013]]\n')
    words = ["--pool", "cpu", "--emulate", f"emulated-gpu={tmp_path / 'curves.yaml'}", "--no-measure"]
    program = start("up", *free("up"), *words)
    url = program.wait_for("ready in").split()[-1]
    program.wait_for("Ctrl-C stops it")
    body = (COMMITTED / "digits-fp32" / "sample.json").read_bytes()
    asked = urllib.request.Request(f"{url}/v2/models/digits/infer", data=body, headers={"Tandem-Pool": "cpu"})

    def status() -> int:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return int(answer.status)

    os.kill(member(program, "emulated-gpu"), signal.SIGKILL)
    statuses = set()
    while not program.says("the emulated-gpu pool is up again"):
        statuses.add(status())
    assert statuses == {200}
    assert not program.says("cpu pool died")


@pytest.mark.thorough
@pytest.mark.triton
def test_a_full_disk_is_told_with_the_path_and_costs_no_request(
    start: Callable[..., Program], small_disk: Path
) -> None:
    """With logs, state, temporary files and the control document on it; what was killed meanwhile is back before there is room again."""
    control, filler = small_disk / "control.yaml", small_disk / "filler"
    control.write_text("version: 1\nmodels: {digits: {pin: {variant: fp32}}}\n")
    places = {"TANDEM_STATE": str(small_disk), "TMPDIR": str(small_disk)}
    program = start("up", *free("up"), "--no-measure", "--control", str(control), **places)
    url = program.wait_for("ready in").split()[-1]
    program.wait_for("Ctrl-C stops it")
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4096"], capture_output=True, check=False)

    def server() -> int:
        return next((it.pid for it in children_of(member(program, "triton")) if it.is_alive), 0)

    before = server()
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: server() not in (0, before) and answers(url), "an answer of another tritonserver")
    for word in ("gateway", "triton"):
        os.kill(member(program, word), signal.SIGKILL)
        program.wait_for(f"the {'cpu pool' if word == 'triton' else word} died")
        wait_until(lambda: answers(url), "an answer")
    assert str(small_disk) in program.wait_for("cannot write ")
    assert "No space left on device" in program.wait_for("cannot write ")
    pin = ("models", "pin", "digits", "--variant", "int8", "--control", str(control), "--url", url)
    assert tandem(*pin).returncode == 2
    assert "fp32" in control.read_text()
    filler.unlink()
    wait_until(lambda: tandem(*pin).returncode == 0, "the next revision is written, and in force")
    assert answers(url)


@pytest.mark.thorough
@pytest.mark.triton
def test_a_disk_that_is_full_before_the_first_pool_serves_ends_the_start_with_the_path(
    start: Callable[..., Program], small_disk: Path
) -> None:
    program = start("up", *free("up"), "--no-measure", TANDEM_STATE=str(small_disk))
    wait_until(lambda: list(small_disk.glob("runs/*/gateway.log")), "all is started")
    subprocess.run(["dd", "if=/dev/zero", f"of={small_disk / 'filler'}", "bs=4096"], capture_output=True, check=False)
    assert "No space left on device" in program.wait_for(".ready: ")
    assert program.process.wait(60) == 3


@pytest.mark.thorough
@pytest.mark.triton
@pytest.mark.parametrize(
    ("limit", "code", "cause"), [("-n 64", 2, "ulimit -n"), ("-v 700000", 3, "memory")], ids=["files", "memory"]
)
def test_a_start_that_lacks_something_says_what(limit: str, code: int, cause: str, state: Path) -> None:
    words = shlex.join([*TANDEM, "triton", *free("triton"), "--no-measure", "--model-repository", str(COMMITTED)])
    done = subprocess.run(
        ["bash", "-c", f"ulimit {limit}; exec {words}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert done.returncode == code
    assert cause in done.stderr.splitlines()[-1]


@pytest.mark.thorough
@pytest.mark.triton
def test_a_library_that_is_missing_is_named(tmp_path: Path, environment: Environment) -> None:
    """In a copy of the environment."""
    copy = tmp_path / "environments" / environment.folder.name
    copy.parent.mkdir()
    subprocess.run(["cp", "-a", str(environment.folder), str(copy)], check=True)
    shutil.rmtree(copy / environment.libraries.relative_to(environment.folder))
    done = tandem(
        "triton", *free("triton"), "--no-measure", "--model-repository", str(COMMITTED), TANDEM_CACHE=str(tmp_path)
    )
    assert done.returncode == 3
    assert "missing or broken" in done.stderr.splitlines()[-1]


@pytest.mark.thorough
@pytest.mark.parametrize("after_s", [0.15, 0.3, 0.45])
def test_ctrl_c_soon_after_the_start_leaves_no_traceback(after_s: float, state: Path) -> None:
    """Sent to the whole group, as a terminal does. Python's own start, before it reads anything of ours, is Python's."""
    program = subprocess.Popen(
        [*TANDEM, "up", *free("up"), "--no-measure"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        env={**os.environ, "TANDEM_STATE": str(state)},
    )
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(after_s)
    os.killpg(program.pid, signal.SIGINT)
    said = program.communicate(timeout=60)[0]
    assert "Traceback" not in said or any(
        words in said for words in ("init_import_site", "Could not import runpy module")
    )


# -- what it prints and writes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9"),
        ("0.0.0.0", "http://127.0.0.1:9"),
        ("::", "http://[::1]:9"),
        ("fe80::1", "http://[fe80::1]:9"),
        ("serve.example", "http://serve.example:9"),
    ],
)
def test_the_printed_address_can_be_opened(host: str, url: str) -> None:
    assert console.base_url(host, 9) == url


def test_grpc_is_spoken_on_the_port_after_that_of_http_or_the_welcome_says_why_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        taken = somebody.getsockname()[1]
        off = Grpc.of(UpOptions(port=taken - 1))
        assert off.port is None
        assert f"port {taken} " in off.line
        assert off.line.endswith("--grpc-port")
        with pytest.raises(UserError, match=rf"{taken}.*choose.*--grpc-port"):
            Grpc.of(UpOptions(grpc_port=taken))
    assert Grpc.of(UpOptions(port=taken - 1)) == Grpc(taken, f"gRPC: 127.0.0.1:{taken}")
    assert not hold(taken), "none of its Tritons is given it"
    assert Grpc.of(UpOptions(port=taken - 1)).port is None, "or somebody else keeps it"
    assert Grpc.of(UpOptions(port=65535)).port is None
    assert "gRPC: 127.0.0.1:9" in "\n".join(console.welcome("u", [], [], Path(), 1.0, grpc="gRPC: 127.0.0.1:9"))


def test_the_curl_is_one_shell_command_with_the_sample_in_it() -> None:
    variant = Repository(COMMITTED).variant("digits-fp32")
    words = shlex.split(console.curl_command("http://h:9", [variant]))
    assert words[:3] == ["curl", "-s", "http://h:9/v2/models/digits/infer"]
    assert json.loads(words[-1]) == json.loads((variant.directory / "sample.json").read_text())


def test_without_a_sample_the_curl_asks_what_every_server_answers() -> None:
    assert console.curl_command("http://h:9", []) == "curl -s http://h:9/v2"
    assert console.expected_answer([]) is None


def test_a_sample_that_nobody_labelled_has_no_right_answer() -> None:
    labelled = Repository(COMMITTED).variant("digits-fp32")
    assert labelled.record.sample is not None
    nobodys = replace(labelled.record.sample, label=None, index=None)
    unlabelled = replace(labelled, record=replace(labelled.record, sample=nobodys))
    lines = console.welcome("http://h:9", [], [unlabelled, labelled], Path(), 1.0)
    assert "try it:" in lines
    assert not [line for line in lines if "right" in line or "None" in line]


@pytest.mark.parametrize(
    ("task", "index", "says"),
    [("regression", None, "right is about 75"), ("regression", 75, None), ("anomaly", 1, None), ("reranking", 1, None)],
)
def test_the_right_answer_is_told_as_the_task_gives_it(task: str, index: int | None, says: str | None) -> None:
    digits = Repository(COMMITTED).variant("digits-fp32")
    assert digits.record.sample is not None
    sample = replace(digits.record.sample, label="75", index=index)
    assert console.expected_answer([replace(digits, record=replace(digits.record, task=task, sample=sample))]) == says


@pytest.mark.parametrize("pid", [999_999_999, os.getpid()], ids=["of nobody", "ours, as in a container"])
def test_only_the_last_runs_are_kept(state: Path, monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    monkeypatch.setenv("TANDEM_STATE", str(state))
    for number in range(MAX_KEPT_RUNS + 3):
        (state / "runs" / f"20200101-0000{number:02}-{pid}").mkdir(parents=True)
    newest = run_folder()
    kept = sorted(path.name for path in (state / "runs").iterdir())
    assert len(kept) == MAX_KEPT_RUNS
    assert kept[-1] == newest.name


# -- what cannot be loaded --------------------------------------------------------------------------------------------


def health(lines: list[str]) -> int:
    """The status of `/health/ready` at the address that the welcome names."""
    [url] = [line.split()[-1] for line in lines if "ready" in line and "http://" in line]
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.thorough
@pytest.mark.triton
@pytest.mark.parametrize("is_allowed", [False, True])
def test_up_says_which_models_are_not_served_and_is_not_ready_unless_told_to_go_on(
    start: Callable[..., Program], tmp_path: Path, is_allowed: bool
) -> None:
    repository = tmp_path / "repository"
    publish_digits(repository)
    publish_digits(repository, precisions=["int8"], model_file=BROKEN)
    publish_digits(repository, "other", precisions=["fp32"], model_file=BROKEN)
    publish_digits(repository, "changed", precisions=["fp32"])
    (repository / "changed-fp32" / "config.pbtxt").write_text("{")
    shutil.copytree(repository / "digits-fp32", repository / "copied-fp32")
    option = ["--allow-missing"] if is_allowed else []
    program = start("up", *free("up"), "--no-measure", "--model-repository", str(repository), *option)
    program.wait_for("Ctrl-C stops it")
    lines = program.lines()
    [other] = [line for line in lines if line.startswith("  not served: other-fp32: ")]
    [int8] = [line for line in lines if line.startswith("  not served: digits-int8: ")]
    assert "Protobuf parsing failed" in other
    [changed] = [line for line in lines if line.startswith("  not served: changed-fp32: ")]
    assert "config.pbtxt changed" in changed
    [copied] = [line for line in lines if line.startswith("  not served: copied-fp32: ")]
    assert "record of digits-fp32" in copied
    [curl] = [line for line in lines if line.startswith("  curl ")]
    assert "/v2/models/digits/infer" in curl  # not the first by name, which is not served
    assert "digits is served" in int8
    assert str(repository) not in other
    assert any(line.startswith("ready in ") for line in lines) == is_allowed
    assert any(line.startswith("not ready: ") for line in lines) != is_allowed
    assert health(lines) == (200 if is_allowed else 503)
