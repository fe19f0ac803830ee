"""What a pool loads from a repository, on which engine, and what it never loads."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.decisions.engines import EnginePython
from serving.errors import UserError
from serving.local import pool_plan as pooling
from serving.local.measure import place_here
from serving.local.pool_options import NO_OVERRIDES, TritonOverrides
from serving.local.pool_plan import Share, beside, crowded, loadable, plan_pool, share
from serving.measure.machine import processor_key
from serving.repository import Repository
from tests.committed import copy_committed
from tests.local.repository import publish_digits

COMMITTED = Path(__file__).parents[2] / "model_repo"
PLAIN = {"cpu": EnginePython("cpu", Path("/e/bin/python3"), "9.9")}
BOTH = {**PLAIN, "openvino": EnginePython("openvino", Path("/o/bin/python3"), "2.2")}
CUDA = {"cuda": EnginePython("cuda", Path("/g/bin/python3"), "9.9")}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(copy_committed(tmp_path / "repository"))


@pytest.fixture
def said() -> list[str]:
    return []


def names(repository: Repository, pool: str, said: list[str]) -> list[str]:
    return [variant.name for variant in loadable(repository, pool, said.append)[0]]


def change_record(repository: Repository, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    file = repository.path / name / "tandem.json"
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record))


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_pool_gets_what_may_run_on_it(repository: Repository, said: list[str]) -> None:
    assert "digits-fp16" not in names(repository, "cpu", said)
    assert "digits-int8" not in names(repository, "gpu", said)
    assert "digits-fp32" in names(repository, "cpu", said)
    assert said == []


@pytest.mark.parametrize("file", ["1/model.onnx", "configs/cpu.pbtxt", "labels.txt"])
def test_a_variant_with_one_flipped_byte_is_not_loaded_and_the_file_is_named(
    repository: Repository, said: list[str], file: str
) -> None:
    flip_a_byte(repository.path / "digits-int8" / file)
    assert "digits-int8" not in names(repository, "cpu", said)
    [line] = said
    assert f"digits-int8: {file} changed" in line


def test_a_directory_without_a_gate_record_is_not_loaded(repository: Repository, said: list[str]) -> None:
    shutil.copytree(repository.path / "digits-fp32", repository.path / "other-fp32")
    (repository.path / "other-fp32" / "tandem.json").unlink()
    assert "other-fp32" not in names(repository, "cpu", said)
    [line] = said
    assert line.startswith("not loaded: other-fp32")
    assert "tandem.json" in line


@pytest.mark.parametrize(("status", "is_loaded"), [("refused", False), ("not_allowed", False), ("not_useful", True)])
def test_the_gate_of_this_pool_decides(repository: Repository, said: list[str], status: str, is_loaded: bool) -> None:
    change_record(repository, "digits-int8", lambda record: record["pools"]["cpu"].update(status=status))
    assert ("digits-int8" in names(repository, "cpu", said)) == is_loaded


def test_a_repository_with_nothing_left_to_serve_is_the_users_to_mend(repository: Repository, said: list[str]) -> None:
    for name in ("digits-fp32", "digits-int8"):
        flip_a_byte(repository.path / name / "1" / "model.onnx")
    with pytest.raises(UserError, match=r"variant.*digits-fp32.*1/model.onnx"):
        names(repository, "cpu", said)


def test_a_broken_record_keeps_its_own_variant_alone_from_being_loaded(repository: Repository, said: list[str]) -> None:
    (repository.path / "digits-int8" / "tandem.json").write_text("{")
    good, refused = loadable(repository, "cpu", said.append)
    assert "digits-fp32" in [variant.name for variant in good]
    assert "tandem.json" in refused["digits-int8"].reason
    [line] = said
    assert line.endswith(f"digits-int8: {refused['digits-int8'].reason}")


@pytest.mark.parametrize(("version", "is_loaded"), [(1, False), (2, True), (3, True)])
def test_a_variant_of_an_older_version_than_its_fp32_is_not_loaded(
    repository: Repository, said: list[str], version: int, is_loaded: bool
) -> None:
    rename_version(repository, "digits-fp32", 2)
    rename_version(repository, "digits-int8", version)
    assert ("digits-int8" in names(repository, "cpu", said)) == is_loaded
    older = "not loaded: digits-int8: it is of version 1, and FP32 is of version 2; export it again"
    assert (older in said) != is_loaded


def rename_version(repository: Repository, name: str, version: int) -> None:
    """As if it had been exported that often."""
    if version == 1:
        return
    folder = repository.path / name
    (folder / "1").rename(folder / str(version))

    def change(record: dict[str, Any]) -> None:
        record["model_version"] = version
        record["files"][f"{version}/model.onnx"] = record["files"].pop("1/model.onnx")

    change_record(repository, name, change)


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ((), None, None),
        (("source",), "elsewhere", None),
        (("files", "1/model.onnx"), "0" * 64, "its file is not the one that passed its gate"),
        (("pools", "cpu", "status"), "refused", "it did not pass its gate for the cpu pool"),
        (("outputs", 0, "shape"), [11], "its inputs or outputs are others"),
        (("max_batch_size",), 4, "it takes batches of at most 4 rows"),
        (("files", "labels.txt"), "0" * 64, "its classes are others"),
        (("needs",), ["amx_of_the_future"], "it needs a processor with amx_of_the_future"),
    ],
)
def test_an_earlier_version_is_served_beside_the_newest_where_one_configuration_is_right_for_both(
    tmp_path: Path, said: list[str], place: tuple[str | int, ...], value: object, says: str | None
) -> None:
    publish_digits(tmp_path, precisions=["fp32"])
    publish_digits(tmp_path, precisions=["fp32"], version=2, model_file=b"another")
    file = tmp_path / "digits-fp32" / "1" / "tandem.json"
    record = json.loads(file.read_text())
    inside = record
    for key in place[:-1]:
        inside = inside[key]
    if place:
        inside[place[-1]] = value
    if place == ("max_batch_size",):
        record["warmup_batch_sizes"] = [1]
    file.write_text(json.dumps(record))
    variant = Repository(tmp_path).variant("digits-fp32")
    found = beside(variant, place_here("cpu", PLAIN, 1), 32, 1, said.append)
    assert found == ({1: record["files"]["1/model.onnx"]} if says is None else {})
    assert [str(says) in line for line in said] == ([] if says is None else [True])
    config = json.loads(variant.config("cpu").with_earlier(found).to_json())
    assert config["version_policy"]["specific"]["versions"] == [*found, 2]


@pytest.mark.parametrize(
    ("num_kept", "most", "wanted"), [(4, 1, [3]), (4, 2, [3, 2]), (4, 9, [3, 2, 1]), (None, 9, [3])]
)
def test_as_many_versions_are_beside_the_newest_as_are_asked_for_and_kept(
    tmp_path: Path, said: list[str], num_kept: int | None, most: int, wanted: list[int]
) -> None:
    for version in (1, 2, 3, 4):
        publish_digits(tmp_path, precisions=["fp32"], version=version, model_file=b"%d" % version, num_kept=num_kept)
    variant = Repository(tmp_path).variant("digits-fp32")
    variant.verify()
    found = beside(variant, place_here("cpu", PLAIN, 1), 32, most, said.append)
    assert list(found) == wanted
    config = json.loads(variant.config("cpu").with_earlier(found).to_json())
    assert config["version_policy"]["specific"]["versions"] == [*sorted(wanted), 4]
    assert said == []


# -- the configuration that is loaded ---------------------------------------------------------------------------------


def configs(
    repository: Repository,
    engines: dict[str, EnginePython] = PLAIN,
    *,
    pool: str = "cpu",
    num_cores: int = 6,
    say: Callable[[str], None] = lambda _: None,
    overrides: TritonOverrides = NO_OVERRIDES,
) -> dict[str, dict[str, Any]]:
    plan = plan_pool(repository, pool, engines, num_cores, may_measure=False, say=say, overrides=overrides)
    return {name: json.loads(config) for name, config in plan.configs.items()}


def parameters(
    repository: Repository, name: str, engines: dict[str, EnginePython] = PLAIN, **more: Any
) -> dict[str, str]:
    config = configs(repository, engines, **more)[name]
    return {key: value["string_value"] for key, value in config["parameters"].items()}


def test_the_cores_of_this_machine_decide_the_threads(repository: Repository) -> None:
    assert parameters(repository, "digits-fp32")["intra_op_thread_count"] == "6"
    assert parameters(repository, "digits-fp32", CUDA, pool="gpu")["intra_op_thread_count"] == "1"


def test_a_configuration_says_what_the_gateway_wants_to_know(repository: Repository) -> None:
    told = parameters(repository, "digits-fp32")
    assert told["tandem_speed_ratio"] == "1.00"
    assert told["tandem_processor"] == processor_key()
    assert told["tandem_engine"] == "cpu"
    assert told["tandem_device_name"]
    assert told["tandem_gate"] == "passed"


def test_a_variant_without_a_speed_here_is_unmeasured(repository: Repository) -> None:
    assert parameters(repository, "digits-int8")["tandem_speed_ratio"] == "unmeasured"


# -- what is asked for by hand ----------------------------------------------------------------------------------------


def test_each_thing_that_is_asked_for_is_what_every_model_is_loaded_with(repository: Repository) -> None:
    overrides = TritonOverrides(instances=2, threads=1, queue_delay_us=250, max_batch=8)
    for config in configs(repository, overrides=overrides, num_cores=2).values():
        assert config["instance_group"][0]["count"] == 2
        assert config["parameters"]["intra_op_thread_count"]["string_value"] == "1"
        assert config["dynamic_batching"] == {"max_queue_delay_microseconds": 250}
        assert config["max_batch_size"] == 8
        assert [warmup["batch_size"] for warmup in config["model_warmup"]] == [1, 8]


def test_with_nothing_asked_for_a_model_is_loaded_as_it_was_exported(repository: Repository) -> None:
    record = repository.variant("digits-fp32").record
    config = configs(repository)["digits-fp32"]
    assert config["max_batch_size"] == record.max_batch_size
    assert config["dynamic_batching"] == {"max_queue_delay_microseconds": record.queue_delay_us}
    assert config["instance_group"][0]["count"] == 1


def test_a_batch_larger_than_was_exported_is_an_error_that_says_both_numbers(repository: Repository) -> None:
    with pytest.raises(UserError, match=r"33.*digits-fp32.*exported.*32"):
        configs(repository, overrides=TritonOverrides(max_batch=33))
    assert configs(repository, overrides=TritonOverrides(max_batch=32))


def test_a_model_without_batches_takes_no_batch_and_says_that_a_delay_does_nothing(
    repository: Repository, said: list[str]
) -> None:
    def unbatched(record: dict[str, Any]) -> None:
        record.update(max_batch_size=0, warmup_batch_sizes=[1])

    change_record(repository, "digits-fp32", unbatched)
    configs(repository, overrides=TritonOverrides(queue_delay_us=9), say=said.append)
    [line] = said
    assert "digits-fp32" in line
    assert "queue delay" in line
    for name in ("digits-int8", "digits-fp16"):
        change_record(repository, name, unbatched)
    with pytest.raises(UserError, match=r"1.*exported"):
        configs(repository, overrides=TritonOverrides(max_batch=1))


def test_a_model_for_smaller_batches_beside_the_one_that_was_planned_is_served_as_it_was_exported(
    repository: Repository, said: list[str]
) -> None:
    change_record(repository, "digits-int8", lambda record: record.update(max_batch_size=8, warmup_batch_sizes=[1, 8]))
    served = configs(repository, overrides=TritonOverrides(max_batch=16), say=said.append)
    assert {name: config["max_batch_size"] for name, config in served.items()} == {"digits-fp32": 16, "digits-int8": 8}
    [line] = said
    assert re.findall(r"digits-int8|\b\d+\b", line)[:2] == ["digits-int8", "8"]
    assert "16" in line


def test_more_threads_than_cores_are_a_warning_and_served(repository: Repository, said: list[str]) -> None:
    assert configs(repository, overrides=TritonOverrides(instances=2, threads=4), num_cores=2, say=said.append)
    assert [line.partition(":")[0] for line in said] == ["warning"]


@pytest.mark.parametrize(("asked", "expected"), [("auto", "auto"), ("1,8,32", "1,8,32"), ("4,64", "4"), ("64", None)])
def test_buckets_that_no_batch_fills_are_left_out(
    repository: Repository, said: list[str], asked: str, expected: str | None
) -> None:
    graphs = (("enable_cuda_graph", "1"), ("cudnn_conv_algo_search", "HEURISTIC"))
    overrides = TritonOverrides(batch_buckets=asked, cuda=graphs)
    config = configs(repository, CUDA, pool="gpu", overrides=overrides, say=said.append)["digits-fp32"]
    told = {key: value["string_value"] for key, value in config["parameters"].items()}
    assert told.get("batch_buckets") == expected
    assert told["cudnn_conv_algo_search"] == "1"
    [block] = config["optimization"]["execution_accelerators"]["gpu_execution_accelerator"]
    assert ("enable_cuda_graph" in block["parameters"]) == (expected is not None)
    assert any("digits-fp32 " in line and " 32 " in line for line in said) == (expected is None)


def test_a_model_of_any_length_or_without_batches_is_served_without_buckets_and_says_so(
    repository: Repository, said: list[str]
) -> None:
    change_record(repository, "digits-fp32", lambda record: record.update(max_batch_size=0, warmup_batch_sizes=[1]))
    change_record(repository, "digits-int8", lambda record: record["inputs"][0].update(shape=[-1, 8, 8]))
    served = configs(repository, overrides=TritonOverrides(batch_buckets="auto"), say=said.append)
    assert not any("batch_buckets" in config["parameters"] for config in served.values())
    assert any("digits-fp32" in line and "no batches" in line for line in said)
    assert any("digits-int8" in line and "bucket_lengths" in line for line in said)
    lengths = TritonOverrides(batch_buckets="auto", bucket_lengths="1,2")
    told = parameters(repository, "digits-int8", overrides=lengths)
    assert (told["batch_buckets"], told["bucket_lengths"]) == ("auto", "1,2")


def test_sizes_that_are_left_to_auto_follow_the_speeds_here_and_are_told(
    repository: Repository, said: list[str]
) -> None:
    """A card that takes 32 rows as fast as one needs one size; a processor on which every row costs needs several."""

    def rows(engine: str, latencies: dict[int, float]) -> list[dict[str, Any]]:
        return [row(engine, 1.0, batch_size=size, latency_s=seconds) for size, seconds in latencies.items()]

    record_speeds(
        repository,
        fp32=rows("cpu", {1: 0.001, 8: 0.001, 32: 0.001}),
        int8=rows("cpu", {1: 0.001, 8: 0.008, 32: 0.032}),
    )
    auto = TritonOverrides(batch_buckets="auto")
    served = configs(repository, overrides=auto, say=said.append)
    told = {name: config["parameters"]["batch_buckets"]["string_value"] for name, config in served.items()}
    assert told == {"digits-fp32": "32", "digits-int8": "1,2,3,4,6,8,11,15,19,25,32"}
    assert any("digits-int8" in line and " 1, 2, 3" in line and "25%" in line for line in said)
    fewer = configs(repository, overrides=TritonOverrides(batch_buckets="auto", max_batch=8))
    assert fewer["digits-int8"]["parameters"]["batch_buckets"]["string_value"] == "1,2,3,4,6,8"
    assert not any("batch_buckets" in config["parameters"] for config in configs(repository).values())


def test_one_size_that_was_timed_tells_no_shape_and_leaves_powers_of_two(repository: Repository) -> None:
    record_speeds(repository, fp32=[row("cpu", 1.0)])
    assert (
        parameters(repository, "digits-fp32", overrides=TritonOverrides(batch_buckets="auto"))["batch_buckets"]
        == "auto"
    )


# -- engines and variants ---------------------------------------------------------------------------------------------

VERSIONS = {"cpu": "9.9", "openvino": "2.2", "cuda": "9.9"}


def row(engine: str, ratio: float, baseline_engine: str = "cpu", spread: float = 0.01, **change: Any) -> dict[str, Any]:
    """A speed of a record, measured here."""
    fields = {"processor": processor_key(), "engine": engine, "engine_version": VERSIONS[engine], "batch_size": 1}
    fields |= {"num_threads": 1, "ratio": ratio, "ratio_low": ratio * (1 - spread), "ratio_high": ratio * (1 + spread)}
    times = {"latency_s": 1e-4, "fp32_latency_s": 1e-4, "measured": "2026-11-21"}
    return {**fields, "baseline_engine": baseline_engine, **times, **change}


def record_speeds(repository: Repository, **rows: list[dict[str, Any]]) -> None:
    for variant, speeds in rows.items():
        change_record(repository, f"digits-{variant}", lambda record, speeds=speeds: record.update(speed=speeds))  # type: ignore[misc]


def name_engine(repository: Repository, name: str, engine: str, pool: str = "cpu") -> None:
    change_record(repository, name, lambda record: record["pools"][pool].update(engine=engine))


@pytest.mark.parametrize(
    ("ratio", "spread", "told"),
    [(1.43, 0.1, "1.43"), (1.2, 0.3, "unmeasured"), (0.6, 0.1, "unmeasured")],
    ids=["clearly faster", "unclear", "slower"],
)
def test_only_a_clear_gain_on_this_processor_is_told(
    repository: Repository, ratio: float, spread: float, told: str
) -> None:
    record_speeds(repository, fp32=[row("cpu", 1)], int8=[row("cpu", ratio, spread=spread)])
    assert parameters(repository, "digits-int8")["tandem_speed_ratio"] == told


# What FP32 and INT8 do on OpenVINO, INT8 on the plain engine -> the engines that they run on, and INT8's ratio
CHOICES = {
    "neither gains": ((0.5, 0.5), 0.9, ("cpu", "cpu"), "unmeasured"),
    "INT8 gains there": ((0.5, 3.0), 1.5, ("cpu", "openvino"), "3.00"),
    "FP32 gains more than INT8": ((2.0, 1.5), 1.5, ("openvino", "cpu"), "unmeasured"),
    "both gain, INT8 more": ((2.0, 3.0), 1.5, ("openvino", "openvino"), "1.50"),
    "FP32 gains there, INT8 on the plain engine": ((2.0, 0.5), 5.0, ("openvino", "cpu"), "2.50"),
}


@pytest.mark.parametrize("what", CHOICES)
def test_each_variant_runs_on_its_fastest_engine_and_is_compared_with_fp32_on_fp32s(
    repository: Repository, what: str
) -> None:
    (fp32_there, int8_there), int8_here, engines, ratio = CHOICES[what]
    record_speeds(
        repository,
        fp32=[row("cpu", 1), row("openvino", fp32_there)],
        int8=[row("cpu", int8_here), row("openvino", int8_there)],
    )
    made = configs(repository, BOTH)
    for name, engine in zip(("digits-fp32", "digits-int8"), engines, strict=True):
        assert made[name]["parameters"]["tandem_engine"]["string_value"] == engine
        blocks = made[name].get("optimization", {}).get("execution_accelerators", {})
        assert ("cpu_execution_accelerator" in blocks) == (engine == "openvino")
    assert made["digits-fp32"]["parameters"]["tandem_speed_ratio"]["string_value"] == "1.00"
    assert made["digits-int8"]["parameters"]["tandem_speed_ratio"]["string_value"] == ratio


def test_what_ran_beside_fp32_on_its_best_engine_counts_before_what_is_computed(repository: Repository) -> None:
    record_speeds(
        repository,
        fp32=[row("cpu", 1), row("openvino", 2.0)],
        int8=[row("cpu", 1), row("openvino", 3.0), row("openvino", 1.62, "openvino")],
    )
    assert parameters(repository, "digits-int8", BOTH)["tandem_speed_ratio"] == "1.62"


def test_an_engine_that_is_not_installed_here_is_neither_used_nor_compared_with(
    repository: Repository, said: list[str]
) -> None:
    record_speeds(
        repository,
        fp32=[row("cpu", 1), row("openvino", 4.0)],
        int8=[row("cpu", 1.5), row("openvino", 6.0), row("openvino", 1.5, "openvino")],
    )
    name_engine(repository, "digits-int8", "openvino")
    told = parameters(repository, "digits-int8", say=said.append)
    assert (told["tandem_engine"], told["tandem_speed_ratio"]) == ("cpu", "1.50")
    [line] = said
    assert re.match("digits-int8 .*cpu.*openvino", line)
    assert line.endswith("tandem environment openvino")


@pytest.mark.parametrize(
    "elsewhere", [{"processor": "pdp11-base"}, {"engine_version": "2.1"}], ids=["processor", "version"]
)
def test_what_was_measured_elsewhere_leaves_the_engine_of_the_record(
    repository: Repository, elsewhere: dict[str, str]
) -> None:
    record_speeds(repository, fp32=[row("cpu", 1)], int8=[row("openvino", 9.0, **elsewhere)])
    told = parameters(repository, "digits-int8", BOTH)
    assert (told["tandem_engine"], told["tandem_speed_ratio"]) == ("cpu", "unmeasured")
    name_engine(repository, "digits-int8", "openvino")
    told = parameters(repository, "digits-int8", BOTH)
    assert (told["tandem_engine"], told["tandem_speed_ratio"]) == ("openvino", "unmeasured")


# -- what this machine cannot compute ---------------------------------------------------------------------------------


@pytest.fixture
def with_bf16(repository: Repository) -> Repository:
    """The same model in BF16: FP32's file under another record."""
    folder = repository.path / "digits-bf16"
    shutil.copytree(repository.path / "digits-fp32", folder)

    def change(record: dict[str, Any]) -> None:
        record["variant"] = "bf16"
        record["pools"] = {"cpu": {"status": "passed", "engine": "openvino", "reason": ""}}
        record["speed"] = [row("openvino", 4.0)]

    change_record(repository, "digits-bf16", change)
    return repository


@pytest.mark.parametrize(
    ("engines", "has_bf16", "reason"),
    [
        (PLAIN, True, "is computed by openvino alone, which is not installed here: tandem environment openvino"),
        (PLAIN, False, "is computed by openvino alone, which is not installed here: tandem environment openvino"),
        (BOTH, False, "needs a processor with AMX-BF16 or AVX512-BF16, which this one lacks: it would compute in FP32"),
        (BOTH, True, None),
    ],
)
def test_bf16_runs_on_openvino_on_a_processor_that_has_it_or_not_at_all(
    with_bf16: Repository,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    engines: dict[str, EnginePython],
    has_bf16: bool,
    reason: str | None,
) -> None:
    monkeypatch.setattr(pooling, "has_bf16", lambda: has_bf16)
    planned = plan_pool(with_bf16, "cpu", engines, 2, may_measure=False, say=said.append)
    made = {name: json.loads(config) for name, config in planned.configs.items()}
    assert ("digits-bf16" in made) == (reason is None)
    if reason is not None:
        assert [line.partition("digits-bf16 ")[2] for line in said] == [reason]
        assert planned.refused == {
            "digits-bf16": pooling.Refusal(1, f"it {reason}")
        }  # whoever asks its Triton hears it
        return
    block = {"name": "openvino", "parameters": {"precision": "BF16"}}
    assert made["digits-bf16"]["optimization"]["execution_accelerators"]["cpu_execution_accelerator"] == [block]
    assert made["digits-bf16"]["parameters"]["tandem_engine"]["string_value"] == "openvino"
    assert made["digits-bf16"]["parameters"]["tandem_speed_ratio"]["string_value"] == "4.00"


def test_a_variant_whose_answers_would_be_wrong_on_this_processor_is_not_loaded(
    repository: Repository, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_record(repository, "digits-int8", lambda record: record.update(needs=["vnni"]))
    monkeypatch.setattr(pooling, "has_instructions", lambda instructions: instructions != "vnni")
    assert "digits-int8" not in configs(repository, say=said.append)
    [line] = said
    assert re.search("digits-int8 .*vnni", line)


def test_where_nothing_that_passed_can_run_the_user_is_told(with_bf16: Repository) -> None:
    for name in ("digits-fp32", "digits-int8"):
        shutil.rmtree(with_bf16.path / name)
    with pytest.raises(UserError, match=r"served.*passed"):
        configs(with_bf16)


# -- a card -----------------------------------------------------------------------------------------------------------


def test_int8_on_a_card_is_tensorrts_alone(repository: Repository, said: list[str]) -> None:
    change_record(repository, "digits-int8", lambda r: r["pools"]["gpu"].update(status="passed", engine="tensorrt"))
    assert "digits-int8" not in configs(repository, CUDA, pool="gpu", say=said.append)
    [line] = said
    assert line.startswith("not loaded: digits-int8")
    assert "tensorrt" in line


def test_another_variant_for_tensorrt_runs_on_cuda_where_that_is_all(repository: Repository, said: list[str]) -> None:
    name_engine(repository, "digits-fp16", "tensorrt", "gpu")
    assert parameters(repository, "digits-fp16", CUDA, pool="gpu", say=said.append)["tandem_engine"] == "cuda"
    [line] = said
    assert line.startswith("digits-fp16 runs on cuda")
    assert "tensorrt" in line


def test_a_speed_on_a_card_is_known_by_the_cards_name(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling.measure, "gpu_name", lambda: "NVIDIA Z1")
    record_speeds(repository, fp16=[row("cuda", 1.7, "cuda", processor="NVIDIA Z1")])
    told = parameters(repository, "digits-fp16", CUDA, pool="gpu")
    assert (told["tandem_speed_ratio"], told["tandem_processor"]) == ("1.70", "NVIDIA Z1")


def engines_of(repository: Repository, engine: str | None, said: list[str]) -> dict[str, str]:
    planned = plan_pool(repository, "cpu", BOTH, 2, may_measure=False, say=said.append, engine=engine)
    configs = {name: json.loads(config)["parameters"] for name, config in planned.configs.items()}
    return {name: parameters["tandem_engine"]["string_value"] for name, parameters in configs.items()}


@pytest.mark.parametrize("engine", ["cpu", "openvino"])
def test_an_engine_that_is_asked_for_computes_everything(repository: Repository, engine: str, said: list[str]) -> None:
    assert engines_of(repository, engine, said) == {"digits-fp32": engine, "digits-int8": engine}


def test_a_variant_on_an_engine_that_is_not_the_fastest_claims_no_speed(
    repository: Repository, said: list[str]
) -> None:
    fastest = engines_of(repository, None, said)["digits-int8"]
    other = next(engine for engine in BOTH if engine != fastest)
    planned = plan_pool(repository, "cpu", BOTH, 2, may_measure=False, say=said.append, engine=other)
    parameters = json.loads(planned.configs["digits-int8"])["parameters"]
    assert parameters["tandem_speed_ratio"] == {"string_value": pooling.UNMEASURED}


@pytest.mark.parametrize(
    ("engines", "engine", "words"),
    [
        (PLAIN, "openvino", "not here for the cpu pool, which has cpu: tandem environment openvino"),
        (BOTH, "cuda", "not here for the cpu pool, which has cpu, openvino"),
    ],
)
def test_an_engine_that_is_not_here_is_told(
    repository: Repository, engines: dict[str, EnginePython], engine: str, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        plan_pool(repository, "cpu", engines, 2, may_measure=False, say=print, engine=engine)


def test_what_one_engine_alone_computes_is_left_out_on_another(repository: Repository, said: list[str]) -> None:
    variants = repository.variants()
    bf16 = [replace(v, record=replace(v.record, variant="bf16")) for v in variants if v.name == "digits-fp32"]
    good, refused = pooling.on_engine(bf16, "cpu", "cpu", said.append)
    [line] = said
    assert line.startswith("not loaded: digits-fp32")
    assert "openvino" in line
    assert (good, list(refused)) == ([], ["digits-fp32"])
    assert pooling.on_engine(bf16, "openvino", "cpu", said.append) == (bf16, {})


# -- how cores are shared out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pool", "expected"), [("cpu", Share(1, 6)), ("gpu", Share(1, 1))])
def test_instances_times_threads_are_the_cores_of_a_cpu_pool(pool: str, expected: Share) -> None:
    assert share(pool, 6) == expected


@pytest.mark.parametrize(("num_instances", "num_threads"), [(0, 1), (1, 0)])
def test_a_share_of_nothing_is_a_mistake(num_instances: int, num_threads: int) -> None:
    with pytest.raises(ValueError, match=r"instance.*thread"):
        Share(num_instances, num_threads)


@pytest.mark.parametrize(
    ("overrides", "pool", "expected"),
    [
        (TritonOverrides(instances=2), "cpu", Share(2, 3)),
        (TritonOverrides(instances=4), "cpu", Share(4, 1)),
        (TritonOverrides(instances=8), "cpu", Share(8, 1)),
        (TritonOverrides(threads=2), "cpu", Share(1, 2)),
        (TritonOverrides(instances=2, threads=6), "cpu", Share(2, 6)),
        (TritonOverrides(instances=3), "gpu", Share(3, 1)),
        (TritonOverrides(queue_delay_us=5, max_batch=8), "cpu", Share(1, 6)),
    ],
)
def test_what_is_asked_for_changes_the_share_and_the_rest_of_the_cores_follows(
    overrides: TritonOverrides, pool: str, expected: Share
) -> None:
    assert share(pool, 6, overrides) == expected


def test_more_threads_than_cores_are_said_and_as_many_are_not() -> None:
    assert crowded(Share(2, 3), 6) is None
    said = crowded(Share(2, 4), 6)
    assert said is not None
    assert re.findall(r"\d+", said)[:3] == ["2", "4", "6"]
