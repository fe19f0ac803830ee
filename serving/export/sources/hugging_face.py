"""`hf:DIR_OR_ID`: what a folder of transformers is for, and which file here exports it.

The class that was saved says it (config.json's `architectures`), `--task` overrules. Reading weights, tokenizers and image
processors is for the files that this one picks. Rule: what is not known is refused before a framework is imported.
"""

from __future__ import annotations

from pathlib import Path

from serving.errors import UserError
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.progress import Progress, silent
from serving.export.sources import checks, generative, hf_folder
from serving.export.sources.hf_folder import CONFIG, Folder, Sentences
from serving.repository.record import CLASSIFICATION, EMBEDDING, OTHER

IMAGES = "ForImageClassification"
TEXTS = "ForSequenceClassification"
SUPPORTED = (
    f"*{IMAGES} (photographs), *{TEXTS} (texts), and text encoders as sentence vectors "
    f"({hf_folder.MODULES}, or --task {EMBEDDING} with --pooling)"
)
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model")
_FINER = {EMBEDDING: checks.EMBEDDING, IMAGES: checks.IMAGES, TEXTS: checks.TEXTS}


def check(rest: str, options: SourceOptions) -> None:
    """What a folder here says without transformers. Raises UserError."""
    hf_folder.check(rest)
    if Path(rest).expanduser().is_dir():
        _checked(hf_folder.opened(rest, options.is_trusted, silent), options)


def load(rest: str, options: SourceOptions, progress: Progress) -> ExportedModel:
    """The model with its tokenizer or image preprocessing. UserError says what is missing, unknown or not trusted."""
    folder = hf_folder.opened(rest, options.is_trusted, progress)
    kind, sentences = _checked(folder, options)
    try:
        from serving.export.sources import hf_images, hf_texts
    except ImportError as error:
        raise checks.not_installed("hf", error) from None
    if sentences is not None:
        return hf_texts.embedding(sentences, options, progress)
    is_raw = options.task == OTHER
    exporter = hf_images.classifier if kind == IMAGES else hf_texts.classifier
    return exporter(folder, options, progress, is_raw=is_raw)


def _checked(folder: Folder, options: SourceOptions) -> tuple[str, Sentences | None]:
    """What it is for, and how its sentences become vectors. Raises UserError for settings, weights or a tokenizer that lack."""
    checks.refuse("hf", options)
    kind = _kind(folder, options.task)
    checks.refuse(_FINER[kind], options)
    sentences = hf_folder.read_sentences(folder, options.pooling, options.is_normalised) if kind == EMBEDDING else None
    inner = folder if sentences is None else sentences.transformer
    hf_folder.check_weights(inner, options.is_trusted)
    hf_folder.check_settings(inner)
    needed = hf_folder.PROCESSORS if kind == IMAGES else hf_folder.TOKENIZERS
    if not any(any(inner.path.glob(name)) for name in needed):
        what = f"image processor ({needed[0]})" if kind == IMAGES else f"tokenizer ({needed[0]})"
        raise UserError(f"{inner.path} holds no {what}: save it beside the model")
    if kind == IMAGES:
        for name in filter(inner.has, needed):
            inner.json(name)
    else:
        hf_folder.check_tokenizer(inner)
    return kind, sentences


def _kind(folder: Folder, task: str | None) -> str:
    """EMBEDDING, or the ending of a classifier's class."""
    if task == EMBEDDING or (task is None and hf_folder.has_sentence_modules(folder)):
        return EMBEDDING
    config = folder.json(CONFIG)
    saved = hf_folder.architecture(config)
    generative.check_config(config, saved, folder.path)
    if ending := next((end for end in (IMAGES, TEXTS) if saved.endswith(end)), None):
        return ending
    if not saved:
        raise UserError(
            f"{folder.path / CONFIG} has no 'architectures', which names the model's class: download the whole model, or save "
            "it again with save_pretrained"
        )
    if task in (CLASSIFICATION, OTHER):
        raise UserError(f"{folder.path} was saved as {saved}, which has no head for --task {task}")
    if saved.endswith("Model") and any(folder.has(name) for name in _TOKENIZERS):
        return EMBEDDING
    raise UserError(
        f"{folder.path} was saved as {saved}, which Tandem does not export from a folder; it exports {SUPPORTED}; "
        "give any other model as module:PKG.MOD:CALLABLE or FILE.onnx"
    )
