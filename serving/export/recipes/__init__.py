"""Models that Tandem can build by itself: one file per model, with `load`, and the data to judge and calibrate it on.

    digits, minilm, efficientnet-lite0: really trained, so that their gates mean something.
    speed:NAME: real architectures with random weights, for timing alone.

`make models` builds them all. Random nets are imported when one is asked for, because they need onnx. Rule: a recipe's
calibration rows are never in its gate's data.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from serving.export.data.dataset import Dataset
from serving.export.exported_model import Arrays, ExportedModel, SourceOptions
from serving.export.progress import Progress

TRAINED = {"digits": "digits", "minilm": "minilm", "efficientnet-lite0": "efficientnet_lite0"}  # name -> its module
SPEED = "speed"
KINDS = (*TRAINED, SPEED)


@dataclass(frozen=True, slots=True)
class RecipeModel:
    """A model with its own data. `data` None: random weights, nothing to be right about."""

    model: str
    exported: ExportedModel
    data: Dataset | None
    calibration: Arrays | None


def is_recipe(spec: str) -> bool:
    return spec in TRAINED or spec.startswith(f"{SPEED}:")


def public_name(spec: str) -> str:
    """The name of the model; random nets have one that no trained model has."""
    if spec in TRAINED:
        return spec
    from serving.export import speed_nets

    return speed_nets.net(_net(spec)).model


def check(spec: str, options: SourceOptions) -> None:
    """Raises UserError for what is wrong before anything is built."""
    if spec not in TRAINED:
        from serving.export import speed_nets

        speed_nets.check(_net(spec), options)


def build(spec: str, options: SourceOptions, progress: Progress) -> RecipeModel:
    if spec in TRAINED:
        module = importlib.import_module(f"serving.export.recipes.{TRAINED[spec]}")
        exported = module.load(options, progress)
        return RecipeModel(spec, exported, module.gate_data(exported), module.calibration(exported))
    from serving.export import speed_nets

    exported = speed_nets.load(_net(spec), options, progress)
    return RecipeModel(public_name(spec), exported, None, exported.example)


def _net(spec: str) -> str:
    return spec.removeprefix(f"{SPEED}:")
