"""Transformers models of a few thousand random weights, saved as anybody saves theirs. Needs torch and transformers."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

SMALL = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
DISTIL = {"vocab_size": 120, "dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64}


def config(kind: str, **settings: Any) -> Any:
    import transformers

    small = DISTIL if kind == "distilbert" else SMALL
    return transformers.AutoConfig.for_model(kind, **{**small, **settings})


def save_tokenizer(folder: Path, has_types: bool = True, **settings: Any) -> None:
    """Words fall apart into letters, as in BERT's."""
    import tokenizers as tk
    import transformers

    letters = string.ascii_lowercase + string.digits + ".,?':!"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    ids = {word: index for index, word in enumerate(words)}
    tokenizer = tk.Tokenizer(tk.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = tk.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tk.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tk.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    words_made = ["input_ids", *(["token_type_ids"] if has_types else []), "attention_mask"]
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=words_made, **{"model_max_length": 64, **marks, **settings}
    )
    fast.save_pretrained(folder)


def save(auto: str, configuration: Any, folder: Path) -> Any:
    """The saved model, with the same random weights every time."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, auto).from_config(configuration).eval()
    model.save_pretrained(folder)
    return model


def sentences(folder: Path, kind: str = "bert", pooling: str = "mean", is_normalised: bool = True) -> Any:
    """A sentence-transformers folder."""
    model = save("AutoModel", config(kind), folder)
    save_tokenizer(folder, has_types=kind == "bert")
    modules = ["Transformer", "Pooling", *(["Normalize"] if is_normalised else [])]
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    listed = [
        {"idx": i, "name": str(i), "path": paths[name], "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(modules)
    ]
    write(folder / "modules.json", listed)
    flags = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
    write(
        folder / "1_Pooling" / "config.json",
        {f"pooling_mode_{flag}": name == pooling for name, flag in flags.items()},
    )
    write(folder / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": False})
    return model


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
