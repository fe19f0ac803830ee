"""Draws a digit, sends it as a PNG, and prints the labels. Decoding and scaling are the model's own, on the server.

python examples/classify_image.py [--url http://127.0.0.1:8080] [--model digits] [FILE]
"""

import argparse
import io
import json
import urllib.request
from pathlib import Path

from PIL import Image, ImageDraw


def drawn() -> bytes:
    """A seven in white ink on black, as a PNG."""
    picture = Image.new("L", (160, 160))
    pen = ImageDraw.Draw(picture)
    pen.line([(45, 25), (115, 25), (80, 140)], fill=255, width=22, joint="curve")
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="address of the gateway")
    parser.add_argument("--model", default="digits")
    parser.add_argument("file", nargs="?", type=Path, help="a picture of your own: JPEG, PNG or WebP")
    options = parser.parse_args()
    body = options.file.read_bytes() if options.file else drawn()
    request = urllib.request.Request(f"{options.url}/v1/classify/{options.model}?top_k=3", body)
    with urllib.request.urlopen(request) as answer:
        [result] = json.load(answer)["results"]
        for label in result["labels"]:
            print(f"{label['label'] or label['index']}: {label['score']:.3f}")
        print("answered by", answer.headers["Tandem-Variant"], "on", answer.headers["Tandem-Device"])


if __name__ == "__main__":
    main()
