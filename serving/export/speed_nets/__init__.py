"""Nets with the real architectures' layers and random weights: right for timing, meaningless for accuracy, and said so everywhere.

`load` gives one as every other source does; `python -m serving.export.speed_nets` writes a repository of them, and
`compare` times them. Made with onnx and NumPy, checked with ONNX Runtime; no torch, so that a machine with a card needs none.
"""

from __future__ import annotations

from collections.abc import Mapping

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.progress import Progress, silent
from serving.export.sources import checks
from serving.export.speed_nets import bert, convolutional, mlp
from serving.export.speed_nets.graph import SEED, Net
from serving.repository import UNTRAINED

_NETS: Mapping[str, Net] = {
    "resnet50": convolutional.RESNET50,
    "efficientnet-b2": convolutional.EFFICIENTNET_B2,
    "bert-base": bert.BASE_NET,
    "minilm": bert.MINILM_NET,  # published as minilm-untrained, never under the trained one's name
    "mlp": mlp.NET,
}
NETS = tuple(_NETS)
NUM_EXAMPLES = 8


def net(name: str) -> Net:
    if name not in _NETS:
        raise UserError(f"there is no untrained net {name!r}{nearest(name, NETS)}")
    return _NETS[name]


def load(
    name: str, options: SourceOptions | None = None, progress: Progress = silent, *, seed: int = SEED
) -> ExportedModel:
    """The net as FP32 ONNX, its activations alive. UserError for an unknown net or option, EnvironmentFault for a dead net."""
    options = options or SourceOptions()
    chosen = net(name)
    check(name, options)
    step = f"drawing {chosen.model} with random weights"
    progress(step, 0, 1)
    model = chosen.build(seed, options.opset)
    progress(step, 1, 1)
    return ExportedModel(
        model=model,
        inputs=chosen.inputs,
        outputs=chosen.outputs,
        max_batch_size=chosen.max_batch_size if options.max_batch_size is None else options.max_batch_size,
        task=chosen.task,
        source=f"random weights, seed {seed}; {UNTRAINED}",
        framework="onnx",
        run=None,
        example=chosen.examples(NUM_EXAMPLES, seed + 1, options.max_length or chosen.num_tokens),
        is_untrained=True,
    )


def check(name: str, options: SourceOptions) -> None:
    """What is wrong without drawing anything. Raises UserError."""
    chosen = net(name)
    checks.refuse(checks.SPEED, options)
    if options.max_length is None:
        return
    if chosen.num_tokens is None:
        raise UserError(f"speed:{name} takes no text: leave off --max-length")
    if not 1 <= options.max_length <= bert.MAX_TOKENS:
        raise UserError(f"speed:{name} takes 1 to {bert.MAX_TOKENS} tokens, not {options.max_length}")
