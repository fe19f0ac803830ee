"""What would a pool without servers serve, and when will it have one?

The gateway learns models from the Tritons that answer. A pool that is scaled to zero when the gateway starts has none, and would never be
woken for a model that it alone serves. So until one of its servers has answered, the pool's `models` in the settings count, or else what
the model repository holds for its device. Rule: only pools that come and go are woken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from serving.gateway.fleet.server import Server
from serving.repository import model_of
from serving.scheduling.bridge import WINDOW_S
from serving.scheduling.routing import RETRY_AFTER_S, LoadFailure, Variant
from serving.settings import EMULATED, GatewaySettings, PoolSettings, comes_and_goes

LEAST_S = 0.001  # of one server, that a request counts for where nobody knows what it takes: enough to wake it, too little for two
LATE_S = 10.0  # between tries once a cold start has taken longer than it should, or where nobody knows how long one takes; a guess
PATIENCE_S = 3 * WINDOW_S  # after so long without a request the demand for it has faded: the next one begins anew


@dataclass(slots=True)
class _Wait:
    began: float
    last: float


class ColdPools:
    """`in_repository`: device -> variants' names that may run on it."""

    def __init__(self, settings: GatewaySettings, in_repository: Mapping[str, Collection[str]]) -> None:
        self._pools, self._models = settings.pools, settings.models
        self._coming = frozenset(name for name, pool in settings.pools.items() if comes_and_goes(name, pool))
        self._expected = {
            name: frozenset(
                pool.models
                or (
                    own
                    for own in (in_repository.get(_device(pool), ()) if name in self._coming else ())
                    if self._has_memory(pool, model_of(own))
                )
            )
            for name, pool in settings.pools.items()
        }
        self._waits: dict[str, _Wait] = {}
        self._took_s: dict[
            str, float
        ] = {}  # from the first request that wanted a pool to its first server, the last time

    def comes_and_goes(self, pool: str) -> bool:
        return pool in self._coming

    def may_serve(self, pool: str, name: str) -> bool:
        """Whether a pool that nobody has seen might serve a name, public or a variant's: any with memory, unless the settings say which."""
        listed = self._pools[pool].models
        if not listed:
            return self._has_memory(self._pools[pool], name) and self._has_memory(self._pools[pool], model_of(name))
        return any(name in (model_of(own), own) for own in listed)

    def _has_memory(self, pool: PoolSettings, model: str) -> bool:
        of_model = self._models.get(model)
        takes = None if of_model is None else of_model.memory_bytes
        return takes is None or pool.memory_bytes is None or takes <= pool.memory_bytes

    def of(self, pool: str, servers: Sequence[Server], known: Mapping[str, Variant]) -> Iterator[LoadFailure]:
        """Variants that it does not serve yet, because it has no server or has not loaded them. `known`: what it ever served."""
        alive = [server for server in servers if server.alive]
        if not alive and not servers and pool in self._coming:
            for v in known.values():
                yield LoadFailure(v.name, v.model, v.variant, v.version, f"its pool {pool} has no server now")
        is_settled = any(server.variants and not server.snapshot.loading for server in alive)
        if is_settled and not self._pools[pool].models:
            return  # it serves what it has of the repository
        snapshots = [server.snapshot for server in alive]
        heard = {name for s in snapshots for name in (*s.served, *s.refused, *s.failures)}
        reason = f"its pool {pool} has {'not loaded it' if alive else 'no server'} yet"
        for own in sorted(self._expected[pool] - known.keys() - heard):
            model = model_of(own)
            yield LoadFailure(own, model, own[len(model) + 1 :], "1", reason)

    def want(self, pool: str, now: float) -> None:
        """Notes a request for a model that it alone serves."""
        wait = self._waits.get(pool)
        if wait is None or self._is_stale(pool, wait, now):
            wait = self._waits[pool] = _Wait(now, now)
        wait.last = now

    def came(self, pool: str, now: float) -> None:
        """Notes that it answers, and how long it was waited for."""
        wait = self._waits.pop(pool, None)
        if wait is not None and not self._is_stale(pool, wait, now):
            self._took_s[pool] = now - wait.began

    def _is_stale(self, pool: str, wait: _Wait, now: float) -> bool:
        return now - wait.last > PATIENCE_S + (self._cold_start_s(pool) or 0.0)

    def _cold_start_s(self, pool: str) -> float | None:
        return self._took_s.get(pool, self._pools[pool].cold_start_s)

    def retry_after_s(self, pool: str, now: float) -> float:
        """What is left of its cold start, as it took the last time, counted from the first request that wanted it."""
        if pool not in self._coming:
            return RETRY_AFTER_S
        cold_start_s = self._cold_start_s(pool)
        if cold_start_s is None:
            return LATE_S
        wait = self._waits.get(pool)
        left_s = cold_start_s - (now - wait.began if wait is not None else 0.0)
        return max(left_s, min(LATE_S, cold_start_s), RETRY_AFTER_S)


def _device(pool: PoolSettings) -> str:
    """As gates name it: what emulates a GPU runs what a CPU may."""
    return "cpu" if pool.device == EMULATED else pool.device
