"""Which of several scalers may change the cluster: the holder of a Lease of coordination.k8s.io, renewed every second.

A holder that is killed is followed within LEASE_S and a round, one that is told to stop within a round, because it gives the Lease back.
Whoever waits goes by its own clock: a Lease is free when it has not changed for LEASE_S since it was seen, so that clocks of nodes need not
agree. A holder that could not renew for RENEWED_S changes nothing any more, which is earlier than anybody else may begin. Rule: no error
ends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf

from serving.cluster.client import ApiError, Client, WriteError
from serving.cluster.objects.fields import Object, at, text
from serving.errors import TandemError

LEASE_S = 3  # whole seconds in the object; with a round of one second a killed holder is followed within four
RENEWED_S = 2.0
CONFLICT = 409  # somebody else was quicker
NOTE = "tandem-bursts"  # an annotation
NOTED_EVERY_S = 10.0  # and what is newer is lost with its holder


@dataclass(frozen=True, slots=True)
class LeaderSnapshot:
    """`holder`: the scaler that writes, as its Lease says. `problem`: why this one cannot write, or cannot know."""

    is_leading: bool = False
    holder: str = ""
    problem: str = ""


class Leader:
    """`identity`: of this process, such as its pod's name. Called from one thread.

    `note`: what whoever leads next is to know, as last seen in the Lease; None: it was not read yet.
    """

    def __init__(self, name: str, identity: str, now: Callable[[], float] = time.monotonic) -> None:
        self.name, self.identity = name, identity
        self.holder = ""  # as last seen
        self.problem = ""
        self.note: str | None = None
        self._now = now
        self._noted_at = -inf
        self._renewed_at = -inf
        self._seen = ""  # the Lease's version
        self._seen_at = -inf

    def leads(self) -> bool:
        return self._now() - self._renewed_at < RENEWED_S

    def renew(self, client: Client, note: Callable[[], str | None] = lambda: None) -> None:
        """Takes the Lease, keeps it, or waits for it: to be called every second. `note`: to be left there, None leaves what is there."""
        began = self._now()
        try:
            lease = self._read(client)
            if lease is None:
                self._write(client, "POST", self._lease(None, note), began)
            elif self._is_ours(lease) or self._is_free(lease, began):
                self._write(client, "PUT", self._lease(lease, note), began)
            self.problem = ""
        except WriteError as error:
            if error.status != CONFLICT:
                self.problem = str(error)
        except TandemError as error:
            self.problem = str(error)

    def give_back(self, client: Client) -> None:
        """So that the next one need not wait."""
        if not self.leads():
            return
        self._renewed_at = -inf
        try:
            lease = self._read(client)
            if lease is not None and self._is_ours(lease):
                spec = {**at(lease, "spec"), "holderIdentity": "", "leaseDurationSeconds": 1}
                client.write("PUT", self._path(client), f"to give lease {self.name} back", {**lease, "spec": spec})
        except TandemError:
            pass  # it ends by itself

    def _path(self, client: Client) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{client.namespace}/leases/{self.name}"

    def _read(self, client: Client) -> Object | None:
        try:
            lease = client.get(self._path(client), f"lease {self.name}")
        except ApiError as error:
            if error.status != 404:
                raise
            self.holder, self.note = "", ""
            return None
        version = text(lease, "metadata", "resourceVersion")
        if version != self._seen:
            self._seen, self._seen_at = version, self._now()
        self.holder = text(lease, "spec", "holderIdentity")
        self.note = text(lease, "metadata", "annotations", NOTE)
        return lease

    def _is_ours(self, lease: Object) -> bool:
        return text(lease, "spec", "holderIdentity") == self.identity

    def _is_free(self, lease: Object, now: float) -> bool:
        lasts_s = at(lease, "spec", "leaseDurationSeconds", default=LEASE_S)
        return not text(lease, "spec", "holderIdentity") or now - self._seen_at >= lasts_s

    def _lease(self, old: Object | None, note: Callable[[], str | None]) -> Object:
        """With the version of the one that was read, so that of two who take it one is refused."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, object] = dict(at(old, "spec", default={})) if old else {"leaseTransitions": 0}
        if old is None or not self._is_ours(old):
            spec |= {"acquireTime": now, "leaseTransitions": int(str(spec.get("leaseTransitions") or 0)) + bool(old)}
        spec |= {"holderIdentity": self.identity, "leaseDurationSeconds": LEASE_S, "renewTime": now}
        metadata = dict(at(old, "metadata", default={})) if old else {"name": self.name}
        if self._now() - self._noted_at >= NOTED_EVERY_S and (left := note()) is not None:
            self._noted_at = self._now()
            metadata["annotations"] = {**at(metadata, "annotations", default={}), NOTE: left}
        return {**(old or {}), "metadata": metadata, "spec": spec}

    def _write(self, client: Client, method: str, lease: Object, began: float) -> None:
        path = self._path(client) if method == "PUT" else self._path(client).rpartition("/")[0]
        written = client.write(method, path, f"to hold lease {self.name}", lease)
        self.holder, self._renewed_at = self.identity, began
        self._seen, self._seen_at = text(written, "metadata", "resourceVersion"), began
