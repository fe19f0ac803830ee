"""A model's ID goes through the hub's own client: what is fetched, and what is said when it is not. The hub is a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.errors import EnvironmentFault, UserError
from serving.export.progress import silent
from serving.export.sources import hf_folder

from .stand_in_hub import COMMIT, serving

pytestmark = pytest.mark.models  # the client comes with transformers

_HEADER = b'{"weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
WEIGHTS = len(_HEADER).to_bytes(8, "little") + _HEADER + b"1"
FILES = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"pickle",
    "modeling_mine.py": b"code",
    "onnx/config.json": b"another copy",
    "1_Pooling/config.json": b"{}",
}


class Hub:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.monkeypatch = monkeypatch

    def at(self, address: str) -> None:
        """Where the client asks; it reads its own settings when it is imported."""
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        self.monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        self.monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        self.monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return Hub(monkeypatch)


def test_a_model_is_fetched_without_pickles_code_and_second_copies(hub: Hub) -> None:
    with serving("org/mine", FILES, hub.asked) as address:
        hub.at(address)
        folder = hf_folder.opened("org/mine", False, silent)
        hf_folder.check_weights(folder, False)
    assert set(hub.asked) == {"config.json", "model.safetensors", "1_Pooling/config.json"}
    assert folder.source == f"hf: org/mine at {COMMIT}"
    assert (folder.path / "model.safetensors").read_bytes() == WEIGHTS


def test_trust_fetches_code_and_pickles_only_where_there_are_no_safetensors(hub: Hub) -> None:
    with serving("org/mine", FILES, hub.asked) as address:
        hub.at(address)
        hf_folder.opened("org/mine", True, silent)
    assert set(hub.asked) == {"config.json", "model.safetensors", "1_Pooling/config.json", "modeling_mine.py"}


def test_a_model_with_pickles_alone_is_refused_before_they_are_fetched(hub: Hub) -> None:
    files = {name: content for name, content in FILES.items() if name != "model.safetensors"}
    with serving("org/mine", files, hub.asked) as address:
        hub.at(address)
        with pytest.raises(UserError, match=r"org/mine.*safetensors.*--trust"):
            hf_folder.opened("org/mine", False, silent)
        assert "pytorch_model.bin" not in hub.asked
        trusted = hf_folder.opened("org/mine", True, silent)
    hf_folder.check_weights(trusted, True)
    assert "pytorch_model.bin" in hub.asked


def test_a_model_that_the_hub_does_not_know_is_the_users_to_mend(hub: Hub) -> None:
    with serving("org/mine", FILES, hub.asked) as address:
        hub.at(address)
        with pytest.raises(UserError, match=r"folder.*org/other.*org/other"):
            hf_folder.opened("org/other", False, silent)


def test_a_hub_that_does_not_answer_is_told_from_a_wrong_name(hub: Hub) -> None:
    with serving("org/mine", FILES, hub.asked) as address:
        pass
    hub.at(address)
    with pytest.raises(EnvironmentFault, match=r"asked.*network"):
        hf_folder.opened("org/mine", False, silent)
