"""Exports, serves and compares the models of `table.py` one after another: what `make models-foreign` runs.

    python -m scripts.foreign [--only NAME]… [--folder DIR] [--json FILE] [--keep]

One embedded Triton behind a gateway takes each model as it is published. A row is printed and written as soon as it is known, also of a
model that does not come through, and the next begins. Seconds and memory are the export's alone, as the system counts them for the ended
process and all below it: wall time, processor time, and the memory of its largest process. Exit code 1 where a model is not served, or
not as its own framework answers, and the table does not expect it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, triton_to_np_dtype

from loadtest.errors import CampaignError
from loadtest.processes import ROOT
from loadtest.target import Gateway, own_gateway
from scripts.foreign.page import columns, row_line
from scripts.foreign.table import MODELS, Model
from serving.errors import TandemError
from serving.export import inventory
from serving.export.inventory import VariantRow
from serving.export.recipes import packages
from serving.local import frameworks
from serving.measure.machine import this_machine

VERSION = 1
PREPARE_S = EXPORT_S = 1200.0  # past every one seen on a busy machine; then it is killed, and the row says so
LOAD_S = 600.0
QUICK = ("--engine", "cpu", "--seconds", "0.1")  # of every command: speed is not this bench's question
MOST_OFF = 1e-3  # of FP32 from its framework, as a share of the output's largest number: beyond it a row fails
STARTER = ROOT / "model_repo" / "digits-fp32"  # `tandem up` serves it from the start, the others as they come


class NotThere(Exception):
    """Why a model is not in the row's next column; one line."""


@dataclass(frozen=True, slots=True)
class Took:
    """What an export took: `peak_mb` is the memory of its largest process."""

    wall_s: float
    cpu_s: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Difference:
    """A variant's answers beside its framework's. `worst`: of all numbers; `scale`: the largest of that output."""

    worst: float
    scale: float
    num_unequal: int  # of labels, which are equal or not
    num_labels: int

    @property
    def ratio(self) -> float:
        return self.worst / self.scale if self.scale else self.worst


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one model. `reason`: why it is not served."""

    name: str
    command: str
    date: str
    processor: str
    size_mb: float | None = None
    took: Took | None = None
    kept: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    differences: Mapping[str, Difference] = field(default_factory=dict)
    reason: str = ""

    @property
    def is_right(self) -> bool:
        fp32 = self.differences.get("fp32")
        return fp32 is not None and fp32.ratio <= MOST_OFF and fp32.num_unequal == 0


# -- one model ----------------------------------------------------------------------------------------------------------


def measure(model: Model, folder: Path, repository: Path, gateway: Gateway, processor: str) -> Row:
    """Never raises for what a model, its package or its framework does."""
    row: dict[str, Any] = {
        "name": model.name,
        "command": " ".join(["tandem", "export", *model.command, *QUICK]),
        "date": datetime.date.today().isoformat(),
        "processor": processor,
    }
    try:
        unpacked = {one.key: packages.fetch(one.name, one.version, one.sha256) for one in model.packages}
        environment = _environment(folder, list(unpacked.values()), model.extra or "torch")
        _prepare(model, folder, environment)
        row["took"] = _export(model, folder, repository, environment, {k: str(v) for k, v in unpacked.items()})
        variants = inventory.models(repository).of(model.name).variants
        row["kept"] = tuple(one.variant for one in variants)
        [fp32] = (one for one in variants if one.variant == "fp32")
        row |= {"size_mb": fp32.size_bytes / 1e6, "refused": dict(fp32.not_made)}
        row["differences"] = dict(_served(variants, folder, gateway))
    except (NotThere, TandemError) as error:
        row["reason"] = " ".join(str(error).split())
    return Row(**row)


def _environment(folder: Path, unpacked: Sequence[Path], keras: str) -> dict[str, str]:
    """A cache of the model's own, so that nothing of an earlier export is remembered; environments are shared."""
    cache = folder / "cache"
    cache.mkdir()
    for name in ("environments", "project"):
        (packages.cache_dir() / name).mkdir(parents=True, exist_ok=True)
        (cache / name).symlink_to(packages.cache_dir() / name)
    path = os.pathsep.join([str(ROOT), *map(str, unpacked)])
    return {**os.environ, "PYTHONPATH": path, "TANDEM_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "KERAS_BACKEND": keras}


def _prepare(model: Model, folder: Path, environment: Mapping[str, str]) -> None:
    python = frameworks.ensure(model.extra, is_yes=True, say=_say) if model.extra else Path(sys.executable)
    command = [str(python), "-m", "scripts.foreign.prepare", model.name, str(folder)]
    code, _ = _run(command, folder, environment, folder / "prepare.log", PREPARE_S)
    if code != 0:
        raise NotThere(f"its own framework does not answer: {_last(folder / 'prepare.log')}")


def _export(
    model: Model, folder: Path, repository: Path, environment: Mapping[str, str], unpacked: Mapping[str, str]
) -> Took:
    words = [word.format_map(unpacked) if "{" in word else word for word in model.command]
    command = [sys.executable, "-m", "serving", "export", *words, *QUICK, "--model", model.name]
    log = folder / "export.log"
    code, took = _run([*command, "--model-repository", str(repository)], folder, environment, log, EXPORT_S)
    if code != 0:
        raise NotThere(f"exit code {code} after {took.wall_s:.0f} s: {_last(log)}")
    return took


def _run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, limit_s: float
) -> tuple[int, Took]:
    """The exit code, negative for a signal, and what the process and everything below it took."""
    began_s = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        status, usage = _wait(process.pid, began_s + limit_s)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.monotonic() - began_s
    return process.returncode, Took(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024 * 1.048576)


def _wait(pid: int, deadline_s: float) -> tuple[int, resource.struct_rusage]:
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return status, usage
        if time.monotonic() > deadline_s:
            os.killpg(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            return status, usage
        time.sleep(0.05)


def _last(log: Path) -> str:
    """What a command said of its failure: its own sentence, else its last line; on any machine the same."""
    said = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    own = [line.removeprefix("tandem: ") for line in said if line.startswith("tandem: ")]
    return (own or said or ["nothing was said"])[-1].replace(str(Path.home()), "~")


# -- what is served -----------------------------------------------------------------------------------------------------


def _served(variants: Sequence[VariantRow], folder: Path, gateway: Gateway) -> Iterator[tuple[str, Difference]]:
    """Of each variant that the CPU pool serves; all are unloaded afterwards, so that memory holds any number of models."""
    asked, answers = (dict(np.load(folder / f"{name}.npz")) for name in ("asked", "answers"))
    client = triton.InferenceServerClient(gateway.url.removeprefix("http://"), network_timeout=LOAD_S)
    here = [one for one in variants if (given := one.pools.get("cpu")) is not None and given.is_loadable]
    try:
        for one in here:
            _load(client, one.name)
            yield one.variant, difference(_answers(client, one, asked), answers)
        for one in here:
            client.unload_model(one.name)
    except (InferenceServerException, OSError) as error:
        raise NotThere(f"not answered: {error}") from None
    finally:
        client.close()


def _load(client: triton.InferenceServerClient, name: str) -> None:
    deadline_s = time.monotonic() + LOAD_S
    while True:
        try:
            client.load_model(name)
            return
        except InferenceServerException as error:
            if error.status() not in ("404", "503") or time.monotonic() > deadline_s:
                raise
            time.sleep(0.5)


def _answers(client: triton.InferenceServerClient, one: VariantRow, asked: Mapping[str, Any]) -> dict[str, Any]:
    """By name, and by place as "0", "1", …; [n, …] both where rows make a batch and where each is a whole input."""
    metadata = client.get_model_metadata(one.name)
    names = [output["name"] for output in metadata["outputs"]]
    count = len(next(iter(asked.values())))
    size = min(one.max_batch_size, count) or 1
    parts = []
    for at in range(0, count, size):
        given = [_input(tensor, asked, slice(at, at + size), bool(one.max_batch_size)) for tensor in metadata["inputs"]]
        answer = client.infer(one.name, given)
        values = [answer.as_numpy(name) for name in names]
        parts.append(values if one.max_batch_size else [value[None] for value in values])
    joined = [np.concatenate(values) for values in zip(*parts, strict=True)]
    return {**{str(place): value for place, value in enumerate(joined)}, **dict(zip(names, joined, strict=True))}


def _input(tensor: Mapping[str, Any], asked: Mapping[str, Any], part: slice, is_batch: bool) -> triton.InferInput:
    if tensor["name"] not in asked:
        raise NotThere(f"the served model also wants {tensor['name']!r}; known are {', '.join(asked)}")
    values = asked[tensor["name"]][part]
    shape = tensor["shape"]
    values = values if is_batch else values[0]
    if values.ndim < len(shape):  # a number is [1], a row of single numbers [n, 1]
        values = values[..., None]
    values = values.astype(triton_to_np_dtype(tensor["datatype"]))
    given = triton.InferInput(tensor["name"], list(values.shape), np_to_triton_dtype(values.dtype))
    given.set_data_from_numpy(np.ascontiguousarray(values))
    return given


def difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Difference:
    """The worst of all outputs that the framework has. Raises NotThere where one lacks or has another number of elements."""
    worst, scale, num_unequal, num_labels = 0.0, 0.0, 0, 0
    for name, right in wanted.items():
        if name not in found:
            raise NotThere(f"the served model has no output {name!r}: {', '.join(n for n in found if not n.isdigit())}")
        if found[name].size != right.size:
            raise NotThere(f"output {name!r} has shape {list(found[name].shape)}, its framework's {list(right.shape)}")
        answer = found[name].reshape(right.shape)
        if answer.dtype.kind != "f" or right.dtype.kind not in "fiu":
            num_unequal += int(np.sum(answer.astype(str) != right.astype(str)))
            num_labels += right.size
            continue
        off = np.abs(answer.astype(np.float64) - right)
        here, size = float(off.max()) if np.isfinite(off).all() else np.inf, float(np.abs(right).max())
        if scale == 0 or here * scale > worst * size:
            worst, scale = here, size
    return Difference(worst, scale, num_unequal, num_labels)


# -- all of them --------------------------------------------------------------------------------------------------------


@contextmanager
def _workplace(named: Path | None, keep: bool) -> Iterator[Path]:
    if named is not None:
        named.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="tandem-foreign-", dir=named))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def written(file: Path, row: Row) -> None:
    """Puts a row into the results, in the order of the table; rows of other models stay."""
    known = json.loads(file.read_text("utf-8"))["rows"] if file.exists() else []
    rows = {one["name"]: one for one in known} | {row.name: asdict(row)}
    ordered = [rows[model.name] for model in MODELS if model.name in rows]
    file.write_text(json.dumps({"version": VERSION, "rows": ordered}, indent=1) + "\n", "utf-8")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.foreign", description=(__doc__ or "").split("\n")[0])
    names = [model.name for model in MODELS]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help=f"this one alone, of {', '.join(names)}"
    )
    parser.add_argument(
        "--folder", type=Path, help="where models and data are made. Default: the system's temporary folder"
    )
    parser.add_argument("--keep", action="store_true", help="leave that folder as it is, with every log")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write each row into this file, beside those of other models"
    )
    options = parser.parse_args(arguments)
    known = dict(zip(names, MODELS, strict=True))
    chosen = [known[name] for name in options.only or names]
    processor = this_machine().processor
    print("\n".join(columns()))
    failed = []
    with _workplace(options.folder, options.keep) as folder:
        if options.keep:
            _say(f"logs: {folder}")
        repository = folder / "model_repo"
        shutil.copytree(STARTER, repository / STARTER.name)
        os.environ["TANDEM_STATE"] = str(folder / "state")
        try:
            with own_gateway(folder / "up.log", repository) as gateway:
                for model in chosen:
                    place = folder / model.name
                    place.mkdir()
                    row = measure(model, place, repository, gateway, processor)
                    print(row_line(model, asdict(row)), flush=True)
                    if options.json:
                        written(options.json, row)
                    if row.is_right == bool(model.why_not):
                        failed.append(row.name)
                    if not options.keep:
                        shutil.rmtree(place)
        except CampaignError as error:
            _say(f"tandem: {error}")
            return error.exit_code
        except KeyboardInterrupt:
            return 130
    if failed:
        _say(f"tandem: not as the table expects: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
