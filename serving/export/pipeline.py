"""From an exported model to proven variants in a repository: what is made, judged and timed, in which order.

Each step is somebody else's: `variants` makes, `gates` judges, `speed` times, `recording` writes down, `publish` puts it
there. Rule: everything runs before anything is written, so that a refusal, an error or Ctrl-C leaves the repository as
it was; what did not pass is named in the outcome and never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from serving.errors import EnvironmentFault, GateRefused, UserError
from serving.export import pool_rules, recording
from serving.export.data.dataset import Dataset
from serving.export.dividing import divide
from serving.export.exported_model import Arrays, ExportedModel
from serving.export.gates import graph
from serving.export.gates.custom import Metric
from serving.export.gates.limits import Limits
from serving.export.judge import GatedCandidate, Judge
from serving.export.load_check import Load, LoadResult, some_rows, why_refused
from serving.export.options import NoData
from serving.export.progress import Progress, silent
from serving.export.publish import Publication, next_version, publish_all
from serving.export.recording import ProvenVariant
from serving.export.scratch import scratch, writing_into
from serving.export.speed import EnginePython, Entrant, Results, contest
from serving.export.speed.contest import MIN_ROUNDS, NUM_ROUNDS
from serving.export.variants import candidates
from serving.export.variants.outcome import CalibrationMissing, Candidate, NothingToQuantise, NotMade
from serving.repository import (
    PASSED,
    UNGATED,
    UNTRAINED,
    PoolGate,
    Repository,
    Variant,
    check_model_name,
)
from serving.repository.processor import has, has_bf16

MAX_CONTENDERS = 2  # INT8 files that are timed beside each other: each costs a quantisation and a gate
AUTO = "auto"  # INT8 weights of 7 bits, which are right everywhere; of 8 where those do not pass and VNNI is here
_UNTIMED = "right answers; not timed on a GPU yet, so FP32 goes first there"
Publications = Callable[[Path, Sequence[ProvenVariant]], list[Publication]]  # as they are to lie in that repository
_ACCEPTED = "accepted without data: nothing proves it"


class NotServed(GateRefused):
    """A server does not load it, or gives other answers than the gate measured."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} refused: {reason}")
        self.name, self.reason = name, reason


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """What is to be made of a model, and when it is good enough. `precisions` None: all that are worth trying."""

    model: str
    precisions: tuple[str, ...] | None = None
    limits: Limits = field(default_factory=Limits)
    metric: Metric | None = None
    accepts_ungated: bool = False
    keeps_data: bool = True
    queue_delay_us: int = 0
    is_for_tensorrt: bool = False
    int8_range: str = AUTO
    seconds: float = 1.0  # of timing, per batch size


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it. `refused` and `left_out`: variant -> the reason in a sentence."""

    published: tuple[Variant, ...]
    refused: Mapping[str, str]  # made, and a gate said no
    left_out: Mapping[str, str]  # not made here
    warnings: tuple[str, ...] = ()


def export(
    exported: ExportedModel,
    data: Dataset | None,
    calibration: Arrays | None,
    asked: ExportSpec,
    repository: Path,
    engines: Mapping[str, EnginePython],
    progress: Progress = silent,
    load: Load | None = None,
) -> Outcome:
    """Call it inside `publish.writing`. Raises GateRefused where FP32 itself does not pass, UserError for what cannot be asked.

    `load`: a server that is to load everything before it is published; None: nobody has one, and the record says so.
    """
    check_model_name(asked.model)
    if data is None and not (asked.accepts_ungated or exported.is_untrained):
        raise NoData
    run = _Run(exported, data, calibration, asked, engines, progress)
    trying = partial(_publications, exported=exported, data=run.data, asked=asked, not_made={})
    proven = run.served(run.all(), load, trying)
    publishing = partial(trying, not_made={**run.left_out, **run.refused})
    written = publish_all(repository, publishing(repository, proven))
    return Outcome(tuple(written), run.refused, run.left_out, (*run.warnings, *_outdated(repository, written)))


def prove(
    exported: ExportedModel,
    data: Dataset,
    variant: str,
    model: bytes,
    asked: ExportSpec,
    engines: Mapping[str, EnginePython],
    progress: Progress,
    load: Load | None,
    publications: Publications,
) -> ProvenVariant:
    """One file that somebody else made, beside the FP32 of `exported`. Raises GateRefused; writes nothing."""
    run = _Run(exported, data, {}, asked, engines, progress)
    if served := run.served([run.one(Candidate(variant, model, ""))], load, publications):
        return served[0]
    raise NotServed(f"{asked.model}-{variant}", run.refused[variant])


class _Run:
    """One model's way through its gates."""

    def __init__(
        self,
        exported: ExportedModel,
        data: Dataset | None,
        calibration: Arrays | None,
        asked: ExportSpec,
        engines: Mapping[str, EnginePython],
        progress: Progress,
    ) -> None:
        self._exported = exported
        self._asked = asked
        self._engines = engines
        self._progress = progress
        wanted = asked.precisions or exported.precisions
        self.data, self._calibration = divide(exported.model, wanted, data, calibration)
        self.refused: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.warnings: list[str] = []
        self._judge = Judge(asked.model, exported, self.data, asked.limits, asked.metric, engines, progress)

    def all(self) -> list[ProvenVariant]:
        precisions = self._precisions()
        self._step("checking the exported graph")
        graph.check_graph(f"{self._asked.model}-fp32", self._exported, self._asked.limits, self._judge.inputs)
        self._step("checking the exported graph", done=True)
        judged = [self._judge.baseline()]
        for precision in precisions[1:]:
            judged += self._made(precision)
        return self._timed(judged)

    def served(
        self, proven: Sequence[ProvenVariant], load: Load | None, publications: Publications
    ) -> list[ProvenVariant]:
        """Those that a server loads and that answer there as their gate saw, or of which none could be asked, each with what
        the record says of it. Raises NotServed where FP32 is not among them.
        """
        if load is None:
            return [replace(one, load_check="not loaded by any server before it was published") for one in proven]
        self._step("loading it in Triton")
        rows = some_rows(self._judge.inputs, self._exported.max_batch_size)
        with scratch("load") as folder:
            try:
                publish_all(folder, publications(folder, proven))
                loaded = load(folder, rows)
            except EnvironmentFault as fault:
                self.warnings.append(f"no Triton loaded it before it was published: {fault}")
                return [replace(one, load_check=f"no Triton could be asked: {fault}") for one in proven]
        good = [checked for one in proven if (checked := self._checked(one, loaded, rows))]
        self._step("loading it in Triton", done=True)
        return good

    def _checked(self, one: ProvenVariant, loaded: LoadResult, rows: Arrays) -> ProvenVariant | None:
        """None where it is refused, with the reason kept."""
        pool, name = one.pools["cpu"], f"{self._asked.model}-{one.variant}"
        if not pool.is_loadable:
            return replace(one, load_check="not loaded by any server before it was published: no pool for it was here")
        candidate = Candidate(one.variant, one.model, "")
        expected = self._judge.answers(candidate, pool.engine, rows)
        reason = why_refused(loaded, name, expected, self._judge.row_limit(candidate, pool.engine, one.gate))
        if reason is None:
            num_rows = len(next(iter(rows.values())))
            return replace(
                one, load_check=f"{loaded.server} on {pool.engine}: {num_rows} rows answered as its gate saw"
            )
        if one.variant == "fp32":
            raise NotServed(name, reason)
        self.refused[one.variant] = reason
        return None

    def one(self, candidate: Candidate) -> ProvenVariant:
        return self._timed([self._judge.baseline(), (candidate, self._judge.made(candidate))])[1]

    def _precisions(self) -> tuple[str, ...]:
        """FP32 first: everything is compared with it."""
        offered, wanted = self._exported.precisions, self._asked.precisions
        if wanted is not None:
            wanted = tuple(dict.fromkeys(wanted))
        if wanted is None and self.data is None and not self._exported.is_untrained:
            self.left_out |= dict.fromkeys(
                offered[1:], "there is no data to prove it on; --precision makes it all the same"
            )
            return offered[:1]
        if wanted is None:
            return offered
        if missing := [precision for precision in wanted if precision not in offered]:
            raise UserError(
                f"{self._exported.source} cannot be made in {', '.join(missing)}; it can in {', '.join(offered)}"
            )
        return ("fp32", *(precision for precision in wanted if precision != "fp32"))

    # -- accuracy -----------------------------------------------------------------------------------------------------

    def _made(self, precision: str) -> list[GatedCandidate]:
        """The variant that passed its gate, or none, with the reason kept. Of several that pass, the fastest."""
        if precision == "bf16" and (reason := self._why_no_bf16()):
            self.left_out[precision] = reason
            return []
        try:
            passed = self._passing(precision)
            if not passed and precision == "int8":
                passed = self._passing_int8_otherwise()
        except (NothingToQuantise, NotMade) as reason:
            if precision in self.refused:  # the gate's reason counts; this is why nothing else could be tried
                self.warnings.append(str(reason))
            else:
                self.left_out[precision] = str(reason)
            return []
        except CalibrationMissing as reason:
            if self._asked.precisions is not None:  # asked for by name: the user's to give
                raise
            self.left_out[precision] = str(reason)
            return []
        if passed:
            self.refused.pop(precision, None)
            return [passed[0] if len(passed) == 1 else self._fastest(passed)]
        return []

    def _passing_int8_otherwise(self) -> list[GatedCandidate]:
        """Finer weights where this processor computes them rightly, and then with the worst layers left in FP32."""
        asked = self._asked.int8_range
        finer = asked == AUTO and not self._asked.is_for_tensorrt and has("vnni")
        passed = self._passing("int8", int8_range="full") if finer else []
        return passed or self._passing(
            "int8", int8_range="full" if finer else "7bit" if asked == AUTO else asked, second_try=True
        )

    def _passing(
        self, precision: str, *, int8_range: str | None = None, second_try: bool = False
    ) -> list[GatedCandidate]:
        """Candidates that pass, two at most: they differ in speed. Of the second try, one is enough."""
        name, passed = f"{self._asked.model}-{precision}", []
        self._step(f"making {name}")
        for candidate in candidates.candidates(
            precision,
            self._exported.model,
            self._calibration,
            second_try=second_try,
            int8_range=int8_range or ("7bit" if self._asked.int8_range == AUTO else self._asked.int8_range),
            is_for_tensorrt=self._asked.is_for_tensorrt,
        ):
            self._step(f"making {name}", done=True)
            try:
                passed.append((candidate, self._judge.made(candidate)))
            except GateRefused as refusal:
                self.refused[precision] = f"{refusal} ({candidate.how})" if candidate.how else str(refusal)
                continue
            if second_try or self._exported.is_untrained or len(passed) == MAX_CONTENDERS:
                break
        return passed

    def _why_no_bf16(self) -> str:
        if "openvino" not in self._engines:
            return "BF16 is computed by OpenVINO, whose environment is not here: tandem environment openvino"
        if not has_bf16():
            return "this processor has neither AMX-BF16 nor AVX512-BF16, so that nothing could be proven here"
        return ""

    # -- speed --------------------------------------------------------------------------------------------------------

    def _timed(self, judged: Sequence[GatedCandidate]) -> list[ProvenVariant]:
        """Each with what it may do on each pool, by what it is and by how fast it was beside FP32."""
        with scratch("export") as folder:
            entrants = [
                Entrant(candidate.precision, engine, _file(folder, candidate))
                for candidate, _ in judged
                for engine in self._engines_of(candidate)
            ]
            found = self._contest(entrants)
        self.warnings += [*self._judge.warnings, *found.warnings]
        return [self._proven(one, found) for one in judged]

    def _contest(self, entrants: Sequence[Entrant], *, is_short: bool = False) -> Results:
        """`is_short`: which of ours is faster, where the interval does not matter."""
        most = max(1, self._exported.max_batch_size)
        some = min(recording.WARMUP_BATCH_SIZE, most)
        return contest(
            entrants,
            engines={entrant.engine: self._engines[entrant.engine] for entrant in entrants},
            batch_sizes=sorted({1, some} if is_short else {1, some, most}),
            num_rounds=MIN_ROUNDS if is_short else NUM_ROUNDS,
            inputs=self._judge.inputs,
            seconds=self._asked.seconds,
            progress=self._progress,
        )

    def _engines_of(self, candidate: Candidate) -> list[str]:
        """Those that are here, may run it, and gave the right answers."""
        may = pool_rules.engines(candidate.precision, candidate.needs, is_cpu_only=self._exported.is_cpu_only)
        here = [engine for engine in may if engine in self._engines]
        return [engine for engine in here if (candidate.precision, engine) not in self._judge.wrong_on]

    def _fastest(self, passed: Sequence[GatedCandidate]) -> GatedCandidate:
        """Of files that are all good enough, the one to keep; they run on ONNX Runtime's own provider."""
        with scratch("export") as folder:
            files = {f"int8 {number}": _file(folder, one, number) for number, (one, _) in enumerate(passed)}
            base = _file(folder, Candidate("fp32", self._exported.model, ""))
            entrants = [Entrant("fp32", "cpu", base), *(Entrant(name, "cpu", file) for name, file in files.items())]
            winner = self._contest(entrants, is_short=True).fastest(files)
        return passed[list(files).index(winner)] if winner else passed[0]

    def _proven(self, judged: GatedCandidate, found: Results) -> ProvenVariant:
        candidate, variant = judged[0], judged[0].precision
        pools = {pool: self._pool(candidate, pool, found) for pool in ("cpu", "gpu")}
        gate = self._judge.on(pools["cpu"].engine, judged)
        speed = tuple(row for key in found.entrants if key[0] == variant for row in found.speeds(*key))
        how = "" if variant == "fp32" else candidate.how
        return ProvenVariant(variant, candidate.model, how, gate, pools, speed, tuple(sorted(candidate.needs)))

    def _pool(self, candidate: Candidate, pool: str, found: Results) -> PoolGate:
        variant = candidate.precision
        if refusal := pool_rules.refusal(variant, pool, candidate.needs, is_cpu_only=self._exported.is_cpu_only):
            return refusal
        if pool == "gpu" and (self._asked.is_for_tensorrt or "cuda" not in self._engines):
            engine = "tensorrt" if self._asked.is_for_tensorrt else "cuda"
            return self._accepted(PoolGate(PASSED, engine, "the baseline" if variant == "fp32" else _UNTIMED))
        return self._accepted(found.verdict(variant, pool))

    def _accepted(self, gate: PoolGate) -> PoolGate:
        """What stands in the place of a proof where there is none."""
        if self._exported.is_untrained:
            return replace(gate, reason=f"{UNTRAINED}; {gate.reason}")
        return replace(gate, status=UNGATED, reason=_ACCEPTED) if self.data is None else gate

    def _step(self, what: str, *, done: bool = False) -> None:
        self._progress(what, int(done), 1)


def _file(folder: Path, candidate: Candidate, number: int = 0) -> Path:
    """The candidate's file; BF16's is FP32's."""
    name = "fp32" if candidate.precision == "bf16" else candidate.precision
    path = folder / f"{name}-{number}.onnx"
    if not path.exists():
        with writing_into(folder):
            path.write_bytes(candidate.model)
    return path


def _outdated(repository: Path, written: Sequence[Variant]) -> list[str]:
    """A sentence for each variant of an earlier version that this export made no new one of."""
    new = written[0].record
    return [
        f"{old.name} is still of version {old.record.model_version} and is served no more: "
        f"export it again with --precision {old.record.variant}, or remove its folder"
        for old in Repository(repository).readable()[0]
        if old.record.model == new.model and old.record.model_version < new.model_version
    ]


def _publications(
    repository: Path,
    proven: Sequence[ProvenVariant],
    exported: ExportedModel,
    data: Dataset | None,
    asked: ExportSpec,
    not_made: Mapping[str, str],
) -> list[Publication]:
    shared = recording.belongings(exported, data, keeps_data=asked.keeps_data)
    version = next_version(repository, asked.model, exported.model)
    fp32_digest = sha256(exported.model).hexdigest()
    publications: list[Publication] = []
    for one in proven:
        record = recording.record(
            exported,
            one,
            shared,
            model=asked.model,
            model_version=version,
            queue_delay_us=asked.queue_delay_us,
            vector_space=recording.space_of(asked.model, fp32_digest, one, exported.task),
            not_made=not_made,
        )
        kept = data if asked.keeps_data else None
        publications.append((record, recording.files(shared, one, record.model_file, kept)))
    return publications
