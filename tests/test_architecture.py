"""Imports point down the list of rooms, go in no circle, and heavy packages stay in the rooms that may use them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.import_statements import import_statements

ROOT = Path(__file__).parents[1]
# From the top down; a room imports only what stands below it.
ROOMS = [
    "cli",
    "ui",
    "cluster",
    "local",
    "gateway",
    "control",
    "usage",
    "keys",
    "export",
    "decisions",
    "measure",
    "scheduling",
    "protocol",
    "preprocessing",
    "repository",
    "settings",
    "cuda_options",
    "environment",
    "documents",
    "cores",
    "ports",
    "http_client",
    "children",
    "redis_client",
    "installation",
    "errors",
    "compiled",
]
# What computes without Triton, to be measured beside it: this process, and a peer.
PEERS = ("bentoml_server", "kserve_server", "litserve_server", "mlserver_model", "ray_server")
IN_PROCESS = {"loadtest/bench/surfaces/items.py", *(f"loadtest/bench/peers/servers/{it}.py" for it in PEERS)}
MADE_MODELS = "loadtest/bench/made_models.py"
BENCH_GRPC = "loadtest/bench/surfaces/grpc_ends.py"
# Package -> the rooms (or files of loadtest/) that may import it.
KEEPERS = {
    "torch": {"export"},
    "transformers": {"export"},
    "onnx": {"export", "loadtest/gpu/stand_in.py", MADE_MODELS, "loadtest/bench/surfaces/json_image.py"},
    "onnxscript": {"export"},
    "onnxruntime": {
        "export",
        "local/backends",
        "loadtest/claims/card_copy.py",
        "loadtest/gpu/stand_in.py",
        "loadtest/gpu/stand_in_card.py",
        *IN_PROCESS,
    },
    "sklearn": {"export"},
    "fastapi": {"gateway"},
    "starlette": {"gateway"},
    "uvicorn": set(),  # the bench starts one
    "kubernetes": {"cluster"},
    "locust": {"loadtest/locustfile.py"},
    "gevent": {"loadtest/locustfile.py", "loadtest/sending/open_loop.py"},
    "grpc": {"cluster", "loadtest/profile/ladder.py", BENCH_GRPC, "loadtest/bench/soak/mix.py"},
    "tokenizers": {"preprocessing", "export", MADE_MODELS},
    "jinja2": {"documents"},
    "opentelemetry": {"gateway"},
    "markupsafe": {"documents"},
    "PIL": {"preprocessing", "export", "loadtest/bench/surfaces/classify.py", "loadtest/bench/soak/mix.py"},
    "simdjson": {"protocol"},
    "tritonclient": {
        "local",
        "gateway",
        "protocol",
        "loadtest/profile/ladder.py",
        "loadtest/bench/surfaces/grpc_port.py",
        "loadtest/bench/soak/mix.py",
    },
    "pydantic": {
        "settings",
        "cuda_options",
        "gateway",
        "control",
        "documents",
        "loadtest/campaign_file.py",
        "loadtest/claims/claims_file.py",
    },
}
PURE = {
    "scheduling": {"asyncio", "time", "datetime", "socket", "os", "random"},
    "decisions": {"asyncio", "time", "socket", "os", "random", "pydantic"},
    "loadtest/arrivals.py": {"asyncio", "time", "socket", "os", "pathlib"},
    "loadtest/report/fail_if.py": {"asyncio", "time", "random", "socket", "os", "pathlib"},
    **{
        f"measure/{name}": {"asyncio", "time", "random", "socket", "os", "pathlib"}
        for name in ("anytime", "intervals", "percentiles", "stability", "search")
    },
}
FILES = sorted(p for folder in ("serving", "loadtest") for p in (ROOT / folder).rglob("*.py"))
MODULES = {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in FILES}
# Folders beside each other that still import each other.
TO_PART = {
    "serving/gateway/classify and serving/gateway/http",
    "serving/gateway/http and serving/gateway/openai",
}


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every name that a file imports, wherever it does: a module, or `module.name` where that is a module of ours."""
    names = []
    for node in import_statements(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            names += [name.name for name in node.names]
        else:
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            parts = {f"{module}.{name.name}" for name in node.names} & MODULES.keys()
            names += [*parts, *([] if len(parts) == len(node.names) else [module])]
    return tuple(names)


@pytest.mark.thorough
def test_the_imports_that_are_found_are_those_that_a_parser_finds() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        nodes = ast.walk(ast.parse(text))
        parsed = [ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        assert sorted(map(ast.unparse, import_statements(text))) == sorted(parsed), path


def place(path: Path) -> str:
    """The room of a file: `gateway`, `local/backends`, `loadtest/records.py`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "loadtest":
        return path.relative_to(ROOT).as_posix()
    if parts[1] == "measure":
        return "/".join(parts[1:])
    if parts[1] == "decisions" and parts[-1] == "command":  # a verb reads files and shows its progress
        return "decisions/command"
    return "local/backends" if parts[1:3] == ("local", "backends") else parts[1]


def test_imports_point_down_the_house() -> None:
    for path in FILES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] != "serving" or parts[1] in ("__init__", "__main__"):
            continue
        room = parts[1]
        assert room in ROOMS, f"a room nobody has named: {room}"
        for name in imports(path):
            package, _, rest = name.partition(".")
            assert package != "loadtest" or room == "cli", f"{path} imports {name}"
            if package == "serving" and rest:
                assert ROOMS.index(rest.split(".")[0]) >= ROOMS.index(room), f"{path} may not import {name}"


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of nodes that reach each other (Tarjan's strongly connected components of more than one)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == order[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in order:
            visit(node)
    return found


def test_no_file_imports_what_imports_it() -> None:
    graph = {name: {it for it in imports(path) if it in MODULES and it != name} for name, path in MODULES.items()}
    assert circles(graph) == []


def test_no_two_folders_beside_each_other_import_each_other() -> None:
    """A folder and one in it are one thing."""
    pairs = {
        (path.parent, MODULES[name].parent)
        for path in FILES
        for name in imports(path)
        if name in MODULES
        and not path.is_relative_to(MODULES[name].parent)
        and not MODULES[name].is_relative_to(path.parent)
    }
    both = {
        f"{one.relative_to(ROOT)} and {other.relative_to(ROOT)}"
        for one, other in pairs
        if (other, one) in pairs and one < other
    }
    assert both <= TO_PART


PORTS = {"serving.ports", "serving.ports.free_ports"}
MESSAGES = {"serving.errors", "serving.errors.UserError", "serving.installation", "serving.installation.how_to_add"}
CHILDREN = {"serving.children", "serving.children.held"}
TRACES = {"serving.decisions.traces", "serving.decisions.traces.read_trace"}
BURSTS = {"serving.decisions.simulate.arrivals", "serving.decisions.simulate.arrivals.Bursts"}
DOCUMENTS = "serving.documents"  # the reader of files, pages and figures are everybody's


def test_heavy_packages_stay_in_their_rooms() -> None:
    for path in FILES:
        for name in imports(path):
            keepers = KEEPERS.get(name.split(".")[0])
            assert keepers is None or place(path) in keepers, f"{place(path)} may not import {name}"


def test_deciding_code_has_no_clock_and_does_no_input_or_output() -> None:
    for path in FILES:
        assert not PURE.get(place(path), set()) & {name.split(".")[0] for name in imports(path)}, path


# Texts and photographs become arrays by the very code that the model's gate was judged with, and by nothing of loadtest's own.
PREPARING = {
    "loadtest/sending/prepared.py": {
        "serving.repository.layout",
        "serving.repository.preprocessing",
        "serving.repository.record",
        "serving.preprocessing.images",
        "serving.export.data.texts",
        "serving.export.recipes.photographs",
    },
}


def test_load_tests_know_the_gateway_by_http_only() -> None:
    """Of `serving` they take the reader of traces and the meaning of bursts, which the simulator has too, and values that plans are made of."""
    for path in (ROOT / "loadtest").rglob("*.py"):
        if not {"bench", "gpu", "profile", "verdict", "claims", "nets.py"} & set(
            path.parts
        ):  # these measure or judge the server's own parts
            taken = {name for name in imports(path) if name.split(".")[0] == "serving"}
            known = {*MESSAGES, *PORTS, *CHILDREN, *TRACES, *BURSTS, *PREPARING.get(place(path), ())}
            assert {
                n for n in taken if not n.startswith(("serving.measure", "serving.http_client", DOCUMENTS))
            } <= known, f"{path}: {taken}"


def test_the_command_line_imports_no_room_until_its_verb_runs() -> None:
    for file in (ROOT / "serving" / "cli").glob("*.py"):
        top = ast.parse(file.read_text(encoding="utf-8"))
        names = {n.module for n in top.body if isinstance(n, ast.ImportFrom)} | {
            a.name for n in top.body if isinstance(n, ast.Import) for a in n.names
        }
        rooms = {n for n in names if n and n.startswith("serving.") and not n.startswith("serving.cli")}
        assert rooms <= {"serving.errors", "serving.installation", "serving.environment", "serving.children"}, file


def test_nothing_of_the_wheel_imports_what_is_for_a_checkout() -> None:
    """Benches, and what runs on a machine with a card."""
    parts = ("bench", "gpu")
    wheel = [path for path in FILES if not any(path.is_relative_to(ROOT / "loadtest" / part) for part in parts)]
    prefixes = tuple(f"loadtest.{part}" for part in parts)
    assert not [path for path in wheel if any(name.startswith(prefixes) for name in imports(path))]
