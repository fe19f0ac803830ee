"""A real Triton with the committed digits, a second one with small models of every kind, and a gateway before both."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from serving.local.environments import ENGINES, Environment
from serving.local.folders import cache_dir
from serving.ports import free_ports
from serving.settings import EMULATED
from tests.home import in_users_cache, link
from tests.local import models
from tests.local.harness import ROOT, Program, Served, served, wait_until

SAMPLE = (ROOT / "model_repo" / "digits-fp32" / "sample.json").read_bytes()
TANDEM = [sys.executable, "-m", "serving"]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Running:
    """A gateway process. `behind`: Tritons whose last lines a failing test prints."""

    program: Program
    port: int
    behind: tuple[Served, ...] = ()

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, method: str | None = None
    ) -> Reply:
        request = urllib.request.Request(f"http://{self.url}{path}", body, dict(headers or {}), method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Reply(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers, error.read())

    def infer(self, body: bytes, model: str = "digits", headers: Mapping[str, str] | None = None) -> Reply:
        return self.ask(f"/v2/models/{model}/infer", body, headers)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    for value in getattr(item, "funcargs", {}).values() if report.failed else ():
        running = getattr(value, "running", value)  # one that speaks gRPC too has it
        for of in (running, *running.behind) if isinstance(running, Running) else ():
            state, *lines = of.program.account.splitlines()
            report.sections.append(("said last", "\n".join([state, *lines[-8:]])))
    return report


def write_settings(
    path: Path,
    pools: Mapping[str, list[str]],
    prices: Mapping[str, float] | None = None,
    of_pools: Mapping[str, Mapping[str, Any]] | None = None,
    **more: Any,
) -> Path:
    """`of_pools`: more settings of each."""
    described: dict[str, dict[str, Any]] = {
        name: {"urls": urls, "device": EMULATED if name.startswith(EMULATED) else "cpu"} for name, urls in pools.items()
    }
    for name, price in (prices or {}).items():
        described[name]["price_per_hour"] = price
    for name, said in (of_pools or {}).items():
        described[name].update(said)
    settings = {"version": 1, "pools": described, **more}
    path.write_text(json.dumps(settings))  # JSON is YAML
    return path


@contextlib.contextmanager
def gateway_before(
    folder: Path, pools: Mapping[str, list[str]], *options: str, ready: bool = True, **more: Any
) -> Iterator[Running]:
    port = free_ports(1)[0]
    config = write_settings(folder / "tandem.yaml", pools, **more)
    program = Program(
        [*TANDEM, "gateway", "--config", str(config), "--port", str(port), *options], folder / "gateway.log"
    )
    running = Running(program, port)

    def answers() -> bool:
        assert program.process.poll() is None, program.lines()
        with contextlib.suppress(OSError):
            return running.ask("/health/ready" if ready else "/health/live").status == 200
        return False

    try:
        wait_until(answers, "the gateway is ready")
        yield running
    finally:
        program.hurry()


def wait_for_model(
    running: Running, triton: Served, model: str = "types.any", headers: Mapping[str, str] | None = None
) -> None:
    """Waits until the gateway reports the model ready. Starts this Triton once more if it has ended. A failure tells what both say."""
    if triton.program.process.poll() is not None and triton.start is not None:
        sys.stderr.write(f"started anew: {triton.program.account}\n")
        triton.program = triton.start()

    def is_ready() -> bool:
        for program in (running.program, triton.program):
            assert program.process.poll() is None, program.account
        return running.ask(f"/v2/models/{model}/ready", headers=headers).status == 200

    def seen() -> str:
        parts = [running.ask("/admin/status", headers=headers).body.decode(), running.program.account]
        try:
            index = urllib.request.Request(f"http://{triton.url}/v2/repository/index", b"")
            with urllib.request.urlopen(index, timeout=10) as answer:
                parts.append(f"Triton's own index: {answer.read().decode()}")
        except OSError as error:
            parts.append(f"Triton does not answer: {error}")
        return "\n".join([*parts, triton.program.account])

    wait_until(is_ready, f"{model} is ready", seen=seen)


@pytest.fixture(scope="session")
def environment() -> Environment:
    return in_users_cache(ENGINES["cpu"])


@contextlib.contextmanager
def digits_triton(folder: Path) -> Iterator[tuple[Program, str]]:
    """`tandem triton` on the committed repository; its process and its address."""
    with triton_of_its_own(folder, "--no-measure") as running:
        yield running


@contextlib.contextmanager
def emulated_triton(
    folder: Path, pool: str, points: list[tuple[int, float]], name: str = "made-up"
) -> Iterator[tuple[Program, str]]:
    """The same, and every variant takes so many seconds for so many rows."""
    folder.mkdir(exist_ok=True)
    file = folder / "curves.json"
    file.write_text(json.dumps({"version": 1, "name": name, "variants": {"*": points}}))
    with triton_of_its_own(folder, "--pool", pool, "--emulate", str(file)) as running:
        yield running


@contextlib.contextmanager
def triton_of_its_own(folder: Path, *more: str, port: int | None = None) -> Iterator[tuple[Program, str]]:
    ports = [port or free_ports(1)[0], *free_ports(2)]
    options = [
        "--http-port",
        str(ports[0]),
        "--grpc-port",
        str(ports[1]),
        "--metrics-port",
        str(ports[2]),
        "--exit-timeout-s",
        "5",
    ]
    command = [*TANDEM, "triton", "--model-repository", str(ROOT / "model_repo"), *more, *options]
    link(in_users_cache(ENGINES["cpu"]), cache_dir())  # whatever the marks of the file that is the first to want it
    program = Program(command, folder / "triton.log")
    try:
        program.wait_for("ready:")
        yield program, f"http://127.0.0.1:{ports[0]}"
    finally:
        program.hurry()


@pytest.fixture(scope="session")
def digits(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with digits_triton(tmp_path_factory.mktemp("digits")) as (_, url):
        yield url


@pytest.fixture(scope="session")
def mortal(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, str]]:
    """Another one, for tests that kill it, halt it or unload its models: they wait until it serves before, and leave it to come back."""
    with digits_triton(tmp_path_factory.mktemp("mortal")) as running:
        yield running


@pytest.fixture(scope="session")
def kinds(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Small models of every kind; each says that its gate passed, and has the public name `<name>.any`."""
    folder = tmp_path_factory.mktemp("kinds")
    configs = models.write_all(folder)
    for name, config in configs.items():
        gate = {"model": f"{name}.any", "variant": "fp32", "engine": "cpu", "digest": "00" * 32, "gate": "passed"}
        config["parameters"] |= {f"tandem_{key}": {"string_value": value} for key, value in gate.items()}
    configs["ungated"] = models.double(folder, "ungated")
    refused = {"model": "refused.any", "variant": "fp32", "digest": "00" * 32, "gate": "refused"}
    configs["refused"] = models.double(folder, "refused", parameters={f"tandem_{k}": v for k, v in refused.items()})
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(all_served(folder, configs))
        except AssertionError as error:  # the reason is told, and does not take along all tests that want it
            sys.stderr.write(f"started anew: {error}\n")
            running = stack.enter_context(all_served(folder, configs))
        yield running


@contextlib.contextmanager
def all_served(folder: Path, configs: Mapping[str, Any]) -> Iterator[Served]:
    """Every one of them."""
    with served(folder, configs) as running:
        assert not running.program.says("not served:"), running.program.account
        yield running


@pytest.fixture(scope="session")
def lasting_gateway(digits: str, kinds: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with gateway_before(
        tmp_path_factory.mktemp("gateway"), {"cpu": [digits], "kinds": [f"http://{kinds.url}"]}
    ) as running:
        running.behind = (kinds,)
        yield running


@pytest.fixture(scope="module")
def gateway(lasting_gateway: Running, kinds: Served) -> Running:
    """One gateway for all files. Waits until `kinds` serves again, because the file before may have made it restart."""
    wait_for_model(lasting_gateway, kinds)
    return lasting_gateway
