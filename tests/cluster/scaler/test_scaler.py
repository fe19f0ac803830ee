"""The scaler before real gateways: load wakes a pool, and neither a killed gateway nor none at all nor a new scaler takes it away.

Two gateways before two Tritons whose times are known; that of the GPU pool stands still until it is wanted. What takes a window of ten
seconds takes less here.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Any

import grpc
import pytest

from serving.cluster.scaler.cluster_state import ClusterState
from serving.cluster.scaler.gateways import GatewayNames
from serving.cluster.scaler.keda import ExternalScaler
from serving.cluster.scaler.reconcile import Reconciler
from serving.cluster.scaler.state import ScalerState
from serving.decisions import demand, scaling
from serving.decisions.sizes import sizes_of
from serving.local.environments import ENGINES, Environment
from serving.ports import free_ports
from serving.settings import EMULATED, GatewaySettings, ScalingRules, read_settings
from tests.cluster.scaler.test_keda import ACTIVE, INACTIVE, field, ref
from tests.gateway.conftest import TANDEM, Running, emulated_triton
from tests.gateway.fleet.test_faults import Load
from tests.gateway.request.test_admission import FULL, MODEL, POINTS
from tests.home import in_users_cache
from tests.local.harness import ROOT, Program, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.triton]

CPU, GPU = "emulated-cpu", "emulated-gpu"


class Scaler:
    """In this process, on a thread with a loop of its own. `pushed`: what a stream of KEDA's got."""

    def __init__(self, settings: GatewaySettings, ports: list[int]) -> None:
        self.said: list[str] = []
        self.pushed: Queue[bytes] = Queue()
        self._settings, self._urls = settings, [f"http://127.0.0.1:{port}" for port in ports]
        self._port = free_ports(1)[0]
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self._port}")
        grpc.channel_ready_future(self.channel).result(30)

    async def _serve(self) -> None:
        pools = self._settings.pools
        self.state = ScalerState(tuple(pools))
        external = ExternalScaler(self.state, "127.0.0.1", self._port)
        await external.start()
        cluster = ClusterState(pools, self.said.append)
        cluster._is_over = True  # there is none
        rules = ScalingRules(patience_s=0.5)
        reconciler = Reconciler(
            GatewayNames(self._urls),
            cluster,
            sizes_of(self._settings),
            self.state,
            lambda: None,
            self.said.append,
            rules,
        )
        task = asyncio.ensure_future(reconciler.run())
        await self._stop.wait()
        task.cancel()
        await external.stop()

    def listen(self) -> None:
        def hear() -> None:
            try:
                for message in self.channel.unary_stream("/externalscaler.ExternalScaler/StreamIsActive")(
                    ref(pool=GPU)
                ):
                    self.pushed.put(message)
            except grpc.RpcError:
                pass  # it was stopped

        threading.Thread(target=hear, daemon=True).start()

    @property
    def replicas(self) -> dict[str, int] | None:
        known = self.state.result.scaling.replicas
        return None if known is None else dict(known)

    def metric(self) -> bytes | grpc.StatusCode:
        """What GetMetrics answers of the GPU pool, or why it does not."""
        try:
            answer: bytes = self.channel.unary_unary("/externalscaler.ExternalScaler/GetMetrics")(
                field(1, ref(pool=GPU)), timeout=30
            )
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return answer

    def stop(self) -> None:
        self.channel.close()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        self._loop.close()


@contextmanager
def scaler(settings: GatewaySettings, ports: list[int]) -> Iterator[Scaler]:
    made = Scaler(settings, ports)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def environment() -> Environment:
    return in_users_cache(ENGINES["cpu"])


@pytest.mark.thorough
def test_load_wakes_a_pool_and_no_loss_of_a_gateway_or_a_scaler_lets_it_sleep(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, seconds in ((scaling, "WINDOW_S", 1.0), (demand, "FRESH_S", 1.5)):
        monkeypatch.setattr(module, name, seconds)
    ports = free_ports(2)
    with ExitStack() as stack:
        servers = [emulated_triton(tmp_path / name, name, POINTS) for name in (CPU, GPU)]
        with ThreadPoolExecutor() as together:
            (_, url), (gpu, gpu_url) = together.map(stack.enter_context, servers)
        card = gpu.family()
        stack.callback(tell, card, signal.SIGCONT)
        tell(card, signal.SIGSTOP)  # nothing answers there until it goes on
        described = _described(url, gpu_url)
        (config := tmp_path / "tandem.yaml").write_text(json.dumps(described))
        settings = read_settings(config)
        both = stack.enter_context(gateways_on(config, ports))
        ours = stack.enter_context(scaler(settings, ports))
        ours.listen()
        assert ours.metric() in (grpc.StatusCode.UNAVAILABLE, field(1, field(1, b"tandem_wanted_replicas")))
        assert ours.pushed.get(timeout=60) == INACTIVE
        assert ours.replicas == {CPU: 1, GPU: 0}
        load = stack.enter_context(too_much_on(ports))
        assert ours.pushed.get(timeout=60) == ACTIVE
        assert ours.replicas == {CPU: 1, GPU: 1}
        assert any(f"{GPU}: 1 server would pay" in line and "0 -> 1, short" in line for line in ours.said)
        (opened,) = ours.state.result.cold_starts
        assert (opened.pool, opened.warm_at) == (GPU, None)
        tell(card, signal.SIGCONT)
        wait_until(lambda: ours.state.result.cold_starts[0].is_over, "the first good answer comes from there")
        (ended,) = ours.state.result.cold_starts
        assert ended.answered_at is not None
        assert set(ended.phases) == {"first_answer", "total"}  # of pods nothing can be seen
        assert ended.phases["first_answer"] < ended.phases["total"]

        os.kill(both[0].program.pid, signal.SIGKILL)
        wait_until(lambda: ours.state.result.scaling.keeps, "the gateway is missed")
        assert ours.replicas == {CPU: 1, GPU: 1}
        os.kill(both[1].program.pid, signal.SIGKILL)
        wait_until(lambda: ours.replicas is None, "nothing is told without gateways")
        assert ours.metric() is grpc.StatusCode.UNAVAILABLE
        stack.enter_context(gateways_on(config, ports[1:2]))  # its clients are there still
        wait_until(lambda: ours.replicas == {CPU: 1, GPU: 1}, "it goes on where it was")
        anew = stack.enter_context(scaler(settings, ports))
        wait_until(lambda: anew.replicas is not None, "a scaler that starts again tells something")
        assert anew.replicas == {CPU: 1, GPU: 1}
        assert ours.pushed.empty()  # through all of this KEDA has heard of no change
    assert load.count(200) > 0


def test_a_request_for_what_only_the_gpu_pool_has_wakes_it_through_gateways_that_never_saw_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second gateway takes the place of the first, as after a restart: it knows the model from the settings alone."""
    for module, name, seconds in ((scaling, "WINDOW_S", 1.0), (demand, "FRESH_S", 1.5)):
        monkeypatch.setattr(module, name, seconds)
    nobody = "http://127.0.0.1:9"
    described = _described(nobody, nobody)
    described["pools"][GPU]["models"] = ["llm-fp16"]
    described["models"] = {"llm": {"objective": {"latency_s": 0.3}}}
    del described["pools"][CPU], described["pools"][GPU]["price_per_hour"]
    (config := tmp_path / "tandem.yaml").write_text(json.dumps(described))
    settings, ports = read_settings(config), free_ports(1)
    for _ in range(2):
        with gateways_on(config, ports) as (gateway,), scaler(settings, ports) as ours:
            wait_until(lambda: ours.replicas is not None, "it tells something")
            assert gateway.infer(FULL, "nobody").status == 404
            assert ours.replicas == {GPU: 0}
            assert gateway.infer(FULL, "llm").status == 503
            wait_until(lambda: ours.replicas == {GPU: 1}, "it is woken")


def tell(processes: Iterable[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _described(url: str, gpu_url: str) -> dict[str, Any]:
    """A request is worth something for 0.3 s, so that what is too much is refused at once, and counted."""
    pools = {
        CPU: {"urls": [url], "device": EMULATED, "price_per_hour": 0.2},
        GPU: {"urls": [gpu_url], "device": EMULATED, "price_per_hour": 1.0},
    }
    return {"version": 1, "pools": pools, "models": {"digits": {"objective": {"latency_s": 0.3}}}}


@contextmanager
def gateways_on(config: Path, ports: list[int]) -> Iterator[list[Running]]:
    """Started side by side, and killed at the end."""

    def started(port: int) -> Running:
        command = [*TANDEM, "gateway", "--config", str(config), "--port", str(port)]
        return Running(Program(command, config.with_name(f"gateway-{port}.log")), port)

    def is_ready(one: Running) -> bool:
        with suppress(OSError):
            return one.ask("/health/ready").status == 200
        return False

    running = [started(port) for port in ports]
    try:
        wait_until(lambda: all(map(is_ready, running)), "the gateways are ready")
        yield running
    finally:
        for one in running:
            one.program.end(signal.SIGKILL)


@contextmanager
def too_much_on(ports: list[int]) -> Iterator[Load]:
    """Clients of each gateway who ask for more than the CPU pool can do, and do not mind when theirs is gone."""
    all_of_it = Load(ports[0], MODEL, FULL)
    others = [Load(port, MODEL, FULL, answers=all_of_it.answers, stop=all_of_it.stop) for port in ports[1:]]
    threads = [threading.Thread(target=load.client) for load in (all_of_it, *others) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield all_of_it
    finally:
        all_of_it.stop.set()
        for thread in threads:
            thread.join(30)


def test_the_command_serves_without_a_cluster_or_a_gateway_and_ends_when_told(tmp_path: Path) -> None:
    config = tmp_path / "tandem.yaml"
    config.write_text(json.dumps({"version": 1, "pools": {"cpu": {"urls": ["http://127.0.0.1:1"], "device": "cpu"}}}))
    port, grpc_port = free_ports(2)
    options = [
        "--config",
        str(config),
        "--gateways",
        "http://127.0.0.1:9",
        "--port",
        str(port),
        "--grpc-port",
        str(grpc_port),
    ]
    program = Program(
        [*TANDEM, "cluster", "scaler", *options],
        tmp_path / "log",
        {"HOME": str(tmp_path), "KUBECONFIG": "", "PYTHONPATH": str(ROOT)},  # no fork: a start as users do it
    )
    try:
        program.wait_for("pools are scaled by what gateways publish alone")
        program.wait_for("no number is published: no gateway answers")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert b"tandem_scaler_holds 1.0" in answer.read()
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            spec = channel.unary_unary("/externalscaler.ExternalScaler/GetMetricSpec")(ref(pool="cpu"), timeout=30)
        assert b"tandem_wanted_replicas" in spec
    finally:
        assert program.end() == 0
    assert not program.says("Traceback")
