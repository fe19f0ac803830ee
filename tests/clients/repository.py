"""Makes a model repository that the outside clients ask, by the project's own interpreter: `repository.py FOLDER [examples|suites]`.

`digits` as committed, and `words`, an embeddings model of a few words whose vectors a reader can compute; or `digits` and the models that
Triton's own example programs ask, of the same names, inputs and outputs; or those that suites of other servers' tests need. Not a test,
and imported by none: the clients' environment has no `serving`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import NodeProto, TensorProto, checker, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from serving.export.publish import publish, writing
from serving.repository import Record, digests_of
from serving.repository.layout import config_files
from serving.repository.preprocessing import TextPreprocessing, to_json
from serving.repository.record import EMBEDDING, OTHER, Tensor

ROOT = Path(__file__).parents[2]
WORDS = ("[PAD]", "[UNK]", "red", "green", "blue", "a", "car", "tree")
WIDTH = 4


def main(folder: Path) -> None:
    digits = ROOT / "model_repo" / "digits-fp32"
    shutil.copytree(digits, folder / "digits-fp32")
    like = Record.from_json((digits / "tandem.json").read_text())
    files = {"tokenizer.json": _tokenizer(), "preprocessing.json": to_json(_text()).encode()}
    _write(folder, _words(like), _words_graph(), files)


def examples(folder: Path) -> None:
    digits = ROOT / "model_repo" / "digits-fp32"
    shutil.copytree(digits, folder / "digits-fp32")
    like = Record.from_json((digits / "tandem.json").read_text())
    for name, (datatype, size) in EXAMPLES.items():
        inputs, outputs = (("INPUT0",), ("OUTPUT0",)) if "identity" in name else (PAIR_IN, PAIR_OUT)
        record = replace(
            like,
            model=name,
            task=OTHER,
            source="made for tests",
            inputs=tuple(Tensor(one, datatype, (size,)) for one in inputs),
            outputs=tuple(Tensor(one, datatype, (size,)) for one in outputs),
            labels=None,
            sample=None,
            preprocessing=None,
            speed=(),
            max_batch_size=8,
            warmup_batch_sizes=(),
            files={},
        )
        _write(folder, record, _example_graph(datatype, size, is_pair=inputs is PAIR_IN), {})


# Datatype of two inputs -> datatypes in which their sum and their difference come.
SUMS = {
    "UINT8": ("UINT8", "FP32"),
    "INT8": ("INT8", "INT32"),
    "INT16": ("INT16",),
    "INT32": ("INT32", "INT8", "INT16", "FP32", "FP16", "BYTES"),
    "INT64": ("INT64",),
    "FP16": ("FP16", "FP32"),
    "FP32": ("FP32", "UINT8", "FP16", "INT32"),
    "BYTES": ("BYTES", "INT32"),
}
WITHOUT_BATCHES = ("INT32", "BYTES")
# Identity models -> datatype and shape of each input.
ZEROS = {
    "zero_1_float32": [("FP32", (-1,))],
    "zero_1_object": [("BYTES", (-1,))],
    "zero_1_object_1_element": [("BYTES", (1,))],
    "zero_1_float16": [("FP16", (-1, -1))],
    "zero_3_float32": [("FP32", (-1,))] * 3,
}


def suites(folder: Path) -> None:
    """Each of the graphs of `SUMS` and `ZEROS`, and `versioned`, of which the third version is the newest and gives one more each time."""
    digits = ROOT / "model_repo" / "digits-fp32"
    shutil.copytree(digits, folder / "digits-fp32")
    like = Record.from_json((digits / "tandem.json").read_text())

    def write(
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        graph: bytes,
        *,
        max_batch_size: int = 8,
        version: int = 1,
    ) -> None:
        record = replace(
            like,
            model=name,
            model_version=version,
            task=OTHER,
            source="made for tests",
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            labels=None,
            sample=None,
            preprocessing=None,
            speed=(),
            max_batch_size=max_batch_size,
            warmup_batch_sizes=(),
            warmup=(),
            files={},
        )
        with writing(folder):
            publish(folder, record, {record.model_file: graph})

    for taken, given in SUMS.items():
        for batched in (True, False) if taken in WITHOUT_BATCHES else (True,):
            tensors = [Tensor(f"{what}_{one}", one, (16,)) for one in given for what in ("SUM", "DIFFERENCE")]
            inputs = [Tensor(name, taken, (16,)) for name in PAIR_IN]
            name = f"onnx_{taken.lower()}{'' if batched else '_nobatch'}"
            write(name, inputs, tensors, _sums_graph(taken, given, batched=batched), max_batch_size=8 if batched else 0)
    for name, tensors in ZEROS.items():
        inputs = [Tensor(f"INPUT{i}", *one) for i, one in enumerate(tensors)]
        outputs = [Tensor(f"OUTPUT{i}", *one) for i, one in enumerate(tensors)]
        write(name, inputs, outputs, _zeros_graph(tensors))
    strings = [("BYTES", (-1,))]
    write(
        "strings",
        [Tensor("INPUT0", *strings[0])],
        [Tensor("OUTPUT0", *strings[0])],
        _zeros_graph(strings, batched=False),
        max_batch_size=0,
    )
    for version in (1, 2, 3):
        one = [("FP32", (-1,))]
        graph = _zeros_graph(one, more=float(version))
        write("versioned", [Tensor("INPUT0", *one[0])], [Tensor("OUTPUT0", *one[0])], graph, version=version)


def _sums_graph(taken: str, given: Sequence[str], *, batched: bool) -> bytes:
    shape: list[str | int] = ["n", 16] if batched else [16]
    nodes = [_node("Cast", [name], f"{name}_number", to=TensorProto.FLOAT) for name in PAIR_IN]
    outputs = []
    for op, what in (("Add", "SUM"), ("Sub", "DIFFERENCE")):
        nodes.append(_node(op, [f"{name}_number" for name in PAIR_IN], f"{what}_number"))
        nodes.append(_node("Cast", [f"{what}_number"], f"{what}_whole", to=TensorProto.INT32))
        for one in given:
            source = f"{what}_whole" if one == "BYTES" else f"{what}_number"
            nodes.append(_node("Cast", [source], f"{what}_{one}", to=ELEMENTS[one]))
            outputs.append((f"{what}_{one}", ELEMENTS[one], shape))
    return _model(nodes, [(name, ELEMENTS[taken], shape) for name in PAIR_IN], outputs, {})


def _zeros_graph(tensors: Sequence[tuple[str, tuple[int, ...]]], *, more: float = 0.0, batched: bool = True) -> bytes:
    """Outputs are the inputs, and `more`."""
    taken, given, nodes = [], [], []
    for i, (datatype, shape) in enumerate(tensors):
        sizes = [*(["n"] if batched else []), *(f"d{i}{j}" if size < 0 else size for j, size in enumerate(shape))]
        taken.append((f"INPUT{i}", ELEMENTS[datatype], sizes))
        given.append((f"OUTPUT{i}", ELEMENTS[datatype], sizes))
        nodes.append(
            _node("Add", [f"INPUT{i}", "more"], f"OUTPUT{i}")
            if more
            else _node("Identity", [f"INPUT{i}"], f"OUTPUT{i}")
        )
    return _model(nodes, taken, given, {"more": np.float32(more)} if more else {})


def vectors() -> np.ndarray:
    """float32 [words, WIDTH]: no two alike, none of them zero."""
    return np.random.default_rng(7).normal(size=(len(WORDS), WIDTH)).astype(np.float32)


def _words(like: Record) -> Record:
    """Of digits' form, and nothing of digits in it; its gate counts as passed, which is all that serving asks for."""
    return replace(
        like,
        model="words",
        task=EMBEDDING,
        source="made for tests",
        inputs=tuple(Tensor(name, "INT64", (-1,)) for name in ("input_ids", "attention_mask")),
        outputs=(Tensor("vector", "FP32", (WIDTH,)),),
        space="words@1",
        labels=None,
        sample=None,
        preprocessing="preprocessing.json",
        speed=(),
        max_batch_size=8,
        warmup_batch_sizes=(1,),
        warmup=(),
        files={},
    )


def _text() -> TextPreprocessing:
    names = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    return TextPreprocessing("tokenizer.json", names, 16, 0, "mean", True)


def _tokenizer() -> bytes:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made.to_str().encode()


def _words_graph() -> bytes:
    """The mean of the words' vectors, of length 1."""
    nodes = [
        _node("Gather", ["table", "input_ids"], "each"),
        _node("Cast", ["attention_mask"], "kept", to=TensorProto.FLOAT),
        _node("Unsqueeze", ["kept", "last"], "weights"),
        _node("Mul", ["each", "weights"], "weighted"),
        _node("ReduceSum", ["weighted", "along"], "sums", keepdims=0),
        helper.make_node("LpNormalization", ["sums"], ["vector"], axis=-1, p=2),
    ]
    constants = {"table": vectors(), "last": np.array([-1]), "along": np.array([1])}
    taken = [(name, TensorProto.INT64, ["n", "length"]) for name in ("input_ids", "attention_mask")]
    return _model(nodes, taken, [("vector", TensorProto.FLOAT, ["n", WIDTH])], constants)


PAIR_IN, PAIR_OUT = ("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1")
# Model -> datatype and size of its inputs; pairs give their sum and their difference, also of numbers written as text.
EXAMPLES = {
    "simple": ("INT32", 16),
    "simple_int8": ("INT8", 16),
    "simple_string": ("BYTES", 16),
    "simple_identity": ("BYTES", -1),
    "custom_identity_int32": ("INT32", -1),
}
ELEMENTS = {
    "UINT8": TensorProto.UINT8,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "BYTES": TensorProto.STRING,
}


def _example_graph(datatype: str, size: int, *, is_pair: bool) -> bytes:
    kind, shape = ELEMENTS[datatype], ["n", "length" if size < 0 else size]
    if not is_pair:
        return _model(
            [_node("Identity", ["INPUT0"], "OUTPUT0")], [("INPUT0", kind, shape)], [("OUTPUT0", kind, shape)], {}
        )
    nodes = [_node("Cast", [name], f"{name}_number", to=TensorProto.INT32) for name in PAIR_IN]
    for op, output in zip(("Add", "Sub"), PAIR_OUT, strict=True):
        nodes.append(_node(op, [f"{name}_number" for name in PAIR_IN], f"{output}_number"))
        nodes.append(_node("Cast", [f"{output}_number"], output, to=kind))
    return _model(nodes, [(name, kind, shape) for name in PAIR_IN], [(name, kind, shape) for name in PAIR_OUT], {})


def _node(op: str, taken: Sequence[str], given: str, **attributes: object) -> NodeProto:
    return helper.make_node(op, list(taken), [given], **attributes)


Value = tuple[str, int, Sequence[str | int]]


def _model(
    nodes: Sequence[NodeProto], taken: Sequence[Value], given: Sequence[Value], constants: Mapping[str, np.ndarray]
) -> bytes:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [info(*value) for value in taken],
        [info(*value) for value in given],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    checker.check_model(model)
    made: bytes = model.SerializeToString()
    return made


def _write(folder: Path, record: Record, model: bytes, beside: Mapping[str, bytes]) -> None:
    place = folder / record.name
    files = {record.model_file: model, **beside}
    for path, data in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(data)
    record = replace(record, files=digests_of(place))
    for path, text in config_files(record).items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    (place / "tandem.json").write_text(replace(record, files=digests_of(place)).to_json())


if __name__ == "__main__":
    {(): main, ("examples",): examples, ("suites",): suites}[tuple(sys.argv[2:])](Path(sys.argv[1]))
