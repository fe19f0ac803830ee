"""The repository on disk: strict records, digests that notice every change, configurations that Triton reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from serving.errors import UserError, exit_code
from serving.export.pool_gates import refusal
from serving.measure.machine import processor_key
from serving.repository import (
    CONFIG_FILE,
    RECORD_FILE,
    Check,
    DigestMismatch,
    ModelConfig,
    PoolGate,
    Record,
    RecordError,
    Repository,
    Tensor,
    check_model_name,
    default_repository,
    pool_config_file,
)
from serving.repository.layout import config_files, model_config
from tests.committed import FOLDER as COMMITTED
from tests.committed import VARIANTS, copy_committed

MODEL_FILE = "1/model.onnx"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(copy_committed(tmp_path / "model_repo"))


def record_text(name: str = "digits-int8") -> str:
    return (COMMITTED / name / RECORD_FILE).read_text()


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    data = json.loads(record_text())
    change(data)
    return json.dumps(data)


def parse(config: ModelConfig) -> Any:
    return text_format.Parse(config.to_pbtxt(), model_config_pb2.ModelConfig())


# -- the committed models ---------------------------------------------------------------------------------------------


def test_the_committed_repository_holds_three_gated_variants_that_verify() -> None:
    committed = Repository(COMMITTED)
    assert {*VARIANTS} <= {variant.name for variant in committed.variants()}
    for name in VARIANTS:
        committed.variant(name).verify()


@pytest.mark.parametrize("name", VARIANTS)
def test_the_committed_configurations_are_what_the_record_generates(name: str) -> None:
    variant = Repository(COMMITTED).variant(name)
    for path, text in variant.config_files().items():
        assert (variant.directory / path).read_bytes() == text.encode(), f"{path} is stale: run `make models`"


@pytest.mark.parametrize(("name", "first"), [("digits-fp32", "cpu"), ("digits-fp16", "gpu"), ("digits-int8", "cpu")])
def test_config_pbtxt_is_the_first_allowed_pools(name: str, first: str) -> None:
    directory = COMMITTED / name
    assert (directory / CONFIG_FILE).read_bytes() == (directory / pool_config_file(first)).read_bytes()


@pytest.mark.parametrize(("name", "pool"), [("digits-fp16", "cpu"), ("digits-int8", "gpu")])
def test_a_pool_that_may_not_run_a_variant_has_a_file_that_cannot_load_there(name: str, pool: str) -> None:
    variant = Repository(COMMITTED).variant(name)
    config = parse(variant.config(pool))
    assert config.parameters["tandem_gate"].string_value == "not_allowed"
    assert [group.kind for group in config.instance_group] == [model_config_pb2.ModelInstanceGroup.KIND_GPU]
    if pool == "gpu":  # on a GPU that kind is no hindrance, so it also asks for a provider that plain images lack
        accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
        assert [accelerator.name for accelerator in accelerators] == ["tensorrt", "cuda"]
    assert pool not in variant.loadable_pools


@pytest.mark.parametrize(("name", "pool"), [("digits-fp16", "cpu"), ("digits-int8", "gpu")])
def test_the_committed_records_say_why_a_pool_may_not_run_a_variant_as_an_export_would_now(
    name: str, pool: str
) -> None:
    record = Repository(COMMITTED).variant(name).record
    assert record.pools[pool] == refusal(record.variant, pool)


def test_a_sample_is_a_whole_infer_request_with_its_answer_in_the_record() -> None:
    for variant in map(Repository(COMMITTED).variant, VARIANTS):
        sample = variant.record.sample
        assert sample is not None
        [tensor] = json.loads((variant.directory / sample.file).read_text())["inputs"]
        assert (tensor["name"], tensor["shape"], tensor["datatype"]) == ("image", [1, 1, 8, 8], "FP32")
        assert len(tensor["data"]) == 64
        assert (variant.directory / "labels.txt").read_text().splitlines()[sample.index] == sample.label


def test_the_committed_models_are_small_and_hold_no_paths() -> None:
    models = [(COMMITTED / name / MODEL_FILE).read_bytes() for name in VARIANTS]
    assert sum(map(len, models)) < 1_000_000
    for model in models:
        assert not any(trace in model for trace in (b"/home/", b"/tmp/", b"site-packages", b"Traceback"))


# -- digests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file", [MODEL_FILE, CONFIG_FILE, "configs/cpu.pbtxt", "configs/gpu.pbtxt", "labels.txt", "sample.json"]
)
def test_one_flipped_bit_in_any_file_is_noticed_and_named(repository: Repository, file: str) -> None:
    variant = repository.variant("digits-int8")
    content = bytearray((variant.directory / file).read_bytes())
    content[len(content) // 2] ^= 1
    (variant.directory / file).write_bytes(content)
    with pytest.raises(DigestMismatch, match=rf"digits-int8.*{file}.*changed") as caught:
        variant.verify()
    assert caught.value.file == file
    assert exit_code(caught.value) == 2


def test_a_missing_file_is_noticed_and_named(repository: Repository) -> None:
    variant = repository.variant("digits-fp32")
    (variant.directory / MODEL_FILE).unlink()
    with pytest.raises(DigestMismatch, match=r"1/model.onnx is missing"):
        variant.verify()


@pytest.mark.parametrize("added", ["2/model.onnx", "configs/other.pbtxt"])
def test_a_file_that_triton_would_pick_up_beside_the_gated_ones_is_noticed(repository: Repository, added: str) -> None:
    variant = repository.variant("digits-fp32")
    (variant.directory / added).parent.mkdir(exist_ok=True)
    (variant.directory / added).write_bytes(b"not gated")
    with pytest.raises(DigestMismatch, match=rf"{added}.*added"):
        variant.verify()


def test_hidden_files_of_editors_and_file_systems_do_no_harm(repository: Repository) -> None:
    variant = repository.variant("digits-fp32")
    (variant.directory / "1" / ".nfs0001").write_bytes(b"")
    variant.verify()


# -- the repository ---------------------------------------------------------------------------------------------------


def test_a_directory_without_a_record_is_listed_as_ungated_and_is_no_variant(repository: Repository) -> None:
    (repository.path / "digits-int8" / RECORD_FILE).unlink()
    assert [variant.name for variant in repository.variants()] == ["digits-fp16", "digits-fp32"]
    assert repository.ungated() == ["digits-int8"]
    with pytest.raises(UserError, match=r"tandem.json.*proves"):
        repository.variant("digits-int8")


def test_a_writers_hidden_directory_is_passed_over(repository: Repository) -> None:
    shutil.copytree(repository.path / "digits-int8", repository.path / ".digits-int8.new")
    assert [variant.name for variant in repository.variants()] == list(VARIANTS)
    assert repository.ungated() == []


def test_a_renamed_directory_is_an_error_because_triton_would_serve_it_under_a_false_name(
    repository: Repository,
) -> None:
    (repository.path / "digits-int8").rename(repository.path / "digits-int9")
    with pytest.raises(UserError, match=r"record.*digits-int8.*digits-int9"):
        repository.variants()


def test_a_record_of_another_precision_than_known_is_an_error(repository: Repository) -> None:
    directory = (repository.path / "digits-int8").rename(repository.path / "digits-int4")
    (directory / RECORD_FILE).write_text(changed(lambda data: data.update(variant="int4")))
    with pytest.raises(UserError, match=r"unknown.*'int4'.*'int8'"):
        repository.variants()


def test_a_broken_record_is_an_error_and_not_an_absence(repository: Repository) -> None:
    (repository.path / "digits-int8" / RECORD_FILE).write_bytes(b"\xff{")
    with pytest.raises(UserError, match=r"digits-int8/tandem.json.*read"):
        repository.variants()


def test_a_record_without_the_models_digest_is_an_error(repository: Repository) -> None:
    (repository.path / "digits-int8" / RECORD_FILE).write_text(changed(lambda data: data["files"].pop(MODEL_FILE)))
    with pytest.raises(UserError, match=r"digest.*1/model.onnx"):
        repository.variants()


def test_a_misspelt_variant_is_answered_with_the_nearest_one(repository: Repository) -> None:
    with pytest.raises(UserError, match=r"variant.*'digits-int88'.*'digits-int8'"):
        repository.variant("digits-int88")


def test_a_repository_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model.*repository"):
        Repository(tmp_path / "nowhere").variants()


def test_the_default_repository_is_the_one_here_before_the_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_repository() == COMMITTED
    (tmp_path / "model_repo").mkdir()
    assert default_repository() == tmp_path / "model_repo"


@pytest.mark.parametrize("name", ["digits", "MiniLM-L6.v2", "_x", "int8", "fp32-digits", "digits-int8-small"])
def test_a_public_name_may_be(name: str) -> None:
    assert check_model_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-x",
        ".x",
        "..",
        "a" * 201,
        "a/b",
        "a b",
        "größe",
        "..\n",
        "digits-fp32",
        "digits-bf16",
        "digits-fp16",
        "x-int8",
    ],
)
def test_a_public_name_may_not_be(name: str) -> None:
    with pytest.raises(UserError, match="model name"):
        check_model_name(name)


# -- the record -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_a_record_survives_being_written_and_read(name: str) -> None:
    record = Record.from_json(record_text(name))
    assert Record.from_json(record.to_json()) == record
    assert record.to_json() == record_text(name)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(version=2), r"its version is 2.*export the model again"),
        (lambda d: d.pop("version"), "version is None"),
        (lambda d: d.update(version="1"), "version is '1'"),
        (lambda d: d.update(version=True), "version is True"),
        (lambda d: d.update(sped=[]), "unknown key 'sped'; did you mean 'speed'"),
        (lambda d: d.update(colour="red"), "unknown key 'colour'; known are model, variant"),
        (
            lambda d: d["gate"].update(dataset_digst="1"),
            r"tandem.json: gate: unknown key 'dataset_digst'; did you mean 'dataset_digest'",
        ),
        (lambda d: d["pools"]["cpu"].update(note=""), r"tandem.json: pools.cpu: unknown key 'note'"),
        (lambda d: d["speed"][0].update(speed=1), r"tandem.json: speed\[0\]: unknown key 'speed'"),
        (lambda d: d["inputs"][0].update(dims=[1]), r"tandem.json: inputs\[0\]: unknown key 'dims'"),
        (lambda d: d["sample"].update(body=""), r"tandem.json: sample: unknown key 'body'"),
        (lambda d: d.pop("gate"), "'gate' is missing"),
        (lambda d: d.update(modell=d.pop("model")), "unknown key 'modell'; did you mean 'model'"),
        (lambda d: d["gate"]["checks"][0].pop("value"), r"gate.checks\[0\]: 'value' is missing"),
        (lambda d: d["gate"]["checks"][0].update(limt=1), "unknown key 'limt'; did you mean 'limit'"),
        (lambda d: d["gate"]["checks"][0].update(is_minimum=1), "is_minimum: must be true or false"),
        (lambda d: d["gate"].update(basis="label"), "unknown basis 'label'; did you mean 'labels'"),
        (lambda d: d.update(task="classify"), "unknown task 'classify'; did you mean 'classification'"),
        (lambda d: d.update(model_version=0), "model_version 0 is not 1 or more"),
        (lambda d: d.update(queue_delay_us=-1), "queue_delay_us -1 is negative"),
        (lambda d: d.update(warmup_batch_sizes=[33]), r"warmup_batch_sizes \[33\] are not within"),
        (lambda d: d["speed"][0].update(baseline_engine="cpuu"), "unknown engine 'cpuu'; did you mean 'cpu'"),
        (lambda d: d.update(max_batch_size="32"), "max_batch_size: must be a whole number"),
        (lambda d: d.update(max_batch_size=True), "max_batch_size: must be a whole number"),
        (lambda d: d.update(needs=[1]), "needs.*must be text"),
        (lambda d: d.update(max_batch_size=-1), "max_batch_size -1 is negative"),
        (lambda d: d["gate"]["checks"][0].update(value="0.9"), r"gate.checks\[0\].value: must be a number"),
        (lambda d: d["gate"]["checks"][0].update(value=None), r"gate.checks\[0\].value: must be a number"),
        (lambda d: d["gate"]["checks"][0].update(value=float("nan")), "must be a number, not nan"),
        (lambda d: d["gate"]["checks"][0].update(value=float("inf")), "must be a number, not inf"),
        (lambda d: d.update(gate=[]), "gate: must be a mapping"),
        (lambda d: d.update(toolchain={"torch": 2}), "toolchain.torch: must be text"),
        (lambda d: d.update(inputs={}), "inputs: must be a list"),
        (lambda d: d["inputs"][0].update(shape=[1, 8.0]), "must be a whole number, not 8.0"),
        (lambda d: d["inputs"][0].update(shape=[0]), r"shape \[0\] holds a size"),
        (lambda d: d["inputs"][0].update(datatype="FP33"), "unknown datatype 'FP33'; did you mean 'FP32'"),
        (lambda d: d["pools"]["cpu"].update(status="pased"), "unknown status 'pased'; did you mean 'passed'"),
        (lambda d: d["pools"]["cpu"].update(engine="cude"), "unknown engine 'cude'; did you mean 'cuda'"),
        (lambda d: d["speed"][0].update(ratio_low=3.0), "is not inside its interval"),
        (lambda d: d["files"].update({"../x": "0" * 64}), "'../x' is outside the variant's directory"),
        (lambda d: d["files"].update({"/etc/passwd": "0" * 64}), "is outside the variant's directory"),
        (lambda d: d["files"].update({"x": "0" * 63}), "'x' has no SHA-256"),
        (lambda d: d["files"].update({"x": "A" * 64}), "'x' has no SHA-256 in lower-case hex"),
    ],
)
def test_a_record_that_is_not_quite_right_is_refused_with_the_place(
    change: Callable[[dict[str, Any]], object], says: str
) -> None:
    with pytest.raises(RecordError, match=says) as caught:
        Record.from_json(changed(change))
    assert str(caught.value).startswith("tandem.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", "not a gate record"),
        ('{"version": 1, "version": 1}', "'version' is given twice"),
        ('{"version": 1}', "'model' is missing"),
    ],
)
def test_text_that_is_no_record_is_refused(text: str, says: str) -> None:
    with pytest.raises(RecordError, match=says):
        Record.from_json(text)


# -- configurations ---------------------------------------------------------------------------------------------------

ODD = replace(
    Record.from_json(record_text()),
    model='q"uo\\te',
    max_batch_size=0,
    queue_delay_us=200,
    warmup_batch_sizes=(1,),
    labels=None,
    warmup=(),
    inputs=(Tensor("ids", "INT64", (-1,)), Tensor("text", "BYTES", (1,)), Tensor("flag", "BOOL", ())),
    outputs=(Tensor("a", "FP16", (2,)), Tensor("b", "BF16", (-1, 3))),
    pools={engine: PoolGate("passed", engine, "") for engine in ("cpu", "openvino", "cuda", "tensorrt")},
)


@pytest.mark.parametrize(
    ("record", "pool"),
    [(Record.from_json(record_text(name)), pool) for name in VARIANTS for pool in ("cpu", "gpu")]
    + [(ODD, pool) for pool in ODD.pools],
    ids=lambda value: value.name if isinstance(value, Record) else value,
)
def test_triton_reads_the_same_from_the_text_form_and_from_json(record: Record, pool: str) -> None:
    config = model_config(record, pool, num_instances=2, num_threads=3, allow_spinning=False)
    assert parse(config) == json_format.Parse(config.to_json(), model_config_pb2.ModelConfig())


@pytest.mark.parametrize("pool", ["cpu", "gpu"])
def test_a_configuration_leaves_nothing_for_a_server_to_fill_in(pool: str) -> None:
    variant = Repository(COMMITTED).variant("digits-fp32")
    config = parse(variant.config(pool))
    assert (config.name, config.backend, config.max_batch_size) == ("digits-fp32", "onnxruntime", 32)
    assert [(t.name, list(t.dims)) for t in config.input] == [("image", [1, 8, 8])]
    assert [(t.name, list(t.dims), t.label_filename) for t in config.output] == [("probabilities", [10], "labels.txt")]
    assert list(config.version_policy.specific.versions) == [1]
    assert config.HasField("dynamic_batching")
    assert not config.dynamic_batching.HasField("default_queue_policy")
    assert [warmup.batch_size for warmup in config.model_warmup] == [1, 8, 32]
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    expected = {
        "tandem_model": "digits",
        "tandem_variant": "fp32",
        "tandem_engine": {"cpu": "cpu", "gpu": "cuda"}[pool],
        "tandem_digest": variant.digest,
        "tandem_gate": "passed",
        "intra_op_thread_count": "1",
        "inter_op_thread_count": "1",
        "execution_mode": "0",
        "session.intra_op.allow_spinning": "0",
    }
    assert parameters == expected
    blocks = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert [(block.name, dict(block.parameters)) for block in blocks] == (
        [("cuda", {"use_tf32": "0"})] if pool == "gpu" else []
    )


def test_options_of_the_card_stand_where_both_backends_read_them() -> None:
    """NVIDIA's loses four of them inside a block, and takes two of those as numbers."""
    config = Repository(COMMITTED).variant("digits-fp32").config("gpu")
    at_top = {
        "cudnn_conv_algo_search": ("DEFAULT", "2"),
        "arena_extend_strategy": ("kSameAsRequested", "1"),
        "gpu_mem_limit": ("1024", "1024"),
        "do_copy_in_default_stream": ("0", "0"),
    }
    message = parse(config.with_cuda({"prefer_nhwc": "1", **{name: word for name, (word, _) in at_top.items()}}))
    [block] = message.optimization.execution_accelerators.gpu_execution_accelerator
    assert dict(block.parameters) == {"use_tf32": "0", "prefer_nhwc": "1"}
    for name, (_, text) in at_top.items():
        assert message.parameters[name].string_value == text


def test_instances_threads_spinning_and_parameters_each_change_the_configuration() -> None:
    variant = Repository(COMMITTED).variant("digits-fp32")
    config = variant.config("cpu", num_instances=2, num_threads=4, allow_spinning=True)
    message = parse(config.with_parameters({"tandem_processor": "x86_64-avx2", "execution_mode": "1"}))
    assert [group.count for group in message.instance_group] == [2]
    assert message.parameters["intra_op_thread_count"].string_value == "4"
    assert message.parameters["session.intra_op.allow_spinning"].string_value == "1"
    assert message.parameters["tandem_processor"].string_value == "x86_64-avx2"
    assert message.parameters["execution_mode"].string_value == "1"
    assert "tandem_processor" not in config.parameters


def test_a_model_without_a_batch_dimension_gets_no_batcher_and_a_warm_up_that_fits() -> None:
    config = parse(model_config(ODD, "cpu", num_instances=1, num_threads=1, allow_spinning=False))
    assert not config.HasField("dynamic_batching")
    [warmup] = config.model_warmup
    assert warmup.batch_size == 1
    assert {name: (list(value.dims), value.zero_data) for name, value in warmup.inputs.items()} == {
        "ids": ([1], True),  # a random token id would be out of range
        "text": ([1], True),
        "flag": ([], True),
    }


def test_a_row_that_is_kept_warms_a_model_up_with_the_lengths_that_it_has() -> None:
    row = (Tensor("ids", "INT64", (7,)), Tensor("text", "BYTES", (1,)), Tensor("flag", "BOOL", ()))
    config = parse(model_config(replace(ODD, warmup=row), "cpu", num_instances=1, num_threads=1, allow_spinning=False))
    [warmup] = config.model_warmup
    assert {name: (list(value.dims), value.input_data_file) for name, value in warmup.inputs.items()} == {
        "ids": ([7], "0.bin"),
        "text": ([1], "1.bin"),
        "flag": ([], "2.bin"),
    }


def test_queue_delay_version_and_space_are_stated() -> None:
    record = replace(
        ODD, max_batch_size=4, queue_delay_us=200, model_version=3, space="minilm@0a", files={"3/model.onnx": "0" * 64}
    )
    message = parse(model_config(record, "cpu", num_instances=1, num_threads=1, allow_spinning=False))
    assert message.dynamic_batching.max_queue_delay_microseconds == 200
    assert list(message.version_policy.specific.versions) == [3]
    assert message.parameters["tandem_space"].string_value == "minilm@0a"


def test_another_engine_can_be_asked_for_than_the_one_that_won_at_export() -> None:
    message = parse(Repository(COMMITTED).variant("digits-fp32").config("cpu", engine="openvino"))
    assert message.parameters["tandem_engine"].string_value == "openvino"
    assert [a.name for a in message.optimization.execution_accelerators.cpu_execution_accelerator] == ["openvino"]


@pytest.mark.parametrize(
    ("variant", "engine", "wanted"),
    [
        ("bf16", "openvino", {"precision": "BF16"}),
        ("int8", "openvino", {}),
        ("fp32", "cuda", {"use_tf32": "0"}),
        ("tf32", "cuda", {"use_tf32": "1"}),
        ("fp16", "tensorrt", {"precision_mode": "FP16"}),
        ("int8", "tensorrt", {"precision_mode": "INT8"}),
    ],
)
def test_an_engines_block_says_the_precision_where_the_file_alone_does_not(
    variant: str, engine: str, wanted: dict[str, str]
) -> None:
    record = replace(ODD, variant=variant)
    block = parse(model_config(record, engine, num_instances=1, num_threads=1, allow_spinning=False))
    accelerators = block.optimization.execution_accelerators
    found, *others = [*accelerators.cpu_execution_accelerator, *accelerators.gpu_execution_accelerator]
    assert (found.name, dict(found.parameters)) == (engine, wanted)
    assert [(other.name, dict(other.parameters)) for other in others] == (
        [("cuda", {"use_tf32": "0"})] if engine == "tensorrt" else []  # for what TensorRT leaves
    )


def test_random_weights_are_told_to_whoever_routes_there() -> None:
    record = Record.from_json(record_text("digits-fp32"))
    untrained = replace(record, gate=replace(record.gate, basis="untrained: speed only"))
    config = model_config(untrained, "cpu", num_instances=1, num_threads=1, allow_spinning=False)
    assert config.parameters["tandem_gate"] == "untrained: speed only"


@pytest.mark.parametrize(
    ("value", "limit", "is_minimum", "passes"),
    [
        (0.99, 0.99, True, True),
        (0.98, 0.99, True, False),
        (0.1, 0.1, False, True),
        (0.2, 0.1, False, False),
        (float("nan"), 0.1, True, False),
        (float("nan"), 0.1, False, False),
        (5.0, None, True, True),
    ],
)
def test_a_check_passes_on_the_right_side_of_its_limit_and_never_with_nan(
    value: float, limit: float | None, is_minimum: bool, passes: bool
) -> None:
    assert Check("x", value, limit, is_minimum, None, is_default_limit=True).has_passed is passes


def test_a_pool_that_a_variant_does_not_know_is_an_error() -> None:
    with pytest.raises(UserError, match=r"knows.*'gpuu'.*'gpu'"):
        Repository(COMMITTED).variant("digits-fp32").config("gpuu")


def test_a_variant_that_may_run_nowhere_cannot_be_rendered() -> None:
    nowhere = replace(ODD, pools={"cpu": PoolGate("refused", "cpu", "spoilt")})
    with pytest.raises(UserError, match=r"run.*pool"):
        config_files(nowhere)


def test_no_instance_is_no_configuration() -> None:
    with pytest.raises(ValueError, match="num_instances is 0"):
        Repository(COMMITTED).variant("digits-fp32").config("cpu", num_instances=0)


# -- the processor ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpuinfo", "machine", "key"),
    [
        ("flags\t\t: sse2 avx avx2", "x86_64", "x86_64-avx2"),
        ("flags\t\t: avx2 avx512f", "x86_64", "x86_64-avx512"),
        ("flags\t\t: avx2 avx_vnni", "x86_64", "x86_64-avx_vnni"),
        ("flags\t\t: avx512_vnni avx2 avx512f", "x86_64", "x86_64-avx512_vnni"),
        ("flags\t\t: avx512_vnni avx2 avx512f amx_int8", "x86_64", "x86_64-amx_int8"),
        ("processor : 0\nFeatures\t: fp asimd", "aarch64", "aarch64-asimd"),
        ("Features\t: asimd asimddp", "aarch64", "aarch64-asimddp"),
        ("Features\t: asimd asimddp i8mm", "aarch64", "aarch64-i8mm"),
        ("flags\t\t: sse2", "x86_64", "x86_64-base"),
        ("bugs\t\t: avx2", "x86_64", "x86_64-base"),
        ("", "x86_64", "x86_64-base"),
        ("flags\t\t: avx2", "riscv64", "riscv64-base"),
    ],
)
def test_the_processor_is_named_by_its_best_instruction_set(cpuinfo: str, machine: str, key: str) -> None:
    assert processor_key(cpuinfo, machine) == key


def test_this_machine_has_a_key() -> None:
    assert "-" in processor_key()
