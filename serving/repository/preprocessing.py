"""How raw images or texts become a model's inputs: preprocessing.json beside the model, as values.

Data only: who decodes and resizes is elsewhere. Reading is strict, as for gate records. Rule: whatever a client would
have to know to get the answers that the gate saw is in here, and nothing is implied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from serving.documents.nearest import nearest
from serving.documents.reader import parse_document
from serving.repository.record import RecordError

VERSION = 1
INTERPOLATIONS = ("nearest", "box", "bilinear", "bicubic", "lanczos")
NCHW, NHWC = "NCHW", "NHWC"  # of a batch of images: channels first or last
LAYOUTS = (NCHW, NHWC)
CHANNELS = {"RGB": 3, "L": 1}  # mode -> how many; "L" is grey, by the weights of ITU-R 601, white 255
PROBABILITIES, LOGITS, NO_SCORES = "probabilities", "logits", "none"
SCORES = (PROBABILITIES, LOGITS, NO_SCORES)
POOLINGS = ("none", "mean", "cls", "max")


@dataclass(frozen=True, slots=True)
class ImagePreprocessing:
    """Image -> float32 [channels, height, width], or as `layout` says: in `mode`, resized, the centre cut out, / 255, minus mean, / std.

    `resize_shortest` scales the shorter edge to that many pixels and keeps the aspect; None: straight to the size.
    `mean` and `std` are per channel, for values 0..1. `scores` says what the graph answers for each class: its probability
    already, or a logit, which softmax makes one; "none": the answer is not one number for each class.
    """

    input: str
    height: int
    width: int
    resize_shortest: int | None
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mode: str
    scores: str
    layout: str = NCHW

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.resize_shortest or 1) < 1:
            raise ValueError("height, width and resize_shortest are pixels, 1 or more")
        for what, value, known in (
            ("interpolation", self.interpolation, INTERPOLATIONS),
            ("mode", self.mode, tuple(CHANNELS)),
            ("scores", self.scores, SCORES),
            ("layout", self.layout, LAYOUTS),
        ):
            if value not in known:
                raise ValueError(f"unknown {what} {value!r}{nearest(value, known)}")
        if not len(self.mean) == len(self.std) == self.channels or min(self.std) <= 0:
            raise ValueError(
                f"mean and std are {self.channels} number{'s'[: self.channels > 1]} each for {self.mode}, one per channel, and std above 0"
            )

    @property
    def channels(self) -> int:
        return CHANNELS[self.mode]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image as the model takes it."""
        channels_first = (self.channels, self.height, self.width)
        return channels_first if self.layout == NCHW else (self.height, self.width, self.channels)


@dataclass(frozen=True, slots=True)
class TextPreprocessing:
    """Text -> int64 [length] each. `inputs` maps the tokenizer's words (input_ids, attention_mask, token_type_ids) to the
    model's input names. Rows of a batch are padded on the right to the longest with `pad_token_id`, mask 0.

    `pooling` and `is_normalised` say what the graph already does: a client does neither.
    """

    tokenizer: str  # file
    inputs: Mapping[str, str]
    max_length: int
    pad_token_id: int
    pooling: str
    is_normalised: bool

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ValueError(f"max_length {self.max_length} is not 1 or more")
        if self.pooling not in POOLINGS:
            raise ValueError(f"unknown pooling {self.pooling!r}{nearest(self.pooling, POOLINGS)}")


Preprocessing = ImagePreprocessing | TextPreprocessing
KINDS: Mapping[str, type[ImagePreprocessing] | type[TextPreprocessing]] = {
    "image": ImagePreprocessing,
    "text": TextPreprocessing,
}


def to_json(preprocessing: Preprocessing) -> str:
    kind = next(name for name, cls in KINDS.items() if isinstance(preprocessing, cls))
    return json.dumps({"version": VERSION, "kind": kind, **asdict(preprocessing)}, indent=2, ensure_ascii=False) + "\n"


def from_json(text: str, where: str = "preprocessing.json") -> Preprocessing:
    """Raises RecordError that names the place."""
    document = parse_document(text, where, is_json=True, error=RecordError)
    document.version(VERSION, "a model's preprocessing", "export the model again with this Tandem")
    kind = document.data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise document.wrong(("kind",), f"unknown kind {kind!r}{nearest(str(kind), KINDS)}")
    facts = {name: value for name, value in document.data.items() if name not in ("version", "kind")}
    made: Preprocessing = replace(document, data=facts).values(KINDS[kind])
    return made
