"""What lies beside a model: the same content makes the same bytes, and nothing grows beyond its limit."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest

from serving.export import variant_files
from serving.export.data.dataset import Dataset
from serving.export.exported_model import ExportedModel
from serving.export.variant_files import ProvenVariant, gate_data, publication, request, shared_files, space
from serving.repository import Check, Gate, PoolGate, Tensor
from serving.repository.preprocessing import ImagePreprocessing, from_json

IMAGES = np.random.default_rng(0).random((6, 1, 8, 8), dtype=np.float32)
EXPORTED = ExportedModel(
    model=b"onnx",
    inputs=(Tensor("image", "FP32", (1, 8, 8)),),
    outputs=(Tensor("probabilities", "FP32", (3,)),),
    max_batch_size=32,
    task="classification",
    source="a test",
    framework="pytorch",
    run=None,
    example={"image": IMAGES},
    labels=("a", "b", "c"),
)
DATA = Dataset("images", {"image": IMAGES}, np.array([2, 0, 1, 1, 0, 2]), "arrays")
GATE = Gate("labels", "pytorch", (Check("top1", 1.0, 0.99, True, 1.0, True),), 6, "images", "0" * 64, (1, 3, 32))
PROVEN = ProvenVariant("fp32", b"onnx", "", GATE, {"cpu": PoolGate("passed", "cpu", "")}, ())


def test_labels_and_preprocessing_are_files_and_the_sample_has_its_answer() -> None:
    preprocessing = ImagePreprocessing(
        "image", 8, 8, None, "bilinear", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "RGB", "probabilities"
    )
    shared = shared_files(replace(EXPORTED, preprocessing=preprocessing, files={"tokenizer.json": b"{}"}), DATA)
    assert shared.files["labels.txt"] == b"a\nb\nc\n"
    assert from_json(shared.files["preprocessing.json"].decode()) == preprocessing
    assert shared.files["tokenizer.json"] == b"{}"
    assert shared.sample is not None
    assert (shared.sample.label, shared.sample.index) == ("c", 2)
    [tensor] = json.loads(shared.files["sample.json"])["inputs"]
    assert np.allclose(np.array(tensor["data"], np.float32).reshape(tensor["shape"]), IMAGES[:1])


def test_without_data_the_sample_is_an_example_and_claims_no_answer() -> None:
    sample = shared_files(EXPORTED, None).sample
    assert sample is not None
    assert (sample.label, sample.index) == (None, None)


def test_the_right_answer_of_a_regressor_is_a_number_and_no_place() -> None:
    sample = shared_files(
        replace(EXPORTED, task="regression", labels=None), replace(DATA, labels=np.arange(6) + 0.37)
    ).sample
    assert sample is not None
    assert (sample.label, sample.index) == ("0.37", None)


@pytest.mark.parametrize("task", ["other", "multi-label", "regression"])
def test_of_several_right_answers_to_a_row_the_sample_names_none(task: str) -> None:
    """As of scikit-learn's MultiOutputClassifier."""
    sample = shared_files(replace(EXPORTED, task=task), replace(DATA, labels=np.eye(6, 3, dtype=np.int64))).sample
    assert sample is not None
    assert (sample.label, sample.index) == (None, None)


@pytest.mark.parametrize("part", ["inputs", "outputs"])
def test_a_model_of_a_type_without_json_has_no_sample(part: str) -> None:
    """A request of it, or its answer, would be refused."""
    [tensor] = getattr(EXPORTED, part)
    assert shared_files(replace(EXPORTED, **{part: (replace(tensor, datatype="FP16"),)}), None).sample is None


def test_a_sample_that_nobody_could_read_is_left_out() -> None:
    big = np.zeros((4, 3, 224, 224), np.float32)
    exported = replace(EXPORTED, inputs=(Tensor("image", "FP32", (3, 224, 224)),), example={"image": big})
    shared = shared_files(exported, None)
    assert shared.sample is None
    assert "sample.json" not in shared.files


def test_a_request_holds_text_and_whole_numbers_as_such() -> None:
    inputs = (Tensor("ids", "INT64", (2,)), Tensor("text", "BYTES", (1,)))
    body = request(inputs, {"ids": np.array([[1, 2]]), "text": np.array([[b"na\xc3\xafve"]], object)})
    assert [tensor["data"] for tensor in json.loads(body)["inputs"]] == [[1, 2], ["naïve"]]


def test_a_request_for_a_model_without_a_batch_is_one_row_without_that_dimension() -> None:
    body = request((Tensor("x", "FP32", (2,)),), {"x": np.ones((4, 2), np.float32)}, has_batch=False)
    assert json.loads(body)["inputs"][0]["shape"] == [2]


def test_the_gates_data_is_the_same_bytes_every_time_and_can_be_read() -> None:
    packed = gate_data(DATA)
    assert packed == gate_data(DATA)
    with np.load(io.BytesIO(packed), allow_pickle=False) as file:
        assert np.array_equal(file["image"], IMAGES)
        assert file["labels"].tolist() == [2, 0, 1, 1, 0, 2]


def test_of_much_data_rows_of_all_of_it_are_kept_as_many_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).random((100, 1, 8, 8), dtype=np.float32)
    data = Dataset("sorted", {"image": images}, np.repeat(np.arange(10), 10), "arrays")
    monkeypatch.setattr(variant_files, "MAX_GATE_DATA_BYTES", 6000)
    packed = gate_data(data)
    assert len(packed) <= 6000
    with np.load(io.BytesIO(packed)) as file:
        kept, labels = file["image"], file["labels"]
    assert 10 < len(kept) < 100
    assert set(labels) == set(range(10)), "sorted data lost a label"
    where = [int(np.flatnonzero((images == row).all(axis=(1, 2, 3)))[0]) for row in kept]
    assert where == sorted(set(where))
    assert labels.tolist() == [place // 10 for place in where]


def test_data_of_which_no_row_fits_keeps_one_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant_files, "MAX_GATE_DATA_BYTES", 10)
    with np.load(io.BytesIO(gate_data(DATA))) as file:
        assert len(file["image"]) == 1


@pytest.mark.parametrize(
    ("variant", "task", "worst", "expected"),
    [
        ("fp32", "embedding", None, "m@aaaaaaaaaaaa"),
        ("fp16", "embedding", 0.9999, "m@aaaaaaaaaaaa"),
        ("int8", "embedding", 0.991, "m-int8@bbbbbbbbbbbb"),
        ("int8", "embedding", None, "m-int8@bbbbbbbbbbbb"),
        ("int8", "classification", 0.9999, None),
    ],
)
def test_vectors_that_lie_apart_are_in_a_space_of_their_own(
    variant: str, task: str, worst: float | None, expected: str | None
) -> None:
    checks = () if worst is None else (Check("cosine_worst", worst, 0.9, True, None, True),)
    assert space("m", "a" * 64, variant, "b" * 64, replace(GATE, checks=checks), task) == expected


@pytest.mark.parametrize(("max_batch_size", "sizes", "delay"), [(32, (1, 8, 32), 300), (4, (1, 4), 300), (0, (1,), 0)])
def test_warm_up_covers_the_batch_sizes_that_matter(max_batch_size: int, sizes: tuple[int, ...], delay: int) -> None:
    exported = replace(EXPORTED, max_batch_size=max_batch_size)
    made, _ = publication(
        exported,
        PROVEN,
        shared_files(exported, DATA),
        model="m",
        model_version=2,
        queue_delay_us=300,
        fp32_digest="0" * 64,
    )
    assert made.warmup_batch_sizes == sizes
    assert made.queue_delay_us == delay
    assert made.model_file == "2/model.onnx"


def test_how_a_variant_was_made_is_part_of_its_source() -> None:
    made, _ = publication(
        EXPORTED,
        replace(PROVEN, variant="int8", how="static QDQ"),
        shared_files(EXPORTED, None),
        model="m",
        model_version=1,
        queue_delay_us=0,
        fp32_digest="0" * 64,
    )
    assert made.source == "a test; static QDQ"


def test_only_fp32_carries_the_gates_data() -> None:
    shared = shared_files(EXPORTED, DATA)
    for variant, data, is_kept in (("fp32", DATA, True), ("int8", DATA, False), ("fp32", None, False)):
        proven = replace(PROVEN, variant=variant)
        _, contents = publication(
            EXPORTED, proven, shared, model="m", model_version=1, queue_delay_us=0, fp32_digest="0" * 64, data=data
        )
        assert ("gate.npz" in contents) == is_kept
        assert contents["1/model.onnx"] == b"onnx"
