"""Small ONNX models for what the backend must be able to do, each with the configuration that Triton gets for it.

Needs the onnx package only. `write_all` lays them out as a model repository and returns {model: configuration}.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, checker, helper, numpy_helper, save

Config = dict[str, Any]

# Our name of a type -> (ONNX's, Triton's, NumPy's)
TYPES = {
    "bool": (TensorProto.BOOL, "TYPE_BOOL", np.bool_),
    "uint8": (TensorProto.UINT8, "TYPE_UINT8", np.uint8),
    "uint16": (TensorProto.UINT16, "TYPE_UINT16", np.uint16),
    "uint32": (TensorProto.UINT32, "TYPE_UINT32", np.uint32),
    "uint64": (TensorProto.UINT64, "TYPE_UINT64", np.uint64),
    "int8": (TensorProto.INT8, "TYPE_INT8", np.int8),
    "int16": (TensorProto.INT16, "TYPE_INT16", np.int16),
    "int32": (TensorProto.INT32, "TYPE_INT32", np.int32),
    "int64": (TensorProto.INT64, "TYPE_INT64", np.int64),
    "fp16": (TensorProto.FLOAT16, "TYPE_FP16", np.float16),
    "fp32": (TensorProto.FLOAT, "TYPE_FP32", np.float32),
    "fp64": (TensorProto.DOUBLE, "TYPE_FP64", np.float64),
    "bytes": (TensorProto.STRING, "TYPE_STRING", np.object_),
}
Value = tuple[str, str, list[int | str]]  # name, our type, shape with the batch dimension


def config(name: str, inputs: list[Value], outputs: list[Value], *, max_batch_size: int = 16, **more: Any) -> Config:
    """Complete, as generated ones are. Dimensions leave out the batch where there is one."""
    first = 1 if max_batch_size else 0

    def entry(value: Value) -> Config:
        dims = [size if isinstance(size, int) else -1 for size in value[2][first:]]
        return {"name": value[0], "data_type": TYPES[value[1]][1], "dims": dims}

    parameters = {"intra_op_thread_count": "1", "inter_op_thread_count": "1", **more.pop("parameters", {})}
    made = {
        "name": name,
        "backend": "onnxruntime",
        "max_batch_size": max_batch_size,
        "input": [entry(value) for value in inputs],
        "output": [entry(value) for value in outputs],
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
        **more,
    }
    if max_batch_size:
        made.setdefault("dynamic_batching", {"max_queue_delay_microseconds": 0})
    return made


def write(
    folder: Path,
    name: str,
    nodes: list[NodeProto],
    inputs: list[Value],
    outputs: list[Value],
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
    **more: Any,
) -> Config:
    """Writes `name`/1/model.onnx and a config.pbtxt that says only the backend; the rest comes with the load."""
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(n, TYPES[t][0], shape) for n, t, shape in inputs],
        [helper.make_tensor_value_info(n, TYPES[t][0], shape) for n, t, shape in outputs],
        [numpy_helper.from_array(value, key) for key, value in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    checker.check_model(model)
    file = folder / name / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    save(model, str(file))
    return config(name, inputs, outputs, **more)


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs, outputs, **attributes)


def double(folder: Path, name: str, **more: Any) -> Config:
    """y = 2x, float32 [n, 4]"""
    row: list[int | str] = ["n", 4]
    nodes, constants = [node("Mul", ["x", "two"], ["y"])], {"two": np.array(2, np.float32)}
    return write(folder, name, nodes, [("x", "fp32", row)], [("y", "fp32", row)], constants, **more)


def write_victims(folder: Path) -> dict[str, Config]:
    """Two models for tests that kill: one instance, and two."""
    two = [{"count": 2, "kind": "KIND_CPU"}]
    return {"single": double(folder, "single"), "pair": double(folder, "pair", instance_group=two)}


def slow(folder: Path, name: str) -> Config:
    """Returns x after some seconds on one thread: for a request that is in flight while something happens."""
    size, times = 1024, 60
    steps = [
        node("MatMul", ["x" if i == 0 else f"t{i}", "one"], ["y" if i == times - 1 else f"t{i + 1}"])
        for i in range(times)
    ]
    shape: list[int | str] = ["n", 512, size]
    return write(
        folder, name, steps, [("x", "fp32", shape)], [("y", "fp32", shape)], {"one": np.eye(size, dtype=np.float32)}
    )


def folding(folder: Path, name: str, times: int) -> Config:
    """y = x + 1, float32 [n, 4]; each of `times` takes 10 to 100 ms of its load."""
    size = 1024
    steps = [node("MatMul", ["one" if i == 0 else f"t{i}", "one"], [f"t{i + 1}"]) for i in range(times)]
    steps += [node("ReduceMax", [f"t{times}"], ["most"], keepdims=0), node("Add", ["x", "most"], ["y"])]
    row: list[int | str] = ["n", 4]
    constants = {"one": np.eye(size, dtype=np.float32)}
    return write(folder, name, steps, [("x", "fp32", row)], [("y", "fp32", row)], constants)


def loop(folder: Path, name: str, **more: Any) -> Config:
    """y = x, int64 [1], after x rounds of a loop: for a request whose cost is its value's."""
    counter, one = helper.make_tensor_value_info("i", TensorProto.INT64, []), "one"
    body = helper.make_graph(
        [node("Identity", ["on"], ["still_on"]), node("Sub", ["left", one], ["left_then"])],
        "round",
        [
            counter,
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("left", TensorProto.INT64, [1]),
        ],
        [
            helper.make_tensor_value_info("still_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("left_then", TensorProto.INT64, [1]),
        ],
    )
    nodes = [
        node("Squeeze", ["x"], ["rounds"]),
        node("Loop", ["rounds", "", "x"], ["left_at_end"], body=body),
        node("Add", ["left_at_end", "x"], ["y"]),
    ]
    constants = {one: np.array([1], np.int64)}
    value: Value = ("x", "int64", [1])
    return write(folder, name, nodes, [value], [("y", "int64", [1])], constants, **{"max_batch_size": 0, **more})


def write_all(folder: Path) -> dict[str, Config]:
    """Every model that loads well on a CPU."""
    row: list[int | str] = ["n", 4]
    wide: list[int | str] = ["n", "m"]
    delayed = {"dynamic_batching": {"max_queue_delay_microseconds": 30_000}}  # long enough to batch slow clients
    made = [
        double(folder, "double"),
        double(folder, "batching", **delayed),
        write(
            folder,
            "types",
            [node("Identity", [t], [f"{t}_out"]) for t in TYPES],
            [(t, t, wide) for t in TYPES],
            [(f"{t}_out", t, wide) for t in TYPES],
            **delayed,
        ),
        write(
            folder,
            "unbatched",
            [node("Transpose", ["x"], ["y"], perm=[1, 0])],
            [("x", "fp32", ["a", "b"])],
            [("y", "fp32", ["b", "a"])],
            max_batch_size=0,
        ),
        write(
            folder,
            "optional",
            [node("Mul", ["x", "k"], ["y"]), node("Neg", ["x"], ["z"])],
            [("x", "fp32", row), ("k", "fp32", [1, 4])],
            [("y", "fp32", row), ("z", "fp32", row)],
            {"k": np.full((1, 4), 3, np.float32)},
            max_batch_size=0,
            input=[
                {"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 4]},
                {"name": "k", "data_type": "TYPE_FP32", "dims": [1, 4], "optional": True},
            ],
        ),
        write(  # sums by four: a length that four does not divide fails inside ONNX Runtime
            folder,
            "ragged",
            [node("Reshape", ["x", "by4"], ["r"]), node("ReduceSum", ["r", "axis"], ["y"], keepdims=0)],
            [("x", "fp32", wide)],
            [("y", "fp32", row)],
            {"by4": np.array([0, -1, 4], np.int64), "axis": np.array([1], np.int64)},
            input=[{"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "allow_ragged_batch": True}],
            **delayed,
        ),
        write(  # its output has the first row only, however many go in
            folder,
            "collapsing",
            [node("Slice", ["x", "zero", "one", "zero"], ["y"])],
            [("x", "fp32", row)],
            [("y", "fp32", ["k", 4])],
            {"zero": np.array([0], np.int64), "one": np.array([1], np.int64)},
        ),
        double(
            folder,
            "tuned",
            parameters={
                "execution_mode": "1",
                "enable_mem_arena": "0",
                "enable_mem_pattern": "false",
                "session.intra_op.allow_spinning": "0",
                "session.set_denormal_as_zero": "1",
            },
            optimization={"graph": {"level": -1}},
        ),
        double(folder, "bucketed", parameters={"batch_buckets": "1,3,8"}, **delayed),
        write(
            folder,
            "lengths",
            [node("Mul", ["x", "x"], ["y"]), node("Neg", ["x"], ["z"])],
            [("x", "fp32", wide)],
            [("y", "fp32", wide), ("z", "fp32", wide)],
            parameters={
                "batch_buckets": "auto",
                "bucket_lengths": "2,4",
                "memory.enable_memory_arena_shrinkage": "cpu:0",
            },
        ),
        double(folder, "shrinking", parameters={"memory.enable_memory_arena_shrinkage": "cpu:0"}),
    ]
    return {one["name"]: one for one in made}
