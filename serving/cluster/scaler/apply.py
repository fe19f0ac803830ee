"""Sets the replicas of the pools that the scaler scales itself (`by: scaler`), and opens the gates of their pods.

A pool that may have none has a Deployment that says no number, so that no later rendering takes the scaler's away; Kubernetes takes that
for one. So its pods have a scheduling gate: a node is looked for, or bought, only for a pod whose gate was opened here, because a server is
wanted. It runs on a thread of its own; of several scalers the leader alone writes. Rule: what is not known is left as it is, but for a
pool's fewest servers, which are wanted whatever comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from serving.cluster.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, Client
from serving.cluster.objects.fields import POOL, RELEASE
from serving.cluster.objects.pods import GATE, Deployment, Pod
from serving.cluster.scaler.cluster_state import connect, deployments_of_pools
from serving.cluster.scaler.leader import Leader, LeaderSnapshot
from serving.cluster.snapshot import look
from serving.errors import EnvironmentFault, TandemError
from serving.installation import how_to_add

EVERY_S = 1.0  # as the scaler decides


@dataclass(frozen=True, slots=True)
class ScaleChange:
    deployment: str
    before: int
    after: int


def scale_changes(
    found: Mapping[str, Deployment], wanted: Mapping[str, int | None], least: Mapping[str, int]
) -> tuple[ScaleChange, ...]:
    """Deployments that ask for another number than is wanted, by pool; while that is unknown, for fewer than `least`."""
    numbers = {pool: wanted.get(pool) for pool in found}
    numbers = {
        pool: max(found[pool].replicas, least.get(pool, 0)) if it is None else it for pool, it in numbers.items()
    }
    return tuple(
        ScaleChange(it.name, it.replicas, number)
        for pool, it in found.items()
        if (number := numbers[pool]) is not None and number != it.replicas
    )


def pods_to_open(
    found: Mapping[str, Deployment], pods: Iterable[Pod], wanted: Mapping[str, int | None]
) -> tuple[str, ...]:
    """Names of gated pods that may look for a node: never more at once than are wanted, and a rollout's surge.

    None of a pool whose Deployment asks for another number still: its pods are about to be others.
    """
    opened: list[str] = []
    there = [it for it in pods if not it.is_leaving and not it.has_ended]
    for pool, it in found.items():
        number = wanted.get(pool)
        if not number or number != it.replicas:
            continue
        of_pool = [each for each in there if each.pool == pool]
        closed = sorted(each.name for each in of_pool if GATE in each.spec.gates)
        room = number + it.max_surge - (len(of_pool) - len(closed))
        opened += closed[: max(0, room)]
    return tuple(opened)


class Applier:
    """`wanted`: a pool's number now, None while it is unknown; `least`: its fewest. `note`: for the next leader, None where there is none.

    `publish` and `note` are called from the thread.
    """

    def __init__(
        self,
        least: Mapping[str, int],
        leader: Leader,
        wanted: Callable[[str], int | None],
        publish: Callable[[LeaderSnapshot, str | None], None],
        say: Callable[[str], None],
        note: Callable[[], str | None] = lambda: None,
        context: str | None = None,
        namespace: str | None = None,
        release: str | None = None,
    ) -> None:
        self._least, self._leader, self._wanted, self._publish, self._say = dict(least), leader, wanted, publish, say
        self._pools, self._note = tuple(least), note
        self._context, self._namespace, self._release = context, namespace, release
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._problem = ""
        self._was_leading = False

    def start(self) -> None:
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Gives the Lease back, if the API server answers in that time."""
        self._is_stopped.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        client = self._connected()
        while client is not None and not self._is_stopped.is_set():
            self._look(client)
            self._is_stopped.wait(EVERY_S)
        if client is not None:
            self._leader.give_back(client)

    def _connected(self) -> Client | None:
        """None where it was stopped first. A kubeconfig or a service account may still come."""
        while not self._is_stopped.is_set():
            try:
                return connect(self._context, self._namespace)
            except ModuleNotFoundError as error:
                self._say_once(f"the package '{error.name}' is not installed ({how_to_add('cluster')})")
            except TandemError as error:
                self._say_once(str(error))
            self._is_stopped.wait(EVERY_S)
        return None

    def _look(self, client: Client) -> None:
        problem = ""
        try:
            self._leader.renew(client, self._note)
            problem = self._leader.problem
            if self._leader.leads():
                for line in self._apply(client):
                    self._say(line)
        except TandemError as error:
            problem = str(error)
        except Exception as error:  # an error of ours, or a Lease of another shape: the next look may be better
            problem = f"replicas cannot be set ({type(error).__name__}: {error})"
        is_leading = self._leader.leads()
        self._say_once(problem)
        if is_leading != self._was_leading:
            self._was_leading = is_leading
            self._say(
                f"{self._leader.identity} sets replicas now"
                if is_leading
                else f"another scaler sets replicas now: {self._leader.holder or 'none yet'}"
            )
        self._publish(LeaderSnapshot(is_leading, self._leader.holder, problem), self._leader.note)

    def _apply(self, client: Client) -> Iterator[str]:
        """A line for each number that it set."""
        names = ",".join(self._pools)
        of_release = f",{RELEASE}={self._release}" if self._release else ""
        query = {"labelSelector": f"{POOL} in ({names}){of_release}"}
        snapshot = look(client, deployments=query, pods=query)
        if snapshot.pods is None:
            raise EnvironmentFault(f"this account may not see pods of namespace {client.namespace}")
        found = deployments_of_pools(snapshot.deployments, self._pools, client.namespace)
        wanted = {pool: self._wanted(pool) for pool in found}
        for it in scale_changes(found, wanted, self._least):
            if not self._leader.leads():
                return
            path = f"/apis/apps/v1/namespaces/{client.namespace}/deployments/{it.deployment}/scale"
            client.write(
                "PATCH", path, f"to scale deployment {it.deployment}", {"spec": {"replicas": it.after}}, MERGE_PATCH
            )
            yield f"deployment {it.deployment}: {it.before} -> {it.after} replicas"
        for name in pods_to_open(found, snapshot.pods, wanted):
            if not self._leader.leads():
                return
            path = f"/api/v1/namespaces/{client.namespace}/pods/{name}"
            body = {"spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}
            client.write("PATCH", path, f"to open the scheduling gate of pod {name}", body, STRATEGIC_MERGE_PATCH)
            yield f"pod {name} may look for a node"
        if missing := [pool for pool in self._pools if pool not in found]:
            raise EnvironmentFault(f"no Deployment in namespace {client.namespace} is labelled {POOL}={missing[0]}")

    def _say_once(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._say(problem or "replicas can be set again")
