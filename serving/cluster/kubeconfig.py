"""Finds the API server and the sign-in of a kubeconfig's context, as kubectl does.

The exceptions of the kubeconfig loader become ours here and nowhere else; the asking is in `api`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes import client
from kubernetes.config import load_kube_config
from kubernetes.config.kube_config import ENV_KUBECONFIG_PATH_SEPARATOR, KubeConfigMerger
from urllib3 import disable_warnings
from urllib3 import exceptions as http

from serving.cluster.api import Connection, first_line
from serving.errors import EnvironmentFault, UserError

NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123 label, as the API server demands


class UnusableKubeconfig(EnvironmentFault):
    """The kubeconfig, or the sign-in that it names, cannot be used: it is written by a provider's tool, so it counts as the environment."""


def connect(context: str | None, namespace: str | None) -> Connection:
    """The connection of a context, by default the current one; raises UserError for a wrong option, UnusableKubeconfig for a wrong file."""
    if namespace is not None and not NAMESPACE.fullmatch(namespace):
        raise UserError(f"'{namespace}' cannot be a namespace: lower-case letters, digits and '-', at most 63")
    files = _files()
    where = ENV_KUBECONFIG_PATH_SEPARATOR.join(files)
    contexts, current = _contexts(where)
    name = context or current
    if not contexts or not name or name not in contexts:
        raise _wrong_context(where, name, sorted(contexts), is_option=context is not None)
    configuration = _configuration(where, name)
    given = namespace or contexts[name].get("namespace") or "default"
    return Connection(name, configuration.host, given, client.ApiClient(configuration))


def _files() -> list[str]:
    """The kubeconfig files that exist, as kubectl finds them."""
    named = os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = [str(Path(it).expanduser()) for it in named.split(ENV_KUBECONFIG_PATH_SEPARATOR) if it]
    found = [it for it in files if Path(it).exists()]
    if not found:
        raise UnusableKubeconfig(
            f"no kubeconfig: {' and '.join(files) or named} does not exist; set KUBECONFIG to the file that your cluster's "
            "provider writes"
        )
    return found


def _contexts(where: str) -> tuple[Mapping[str, Mapping[str, Any]], str | None]:
    """The contexts of the merged files by name, and the name of the current one."""
    try:
        merged = KubeConfigMerger(where).config.value
        contexts = {str(it["name"]): it["context"] or {} for it in (each.value for each in merged["contexts"])}
        for it in contexts.values():
            it.get("namespace")
        return contexts, merged.get("current-context")
    except Exception as error:  # the merger checks nothing: any type error may come out of a file of another shape
        raise UnusableKubeconfig(f"{where} is not a kubeconfig: {first_line(error)}") from None


def _wrong_context(
    where: str, name: str | None, contexts: list[str], *, is_option: bool
) -> UserError | UnusableKubeconfig:
    if not contexts:
        return UnusableKubeconfig(f"{where} has no contexts; let your cluster's provider write it again")
    there = f"there {'is' if len(contexts) == 1 else 'are'} {', '.join(contexts)}"
    if name:
        return (UserError if is_option else UnusableKubeconfig)(f"{where} has no context '{name}'; {there}")
    return UnusableKubeconfig(f"{where} names no current context; give --context: {there}")


def _configuration(where: str, context: str) -> client.Configuration:
    """Where the server is and how to sign in there; runs the sign-in program that the context may name."""
    configuration = client.Configuration(host="")  # its own default is a server on localhost
    configuration.retries = 0
    complaints = _Complaints()
    logging.getLogger().addHandler(complaints)
    try:
        load_kube_config(where, context, configuration)
    except Exception as error:  # also of the sign-in: OAuth, a cloud's library, a program
        raise UnusableKubeconfig(f"context '{context}' of {where} cannot be used: {first_line(error)}") from None
    finally:
        logging.getLogger().removeHandler(complaints)
    if complaints.lines:
        raise UnusableKubeconfig(f"the sign-in of context '{context}' in {where} failed: {complaints.lines[0]}")
    if not _is_address(configuration.host):
        raise UnusableKubeconfig(
            f"context '{context}' of {where} names no server: '{configuration.host}' is not https://HOST:PORT"
        )
    if not configuration.verify_ssl:
        disable_warnings(http.InsecureRequestWarning)  # the kubeconfig says so, in as many words
    return configuration


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an open bracket, a port above 65535
        return False


class _Complaints(logging.Handler):
    """Keeps what the loader only logs: a sign-in program that failed, after which it would go on as nobody."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(" ".join(record.getMessage().split()))
