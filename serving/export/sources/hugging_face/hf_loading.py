"""A transformers model out of its folder: every weight there, FP32, attention written out, nobody's code unless trusted.

transformers fills weights that are missing with random numbers and only warns. Rule: what the answer depends on comes from
the folder, or it is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
import transformers  # type: ignore[import-not-found, unused-ignore]

from serving.errors import UserError
from serving.export.exported_model import SourceOptions
from serving.export.sources.hugging_face import hf_folder, hf_heads
from serving.export.sources.hugging_face.hf_folder import Folder
from serving.export.sources.pytorch import torch_faults
from serving.export.sources.pytorch.torch_export import quiet_torch
from serving.repository.preprocessing import LOGITS, NO_SCORES, PROBABILITIES


def config_of(folder: Folder, options: SourceOptions) -> Any:
    with foreign(folder, "settings"):
        return transformers.AutoConfig.from_pretrained(folder.path, **_origin(options))


def model_of(kind: Any, folder: Folder, config: Any, options: SourceOptions, unused: tuple[str, ...] = ()) -> Any:
    """By one of transformers' Auto classes, in evaluation mode. `unused`: beginnings of weights that no answer needs."""
    with foreign(folder, "weights"):
        model, told = kind.from_pretrained(
            folder.path,
            config=config,
            dtype=torch.float32,
            attn_implementation="eager",  # the fused kinds have no ONNX operator of their own in opset 18
            use_safetensors=hf_folder.has_safetensors(folder),
            ignore_mismatched_sizes=True,  # told below, with their names
            output_loading_info=True,
            **_origin(options),
        )
    if other := sorted(told["mismatched_keys"]):
        name, saved, wanted = other[0]
        raise UserError(
            f"{folder.path}: {len(other)} weights do not have the shape that config.json says, the first of them {name}: "
            f"want {list(wanted)}, got {list(saved)}; save model and settings together, by save_pretrained"
        )
    missing = sorted(name for name in told["missing_keys"] if not name.startswith(unused))
    if missing:
        raise UserError(
            f"{folder.path} lacks {len(missing)} weights of {type(model).__name__} ({missing[0]}), which would be random "
            "numbers: is it the model that was trained for this task?"
        )
    return model.eval()


def scores(config: Any, is_raw: bool) -> tuple[str, hf_heads.Activation]:
    """A classifier's output: its name, and what makes it of the raw scores."""
    if is_raw:
        return "scores", hf_heads.raw
    if config.problem_type == "regression" or config.num_labels < 2:
        raise UserError("the model gives one number, no classes: --task other serves it as it is")
    if config.problem_type == "multi_label_classification":
        return "probabilities", hf_heads.sigmoid
    return "probabilities", hf_heads.softmax


def meaning_of(config: Any, is_raw: bool) -> str:
    """Of that output, in the words of preprocessing.json."""
    if not is_raw:
        return PROBABILITIES
    is_single_choice = config.num_labels > 1 and config.problem_type in (None, "single_label_classification")
    return LOGITS if is_single_choice else NO_SCORES  # softmax of anything else would be no probability


def labels_of(config: Any) -> tuple[str, ...]:
    """The classes' names in the order of the scores."""
    labels = {int(index): " ".join(str(label).split()) for index, label in config.id2label.items()}
    if sorted(labels) != list(range(len(labels))) or len(labels) != config.num_labels:
        raise UserError(f"config.json: id2label does not name classes 0 to {config.num_labels - 1}, each once")
    return tuple(labels[index] for index in range(len(labels)))


@contextlib.contextmanager
def foreign(folder: Folder, what: str) -> Iterator[None]:
    """transformers at work: silent, and its errors in one line."""
    bars: Any = transformers.utils.logging
    had_bars = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        with quiet_torch():
            yield
    except UserError:
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"{folder.path} brings Python code of its own that has to run: add --trust if you trust who wrote it"
            ) from None
        if isinstance(error, ImportError) and error.name:
            raise UserError(f"{folder.path}: its {what} need {error.name}: pip install {error.name}") from None
        raise UserError(
            f"{folder.path}: transformers cannot read its {what}: {torch_faults.first_line(error)}"
        ) from None
    finally:
        if had_bars:
            bars.enable_progress_bar()


def _origin(options: SourceOptions) -> dict[str, Any]:
    return {"trust_remote_code": options.is_trusted, "local_files_only": True}
