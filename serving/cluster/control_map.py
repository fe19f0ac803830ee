"""Keeps a control document in a ConfigMap, which gateways watch and `tandem apply`, kubectl or GitOps write.

Its entry `control.yaml` is the document; what `tandem apply` recorded is in `newest.json` and `revisions.json`. What gateways see of
rollouts is in a second one, NAME-rollouts, in few and short lines: each write of it is a whole object for the API server. A gateway needs
`get` and `watch` of the first, and `get` and `update` of both to judge a rollout; whoever applies also `create`. Rule: a write names the
version that was read, so that of two at once one is refused.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote

from serving.cluster.client import ApiError, Client, WriteError
from serving.cluster.objects.fields import Object, at, text
from serving.cluster.scaler.cluster_state import connect
from serving.control.evidence import Comparison, Read
from serving.control.followers import FORGOTTEN_S, Follower, Renewals, read_followers
from serving.control.revisions import History, Revision, in_force
from serving.control.stores import EVERY_S, MAX_LINES, WHAT, Conflict, Later, Store
from serving.errors import EnvironmentFault, TandemError, UserError

DOCUMENT, NEWEST, REVISIONS = "control.yaml", "newest.json", "revisions.json"
WATCH_S = 5  # of one question, so that an API server that is away is noticed within that and its timeout; a guess
CONFLICT, GONE = 409, 404
GATEWAY = ".gateway."  # before the name of one that announces itself; no model's begins so
TRIES = 5  # to write while other gateways do
MAX_LOG_BYTES = 400_000  # of a ConfigMap's 1 MiB: then a log begins anew; lines of one gateway have 600 bytes, so that is after a day


class ControlMap(Store):
    """`place`: NAME or NAMESPACE/NAME; by default the namespace of this pod, or of the kubeconfig's context."""

    block_s = announce_s = 15.0
    # With 60 none of 12 simulated candidates that are as good was shown to be so within four hours; with 240 a log ends after six.
    num_alike = 120
    num_latencies = 40

    def __init__(self, place: str, client: Client | None = None) -> None:
        """Raises TandemError."""
        namespace, _, name = place.rpartition("/")
        if not name:
            raise UserError("configmap: names no ConfigMap; write configmap:NAME or configmap:NAMESPACE/NAME")
        self._client = connect(None, namespace or None) if client is None else client
        self._namespace = namespace or self._client.namespace
        self._list = f"/api/v1/namespaces/{self._namespace}/configmaps"
        self._object = name
        self._what = f"configmap {name}"
        self._version = ""  # of the object, as it was seen last; empty: to be read anew
        self._last: Revision | None = None
        self._renewals = Renewals()
        self.name = f"{WHAT} {DOCUMENT} in configmap {name} of namespace {self._namespace}"

    def current(self) -> Revision | None:
        self._version, self._last = "", None
        found = self._find()
        return None if found is None else self._see(found)

    def following(self, last: Revision | None) -> Revision | None:
        """By a watch: returns when the object changes, or after WATCH_S."""
        if not self._version:
            found = self.current()
            if found is None or found != last:
                if found is None:
                    time.sleep(EVERY_S)  # nothing to watch yet
                return found
        query = {
            "fieldSelector": f"metadata.name={self._object}",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_S),
        }
        try:
            for kind, it in self._client.watch(self._list, self._what, query):
                if kind in ("ADDED", "MODIFIED"):
                    return self._see(it)
                self._version = ""  # it is gone, or too much has happened since to be told
                return None if kind == "DELETED" else self.current()
        except TandemError:
            self._version = ""
            raise
        return self._last

    def history(self) -> History:
        found = self._find()
        return History() if found is None else _history(found)

    def write(self, following: History, before: History) -> None:
        found = self._find()
        if (History() if found is None else _history(found)).current.digest != before.current.digest:
            raise Conflict(self.name)
        data = {DOCUMENT: following.current.text, NEWEST: following.newest, REVISIONS: following.recorded}
        if not self._put(self._object, found, data):
            raise Conflict(self.name)

    def exchange(self, comparison: Comparison, began: str, place: int, lines: Sequence[str]) -> Read:
        name, model = self._rollouts, comparison.model
        for _ in range(TRIES):
            found = self._find(name)
            head, *kept = ((_entry(found, model) if found is not None else None) or "").split("\n")
            if comparison.is_behind(head):
                raise Later(comparison, f"{model} in configmap {name} of namespace {self._namespace}")
            if not comparison.goes_on(head) or sum(map(len, kept)) > MAX_LOG_BYTES:
                head, kept = comparison.head(secrets.token_hex(4)), []
            kept += lines
            if (not lines and head == began) or self._put(name, found, {model: "\n".join([head, *kept])}):
                first = place if head == began else 0
                read = kept[first : first + MAX_LINES]
                return Read(head, first + len(read), read, len(read) == MAX_LINES)
        raise EnvironmentFault(f"others write configmap {name} of namespace {self._namespace} all the time; try again")

    def announce(self, follower: Follower) -> None:
        self._tell(follower.name, f"{self._client.now_s():.0f} {follower.line}")

    def withdraw(self, name: str) -> None:
        self._tell(name, None)

    def followers(self) -> list[Follower]:
        told = _announced(self._find(self._rollouts))
        ages_s = self._ages_s(told)
        return read_followers((line.partition(" ")[2], ages_s[key]) for key, line in told.items())

    def _ages_s(self, told: Mapping[str, str]) -> dict[str, float]:
        """By this process's own clock since it looked first, before that by the API server's: clocks of gateways differ."""

        def first_s(line: str) -> float:
            at_s = line.partition(" ")[0]
            return self._client.now_s() - float(at_s) if at_s.isdecimal() else FORGOTTEN_S

        return self._renewals.ages(told, time.monotonic(), first_s)

    def _tell(self, follower: str, line: str | None) -> None:
        """Forgets those that have told nothing for an hour, too."""
        key = GATEWAY + "".join(it if it.isalnum() or it in "-." else "_" for it in follower)
        for _ in range(TRIES):
            found = self._find(self._rollouts)
            old = [name for name, age_s in self._ages_s(_announced(found)).items() if age_s >= FORGOTTEN_S]
            if self._put(self._rollouts, found, {**dict.fromkeys(old), key: line}):
                return
        raise EnvironmentFault(f"others write configmap {self._rollouts} all the time; try again")

    @property
    def _rollouts(self) -> str:
        return f"{self._object}-rollouts"

    def _put(self, name: str, found: Object | None, data: Mapping[str, str | None]) -> bool:
        """Whether nobody else was quicker. `found`: as it was read. An entry of None is taken away."""
        what = f"configmap {name}"
        try:
            if found is None:
                metadata = {"name": name, "labels": {"app.kubernetes.io/part-of": "tandem"}}
                made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
                self._client.write("POST", self._list, f"to make {what}", made)
            else:
                entries = {**at(found, "data", default={}), **data}
                changed = {**found, "data": {key: it for key, it in entries.items() if it is not None}}
                self._client.write("PUT", self._path(name), f"to change {what}", changed)
        except WriteError as error:
            if error.status == CONFLICT:
                return False
            raise
        return True

    def _path(self, name: str) -> str:
        return f"{self._list}/{quote(name, safe='')}"

    def _find(self, name: str = "") -> Object | None:
        name = name or self._object
        try:
            return self._client.get(self._path(name), f"configmap {name}")
        except ApiError as error:
            if error.status == GONE:
                return None
            raise

    def _see(self, it: Object) -> Revision | None:
        self._version = text(it, "metadata", "resourceVersion")
        document = _entry(it, DOCUMENT)
        self._last = None if document is None else in_force(document, _entry(it, NEWEST))
        if self._last is not None and not self._last.origin:  # GitOps records none
            began = f"{text(it, 'metadata', 'creationTimestamp')} {text(it, 'metadata', 'uid')}"
            self._last = replace(self._last, origin=began)
        return self._last


def _announced(it: Object | None) -> dict[str, str]:
    data: Mapping[str, str] = at(it or {}, "data", default={})
    return {key: line for key, line in data.items() if key.startswith(GATEWAY)}


def _entry(it: Object, name: str) -> str | None:
    found = at(it, "data", default={}).get(name)
    return found if isinstance(found, str) else None


def _history(it: Object) -> History:
    return History.of(_entry(it, DOCUMENT), _entry(it, REVISIONS))
