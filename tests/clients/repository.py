"""Makes a model repository that the outside clients ask, by the project's own interpreter: `repository.py FOLDER [examples]`.

`digits` as committed, and `words`, an embeddings model of a few words whose vectors a reader can compute; or `digits` and the models that
Triton's own example programs ask, of the same names, inputs and outputs. Not a test, and imported by none: the clients' environment has
no `serving`.
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
ELEMENTS = {"INT32": TensorProto.INT32, "INT8": TensorProto.INT8, "BYTES": TensorProto.STRING}


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
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
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
    (examples if sys.argv[2:] == ["examples"] else main)(Path(sys.argv[1]))
