"""A Triton that `tandem triton` keeps, behind a gateway that has the same model repository, or another, or none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tritonclient.http as sync

from tests.committed import copy_committed
from tests.gateway.conftest import SAMPLE, Running, gateway_before
from tests.local.harness import ROOT, wait_until

pytestmark = pytest.mark.triton

LOAD = "/v2/repository/models/digits-int8/load"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept") / "repository"
    return copy_committed(folder)


@pytest.fixture(scope="module")
def keeping(digits: str, repository: Path) -> Iterator[Running]:
    with gateway_before(repository.parent, {"cpu": [digits]}, "--model-repository", str(repository)) as running:
        wait_until(lambda: "digits-int8" in running.ask("/v2/repository/index", b"").body.decode(), "both are served")
        yield running


@pytest.mark.protocol(
    "v2 HTTP", "load and unload where `tandem up` keeps the Triton: the files are proven first", "supported", item=35
)
def test_a_model_is_unloaded_stays_so_and_is_loaded_again(keeping: Running) -> None:
    instances = keeping.ask("/v2/models/digits-fp32/config").json()["instance_group"]
    with sync.InferenceServerClient(keeping.url) as client:
        client.unload_model("digits")
        assert not client.is_model_ready("digits")
        assert keeping.infer(SAMPLE).status == 503
        rows = client.get_model_repository_index()  # the clone's model_repo/ may have models of its owner
        assert {row["reason"] for row in rows if row["name"].startswith("digits-")} == {"unloaded"}
        client.load_model("digits")
        assert client.is_model_ready("digits")
    assert keeping.infer(SAMPLE).status == 200
    assert keeping.ask("/v2/models/digits-fp32/config").json()["instance_group"] == instances


def test_a_load_of_what_is_loaded_changes_nothing(keeping: Running) -> None:
    before = keeping.ask("/v2/models/digits-int8/config").json()
    assert keeping.ask(LOAD, b"{}").status == 200
    assert keeping.ask("/v2/models/digits-int8/config").json() == before


def flip_a_bit(variant: Path) -> None:
    model = bytearray((variant / "1" / "model.onnx").read_bytes())
    model[1000] ^= 1
    (variant / "1" / "model.onnx").write_bytes(model)


def export_again(variant: Path) -> None:
    record = (variant / "tandem.json").read_text()
    digest = json.loads(record)["files"]["1/model.onnx"]
    (variant / "tandem.json").write_text(record.replace(digest, "0" * 64))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flip_a_bit, "1/model.onnx changed after its gate"),
        (lambda variant: (variant / "1" / "model.py").write_text(""), "model.py was added after the gate"),
        (lambda variant: (variant / "config.pbtxt").unlink(), "config.pbtxt is missing"),
        (lambda variant: (variant / "tandem.json").write_text("{"), "none that can be read"),
        (shutil.rmtree, "none that can be read"),
        (export_again, "changed after its gate"),
    ],
)
def test_what_is_not_what_passed_the_gate_is_not_loaded(
    keeping: Running, repository: Path, damage: Callable[[Path], object], said: str
) -> None:
    variant = repository / "digits-int8"
    try:
        damage(variant)
        reply = keeping.ask(LOAD, b"{}")
    finally:
        shutil.rmtree(variant, ignore_errors=True)
        shutil.copytree(ROOT / "model_repo" / "digits-int8", variant)
    assert reply.status == 403, reply.body
    assert said in reply.json()["error"]
    assert str(repository) not in reply.json()["error"]
    assert keeping.infer(SAMPLE, "digits-int8").status == 200


def test_a_gateway_without_a_repository_loads_nothing_there(gateway: Running) -> None:
    reply = gateway.ask(LOAD, b"{}")
    assert reply.status == 403
    assert "--model-repository" in reply.json()["error"]
