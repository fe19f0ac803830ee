"""EfficientNet-Lite0 beside its published weights and what is known of the pictures. Needs torch: `make test-models`."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = [pytest.mark.models, pytest.mark.thorough]


def test_the_published_weights_fit_strictly_and_see_what_is_on_the_photographs() -> None:
    import torch

    from serving.export.recipes import efficientnet_lite0, photographs

    net = efficientnet_lite0.trained(lambda *_: None)
    images = efficientnet_lite0._decoded(photographs.gate(20))
    with torch.no_grad():
        answers = net(torch.from_numpy(images)).numpy()
    labels = efficientnet_lite0.labels()
    seen = [labels[index] for index in answers.argmax(axis=1)]
    temples, flowers = seen[0::2], seen[1::2]
    assert flowers.count("daisy") >= 8  # the nearest of ImageNet's few flowers
    assert sum(name in ("palace", "monastery", "bell cote", "stupa") for name in temples) >= 7
    assert np.allclose(answers.sum(axis=1), 1, atol=1e-4)


def test_a_file_that_lacks_a_weight_or_has_one_too_many_is_not_loaded() -> None:
    import torch

    from serving.export.recipes.efficientnet_lite0 import EfficientNetLite0, weights

    net = EfficientNetLite0()
    with pytest.raises(KeyError, match="_stranger"):
        weights({"_stranger.weight": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="Missing key"):
        net.load_state_dict(weights({"_conv_stem.weight": torch.zeros(32, 3, 3, 3)}), strict=True)


def test_labels_are_a_thousand_different_names() -> None:
    from serving.export.recipes.efficientnet_lite0 import labels

    assert len(labels()) == len(set(labels())) == 1000
