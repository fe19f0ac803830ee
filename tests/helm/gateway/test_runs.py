"""The gateway's container as the chart writes it, run here: its probes, its listeners, and keys from a secret as a node mounts it.

Only what no two processes of a machine can share is another: ports and paths. That a cluster mounts, probes and routes is not shown here.
"""

from __future__ import annotations

import contextlib
import datetime
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from serving.keys.changes import add
from serving.ports import free_ports
from tests.helm.conftest import ROOT, Object, Render
from tests.helm.wrong_values.gateway import KEYS
from tests.local.harness import TANDEM, Program, wait_until

pytestmark = pytest.mark.slow  # starts processes: not in `make check`
NOWHERE = 'version: 1\npools: {cpu: {urls: ["http://127.0.0.1:9"], device: cpu}}\n'  # nothing listens there
LISTENERS = ("--port", "--grpc-port", "--admin-port")


@contextlib.contextmanager
def running(container: Object, replaced: dict[str, str], log: Path) -> Iterator[dict[str, int]]:
    """The container's command, forked here. Gives the ports that it listens on, by option."""
    ports = dict(zip(LISTENERS, free_ports(3), strict=True))
    replaced = {
        **replaced,
        "--model-repository": str(ROOT / "model_repo"),
        **{name: str(port) for name, port in ports.items()},
    }
    words = [word.partition("=") for word in container["command"][1:]]
    arguments = [f"{name}={replaced.get(name, value)}" if eq else name for name, eq, value in words]
    program = Program([*TANDEM, *arguments], log)
    try:
        asked = [name for name in LISTENERS if name in {name for name, _, _ in words}]
        for name in asked:
            listens(ports[name], program)
        yield {name: ports[name] for name in asked}
    finally:
        program.end()


def listens(port: int, program: Program) -> None:
    """Returns when somebody does on this port of loopback."""

    def does() -> bool:
        assert program.process.poll() is None, program.account
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    wait_until(does, f"somebody listens on {port}", seen=lambda: program.account)


def status(port: int, path: str, key: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        return connection.getresponse().status
    finally:
        connection.close()


class Secret:
    """A secret as a node mounts it: files are links into a folder that a link points to, which is swapped when the secret changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._revision = 0
        folder.mkdir()

    @property
    def file(self) -> Path:
        return self.folder / "keys.json"

    def new_key(self, scope: str) -> str:
        self._revision += 1
        data = self.folder / f"..{self._revision}"
        data.mkdir()
        fresh = data / "keys.json"
        if self.file.exists():
            fresh.write_bytes(self.file.read_bytes())
        added = add(fresh, scope, frozenset({scope}), datetime.datetime.now(datetime.UTC))
        (self.folder / "..new").symlink_to(data.name)
        (self.folder / "..new").replace(self.folder / "..data")
        if not self.file.is_symlink():
            self.file.symlink_to("..data/keys.json")
        return added.text


class Running:
    def __init__(self, container: Object, ports: dict[str, int], secret: Secret, keys: dict[str, str]) -> None:
        self.container = container
        self.http, self.grpc, self.admin = (ports[name] for name in LISTENERS)
        self.secret, self.keys = secret, keys


@pytest.fixture(scope="module")
def with_keys(render: Render, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Every word of the command that the chart writes with keys, on the addresses of a pod."""
    folder = tmp_path_factory.mktemp("pod")
    (folder / "tandem.yaml").write_text(NOWHERE)
    secret = Secret(folder / "keys")
    keys = {scope: secret.new_key(scope) for scope in ("infer", "metrics", "admin")}
    container = render(KEYS).container("tandem-gateway")
    with running(
        container, {"--config": str(folder / "tandem.yaml"), "--keys": str(secret.file)}, folder / "log"
    ) as ports:
        yield Running(container, ports, secret, keys)


@pytest.mark.parametrize(("probe", "answer"), [("startupProbe", 200), ("livenessProbe", 200), ("readinessProbe", 503)])
def test_probes_need_no_key_and_a_gateway_without_models_is_unready_and_not_dead(
    probe: str, answer: int, with_keys: Running
) -> None:
    asked = with_keys.container[probe]["httpGet"]
    assert asked["port"] == "http"
    assert status(with_keys.http, asked["path"]) == answer
    assert status(with_keys.http, "/health/nothing", with_keys.keys["infer"]) == 404, "else a probe would prove nothing"


@pytest.mark.parametrize(
    ("path", "key", "answer"),
    [
        ("/v2", "", 401),
        ("/v2", "metrics", 403),
        ("/v2", "infer", 200),
        ("/v1/models", "", 401),
        ("/v1/models", "infer", 200),
        ("/metrics", "", 401),
        ("/metrics", "metrics", 404),
        ("/admin/status", "admin", 404),
    ],
)
def test_clients_need_a_key_and_find_nothing_for_the_operator(
    path: str, key: str, answer: int, with_keys: Running
) -> None:
    assert status(with_keys.http, path, with_keys.keys.get(key, "")) == answer


@pytest.mark.parametrize(
    ("path", "key", "answer"),
    [
        ("/metrics", "", 401),
        ("/metrics", "infer", 403),
        ("/metrics", "metrics", 200),
        ("/admin/status", "metrics", 403),
        ("/admin/status", "admin", 200),
    ],
)
def test_the_admin_listener_wants_a_key_for_what_it_is_asked(
    path: str, key: str, answer: int, with_keys: Running
) -> None:
    assert status(with_keys.admin, path, with_keys.keys.get(key, "")) == answer


def test_grpc_is_spoken_on_its_port_and_wants_a_key_too(with_keys: Running) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{with_keys.grpc}") as channel:
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert health(b"", timeout=60) == b"\x08\x02"  # NOT_SERVING, as readiness says
        metadata = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
        with pytest.raises(grpc.RpcError) as refusal:
            metadata(b"", timeout=60)
        assert refusal.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert metadata(b"", timeout=60, metadata=[("authorization", f"Bearer {with_keys.keys['infer']}")])


def test_a_changed_secret_counts_without_a_restart(with_keys: Running) -> None:
    key = with_keys.secret.new_key("infer")
    wait_until(lambda: status(with_keys.http, "/v2", key) == 200, "the new key counts")
    assert status(with_keys.http, "/v2", with_keys.keys["infer"]) == 200


def test_with_http_alone_nothing_else_listens(render: Render, tmp_path: Path) -> None:
    off = {name: {"enabled": False} for name in ("grpc", "admin", "preprocessing")}
    container = render({"gateway": off}).container("tandem-gateway")
    (tmp_path / "tandem.yaml").write_text(NOWHERE)
    with running(container, {"--config": str(tmp_path / "tandem.yaml")}, tmp_path / "log") as ports:
        assert [*ports] == ["--port"]
        assert status(ports["--port"], container["readinessProbe"]["httpGet"]["path"]) == 503
        assert status(ports["--port"], "/v2") == 200
