"""What does a user type to see to a Job that is left in the cluster? Pure. Each message that leaves one has its words from here."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Left:
    """A Job. `context`: as it was given, None for the kubeconfig's current one."""

    job: str
    namespace: str
    context: str | None

    @property
    def to_attach(self) -> str:
        return f"tandem cluster campaign --attach {self.job}{self._where}"

    @property
    def to_delete(self) -> str:
        return f"kubectl delete job {self.job}{self._where}"

    @property
    def to_read(self) -> str:
        return f"kubectl logs job/{self.job}{self._where}"

    @property
    def ways(self) -> str:
        return f"to bring its results home: {self.to_attach}; to delete it: {self.to_delete}"

    @property
    def _where(self) -> str:
        context = f" --context {shlex.quote(self.context)}" if self.context else ""
        return f" --namespace {self.namespace}{context}"
