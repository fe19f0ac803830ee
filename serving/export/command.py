"""What `tandem export SOURCE` does: chooses the source's way, shows how far it is, and says in words what came of it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from serving.errors import UserError
from serving.export import progress as progressing
from serving.export.gates import Limits
from serving.export.proof import SpeedRun
from serving.export.sources import export_digits, export_onnx
from serving.repository import Variant


def run(
    source: str,
    repository: Path,
    *,
    model: str | None,
    variant: str | None,
    data: str,
    max_drop: float | None,
    keep_slow: bool,
    payload: Path | None,
) -> int:
    """Exports and publishes. Raises GateRefused (the repository stays as it was), UserError or EnvironmentFault."""
    limits = Limits() if max_drop is None else Limits(max_drop=max_drop)
    speed_run = SpeedRun(keep_slow=keep_slow)
    with _Shown() as shown:
        if source == "digits":
            if model or variant:
                raise UserError("'digits' makes all its variants; --model and --variant are for a file")
            variants = export_digits(repository, limits=limits, speed_run=speed_run, payload=payload, progress=shown)
        elif source.endswith(".onnx"):
            if not model or not variant:
                raise UserError("a file needs --model and --variant: which model's fp16 or int8 is it?")
            given = data if data == "digits" else Path(data)
            one = export_onnx(
                Path(source),
                model=model,
                variant=variant,
                repository=repository,
                data=given,
                limits=limits,
                speed_run=speed_run,
                progress=shown,
            )
            variants = [one]
        else:
            raise UserError(f"'{source}' is no source; sources are: digits, FILE.onnx")
    for published in variants:
        print(_sentence(published))
    return 0


class _Shown:
    """A bar on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._bars: Bars | None = None
        self._tasks: dict[str, int] = {}

    def __enter__(self) -> _Shown:
        console = Console(stderr=True)
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bars = Bars(*columns, console=console)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, step: str, done: int, total: int) -> None:
        if self._bars is None:
            progressing.lines(step, done, total)
            return
        if step not in self._tasks:
            self._tasks[step] = self._bars.add_task(step, total=total)
        self._bars.update(self._bars.task_ids[self._tasks[step]], completed=done, total=total)


def _sentence(variant: Variant) -> str:
    gate = variant.record.gate
    pools = "; ".join(
        f"{pool} {given.status}{f' ({given.reason})' if given.reason and given.status != 'passed' else ''}"
        for pool, given in variant.record.pools.items()
    )
    return f"{variant.name}: {gate.metric} {gate.value:.4f} (FP32 {gate.fp32_value:.4f}); {pools}"
