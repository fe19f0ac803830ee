"""What a folder of transformers says without a framework: where it is, whether its files may be read, how it pools sentences.

A folder is used as it is, without the network; anything else is a model's ID, fetched by the hub's own client. Weights in
pickles and Python files ask for trust here. How a sentence-transformers folder makes one vector of a text is in modules.json,
1_Pooling/config.json and sentence_bert_config.json, in two generations of spelling. Rules: standard library only, so that every
refusal is told where no framework is installed; a sentence module that is not put into our graph is an error, because a vector
without it lies in another space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.documents.nearest import nearest
from serving.errors import EnvironmentFault, UserError
from serving.export.progress import Progress
from serving.export.sources.checks import not_installed
from serving.repository.preprocessing import POOLINGS

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_PLAIN = ["*.json", "*.safetensors", "*.txt", "*.model"]  # settings, weights, vocabularies
_PICKLES = ["pytorch_model*.bin", "*/pytorch_model*.bin"]
_CODE = ["*.py"]
_SAFETENSORS = "model*.safetensors"
_MAX_HEADER_BYTES = 100_000_000  # the library's own limit
_LFS_POINTER = b"version https://git-lfs"
_OTHER_COPIES = [
    "onnx/*",
    "openvino/*",
    "original/*",
    "coreml/*",
]  # of the same weights, in forms that are not read here
# Of all families: one of them has to be there.
TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "merges.txt", "*bpe*", "spiece*", "*.txt")
PROCESSORS = ("preprocessor_config.json", "processor_config.json")  # the second since transformers 5, for some models
_FOREIGN = {"tf_model.h5": "TensorFlow", "flax_model.msgpack": "Flax", "model.ckpt.index": "TensorFlow 1"}


@dataclass(frozen=True, slots=True)
class Folder:
    """`source` is for the record: the name alone, without a path of this machine."""

    path: Path
    source: str

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def json(self, name: str) -> dict[str, Any]:
        """A settings file. UserError where it is missing or broken."""
        path = self.path / name
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"there is no {name} in {self.path}: is it a folder that save_pretrained wrote?") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        if not isinstance(value, dict):
            raise UserError(f"{path} holds no JSON object")
        return value

    def below(self, name: str) -> Folder:
        """A folder inside this one; '' is this one."""
        path = (self.path / name).resolve()
        if not path.is_relative_to(self.path.resolve()) or not path.is_dir():
            raise UserError(f"{self.path} names a folder {name!r} that is not inside it")
        return Folder(path, self.source)


def check(rest: str) -> None:
    """UserError for what is neither a folder here nor the name of one on the hub."""
    path = Path(rest).expanduser()
    if path.exists() and not path.is_dir():
        raise UserError(f"{rest} is a file; hf: takes the folder that holds it")
    if not path.is_dir() and (not _ID.fullmatch(rest) or rest.startswith(".")):
        raise UserError(f"there is no folder {rest}")


def opened(rest: str, is_trusted: bool, progress: Progress) -> Folder:
    """The folder of `hf:rest`. UserError where there is none, EnvironmentFault where the hub does not answer."""
    path = Path(rest).expanduser()
    if path.is_dir():
        return Folder(path, f"hf: {path.resolve().name}")
    check(rest)
    progress(f"fetching {rest}", 0, 1)
    fetched = _fetched(rest, _PLAIN + (_CODE if is_trusted else []))
    if not any(fetched.rglob(_SAFETENSORS)):
        if not is_trusted:
            raise UserError(
                f"{rest} has no safetensors on the hub; --trust reads its weights from a pickle, which can run code, "
                "if you trust who made it"
            )
        fetched = _fetched(rest, _PLAIN + _CODE + _PICKLES)
    progress(f"fetching {rest}", 1, 1)
    return Folder(fetched, f"hf: {rest} at {fetched.name}")  # the hub's client names the folder by the commit


def _fetched(name: str, patterns: list[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined, unused-ignore]
    except ImportError as error:
        raise not_installed("hf", error) from None
    disable_progress_bars()  # they would write into ours
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=_OTHER_COPIES))
    except GatedRepoError:
        raise UserError(f"{name} asks for an agreement: accept it on the hub, set HF_TOKEN, and try again") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise UserError(f"there is no folder {name} here and no model {name} on the hub (or it is private)") from None
    except Exception as error:  # its own, its HTTP library's, the system's
        why = (str(error).strip().splitlines() or [""])[0][:200]
        raise EnvironmentFault(
            f"there is no folder {name} here, and the hub cannot be asked for it ({type(error).__name__}: {why}); "
            "fetch it where there is a network, and give its folder: hf:DIR"
        ) from None


def check_settings(folder: Folder) -> None:
    """Raises UserError where config.json does not say which model it is of, which transformers would guess by the path."""
    config = folder.json(CONFIG)
    if not (config.get("model_type") or config.get("auto_map")):
        raise UserError(f"{folder.path / CONFIG} has no model_type: is it of a model that save_pretrained wrote?")


def check_weights(folder: Folder, is_trusted: bool) -> None:
    """Raises UserError where there are no weights that may be read."""
    if files := sorted(folder.path.glob(_SAFETENSORS)):
        for file in files:
            _check_safetensors(file)
        return
    if pickles := sorted(path.name for path in folder.path.glob("*.bin")):
        if is_trusted:
            return
        raise UserError(
            f"{folder.path}: the weights are a pickle ({pickles[0]}), which can run code when it is read: "
            "add --trust if you trust who made it, or save the model again as safetensors"
        )
    other = next((f", only {name}'s ({file})" for file, name in _FOREIGN.items() if folder.has(file)), "")
    raise UserError(f"{folder.path} holds no model.safetensors{other}")


def has_safetensors(folder: Folder) -> bool:
    return any(folder.path.glob(_SAFETENSORS))


def _check_safetensors(path: Path) -> None:
    """By the header alone: its length in 8 bytes, little-endian; JSON; then the bytes of the tensors without a gap."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if prefix == _LFS_POINTER[:8] and file.read(len(_LFS_POINTER) - 8) == _LFS_POINTER[8:]:
                raise UserError(f"{path} is a pointer of Git LFS, not the weights: run `git lfs pull` in its folder")
            if len(prefix) < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        if not isinstance(header, dict) or not (tensors := [header[name] for name in header if name != "__metadata__"]):
            raise ValueError("its header names no tensor")
        end = 8 + length + max(int(tensor["data_offsets"][1]) for tensor in tensors)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        why = str(error) if type(error) is ValueError else "its header is not readable"
        raise UserError(f"{path} is not a safetensors file ({why}): download it again") from None
    if end != size:
        raise UserError(f"{path} has {size} bytes, and its header speaks of {end}: download it again")


def check_tokenizer(folder: Folder) -> None:
    """Raises UserError for a tokenizer.json that no tokenizer can be made of."""
    if not folder.has(TOKENIZER):
        return
    model = folder.json(TOKENIZER).get("model")
    if not isinstance(model, dict) or not model.get("vocab"):
        raise UserError(
            f"{folder.path / TOKENIZER} is not a tokenizer (it has no model with a vocabulary): download it again"
        )


def architecture(config: Mapping[str, Any]) -> str:
    """The class that was saved, '' where it is not said."""
    named = config.get("architectures") or [""]
    return str(named[0])


MODULES = "modules.json"
KNOWN = ("Transformer", "Pooling", "Normalize")  # classes of sentence-transformers, in this order

_OURS = tuple(pooling for pooling in POOLINGS if pooling != "none")
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
_BERT = "sentence_bert_config.json"
_PROMPTS = "config_sentence_transformers.json"


@dataclass(frozen=True, slots=True)
class Sentences:
    """`transformer` is the folder of the model itself. `max_length` None: the tokenizer's own."""

    transformer: Folder
    pooling: str
    is_normalised: bool
    max_length: int | None
    is_lowered: bool  # texts are put in lower case before the tokenizer sees them


def has_sentence_modules(folder: Folder) -> bool:
    return folder.has(MODULES)


def read_sentences(folder: Folder, pooling: str | None, is_normalised: bool | None) -> Sentences:
    """`pooling` and `is_normalised` overrule the files where they are given."""
    if pooling is not None and pooling not in _OURS:
        raise UserError(f"unknown pooling {pooling!r}{nearest(pooling, _OURS)}")
    if not has_sentence_modules(folder):
        if pooling is None:
            raise UserError(
                f"{folder.path} does not say how a sentence's vector is made ({MODULES} is missing): "
                f"give --pooling {', '.join(_OURS)}"
            )
        return Sentences(folder, pooling, bool(is_normalised), None, is_lowered=False)
    paths = _paths(folder)
    _check_prompts(folder)
    transformer = folder.below(paths["Transformer"])
    bert = next((f.json(_BERT) for f in (transformer, folder) if f.has(_BERT)), {})
    if pooling is None:
        if "Pooling" not in paths:
            raise UserError(f"{folder.path}: {MODULES} has no Pooling: give --pooling {', '.join(_OURS)}")
        pooling = _pooling(folder.below(paths["Pooling"]))
    normalised = "Normalize" in paths if is_normalised is None else is_normalised
    length = bert.get("max_seq_length")
    return Sentences(transformer, pooling, normalised, length, is_lowered=bool(bert.get("do_lower_case")))


def _paths(folder: Folder) -> dict[str, str]:
    """Class -> its folder."""
    paths: dict[str, str] = {}
    for module in _listed(folder):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind not in KNOWN:
            raise UserError(
                f"{folder.path}: {MODULES} has a {kind or 'module without a type'}, and only {', '.join(KNOWN)} are put "
                "into the graph here: export the whole as FILE.onnx, or give it as module:"
            )
        if kind in paths or [known for known in KNOWN if known in {*paths, kind}] != [*paths, kind]:
            raise UserError(f"{folder.path}: {MODULES} has {kind} in an order that is not {', '.join(KNOWN)}")
        paths[kind] = str(module.get("path", ""))
    if "Transformer" not in paths:
        raise UserError(f"{folder.path}: {MODULES} has no Transformer")
    return paths


def _listed(folder: Folder) -> list[Mapping[str, Any]]:
    try:
        modules = json.loads((folder.path / MODULES).read_text(encoding="utf-8"))
        ordered: list[Mapping[str, Any]] = sorted(modules, key=lambda module: int(module["idx"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{folder.path / MODULES} cannot be read: {type(error).__name__}: {error}") from None
    return ordered


def _pooling(folder: Folder) -> str:
    config = folder.json("config.json")
    if isinstance(named := config.get("pooling_mode"), str):
        poolings = [named]
    else:
        poolings = [name for name, is_on in config.items() if name.startswith("pooling_mode_") and is_on is True]
        poolings = [_FLAGS.get(name, name.removeprefix("pooling_mode_")) for name in poolings]
    if len(poolings) != 1 or poolings[0] not in _OURS:
        names = " and ".join(poolings) or "none"
        raise UserError(
            f"{folder.path}: the pooling is {names}, and one of {', '.join(_OURS)} is put into the graph here"
        )
    return poolings[0]


def _check_prompts(folder: Folder) -> None:
    if folder.has(_PROMPTS) and (name := folder.json(_PROMPTS).get("default_prompt_name")):
        raise UserError(
            f"{folder.path}: {_PROMPTS} puts the prompt {name!r} before every text, which clients would not know: "
            "set default_prompt_name to null there, and have the prompt in the texts themselves"
        )
