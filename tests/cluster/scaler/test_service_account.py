"""A pod's own way to its API server: what it needs of the pod, and whose turn it is when something is missing. A real server's answers are
in test_chart_scaler.py, by the token of the chart's own account."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from serving.cluster.client import ServiceAccount, Unreachable, UnusableAccount
from serving.cluster.objects.fields import name_of
from serving.cluster.scaler import cluster_state
from tests.cluster.servers import answering, nobody

HERE = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    for name, text in (("token", "abc\n"), ("namespace", "serving\n")):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_it_is_in_its_pods_namespace_unless_told_otherwise(account: Path) -> None:
    assert ServiceAccount.of_this_pod(None, account, HERE).namespace == "serving"
    assert ServiceAccount.of_this_pod("other", account, HERE).namespace == "other"


@pytest.mark.parametrize(
    "environment",
    [{}, {"KUBERNETES_SERVICE_HOST": "127.0.0.1"}, {**HERE, "KUBERNETES_SERVICE_PORT": "tcp://10.0.0.1:443"}],
)
def test_a_pod_without_its_servers_address_is_told_so(account: Path, environment: dict[str, str]) -> None:
    with pytest.raises(UnusableAccount, match=r"service.*account"):
        ServiceAccount.of_this_pod(None, account, environment)


def test_a_pod_without_a_namespace_is_told_so(account: Path) -> None:
    (account / "namespace").unlink()
    with pytest.raises(UnusableAccount, match="namespace"):
        ServiceAccount.of_this_pod(None, account, HERE)


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_what_is_missing_of_its_account_is_trouble_that_may_pass(account: Path, missing: str) -> None:
    """A volume that is being renewed, say."""
    (account / "token").unlink() if missing == "token" else None
    with pytest.raises(Unreachable, match=r"asked.*pods"):
        ServiceAccount.of_this_pod(None, account, HERE).items("/api/v1/pods", "pods", name_of)


@pytest.mark.parametrize("plain", [False, True])
def test_nobody_there_and_a_server_that_it_cannot_trust_are_trouble(account: Path, plain: bool) -> None:
    import certifi

    (account / "ca.crt").write_text(Path(certifi.where()).read_text())
    with answering(200, b"{}") if plain else nobody() as address:  # plain HTTP, which is no handshake
        port = address.rpartition(":")[2]
        with pytest.raises(Unreachable, match=r"asked.*pods"):
            ServiceAccount.of_this_pod(None, account, {**HERE, "KUBERNETES_SERVICE_PORT": port}).items(
                "/api/v1/pods", "pods", name_of
            )


def test_a_token_makes_a_pod_unless_a_context_is_named(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HERE.items():
        monkeypatch.setenv(name, value)
    assert isinstance(cluster_state.connect(None, None, account), ServiceAccount)
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    with pytest.raises(Exception, match="no kubeconfig"):
        cluster_state.connect("mine", None, account)


def test_a_pod_needs_no_package_that_the_gateways_image_lacks() -> None:
    """What is imported to run in the pods of the scaler and of the keys' job; `kubernetes` is for kubeconfigs."""
    code = "import sys, serving.cluster.scaler.command, serving.cluster.keys_secret\n"
    code += "print(*{it.partition('.')[0] for it in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"kubernetes", "urllib3", "requests"}.isdisjoint(done.stdout.split())
