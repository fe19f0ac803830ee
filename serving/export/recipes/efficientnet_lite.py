"""The network EfficientNet-Lite0 (Tan and Le 2019, in the Lite form of 2020): no squeeze-and-excite, ReLU6 for swish.

Written from the published architecture. Strides of 2 pad below and to the right only, as TensorFlow does, where the weights
were trained. Rule: module names are ours, `weights` maps the published file to them, and every key has to fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

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
