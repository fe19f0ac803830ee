"""What do metrics.k8s.io and external.metrics.k8s.io say? Whatever a test puts here; the autoscalers that read it are real.

PUT /external/NAME?pool=gpu with a number sets an external metric, whose labels a HorizontalPodAutoscaler's selector must name
exactly. PUT /cpu/NAMESPACE?SELECTOR with a ratio sets how much of their CPU request the pods of that selector use. `"none"` unsets
either. A program of its own, behind the API server as an aggregated API: it takes only certificates that the bed's authority signed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import ssl
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

EXTERNAL, RESOURCE = "external.metrics.k8s.io", "metrics.k8s.io"
Labels = frozenset[tuple[str, str]]
external: dict[tuple[str, Labels], float] = {}
cpu_ratio: dict[tuple[str, Labels], float] = {}


def labels(selector: str) -> Labels:
    """Of `a=b,c=d`, in any order."""
    terms = (term.partition("=") for term in selector.split(",") if term)
    return frozenset((name, value) for name, _, value in terms)


def discovery(path: str) -> dict[str, Any] | None:
    def group(name: str) -> dict[str, Any]:
        version = {"groupVersion": f"{name}/v1beta1", "version": "v1beta1"}
        return {"name": name, "versions": [version], "preferredVersion": version}

    def resource(name: str, kind: str, is_namespaced: bool) -> dict[str, Any]:
        return {"name": name, "singularName": "", "namespaced": is_namespaced, "kind": kind, "verbs": ["get", "list"]}

    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group(EXTERNAL), group(RESOURCE)]}
    of_group = {
        EXTERNAL: [resource(name, "ExternalMetricValueList", True) for name in sorted({name for name, _ in external})],
        RESOURCE: [resource("nodes", "NodeMetrics", False), resource("pods", "PodMetrics", True)],
    }
    for name, resources in of_group.items():
        if path == f"/apis/{name}":
            return {"kind": "APIGroup", "apiVersion": "v1", **group(name)}
        if path == f"/apis/{name}/v1beta1":
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": f"{name}/v1beta1",
                "resources": resources,
            }
    return None


def external_values(name: str, selector: str) -> dict[str, Any]:
    wanted = labels(selector)
    value = external.get((name, wanted))
    item = {"metricName": name, "metricLabels": dict(wanted), "timestamp": now()}
    items = [] if value is None else [{**item, "value": f"{round(value * 1000)}m"}]
    return {"kind": "ExternalMetricValueList", "apiVersion": f"{EXTERNAL}/v1beta1", "metadata": {}, "items": items}


def pod_metrics(pods: list[dict[str, Any]], ratio: float | None) -> dict[str, Any]:
    """Each container uses that part of its CPU request; without a ratio nothing is known of the pods."""
    known = [] if ratio is None else [it for it in pods if it["status"].get("phase") == "Running"]
    items = [
        {
            "metadata": {key: it["metadata"][key] for key in ("name", "namespace", "labels")},
            "timestamp": now(),
            "window": "10s",
            "containers": [
                {"name": of["name"], "usage": {"cpu": f"{round(millicores(of) * (ratio or 0.0))}m", "memory": "64Mi"}}
                for of in it["spec"]["containers"]
            ],
        }
        for it in known
    ]
    return {"kind": "PodMetricsList", "apiVersion": f"{RESOURCE}/v1beta1", "metadata": {}, "items": items}


def millicores(container: dict[str, Any]) -> float:
    asked = str(container.get("resources", {}).get("requests", {}).get("cpu", "0"))
    return float(asked[:-1]) if asked.endswith("m") else float(asked) * 1000


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api = ""
    context: ssl.SSLContext

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if found := discovery(url.path):
            return self._reply(200, found)
        selector = parse_qs(url.query).get("labelSelector", [""])[0]
        match url.path.strip("/").split("/"):
            case ["apis", group, "v1beta1", "namespaces", _, name] if group == EXTERNAL:
                return self._reply(200, external_values(name, selector))
            case ["apis", group, "v1beta1", "namespaces", namespace, "pods"] if group == RESOURCE:
                ratio = cpu_ratio.get((namespace, labels(selector)))
                return self._reply(200, pod_metrics(self._pods(namespace, selector), ratio))
            case ["apis", group, "v1beta1", "nodes"] if group == RESOURCE:
                return self._reply(
                    200, {"kind": "NodeMetricsList", "apiVersion": f"{RESOURCE}/v1beta1", "metadata": {}, "items": []}
                )
            case _:
                return self._reply(
                    404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
                )

    def do_PUT(self) -> None:
        url = urlsplit(self.path)
        value = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, which, name = url.path.split("/")
        values = {"external": external, "cpu": cpu_ratio}[which]
        key = (name, labels(unquote(url.query).replace("&", ",")))
        values.pop(key, None)
        if value != "none":
            values[key] = float(value)
        self._reply(200, {})

    def _pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        url = f"{self.api}/api/v1/namespaces/{namespace}/pods?labelSelector={quote(selector)}"
        with urllib.request.urlopen(url, timeout=5, context=self.context) as answer:
            items: list[dict[str, Any]] = json.load(answer)["items"]
            return items

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def end_with(parent_pid: int) -> None:
    """Asks the kernel to kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent_pid:
        sys.exit(1)


def serve(port: int, certificates: Path, api: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    Handler.api = api
    Handler.context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    Handler.context.load_cert_chain(certificates / "admin.crt", certificates / "admin.key")
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificates", type=Path, required=True)
    parser.add_argument("--api", required=True)
    given = parser.parse_args()
    if "BED_PARENT_PID" in os.environ:
        end_with(int(os.environ["BED_PARENT_PID"]))
    serve(given.port, given.certificates, given.api)
