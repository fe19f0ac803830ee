"""The API server of a kubeconfig's context: for a scaler that runs outside the cluster. Only this file of the room imports `kubernetes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serving.cluster import api
from serving.cluster.connection import Connection, Refused, connect
from serving.cluster.scaler.reads import NotForUs, Object


@dataclass(frozen=True, slots=True)
class OfKubeconfig:
    connection: Connection

    @classmethod
    def of(cls, context: str | None, namespace: str | None) -> OfKubeconfig:
        """Raises TandemError."""
        return cls(connect(context, namespace))

    @property
    def namespace(self) -> str:
        return self.connection.namespace

    def items(self, path: str, what: str, query: Mapping[str, str] | None = None) -> tuple[Object, ...] | None:
        try:
            return api.items(self.connection, path, what, query)
        except Refused as error:
            raise NotForUs(str(error)) if error.status == 401 else error from None

    def one(self, path: str, what: str) -> Object | None:
        try:
            return api.ask(self.connection, path, what)
        except Refused as error:
            if error.status in (403, 404):
                return None
            raise
