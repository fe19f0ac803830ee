"""What is there now, and what changed? A list, then a watch, and again from the start when the API server was away."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.cluster.bed.api import Answered, Api, Object, trusting

AGAIN_S = 0.5  # between two tries while the API server is away
SILENT_S = 60  # after which a watch begins anew; a server that was killed resets its connections at once

OnChange = Callable[[Object, bool], None]  # the object, and whether it is gone


class Watch:
    """Calls `on_change` from a thread of its own, one change after the other."""

    def __init__(self, api: Api, certificates: Path, path: str, on_change: OnChange) -> None:
        self._api, self._path, self._on_change = api, path, on_change
        self._context = trusting(certificates)
        self._known: dict[str, Object] = {}
        self.is_listed = threading.Event()
        threading.Thread(target=self._follow, name=f"watching {path}", daemon=True).start()

    def objects(self) -> list[Object]:
        return list(self._known.values())

    def _follow(self) -> None:
        while True:
            try:
                version = self._list()
                self.is_listed.set()
                self._changes(version)
            except (OSError, Answered, ValueError):
                time.sleep(AGAIN_S)

    def _list(self) -> str:
        listed = self._api.get(self._path)
        now = {it["metadata"]["uid"]: it for it in listed["items"]}
        for uid in self._known.keys() - now.keys():
            self._on_change(self._known.pop(uid), True)
        for uid, it in now.items():
            self._seen(uid, it)
        return str(listed["metadata"]["resourceVersion"])

    def _changes(self, version: str) -> None:
        url = f"{self._api.address}{self._path}?watch=1&resourceVersion={version}&timeoutSeconds={SILENT_S}"
        with urllib.request.urlopen(url, timeout=SILENT_S + 10, context=self._context) as lines:
            for line in lines:
                change = json.loads(line)
                if change["type"] == "ERROR":  # too old a version: list again
                    return
                it = change["object"]
                uid = it["metadata"]["uid"]
                if change["type"] == "DELETED":
                    self._known.pop(uid, None)
                    self._on_change(it, True)
                else:
                    self._seen(uid, it)

    def _seen(self, uid: str, it: Object) -> None:
        before = self._known.get(uid)
        self._known[uid] = it
        if before is None or before["metadata"]["resourceVersion"] != it["metadata"]["resourceVersion"]:
            self._on_change(it, False)
