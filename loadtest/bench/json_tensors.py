"""From which size on does it pay to turn a JSON tensor into a binary one before Triton reads it?

    python -m loadtest.bench.json_tensors --url 127.0.0.1:8000 --model digits-fp32 --shape 1,8,8 --max-rows 32

asks a Triton that runs already for the same rows in JSON and in binary, and times the turning beside the look that JSON gets otherwise.
`BINARY_FROM_BYTES` in `serving/gateway/http/body.py` is what came of it. Nothing is judged here.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from math import prod
from statistics import median

from serving.http_client import Connection, request_bytes
from serving.measure.rounds import times
from serving.protocol import v2

MOST_BYTES = 64 * 2**20  # of tensors, as a gateway has it
SECONDS = 0.5  # for each of the four times of a size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="127.0.0.1:8000", help="HOST:PORT of a Triton")
    parser.add_argument("--model", default="digits-fp32")
    parser.add_argument("--input", default="image", help="its only input, FP32")
    parser.add_argument("--shape", default="1,8,8", help="of a row")
    parser.add_argument("--max-rows", type=int, default=32)
    options = parser.parse_args()
    shape = [int(size) for size in options.shape.split(",")]
    url = f"http://{options.url}"
    connection = Connection(url, 30.0)

    def ask(body: bytes, length: int | None) -> None:
        headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
        answer = connection.send(request_bytes("POST", url, f"/v2/models/{options.model}/infer", headers, body))
        if answer.status != 200:
            raise SystemExit(f"{options.model} answered {answer.status}: {answer.body[:200].decode(errors='replace')}")

    print("      bytes   JSON ms  binary ms  turning ms  looking ms")
    rows = 1
    while rows <= options.max_rows:
        data = [random.gauss(0, 1) for _ in range(rows * prod(shape))]
        entry = {"name": options.input, "shape": [rows, *shape], "datatype": "FP32", "data": data}
        body = json.dumps({"inputs": [entry]}).encode()
        binary = v2.to_binary(body, len(body), MOST_BYTES)
        [tensor] = binary.tensors
        assert not isinstance(tensor, int)
        whole, length = b"".join((binary.head, *tensor)), len(binary.head)
        found = [
            _ms(lambda body=body: ask(body, None)),  # type: ignore[misc]
            _ms(lambda body=whole, length=length: ask(body, length)),  # type: ignore[misc]
            _ms(lambda body=body: v2.to_binary(body, len(body), MOST_BYTES)),  # type: ignore[misc]
            _ms(lambda body=body: v2.check_head(body)),  # type: ignore[misc]
        ]
        print(f"{len(body):11}" + "".join(f"{ms:10.3f} " for ms in found))
        rows *= 2
    return 0


def _ms(work: Callable[[], object]) -> float:
    """The median."""
    return median(times(work, SECONDS)) * 1000


if __name__ == "__main__":
    raise SystemExit(main())
