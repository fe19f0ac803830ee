"""Starts an embedded Triton for a moment to load what is to be published, and returns its answers. `export` compares them.

One short-lived server on loopback, of the CPU pool, with each variant as its record would have it served; no gateway.
Whether the answers are the right ones is `export`'s to say. Keep: no process and no segment in /dev/shm stays behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from serving.cores import usable_cores
from serving.errors import EnvironmentFault
from serving.export.exported_model import stacked
from serving.export.load_check import LoadResult
from serving.export.scratch import scratch
from serving.local import launch as launching
from serving.local.environments import ENGINES, ensure, find
from serving.local.launch import Launch, Ports, backend_directory
from serving.local.logs import Output
from serving.local.processes import Nursery
from serving.local.supervisor import start_server, wait_live
from serving.local.triton import UNSAFE
from serving.local.triton_control import Control, LoadFailed
from serving.local.venvs import Say
from serving.ports import free_ports
from serving.repository import Repository, Variant

POOL = "cpu"


def load(model_repository: Path, rows: Mapping[str, NDArray[Any]], say: Say) -> LoadResult:
    """`rows`: of every input [n, …], n at most the largest batch. Raises EnvironmentFault where no Triton can run here."""
    if found := UNSAFE.search(str(model_repository)):
        raise EnvironmentFault(f"Triton cannot start from {model_repository}: the path holds {found[0]!r}; set TMPDIR")
    variants = [one for one in Repository(model_repository).variants() if POOL in one.loadable_pools]
    if not variants:
        return LoadResult("Triton", {}, {})
    environment = ensure(ENGINES[POOL], say)
    openvino = find(ENGINES["openvino"])
    with scratch("triton") as folder, _own_signals():
        launch = Launch(
            environment=environment,
            backends=backend_directory(environment),
            model_repository=model_repository,
            pool=POOL,
            host="127.0.0.1",
            ports=Ports(*free_ports(3)),
            exit_timeout_s=0,
            openvino=openvino.site if openvino else None,
        )
        return asyncio.run(_load(launch, variants, rows, folder / "triton.log", say))


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """asyncio takes the descriptor that tells of signals, and forgets whose it was."""
    before = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)


async def _load(
    launch: Launch, variants: list[Variant], rows: Mapping[str, NDArray[Any]], log: Path, say: Say
) -> LoadResult:
    answers: dict[str, list[NDArray[Any]]] = {}
    failed: dict[str, str] = {}
    with Nursery() as nursery, contextlib.closing(Output.into(log, say)) as output:
        server, control = start_server(launch, nursery, output)
        try:
            await wait_live(server, control, output)
            for variant in variants:  # one after another: two large ones need not be in memory together
                try:
                    answers[variant.name] = await _answers(control, variant, rows)
                except LoadFailed as failure:
                    failed[variant.name] = failure.reason
                with contextlib.suppress(EnvironmentFault):
                    await control.unload(variant.name)
            return LoadResult(await control.server(), answers, failed)
        finally:
            await control.close()
            server.send(signal.SIGKILL)  # nobody waits for an answer
            await server.wait()
            await nursery.end_orphans()
            launching.remove_shared_memory(launch.region_prefix)


async def _answers(control: Control, variant: Variant, rows: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Every output for all rows, [n, …]: in one batch, or one after another where the model takes none."""
    record = variant.record
    await control.load(variant.name, variant.config(POOL, num_threads=usable_cores()).to_json())
    if record.max_batch_size:
        return await control.infer(variant.name, record.inputs, rows, record.outputs)
    num_rows = len(next(iter(rows.values())))
    each = [
        await control.infer(variant.name, record.inputs, {k: v[row] for k, v in rows.items()}, record.outputs)
        for row in range(num_rows)
    ]
    return [stacked(outputs) for outputs in zip(*each, strict=True)]
