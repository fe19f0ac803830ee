"""The TANDEM_… variables of a process, which is stopped by one that nothing reads, and the proxies that loopback must not go through.

Apart from `settings.py`, so that the command line starts without what reads files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping

from serving.documents.nearest import nearest
from serving.errors import UserError

# Name -> what it does. The settings table in docs/settings.md is generated from this and from the models below.
ENVIRONMENT = {
    "TANDEM_CACHE": "Folder for Triton's environments and measured speeds. Default: $XDG_CACHE_HOME/tandem or ~/.cache/tandem.",
    "TANDEM_STATE": "Folder for logs of `tandem up`. Default: $XDG_STATE_HOME/tandem or ~/.local/state/tandem.",
    "TANDEM_WHEELS": "Folder of wheels; when set, environments are made from it alone, without a network.",
    "TANDEM_SYSTEM_CUDA": "1: the gpu environment gets no wheels of CUDA and cuDNN (2 GB); the loader finds them (LD_LIBRARY_PATH).",
    "TANDEM_CONFIG": "The gateway's tandem.yaml, as `--config`.",
    "TANDEM_HOST": "Address the gateway listens on, as `--host`.",
    "TANDEM_PORT": "Port the gateway listens on, as `--port`.",
    "TANDEM_ADMIN_HOST": "Address of the admin listener, as `--admin-host`.",
    "TANDEM_ADMIN_PORT": "Port of the admin listener, as `--admin-port`.",
    "TANDEM_GRPC_PORT": "Port of the v2 protocol over gRPC, as `--grpc-port`.",
    "TANDEM_KEYS": "File of API keys, as `--keys`.",
    "TANDEM_CONTROL": "Where the control document is, as `--control`.",
    "TANDEM_ALLOWED_HOSTS": "Names under which clients reach the gateway, as `--allowed-hosts`.",
    "TANDEM_API_KEY": "The key that Tandem's own load tests and its scaler send to a gateway that wants one.",
    "TANDEM_OWN_KEY": "Set by `tandem up` for its gateway: id and SHA-256 of the key with which it asks for its status.",
    "TANDEM_COMPILED": "0: scheduling runs as Python even where it was compiled.",
    "TANDEM_MODEL_REPOSITORY": "The model repository, as `--model-repository`.",
}
# As urllib, requests, curl and gRPC compare hosts: names with all below them (*.localhost); urllib knows no networks and
# wants an IPv6 address with its brackets.
LOOPBACK = ("localhost", "127.0.0.1", "127.0.0.0/8", "::1", "[::1]")


def check_environment(environment: Mapping[str, str] | None = None) -> None:
    """Raises UserError for a TANDEM_… variable that nothing reads.

    Variables that Kubernetes sets for a service named `tandem…` (TANDEM_…_SERVICE_HOST, TANDEM_…_PORT=tcp://…) are not ours.
    """
    for name, value in (os.environ if environment is None else environment).items():
        if not name.startswith("TANDEM_") or (name in ENVIRONMENT and "://" not in value):
            continue
        if "_SERVICE_" in name or value.startswith(("tcp://", "udp://")) or re.search(r"_PORT_\d+_(TCP|UDP)", name):
            if name in ENVIRONMENT:
                raise UserError(
                    f"{name} is '{value}', which Kubernetes sets for a service of that name; "
                    "set enableServiceLinks: false on the pod"
                )
            continue
        if name not in ENVIRONMENT:
            raise UserError(f"unknown environment variable {name}{nearest(name, ENVIRONMENT)}")


def reach_loopback_directly(environment: MutableMapping[str, str] | None = None) -> None:
    """Excepts loopback from every proxy that the environment names, for this process and all that it starts.

    `no_proxy` is what urllib, requests, gRPC, pip and curl read; gRPC reads `no_grpc_proxy` before it, and only in lower case.
    """
    changed = os.environ if environment is None else environment
    excepted = changed.get("no_proxy") or changed.get("NO_PROXY") or ""
    for name, hosts in {
        "no_proxy": excepted,
        "NO_PROXY": excepted,
        "no_grpc_proxy": changed.get("no_grpc_proxy", excepted),
    }.items():
        given = [host for part in hosts.split(",") if (host := part.strip())]
        if given != ["*"] or name == "no_grpc_proxy":  # gRPC does not know that word
            changed[name] = ",".join(dict.fromkeys((*given, *LOOPBACK)))
