"""The gateway's own OpenAPI document: valid, and openapi-python-client makes a client of it that asks a model."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import digits
import pytest
from conftest import LABEL, SAMPLE, Gateway, Keys
from openapi_spec_validator import validate

TENSOR_BYTES = digits.IMAGE.tobytes()


def document(gateway: Gateway) -> dict[str, Any]:
    with urllib.request.urlopen(f"{gateway.url}/openapi.json", timeout=30) as answer:
        return dict(json.load(answer))


def generate(folder: Path, name: str, api: dict[str, Any]) -> str:
    """A package of this name in the folder; what the generator said."""
    (folder / "openapi.json").write_text(json.dumps(api))
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", str(folder / "openapi.json")]
    command += ["--meta", "none", "--output-path", str(folder / name), "--overwrite"]
    # Its formatter is found beside the interpreter.
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=90, env={"PATH": str(Path(sys.executable).parent)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def part(package: str, name: str) -> ModuleType:
    return importlib.import_module(f"{package}.{name}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("generated")
    sys.path.insert(0, str(made))
    yield made
    sys.path.remove(str(made))


@pytest.fixture(scope="module")
def open_client(gateway: Gateway, folder: Path) -> tuple[str, Any]:
    """The package that was generated, and its client."""
    said = generate(folder, "open_tandem", document(gateway))
    told = [line for line in said.splitlines() if line.startswith(("WARNING", "ERROR", "Unsupported", "Could not"))]
    # The generator knows no media type of images; without it the other two forms of the same request remain.
    assert [line for line in told if "classify" not in line and "image/" not in line] == []
    return "open_tandem", part("open_tandem", "client").Client(base_url=gateway.url)


def request(package: str) -> Any:
    models = part(package, "models")
    tensor = models.Tensor(
        name=SAMPLE["name"],
        datatype=models.TensorDatatype(SAMPLE["datatype"]),
        shape=SAMPLE["shape"],
        data=SAMPLE["data"],
    )
    return models.InferRequest(inputs=[tensor], id="mine")


def test_the_documents_are_valid(gateway: Gateway, keyed: Gateway) -> None:
    for one in (gateway, keyed):
        validate(document(one))


def test_a_generated_client_asks_a_model(open_client: tuple[str, Any]) -> None:
    package, client = open_client
    infer = part(package, "api.v2.infer_model")
    answer = infer.sync("digits", client=client, body=request(package), tandem_variant="fp32", tandem_priority=1)
    assert (answer.id, answer.model_name) == ("mine", "digits")
    (scores,) = (output.data for output in answer.outputs)
    assert max(range(10), key=lambda i: scores[i]) == LABEL
    detailed = infer.sync_detailed("digits", client=client, body=request(package))
    assert (detailed.status_code, detailed.headers["Tandem-Pool"]) == (200, "cpu")


def test_a_generated_client_sends_binary(open_client: tuple[str, Any]) -> None:
    package, client = open_client
    described = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8]}
    described["parameters"] = {"binary_data_size": len(TENSOR_BYTES)}
    head = json.dumps({"inputs": [described]}).encode()
    body = part(package, "types").File(payload=head + TENSOR_BYTES)
    infer = part(package, "api.v2.infer_model_version")
    answer = infer.sync("digits", "1", client=client, body=body, inference_header_content_length=len(head))
    assert answer.outputs[0].shape == [1, 10]


def test_a_generated_client_reads_mistakes_and_what_else_is_told(open_client: tuple[str, Any]) -> None:
    package, client = open_client
    infer, models = part(package, "api.v2.infer_model"), part(package, "models")
    wrong = infer.sync_detailed("nobody", client=client, body=request(package))
    assert (wrong.status_code, type(wrong.parsed)) == (404, models.Error)
    assert "nobody" in wrong.parsed.error
    metadata = part(package, "api.v2.metadata_model").sync("digits", client=client)
    assert (metadata.name, metadata.inputs[0].name, metadata.inputs[0].shape) == ("digits", "image", [-1, 1, 8, 8])
    index = part(package, "api.v2.index").sync(client=client, body=models.IndexRequest(ready=True))
    assert "digits" in {entry.name for entry in index}


@pytest.mark.parametrize("how", [{"prefix": "Bearer"}, {"prefix": "", "auth_header_name": "X-API-Key"}])
def test_a_document_of_a_gateway_with_keys_says_which_operations_need_one(
    keyed: Gateway, keys: Keys, folder: Path, how: dict[str, str]
) -> None:
    api = document(keyed)
    schemes = api["components"]["securitySchemes"]
    assert [(s["type"], s.get("scheme") or s["name"]) for s in schemes.values()] == [
        ("http", "bearer"),
        ("apiKey", "X-API-Key"),
    ]
    assert "security" not in api["paths"]["/v2/health/ready"]["get"]
    if not (folder / "keyed_tandem").exists():
        generate(folder, "keyed_tandem", api)
    infer, client = part("keyed_tandem", "api.v2.infer_model"), part("keyed_tandem", "client")
    with_key = client.AuthenticatedClient(base_url=keyed.url, token=keys.infer, **how)
    assert infer.sync("digits", client=with_key, body=request("keyed_tandem")).model_name == "digits"
    stranger = client.AuthenticatedClient(base_url=keyed.url, token=keys.revoked, **how)
    assert infer.sync_detailed("digits", client=stranger, body=request("keyed_tandem")).status_code == 401
