"""The small model that ships with Tandem: a convolutional net trained on scikit-learn's handwritten digits.

It trains in seconds and is really trained, so its gates mean something. Input `image` is float32 [n, 1, 8, 8] in 0..1 (a
pixel's 0..16 divided by 16), output `probabilities` float32 [n, 10], softmax inside. Rule: the held-out part is not seen here.
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from serving.export.data.dataset import Dataset
from serving.export.data.reading import digits as digits_data
from serving.export.exported_model import Arrays, ExportedModel, SourceOptions
from serving.export.progress import Progress
from serving.export.sources import torch_export
from serving.repository import CLASSIFICATION
from serving.repository.preprocessing import PROBABILITIES, ImagePreprocessing

INPUT, OUTPUT = "image", "probabilities"
LABELS = tuple("0123456789")
# White ink on black. The data set's own pixels count the ink of 4 × 4 blocks of larger bitmaps, which is what `box` does.
PREPROCESSING = ImagePreprocessing(
    input=INPUT,
    height=8,
    width=8,
    resize_shortest=None,
    interpolation="box",
    mean=(0.0,),
    std=(1.0,),
    mode="L",
    scores=PROBABILITIES,
)
NUM_EXAMPLES = 8

_SEED = 0
_NUM_EPOCHS = 40  # the training loss is flat from about 30
_BATCH_SIZE = 64
_LEARNING_RATE = 1e-3  # Adam's own default


def load(options: SourceOptions, progress: Progress) -> ExportedModel:
    learn, _ = digits_data()
    net = train(learn, progress)
    example = {INPUT: learn.inputs[INPUT][:NUM_EXAMPLES]}
    return torch_export.export_module(
        net,
        example,
        [OUTPUT],
        options,
        progress,
        task=CLASSIFICATION,
        source="digits: a small convolutional net trained on scikit-learn's load_digits",
        labels=LABELS,
        preprocessing=PREPROCESSING,
    )


def gate_data(_: ExportedModel) -> Dataset:
    return digits_data()[1]


def calibration(_: ExportedModel) -> Arrays:
    return digits_data()[0].inputs


def train(data: Dataset, progress: Progress) -> Any:
    """A torch module from images to probabilities, in evaluation mode. The seed makes it repeatable on one machine."""
    assert data.labels is not None
    torch.manual_seed(_SEED)
    torch.set_num_threads(1)  # the order of sums, and so the weights, would depend on the number of cores
    net = _logits_net()
    images, labels = torch.from_numpy(data.inputs[INPUT]), torch.from_numpy(data.labels)
    optimizer = torch.optim.Adam(net.parameters(), lr=_LEARNING_RATE)
    for epoch in range(_NUM_EPOCHS):
        progress("training", epoch, _NUM_EPOCHS)
        for batch in torch.randperm(len(labels)).split(_BATCH_SIZE):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
    progress("training", _NUM_EPOCHS, _NUM_EPOCHS)
    return torch.nn.Sequential(net, torch.nn.Softmax(dim=1)).eval()


def _logits_net() -> Any:
    """58,000 weights: convolutions wide enough that arithmetic, not the cost of a call, is most of a run."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, len(LABELS)),
    )
