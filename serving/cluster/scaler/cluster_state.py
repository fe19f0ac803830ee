"""Reads Deployments and pods from the cluster, on a thread of its own that nobody waits for.

At the start it reads how many replicas the Deployments ask for, because a scaler that restarts must not cancel a pod that waits for its
node; then now and then, on how many nodes the pools' pods are; during a cold start, how far its pods and their nodes are. Without an API,
the rights or the package, pools are scaled by metrics alone, which is logged once. Rule: it only reads, and no failure here ends the
scaler.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from serving.cluster.client import ACCOUNT, ApiError, Client, Query, ServiceAccount, UnknownAnswer
from serving.cluster.objects.fields import POOL, RELEASE
from serving.cluster.objects.pods import GATE, Deployment, Pod
from serving.cluster.snapshot import look, with_nodes_of
from serving.decisions.cold_start import Server
from serving.errors import EnvironmentFault, TandemError
from serving.installation import how_to_add

EVERY_S = 2.0  # while there is something to watch; a list of a few pods
NODES_S = 15.0  # else; for people, who are told how many nodes there are
GIVE_UP_S = 30.0  # for an API server that is not there when the scaler starts: two tries and their timeouts; a guess
BY_METRICS = "pools are scaled by what gateways publish alone, and cold starts have no phases of pods"


class Unknowable(EnvironmentFault):
    """Another attempt will not help."""


def connect(context: str | None, namespace: str | None, account: Path | None = None) -> Client:
    """The API server of the pod that this runs in, else that of a kubeconfig's context. Raises TandemError, ModuleNotFoundError."""
    account = account or ACCOUNT
    if context is None and (account / "token").exists():
        return ServiceAccount.of_this_pod(namespace, account)
    from serving.cluster import api

    return api.connect(context, namespace)


def deployments_of_pools(
    deployments: tuple[Deployment, ...] | None, pools: Collection[str], namespace: str
) -> dict[str, Deployment]:
    """Each pool's Deployment; a pool without one is missing. Raises Unknowable."""
    if deployments is None:
        raise Unknowable(f"this account may not see deployments of namespace {namespace}")
    found: dict[str, Deployment] = {}
    for it in deployments:
        if it.pool not in pools:
            continue
        if it.pool in found:
            names = f"{found[it.pool].name} and {it.name}"
            raise Unknowable(f"{names} are both of pool '{it.pool}'; name one with --release")
        found[it.pool] = it
    return found


def asked_for(it: Deployment, pods: Iterable[Pod]) -> int:
    """Replicas that somebody has asked for. A pool whose pods wait for the scaler begins with one that nobody wanted: its gate was never
    opened."""
    is_opened = any(GATE not in pod.spec.gates for pod in pods if pod.pool == it.pool)
    return 0 if it.is_default and not is_opened else it.replicas


class ClusterState:
    """`replicas`: what the pools' Deployments ask for, None where that is not known; `servers`: pods of the pools that are watched.

    `num_nodes`: how many nodes each pool's pods are on, those that are leaving included; None where that is not known.
    """

    def __init__(
        self,
        pools: Collection[str],
        say: Callable[[str], None],
        context: str | None = None,
        namespace: str | None = None,
        release: str | None = None,
    ) -> None:
        self._pools, self._say = tuple(pools), say
        self._context, self._namespace, self._release = context, namespace, release
        self.replicas: Mapping[str, int] | None = None
        self.servers: Mapping[str, tuple[Server, ...]] = {}
        self.num_nodes: Mapping[str, int] | None = None
        self.is_readable: bool | None = None
        self._is_over = False
        self._watched: frozenset[str] = frozenset()
        self._has_work, self._is_stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._problem = ""
        self._began = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def stop(self, wait_s: float = 0.0) -> None:
        """Makes no further request; one in progress has a time limit of its own."""
        self._is_stopped.set()
        self._has_work.set()
        self._thread.join(wait_s)

    def watch(self, pools: Collection[str]) -> None:
        """The pools with a cold start in progress; of the others only the nodes are counted."""
        self._watched = frozenset(pools)
        if pools:
            self._has_work.set()

    def is_settled(self) -> bool:
        """Whether to stop waiting for `replicas`: a sign-in program may hang for ever."""
        return self.replicas is not None or self._is_over or self._waited_s() > 2 * GIVE_UP_S

    def _waited_s(self) -> float:
        return time.monotonic() - self._began

    def _run(self) -> None:
        try:
            client = connect(self._context, self._namespace)
            self._begin(client)
            while not self._is_stopped.is_set():
                if self._watched or self.replicas is not None:
                    self._look(client)
                    self._is_stopped.wait(EVERY_S)
                if not self._watched:
                    self._has_work.wait(None if self.replicas is None else NODES_S)
                self._has_work.clear()
        except ModuleNotFoundError as error:
            self._end(f"the package '{error.name}' is not installed ({how_to_add('cluster')})")
        except TandemError as error:
            self._end(str(error))
        except Exception as error:  # an error of ours, say: the scaling goes on without
            self._end(f"Kubernetes cannot be read ({type(error).__name__}: {error})")

    def _begin(self, client: Client) -> None:
        """Returns when the Deployments are known or cannot be; rights may be granted later, so cold starts try again."""
        while self.replicas is None and not self._is_over and not self._is_stopped.is_set():
            try:
                found = look(client, deployments=self._of(POOL)).deployments
                of_pools = deployments_of_pools(found, self._pools, client.namespace)
                is_any_default = any(it.is_default for it in of_pools.values())
                pods = (look(client, pods=self._of(POOL)).pods or ()) if is_any_default else ()
                self.replicas = {pool: asked_for(it, pods) for pool, it in of_pools.items()}
            except TandemError as error:
                self.is_readable = False
                is_final = isinstance(error, Unknowable | UnknownAnswer)
                if is_final or (isinstance(error, ApiError) and error.status == 401):
                    self._end(str(error))
                    return
                self._say_once(str(error))
                self._is_over = self._waited_s() > GIVE_UP_S
                self._is_stopped.wait(EVERY_S)
                continue
            self.is_readable = True
            if missing := [pool for pool in self._pools if pool not in self.replicas]:
                self._say(f"no Deployment in namespace {client.namespace} is labelled {POOL}={missing[0]}")

    def _look(self, client: Client) -> None:
        watched = sorted(self._watched)
        try:
            found = look(client, pods=self._of(f"{POOL} in ({','.join(self._pools)})"))
            if found.pods is None:
                raise Unknowable(f"this account may not see pods of namespace {client.namespace}")
            there = [it for it in found.pods if not it.has_ended]
            self.num_nodes = {
                pool: len({it.node for it in there if it.pool == pool and it.node}) for pool in self._pools
            }
            coming = tuple(it for it in there if it.pool in watched and not it.is_leaving)
            found = with_nodes_of(client, replace(found, pods=coming))
            self.servers = {pool: tuple(found.server(it) for it in coming if it.pool == pool) for pool in watched}
            self.is_readable, self._problem = True, ""
        except TandemError as error:
            self.is_readable, self.num_nodes = False, None
            self._say_once(f"{error}; phases of cold starts may be missing")

    def _of(self, selector: str) -> Query:
        return {"labelSelector": selector + (f",{RELEASE}={self._release}" if self._release else "")}

    def _end(self, why: str) -> None:
        self.is_readable, self._is_over = False, True
        self._say_once(f"{why}; {BY_METRICS}")

    def _say_once(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._say(problem)
