"""`hf:DIR_OR_ID`: what a folder of transformers is for, and which file here exports it.

The class that was saved says it (config.json's `architectures`), `--task` overrules. Reading weights, tokenizers and image
processors is for the files that this one picks. Rule: what is not known is refused before a framework is imported.
"""

from __future__ import annotations

from pathlib import Path

from serving.errors import UserError
from serving.export.exported import Exported, SourceOptions
from serving.export.progress import Progress, silent
from serving.export.sources import applies
from serving.export.sources.hugging_face import hf_folder, sentence_modules
from serving.export.sources.hugging_face.hf_folder import CONFIG, Folder
from serving.repository.record import CLASSIFICATION, EMBEDDING, OTHER, TASKS, nearest

IMAGES = "ForImageClassification"
TEXTS = "ForSequenceClassification"
SUPPORTED = (
    f"*{IMAGES} (photographs), *{TEXTS} (texts), and text encoders as sentence vectors "
    f"({sentence_modules.MODULES}, or --task {EMBEDDING} with --pooling)"
)
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model")
_FINER = {EMBEDDING: applies.EMBEDDING, IMAGES: applies.IMAGES, TEXTS: applies.TEXTS}


def check(rest: str, options: SourceOptions) -> None:
    """What a folder here says without transformers. Raises UserError."""
    hf_folder.check(rest)
    if Path(rest).expanduser().is_dir():
        folder = hf_folder.opened(rest, options.is_trusted, silent)
        applies.refuse(_FINER[_kind(folder, options.task)], options)


def load(rest: str, options: SourceOptions, progress: Progress) -> Exported:
    """The model with its tokenizer or image preprocessing. UserError says what is missing, unknown or not trusted."""
    folder = hf_folder.opened(rest, options.is_trusted, progress)
    kind = _kind(folder, options.task)
    applies.refuse(_FINER[kind], options)
    if kind == EMBEDDING:
        sentences = sentence_modules.read(folder, options.pooling, options.is_normalised)
        hf_folder.check_weights(sentences.transformer, options.is_trusted)
    else:
        hf_folder.check_weights(folder, options.is_trusted)
    try:
        from serving.export.sources.hugging_face import hf_images, hf_texts
    except ImportError as error:
        raise hf_folder.missing(error) from None
    if kind == EMBEDDING:
        return hf_texts.embedding(sentences, options, progress)
    is_raw = options.task == OTHER
    exporter = hf_images.classifier if kind == IMAGES else hf_texts.classifier
    return exporter(folder, options, progress, is_raw=is_raw)


def _kind(folder: Folder, task: str | None) -> str:
    """EMBEDDING, or the ending of a classifier's class."""
    if task is not None and task not in TASKS:
        raise UserError(f"unknown task {task!r}{nearest(task, TASKS)}")
    if task == EMBEDDING or (task is None and sentence_modules.is_described(folder)):
        return EMBEDDING
    saved = hf_folder.architecture(folder.json(CONFIG))
    if ending := next((end for end in (IMAGES, TEXTS) if saved.endswith(end)), None):
        return ending
    if task in (CLASSIFICATION, OTHER):
        raise UserError(
            f"{folder.path} was saved as {saved or 'nothing that it names'}, which has no head for --task {task}"
        )
    if saved.endswith("Model") and any(folder.has(name) for name in _TOKENIZERS):
        return EMBEDDING
    raise UserError(
        f"{folder.path} was saved as {saved or 'nothing that it names'}, of which nothing is known here; known are {SUPPORTED}; "
        "anything else comes as module:PKG.MOD:CALLABLE or FILE.onnx"
    )
