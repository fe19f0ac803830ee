"""What does `/v1/classify` cost over Pillow and ONNX Runtime in one process? EfficientNet-Lite0, photographs of 500 pixels.

In process: the same decoder, file and threads, one request's images in one batch, and as many requests at once. Requests are forms, as
browsers and curl send them, and say their key.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from loadtest.bench.surfaces import items
from loadtest.bench.surfaces.items import Session
from loadtest.bench.surfaces.part import NUM_THREADS, KeyedStack, Part, Setting, served
from serving.export.recipes import photographs
from serving.http_client import request_bytes
from serving.preprocessing.images import decode
from serving.repository import Repository, Variant
from serving.repository.preprocessing import ImagePreprocessing, from_json

MODEL = "efficientnet-lite0"
NUM_IMAGES = 4  # in a request; a guess, not measured
NUM_REQUESTS = 8  # different ones
NUM_CLIENTS = 2  # one computes, one waits
EDGE = 500  # pixels of the shorter edge: what ImageNet's photographs have in the middle
QUALITY = 90  # of JPEG: what cameras and editors write by default
BOUNDARY = "tandem-bench"


def measure(setting: Setting) -> Part:
    """Raises CannotMeasure."""
    repository = items.repository_of(setting.models, MODEL, setting.folder)
    files = [_jpeg(data) for data in photographs.gate(NUM_IMAGES * NUM_REQUESTS)]
    requests = [files[i : i + NUM_IMAGES] for i in range(0, len(files), NUM_IMAGES)]
    with served(repository, setting.folder) as running:
        bodies = [items.Items(_body(running, some), len(some)) for some in requests]
        run_alone = _in_process(Repository(repository).variant(f"{MODEL}-fp32"), requests)
        comparison = items.compare(setting.plan, running, bodies, run_alone, num_clients=NUM_CLIENTS)
    kib = sum(map(len, files)) / len(files) / 1024
    note = (
        f"{MODEL}-fp32, photographs of {EDGE} pixels ({kib:.0f} KiB as JPEG), {NUM_IMAGES} in a request, {NUM_CLIENTS} clients, "
        f"keys on, 1 instance × {NUM_THREADS} threads on both sides"
    )
    return items.part("classify", "images", comparison, [note])


def _jpeg(data: bytes) -> bytes:
    with Image.open(io.BytesIO(data)) as picture:
        comparison = picture.convert("RGB").resize((EDGE, EDGE))
    output = io.BytesIO()
    comparison.save(output, "JPEG", quality=QUALITY)
    return output.getvalue()


def _body(running: KeyedStack, files: Sequence[bytes]) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
    parts = [part for file in files for part in (head.encode(), file, b"\r\n")]
    body = b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()])
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", **running.key_header}
    return request_bytes("POST", running.stack.gateway.url, f"/v1/classify/{MODEL}", headers, body)


def _in_process(variant: Variant, requests: Sequence[Sequence[bytes]]) -> Callable[[int], int]:
    preprocessing = from_json((variant.directory / "preprocessing.json").read_text())
    assert isinstance(preprocessing, ImagePreprocessing)
    session = Session(variant.model_path)

    def run(number: int) -> int:
        images = [decode(data, preprocessing) for data in requests[number]]
        session({preprocessing.input: np.stack(images)})
        return len(images)

    return run
