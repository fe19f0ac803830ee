"""Every way not to reach a cluster ends in one line that names it, with the right exit code, within seconds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration

from serving.cli import main
from serving.cluster.api import Connection, certificate_end
from serving.cluster.client import ApiError
from tests.cluster.servers import answering, nobody, silent

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`

ROOT = Path(__file__).parents[2]
NO_PROXY_THERE = "http://127.0.0.1:1"
LONGEST_S = 60.0  # the timeout that is met is 5 s; starting Python and the client takes 1 to 4, and 20 on a machine with much to do


Preflight = Callable[..., tuple[int, str]]


def process(kubeconfig: Path | str, *arguments: str, home: Path) -> tuple[int, str]:
    """Exit code and the one line on stderr of a process of its own, into which nothing of this machine's Kubernetes gets."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(kubeconfig)}
    environment |= {"http_proxy": NO_PROXY_THERE, "https_proxy": NO_PROXY_THERE}  # loopback is reached without
    done = subprocess.run(
        [sys.executable, "-m", "serving", "cluster", "preflight", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST_S,
    )  # fmt: skip
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return done.returncode, line


@pytest.fixture
def preflight(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Preflight:
    """The same without a process, for the long tables: importing the client takes a second."""

    def run(kubeconfig: Path | str, *arguments: str, verb: str = "preflight") -> tuple[int, str]:
        for name, value in (("HOME", str(tmp_path)), ("KUBECONFIG", str(kubeconfig)), ("NO_PROXY", "*")):
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["tandem", "cluster", verb, *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capfd.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        assert isinstance(end.value.code, int)
        return end.value.code, line

    return run


def kubeconfig(folder: Path, server: str | None, user: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A kubeconfig with the contexts `east` (current) and `west`."""
    cluster = {} if server is None else {"server": server}
    written = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "east",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user or {"token": "none"}}],
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in ("west", "east")],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps({**written, **changes}), encoding="utf-8")
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("named", ["", "missing", "missing:gone"], ids=["nothing named", "one file", "two files"])
def test_without_a_kubeconfig_it_says_where_it_looked(tmp_path: Path, named: str) -> None:
    code, line = process(":".join(str(tmp_path / it) for it in named.split(":") if it), home=tmp_path)
    assert code == 3
    assert "no kubeconfig" in line
    assert (str(tmp_path / "gone") if "gone" in named else str(tmp_path)) in line


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{not: [yaml", id="not YAML"),
        pytest.param(b"just words", id="a string"),
        pytest.param(b"- a\n- b\n", id="a list"),
        pytest.param(b"contexts: 5\n", id="contexts that are a number"),
        pytest.param(b"contexts: [a, b]\n", id="contexts that are names only"),
        pytest.param(b"contexts: [{name: a, context: b}]\n", id="a context that is a name only"),
        pytest.param(b"\xff\xfe\x00\x01", id="bytes"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named(preflight: Preflight, tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(text)
    code, line = preflight(path)
    assert code == 3
    assert re.search(rf"{re.escape(str(path))} .*\bkubeconfig\b", line)


@pytest.mark.thorough
def test_a_broken_file_is_one_line_too(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("{not: [yaml", encoding="utf-8")
    code, line = process(path, home=tmp_path)
    assert code == 3
    assert re.match(rf"tandem: {re.escape(str(path))} .*\bkubeconfig\b", line)


@pytest.mark.thorough
def test_a_folder_is_no_kubeconfig(tmp_path: Path) -> None:
    code, line = process(tmp_path, home=tmp_path)
    assert code == 3
    assert re.search(rf"{re.escape(str(tmp_path))} .*\bkubeconfig\b", line)


@pytest.mark.thorough
def test_an_unknown_context_is_answered_with_those_there_are(tmp_path: Path) -> None:
    code, line = process(kubeconfig(tmp_path, "https://127.0.0.1:1"), "--context", "north", home=tmp_path)
    assert code == 2
    assert re.search("'north'.* east, west$", line)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"current-context": "gone"}, "has no context 'gone'; there are east, west", id="stale current"),
        pytest.param({"current-context": ""}, "names no current context; give --context: there are", id="no current"),
        pytest.param({"contexts": []}, "has no contexts", id="no contexts"),
        pytest.param({"clusters": []}, "context 'east' of", id="a context without its cluster"),
        pytest.param({"users": [{"name": "u", "user": {"client-certificate": "gone.crt"}}]}, "gone.crt", id="no certificate"),
        pytest.param({"users": [{"name": "u", "user": {"client-certificate-data": "a"}}]}, "cannot be used", id="not base64"),
    ],
)  # fmt: skip
def test_a_context_that_leads_nowhere_is_told_with_what_lacks(
    preflight: Preflight, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    code, line = preflight(kubeconfig(tmp_path, "https://127.0.0.1:1", **changes))
    assert code == 3
    assert says in line


@pytest.mark.parametrize(
    "server", [None, "", "banana", "127.0.0.1:6443", "ftp://127.0.0.1", "https://", "https://h:99999"]
)
def test_a_server_that_is_no_address_is_told_as_it_stands_there(
    preflight: Preflight, tmp_path: Path, server: str | None
) -> None:
    code, line = preflight(kubeconfig(tmp_path, server))
    assert code == 3
    assert "names no server" in line


@pytest.mark.parametrize("namespace", ["", "Tandem", "-a", "a/b", "a" * 64])
def test_a_name_that_no_namespace_can_have_is_refused(preflight: Preflight, tmp_path: Path, namespace: str) -> None:
    code, line = preflight(kubeconfig(tmp_path, "https://127.0.0.1:1"), f"--namespace={namespace}")
    assert code == 2
    assert f"'{namespace}'" in line


@pytest.mark.parametrize(
    ("command", "says"),
    [
        pytest.param(["false"], "the sign-in of context 'east'", id="fails"),
        pytest.param(["no-such-sign-in"], "no-such-sign-in", id="is not installed"),
        pytest.param(["echo", "hello"], "the sign-in of context 'east'", id="says something else"),
    ],
)
def test_a_sign_in_program_that_fails_is_named_instead_of_going_on_as_nobody(
    preflight: Preflight, tmp_path: Path, command: list[str], says: str
) -> None:
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": command[0], "args": command[1:]}
    with answering(200, b"{}") as address:
        path = kubeconfig(tmp_path, f"http://{address}", {"exec": {**program, "interactiveMode": "Never"}})
        code, line = preflight(path)
    assert code == 3
    assert says in line


@pytest.mark.thorough
def test_a_server_that_refuses_the_connection_is_named(tmp_path: Path) -> None:
    with nobody() as address:
        code, line = process(kubeconfig(tmp_path, f"https://{address}"), home=tmp_path)
    assert code == 3
    assert f"https://{address} cannot" in line
    assert "refused" in line


def test_a_name_that_nobody_knows_is_said_to_be_one(preflight: Preflight, tmp_path: Path) -> None:
    code, line = preflight(kubeconfig(tmp_path, "https://no-such-host.invalid"))
    assert code == 3
    assert "cannot be resolved" in line


@pytest.mark.thorough
def test_a_server_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    with silent() as address:
        code, line = process(kubeconfig(tmp_path, f"https://{address}"), home=tmp_path)
    assert code == 3
    assert f"{address} accepts the connection" in line


def test_a_server_without_tls_is_told_from_one_that_is_down(preflight: Preflight, tmp_path: Path) -> None:
    with answering(200, b"{}") as address:
        code, line = preflight(kubeconfig(tmp_path, f"https://{address}"))
    assert code == 3
    assert "TLS" in line


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        pytest.param(401, b'{"kind": "Status", "code": 401}', "sign in again", id="unknown user"),
        pytest.param(403, b'{"kind": "Status", "code": 403}', "this user may not ask that", id="no permission"),
        pytest.param(403, b"<html>", "a proxy or a gateway?", id="a proxy"),
        pytest.param(404, b"<html>", "is this a Kubernetes API server?", id="another server"),
        pytest.param(500, b"", "answers 500 when asked for its version", id="broken"),
        pytest.param(503, b"", "answers 503 when asked for its version", id="overloaded"),
        pytest.param(200, b"", "does not answer as Kubernetes", id="an empty answer"),
        pytest.param(200, b"[]", "does not answer as Kubernetes", id="a list"),
        pytest.param(200, b'{"hello": "world"}', "does not answer as Kubernetes", id="another object"),
        pytest.param(200, b'{"gitVersion": ', "does not answer as Kubernetes", id="half an answer"),
    ],
)
def test_an_answer_that_is_none_says_so(
    preflight: Preflight, tmp_path: Path, status: int, body: bytes, says: str
) -> None:
    with answering(status, body) as address:
        code, line = preflight(kubeconfig(tmp_path, f"http://{address}"))
    assert code == 3
    assert says in line


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        pytest.param(401, b"{}", "answers 401 when asked for deployments; sign in again", id="unknown user"),
        pytest.param(403, b'{"kind": "Status"}', "answers 403 when asked for the deployments of namespace 'default'", id="no permission"),
        pytest.param(403, b'{"error": "blocked"}', "a proxy or a gateway?", id="a proxy"),
        pytest.param(503, b"", "answers 503 when asked for deployments", id="overloaded"),
        pytest.param(302, b"", "answers 302 when asked for deployments", id="sent elsewhere"),
        pytest.param(200, b"<html>", "does not answer as Kubernetes", id="a web page"),
        pytest.param(200, b"[]", "does not answer as Kubernetes", id="a list"),
        pytest.param(200, b'{"hello": "world"}', "does not answer as Kubernetes", id="another object"),
        pytest.param(200, b'{"items": 5}', "does not answer as Kubernetes", id="items that are none"),
        pytest.param(200, b'{"items": [5]}', "does not answer as Kubernetes", id="an item that is none"),
    ],
)  # fmt: skip
def test_status_says_so_too(preflight: Preflight, tmp_path: Path, status: int, body: bytes, says: str) -> None:
    with answering(status, body) as address:
        code, line = preflight(kubeconfig(tmp_path, f"http://{address}"), verb="status")
    assert code == 3
    assert says in line


def test_status_of_a_server_that_knows_no_tandem_names_the_namespace(preflight: Preflight, tmp_path: Path) -> None:
    with answering(200, b'{"items": []}') as address:
        code, line = preflight(kubeconfig(tmp_path, f"http://{address}"), "--namespace=serve", verb="status")
    assert code == 2
    assert re.search("'serve'.*'east'", line)


def test_status_without_a_kubeconfig_says_where_it_looked(preflight: Preflight, tmp_path: Path) -> None:
    code, line = preflight(tmp_path / "gone", verb="status")
    assert (code, f"{tmp_path / 'gone'} does not exist" in line) == (3, True)


# Of a key that nobody has: `openssl ca -selfsign -startdate 20240101000000Z -enddate 20240201000000Z`.
EXPIRED = """-----BEGIN CERTIFICATE-----
MIG+MHICAQEwBQYDK2VwMAwxCjAIBgNVBAMMAXUwHhcNMjQwMTAxMDAwMDAwWhcN
MjQwMjAxMDAwMDAwWjAMMQowCAYDVQQDDAF1MCowBQYDK2VwAyEA+41yCIiJjMxl
RR4YJv3vQ0J6IYEnoeMViK0ofC41PxowBQYDK2VwA0EAAvlgBKY1ZxNa93B+LhkJ
FfWNVx4dw8BNw4+g8qIzPPzt7F2BcURAPiVdmJUfQOpj30ipzVFo3PcjGMwmhqVa
BA==
-----END CERTIFICATE-----
"""


def test_a_client_certificate_that_has_expired_is_named(tmp_path: Path) -> None:
    assert certificate_end(EXPIRED) == datetime(2024, 2, 1, tzinfo=UTC)
    configuration = Configuration(host="")
    configuration.cert_file = str(tmp_path / "client.crt")
    Path(configuration.cert_file).write_text(EXPIRED)
    with answering(401, b'{"kind": "Status", "code": 401}') as address, ApiClient(configuration) as api:
        with pytest.raises(ApiError, match=r"certificate .*2024-02-01"):
            Connection("east", f"http://{address}", "default", api).get("/version", "its version")
