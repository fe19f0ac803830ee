"""The gateway under test: does it answer, what does it serve, and did it stay the same process during a run?

Plain HTTP, never through a proxy, with the API key in TANDEM_API_KEY if there is one: never on a command line, and in no file of
results. A key with scope `infer` is enough to send load; with `admin` and `metrics` too, the report has what the gateway knows. Starts a
`tandem up` of its own where none runs, as a subprocess.
What the answers mean for a run is judged in `report/build.py`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from loadtest.errors import CampaignError, TargetError
from loadtest.sending.bodies import Body
from serving.children import held
from serving.http_client import Connection, address, request_bytes
from serving.ports import free_ports

VARIABLE = "TANDEM_API_KEY"


def credentials() -> dict[str, str]:
    """Headers; none where there is no key. Raises CampaignError for a text that no header may hold."""
    key = os.environ.get(VARIABLE)
    if not key:
        return {}
    if not key.isascii() or not key.isprintable() or " " in key:
        raise CampaignError(f"{VARIABLE} holds what no API key is: blanks, line ends or letters beyond ASCII.")
    return {"Authorization": f"Bearer {key}"}


LEASH = Path(__file__).resolve().parent.parent / "serving" / "local" / "leash.py"  # a script of its own
DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 10.0
# A first start makes Triton's environment out of 200 MB of wheels, a GPU's out of 2 GB (the slowest seen took 4 minutes).
START_TIMEOUT_S = 900.0
# What `tandem up` says once every Triton has loaded what it can; its gateway is ready with the first variant already. Large models take
# minutes to load, and what has not come by then is told as not served.
READY_LINE = "ready in "
MAX_SETTLE_S = 300.0
# `tandem up` drains for up to 30 s where a connection hangs.
STOP_TIMEOUT_S = 45.0
_COUNTER = re.compile(r"^tandem_requests_total(?:\{[^}]*\})? ([0-9.eE+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway by its URL, or a Triton. Methods answer None, or False, where it does not.

    `has_key`: whether it is sent the key of `credentials`, which is for gateways and for no Triton.
    """

    url: str
    has_key: bool = False

    @property
    def is_local(self) -> bool:
        """By the names of this machine that need no look-up, and by its addresses."""
        host = address(self.url)[0]
        return (
            host in ("localhost", socket.gethostname().lower()) or host.startswith("127.") or host in _own_addresses()
        )

    def is_ready(self) -> bool:
        """Also tells a Tandem from whatever else listens on the port."""
        answer = self.get_json("/health/ready", timeout_s=2.0)
        return isinstance(answer, dict) and answer.get("ready") is True

    def status(self) -> dict[str, Any] | None:
        """`/admin/status`, which is there on loopback only."""
        answer = self.get_json("/admin/status")
        return answer if isinstance(answer, dict) and answer.get("version") == 1 else None

    def served(self) -> set[tuple[str, str, str]]:
        """(model, variant, pool) of all that can be asked for now."""
        models: dict[str, Any] = (self.status() or {}).get("models") or {}
        return {(name, v["variant"], v["pool"]) for name, model in models.items() for v in model.get("variants", ())}

    def metadata(self, model: str) -> dict[str, Any] | None:
        answer = self.get_json(f"/v2/models/{model}")
        return answer if isinstance(answer, dict) else None

    def versions(self) -> dict[str, str]:
        """Of the gateway, from v2's server metadata, and of every pool's Triton where the status tells it."""
        found = {}
        if isinstance(server := self.get_json("/v2"), dict) and "name" in server:
            found[f"gateway ({server['name']})"] = str(server.get("version", "unknown"))
        for pool, facts in ((self.status() or {}).get("pools") or {}).items():
            tritons = {str(s["triton"]) for s in facts.get("servers", ()) if s.get("triton")}
            if tritons:
                found[f"triton ({pool})"] = ", ".join(sorted(tritons))
        return found

    def num_requests(self) -> int | None:
        """All requests that the gateway has counted since it started."""
        values = _COUNTER.findall(self.get_text("/metrics") or "")
        return int(sum(float(v) for v in values)) if values else None

    def num_inferences(self, names: tuple[str, ...]) -> int | None:
        """Requests that Triton has answered under its one model name; None where several servers share the work."""
        if len(names) != 1:
            return None
        answer = self.get_json(f"/v2/models/{names[0]}/stats")
        try:
            return sum(int(m["inference_stats"]["success"]["count"]) for m in answer["model_stats"])
        except (TypeError, KeyError, ValueError):
            return None

    def refusal(self, model: str, variant: str, pool: str, body: Body) -> str | None:
        """Why one request pinned like this fails; None if it is answered."""
        headers = {**body.headers, "Tandem-Variant": variant, "Tandem-Pool": pool}
        answer = self._get(f"/v2/models/{model}/infer", 60.0, body.data, headers)
        if answer is None:
            return "the gateway did not answer"
        status, text = answer
        if status == 200:
            return None
        try:
            return f"the gateway answers {status}: {json.loads(text)['error']}"
        except (ValueError, KeyError, TypeError):
            return f"the gateway answers {status}"

    def refusal_of_key(self) -> str | None:
        """Why it does not let us in; None where it does."""
        answer = self._get("/v2", TIMEOUT_S)
        if answer is None or answer[0] not in (401, 403):
            return None
        try:
            return str(json.loads(answer[1])["error"])
        except (ValueError, KeyError, TypeError):
            return f"status {answer[0]}"

    def get_text(self, path: str, timeout_s: float = TIMEOUT_S) -> str | None:
        answer = self._get(path, timeout_s)
        return answer[1].decode("utf-8", "replace") if answer and answer[0] == 200 else None

    def get_json(self, path: str, timeout_s: float = TIMEOUT_S) -> Any:
        answer = self._get(path, timeout_s)
        if answer is None or answer[0] != 200:
            return None
        try:
            return json.loads(answer[1])
        except ValueError:
            return None

    def _get(
        self, path: str, timeout_s: float, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes] | None:
        given = (credentials() if self.has_key else {}) | (headers or {})
        method = "GET" if body is None else "POST"
        try:
            connection = Connection(self.url, timeout_s)
            try:
                response = connection.send(request_bytes(method, self.url, path, given, body or b""))
            finally:
                connection.close()
        except (OSError, ValueError):  # refused, timed out, not HTTP
            return None
        return response.status, response.body


def _own_addresses() -> set[str]:
    return {known.address for of_one in psutil.net_if_addrs().values() for known in of_one}


def triton_names(status: dict[str, Any] | None, model: str, variant: str) -> tuple[str, ...]:
    """Triton's name of a variant, once per server that holds it."""
    if status is None:
        return ()
    served = (status.get("models") or {}).get(model, {}).get("variants", ())
    names = {v["name"] for v in served if v.get("variant") == variant}
    servers = (s for pool in status["pools"].values() for s in pool.get("servers", ()))
    return tuple(name for s in servers for name in s.get("variants", ()) if name in names)


def not_run_reason(status: dict[str, Any] | None, model: str, variant: str, pool: str) -> str | None:
    """Why an arm cannot run on this gateway; None if it can, or if the gateway keeps its status to itself."""
    if status is None:
        return None
    pools: dict[str, Any] = status.get("pools") or {}
    if pool not in pools:
        return (
            "no GPU on this machine"
            if pool == "gpu"
            else f"the gateway has no pool named {pool}; it has {', '.join(sorted(pools))}"
        )
    if pools[pool].get("state") != "ready":
        return f"the {pool} pool is {pools[pool].get('state')}"
    models: dict[str, Any] = status.get("models") or {}
    if model not in models:
        return f"the gateway serves no model named {model}; it serves {', '.join(sorted(models)) or 'none'}"
    if any(v.get("variant") == variant and v.get("pool") == pool for v in models[model].get("variants", ())):
        return None
    refused = [
        s["refused"][name]
        for s in pools[pool].get("servers", ())
        for name in s.get("refused", {})
        if name == f"{model}-{variant}"
    ]
    return f"{variant} is not served on the {pool} pool" + (f": {refused[0]}" if refused else "")


def find_gateway(url: str | None) -> Gateway | None:
    """The gateway that was named, or the one at the default address if it is there.

    Raises TargetError if the named one is not, CampaignError if `url` is no address or it does not let us in.
    """
    gateway = Gateway((url or DEFAULT_URL).rstrip("/"), has_key=True)
    try:
        address(gateway.url)
    except ValueError as error:
        raise CampaignError(f"--url: {error}.") from None
    if gateway.is_ready():
        if (refused := gateway.refusal_of_key()) is not None:
            raise CampaignError(
                f"the gateway at {gateway.url} answers: {refused}; put a key with scope infer into {VARIABLE}."
            )
        return gateway
    if url is not None:
        raise TargetError(
            f"no ready Tandem gateway answers at {url}; start one with `tandem up`, or leave out --url to have one started."
        )
    return None


@contextmanager
def own_gateway(log: Path, repository: Path | None = None) -> Iterator[Gateway]:
    """A `tandem up` on a free port until the block ends. Its words go to `log`."""
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "serving", "up", "--port", str(port)]
    command += [] if repository is None else ["--model-repository", str(repository.resolve())]
    root = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    gateway = Gateway(f"http://127.0.0.1:{port}", has_key=True)
    process: subprocess.Popen[bytes] | None = None
    try:
        with log.open("wb") as file, held():
            process = subprocess.Popen(
                leashed(command), stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
            )
        _wait(process, gateway, log)
        _settle(process, log)
        yield gateway
    finally:
        if process is not None:
            stop(process, signal.SIGTERM, STOP_TIMEOUT_S)


def _wait(process: subprocess.Popen[bytes], gateway: Gateway, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not gateway.is_ready():
        if process.poll() is not None:
            raise TargetError(f"`tandem up` ended with exit code {process.returncode}: {last_line(log)}")
        if time.monotonic() > deadline:
            raise TargetError(f"`tandem up` was not ready after {START_TIMEOUT_S:.0f} s; its log is {log}.")
        time.sleep(0.1)


def _settle(process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it says itself that all is served: an arm must not be left out because its model was still loading."""
    deadline = time.monotonic() + MAX_SETTLE_S
    while process.poll() is None and time.monotonic() < deadline:
        if READY_LINE in log.read_text(encoding="utf-8", errors="replace"):
            return
        time.sleep(0.1)


def leashed(command: list[str]) -> list[str]:
    """In a group of its own, so that Ctrl-C reaches us alone, who stop the load first and the gateway last; told to end when we are killed.

    To be started from the main thread: the leash is that thread's.
    """
    return [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), str(int(signal.SIGTERM)), *command]


def stop(process: subprocess.Popen[bytes], sign: signal.Signals, timeout_s: float) -> None:
    """Asks a process that leads its own group to end; kills the group if it does not in time."""
    if process.poll() is None:
        process.send_signal(sign)
    try:
        process.wait(timeout_s)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, KeyboardInterrupt):  # a second Ctrl-C
            raise


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of the group that a process led, whether or not it still lives itself."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    said = [line.strip() for line in lines if line.strip()]
    return said[-1] if said else "it said nothing"
