"""Who is compared: Tandem, Triton alone, proxies before the same Triton, and the Python servers that are had as packages.

All compute the same file with one instance and one thread, and take the same body. A Python server gets an environment of its own in
Tandem's cache, made on demand from pinned wheels, and a program in `servers/`. Rule: whoever cannot be had here says why, and the others
are measured.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadtest.errors import CannotMeasure
from loadtest.processes import MODEL_REPOSITORY, TANDEM, Process, cpu_s, family, running, still_there
from loadtest.stack import CONFIG, START_TIMEOUT_S, answers
from serving.local.folders import cache_dir
from serving.ports import free_ports

HERE = Path(__file__).parent
MODEL, VARIANT = "digits", "digits-fp32"
FILE = MODEL_REPOSITORY / VARIANT / "1" / "model.onnx"
INSTALL_TIMEOUT_S = 1200.0  # Ray and its wheels of 70 MB take two minutes on two cores with a near index
PEER_START_S = 120.0  # Ray starts a dozen processes
TRITON = ("--instances", "1", "--threads", "1")


@dataclass(frozen=True, slots=True)
class Server:
    """One that serves now. `start_s`: from its start until it answered; `pids`: of its families."""

    authority: str
    path: str
    pids: tuple[int, ...]
    start_s: float

    @property
    def url(self) -> str:
        return f"http://{self.authority}{self.path}"

    @property
    def members(self) -> list[Process]:
        return [one for pid in self.pids for one in family(pid)]

    def cpu_s(self) -> float:
        """Of all that serves."""
        return sum(cpu_s(one.pid) for one in self.members)

    def memory_bytes(self) -> int:
        """Of all that serves: what is shared is divided by who shares it."""
        found = 0
        for one in self.members:
            with suppress(psutil.Error):
                found += psutil.Process(one.pid).memory_full_info().pss
        return found


Start = Callable[[Path], Iterator[Server]]


@dataclass(frozen=True, slots=True)
class Contender:
    """`settings`: how it is run, as the page tells it; `takes_binary`: the binary tensors of v2; `version`: told once it is there."""

    name: str
    settings: str
    start: Start
    version: Callable[[], str]
    takes_binary: bool = False


# -- Tandem, Triton, and proxies before it ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Triton:
    authority: str
    pid: int


@contextmanager
def _triton(folder: Path) -> Iterator[_Triton]:
    http, grpc, metrics = free_ports(3)
    ready = folder / "triton.ready"
    command = [*TANDEM, "triton", *TRITON, "--pool", "cpu", "--model-repository", str(MODEL_REPOSITORY), "--no-measure"]
    command += ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
    command += ["--exit-timeout-s", "2", "--ready-file", str(ready)]
    with running(command, folder / "triton.log", ready.exists, START_TIMEOUT_S) as process:
        yield _Triton(f"127.0.0.1:{http}", process.pid)


def _triton_alone(folder: Path) -> Iterator[Server]:
    began = time.monotonic()
    with _triton(folder) as triton:
        yield Server(triton.authority, f"/v2/models/{VARIANT}/infer", (triton.pid,), time.monotonic() - began)


def _tandem(folder: Path) -> Iterator[Server]:
    began = time.monotonic()
    with _triton(folder) as triton:
        config = folder / CONFIG
        pools = {"cpu": {"urls": [f"http://{triton.authority}"], "device": "cpu"}}
        config.write_text(json.dumps({"version": 1, "pools": pools}))

        def command(port: int) -> list[str]:
            return [*TANDEM, "gateway", "--config", str(config), "--port", str(port)]

        with _before(folder, triton, command, ("GET", "/health/ready"), began) as server:
            yield server


def _proxy(command: Callable[[Path, int, str], list[str]]) -> Start:
    """`command`: of a folder, a port, and the Triton's authority."""

    def start(folder: Path) -> Iterator[Server]:
        began = time.monotonic()
        with _triton(folder) as triton:

            def of(port: int) -> list[str]:
                return command(folder, port, triton.authority)

            # What every proxy passes on, also one that knows no other method.
            with _before(folder, triton, of, ("POST", "/v2/repository/index"), began) as server:
                yield server

    return start


@contextmanager
def _before(
    folder: Path, triton: _Triton, command: Callable[[int], list[str]], ready: tuple[str, str], began: float
) -> Iterator[Server]:
    """`ready`: the method and path that it answers once it serves."""
    (port,) = free_ports(1)
    authority = f"127.0.0.1:{port}"
    variables = {"UPSTREAM": triton.authority}

    def is_ready() -> bool:
        return answers(authority, ready[1], method=ready[0])

    with running(command(port), folder / "front.log", is_ready, PEER_START_S, variables) as process:
        pids = process.pid, triton.pid
        yield Server(authority, f"/v2/models/{VARIANT}/infer", pids, time.monotonic() - began)


def _nginx(folder: Path, port: int, upstream: str) -> list[str]:
    program = _found("nginx", "apt-get install nginx-light")
    config = folder / "nginx.conf"
    config.write_text(
        f"""worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx-error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  client_max_body_size 64m;
  upstream triton {{ server {upstream}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    keepalive_requests 1000000;
    location / {{ proxy_pass http://triton; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""
    )
    return [program, "-c", str(config), "-e", str(folder / "nginx-error.log")]


def _go_proxy(_: Path, port: int, upstream: str) -> list[str]:
    program = cache_dir() / "peers" / "go-proxy"
    source = HERE / "servers" / "proxy.go"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        _make([_found("go", "Go 1.22 or later"), "build", "-o", str(program), str(source)], "Go's proxy", os.environ)
    return [str(program), str(port), f"http://{upstream}"]


def _floor(_: Path, port: int, __: str) -> list[str]:
    """It hears of its Triton by a variable."""
    return [sys.executable, "-m", "loadtest.bench.floor", str(port)]


def _found(program: str, way: str) -> str:
    if path := shutil.which(program):
        return path
    raise CannotMeasure(f"{program} is not here: {way}")


def _said(command: Sequence[str], pattern: str) -> Callable[[], str]:
    def version() -> str:
        done = subprocess.run([*command], capture_output=True, text=True, check=False, timeout=30)
        return next((word for word in (done.stdout + done.stderr).split() if word.startswith(pattern)), "?")

    return version


# -- servers in Python ------------------------------------------------------------------------------------------------


def _python(
    name: str, command: Callable[[Path, Path, int], list[str]], ready: str, path: str, **variables: str
) -> Start:
    """`command`: of its interpreter, a folder and a port."""

    def start(folder: Path) -> Iterator[Server]:
        python = environment(name)
        (port,) = free_ports(1)
        authority = f"127.0.0.1:{port}"
        given = {"PYTHONPATH": "", "DO_NOT_TRACK": "1", "MODEL_FILE": str(FILE), **variables}
        began = time.monotonic()
        with running(
            command(python, folder, port),
            folder / f"{name}.log",
            lambda: answers(authority, ready),
            PEER_START_S,
            given,
        ) as process:
            try:
                yield Server(authority, path, (process.pid,), time.monotonic() - began)
            finally:
                end(family(process.pid))

    return start


def _mlserver(python: Path, folder: Path, port: int) -> list[str]:
    grpc, metrics = free_ports(2)
    settings = {
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": grpc,
        "metrics_port": metrics,
        "parallel_workers": 0,
    }
    settings |= {"debug": False}
    (folder / "settings.json").write_text(json.dumps(settings))
    model = {"name": MODEL, "implementation": "mlserver_model.Digits"}
    (folder / "model-settings.json").write_text(json.dumps(model))
    shutil.copy(HERE / "servers" / "mlserver_model.py", folder)
    return [str(python.parent / "mlserver"), "start", str(folder)]


def _bentoml(python: Path, folder: Path, port: int) -> list[str]:
    shutil.copy(HERE / "servers" / "bentoml_server.py", folder)
    options = ["--host", "127.0.0.1", "--port", str(port), "--working-dir", str(folder)]
    return [str(python), "-m", "bentoml", "serve", "bentoml_server:Digits", *options]


def _script(name: str) -> Callable[[Path, Path, int], list[str]]:
    return lambda python, _, port: [str(python), str(HERE / "servers" / f"{name}_server.py"), str(FILE), str(port)]


def end(members: Sequence[Process]) -> None:
    """All of them: some servers end on SIGTERM and leave their workers behind."""
    for member in still_there(members):
        with suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)


def environment(name: str) -> Path:
    """Its interpreter; made if need be. Raises CannotMeasure."""
    folder = cache_dir() / "peers" / f"{name}-python{sys.version_info[0]}.{sys.version_info[1]}"
    python, made_for = folder / "bin" / "python", folder / "pins.txt"
    pins = (HERE / "pins" / f"{name}.txt").read_text()
    if made_for.is_file() and made_for.read_text() == pins and python.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    print(f"making an environment for {name} in {folder} (once)", file=sys.stderr)
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    options = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    install = [str(python), "-m", "pip", "install", *options, "-r", str(HERE / "pins" / f"{name}.txt")]
    for command in ([sys.executable, "-m", "venv", str(folder)], install):
        _make(command, name, clean)
    made_for.write_text(pins)
    return python


def _make(command: Sequence[str], name: str, variables: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False, env=dict(variables)
        )
    except subprocess.TimeoutExpired:
        raise CannotMeasure(f"{name} was not installed after {INSTALL_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise CannotMeasure(f"{name} could not be installed: {last}")


def pinned(name: str, package: str | None = None) -> Callable[[], str]:
    def version() -> str:
        lines = (HERE / "pins" / f"{name}.txt").read_text().splitlines()
        return next(line.split("==")[1] for line in lines if line.lower().startswith(f"{package or name}=="))

    return version


def _own_version() -> str:
    from serving import __version__

    return __version__


WITH_TRITON = "Triton 2.51 (`tandem triton`), one instance, one thread"
CONTENDERS = (
    Contender("Tandem", f"gateway with all its checks before {WITH_TRITON}", _tandem, _own_version, takes_binary=True),
    Contender("Triton alone", f"{WITH_TRITON}, nothing before it", _triton_alone, lambda: "2.51", takes_binary=True),
    Contender(
        "nginx, Triton",
        f"one worker, kept connections, before {WITH_TRITON}",
        _proxy(_nginx),
        _said(["nginx", "-v"], "nginx/"),
        takes_binary=True,
    ),
    Contender(
        "Go's proxy, Triton",
        f"`httputil.ReverseProxy`, 64 kept connections, before {WITH_TRITON}",
        _proxy(_go_proxy),
        _said(["go", "version"], "go1"),
        takes_binary=True,
    ),
    Contender(
        "bare asyncio proxy, Triton",
        f"on uvloop, checks nothing, before {WITH_TRITON}",
        _proxy(_floor),
        lambda: "",
        takes_binary=True,
    ),
    Contender(
        "LitServe",
        "one worker, one thread",
        _python("litserve", _script("litserve"), "/health", "/predict", LITSERVE_DISABLE_TELEMETRY="1"),
        pinned("litserve"),
    ),
    Contender(
        "MLServer",
        "`parallel_workers: 0`, NumPy codec, one thread",
        _python("mlserver", _mlserver, "/v2/health/ready", f"/v2/models/{MODEL}/infer"),
        pinned("mlserver"),
    ),
    Contender(
        "KServe, Python server",
        "one worker, one thread, v2, gRPC off",
        _python("kserve", _script("kserve"), f"/v2/models/{MODEL}/ready", f"/v2/models/{MODEL}/infer"),
        pinned("kserve"),
    ),
    Contender(
        "BentoML",
        "one worker, one thread",
        _python("bentoml", _bentoml, "/readyz", "/infer", BENTOML_DO_NOT_TRACK="True"),
        pinned("bentoml"),
    ),
    Contender(
        "Ray Serve",
        "one replica, one thread, one proxy",
        _python("ray", _script("ray"), "/", "/", RAY_USAGE_STATS_ENABLED="0"),
        pinned("ray"),
    ),
)


@contextmanager
def serving(contender: Contender, folder: Path) -> Iterator[Server]:
    """Until the block ends. Raises CannotMeasure."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextmanager(contender.start)(folder) as server:
        yield server
