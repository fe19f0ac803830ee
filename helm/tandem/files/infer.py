"""Does every served model answer? The body of `helm test`: one inference for each name through the gateway, with its receipt.

    infer.py GATEWAY TIMEOUT_S SAMPLES [NAME...]

NAMEs have to be served; so have the public names that the gateway lists, and the variants that it says are ready. A request is the
model's sample.json under SAMPLES where there is one that fits, else zeros and short texts in the shape of its metadata. What is not
served yet is waited for. Python's standard library only: the gateway's image runs it by `python -c`. A key comes in TANDEM_API_KEY.
"""

import json
import math
import os
import pathlib
import sys
import time
import urllib.error
import urllib.request

ASK_FOR_S = 30  # one answer; a large model's first may take seconds. A guess, not measured
PAUSE_S = 1
OPEN_SIZE = 16  # of a dimension that may have any, as the gateway measures; the first is rows, and there is one


class Failure(Exception):
    """Why a name did not answer. `may_pass`: asking again may help."""

    def __init__(self, why, may_pass=False):
        super().__init__(why)
        self.may_pass = may_pass


def ask(url, body=None, headers=None):
    """Receipt and JSON of an answer. Raises Failure."""
    key = os.environ.get("TANDEM_API_KEY")
    sent = {**(headers or {}), **({"Authorization": f"Bearer {key}"} if key else {})}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, sent), timeout=ASK_FOR_S) as answer:
            length = answer.headers.get("Inference-Header-Content-Length")
            return dict(answer.headers), json.loads(answer.read()[: int(length) if length else None])
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace").strip()
        raise Failure(f"{error.code} {said}", may_pass=error.code == 503) from None
    except (OSError, ValueError) as error:  # URLError is an OSError
        raise Failure(f"no answer from {url}: {getattr(error, 'reason', error)}", may_pass=True) from None


def until(give_up, act):
    """What it gives; Failure when it still fails at a time of time.monotonic(), or for good."""
    while True:
        try:
            return act()
        except Failure as failure:
            if not failure.may_pass or time.monotonic() > give_up:
                raise
        time.sleep(PAUSE_S)


def served(gateway, wanted):
    """The names to be asked, when all that must be ready are. Raises Failure."""
    states = {row["name"]: row["state"] for row in ask(f"{gateway}/v2/repository/index", b"")[1]}
    public = {model["id"] for model in ask(f"{gateway}/v1/models")[1]["data"]}
    away = [name for name in sorted({*wanted, *public}) if states.get(name) != "READY"]
    if away or not states:
        raise Failure(f"not served: {', '.join(away) or 'any model'}", may_pass=True)
    return [name for name, state in states.items() if state == "READY"]


def fits(sample, inputs):
    """Whether a request has just these inputs, in their types and shapes."""
    try:
        given = {it["name"]: (it["datatype"], it["shape"]) for it in sample["inputs"]}
    except (KeyError, TypeError):
        return False
    return given.keys() == {it["name"] for it in inputs} and all(
        given[it["name"]][0] == it["datatype"]
        and len(given[it["name"]][1]) == len(it["shape"])
        and all(size in (-1, got) for size, got in zip(it["shape"], given[it["name"]][1], strict=True))
        for it in inputs
    )


def sample_of(name, inputs, samples):
    """The body of a committed request, or None. A public name's lies with its FP32 variant."""
    for folder in (name, f"{name}-fp32"):
        try:
            body = (pathlib.Path(samples) / folder / "sample.json").read_bytes()
            if fits(json.loads(body), inputs):
                return body
        except (OSError, ValueError):
            continue
    return None


def made_up(inputs):
    """Head and tensors of a request in the binary form of v2, which takes every type."""
    rows, tensors = [], b""
    for it in inputs:
        shape = [size if size > 0 else OPEN_SIZE if axis else 1 for axis, size in enumerate(it["shape"])]
        num_elements = math.prod(shape)
        if it["datatype"] == "BYTES":
            tensor = (4).to_bytes(4, "little") + b"text"
        else:
            num_bits = "".join(filter(str.isdigit, it["datatype"])) or "8"  # FP32, UINT8 ...; BOOL
            tensor = bytes(int(num_bits) // 8)
        tensor *= num_elements
        parameters = {"binary_data_size": len(tensor)}
        rows.append({"name": it["name"], "shape": shape, "datatype": it["datatype"], "parameters": parameters})
        tensors += tensor
    return json.dumps({"inputs": rows, "parameters": {"binary_data_output": True}}).encode(), tensors


def infer(gateway, name, samples):
    """One line about an answer. Raises Failure."""
    inputs = ask(f"{gateway}/v2/models/{name}")[1]["inputs"]
    url = f"{gateway}/v2/models/{name}/infer"
    sample = sample_of(name, inputs, samples)
    if sample is not None:
        kind = "its sample"
        headers, answer = ask(url, sample, {"Content-Type": "application/json"})
    else:
        kind = "a made-up request"
        head, tensors = made_up(inputs)
        headers, answer = ask(url, head + tensors, {"Inference-Header-Content-Length": str(len(head))})
    outputs = ", ".join(f"{it['name']} {it['shape']}" for it in answer["outputs"])
    receipt = "  ".join(f"{key}: {value}" for key, value in headers.items() if key.lower().startswith("tandem-"))
    return f"{name}: answered {kind} with {outputs}  {receipt}"


def main(gateway, timeout_s, samples, *wanted):
    give_up = time.monotonic() + float(timeout_s)
    try:
        names = until(give_up, lambda: served(gateway, wanted))
    except Failure as failure:
        sys.exit(f"after {timeout_s} s: {failure}")
    failed = []
    for name in names:
        try:
            print(until(give_up, lambda name=name: infer(gateway, name, samples)), flush=True)
        except Failure as failure:
            failed.append(name)
            print(f"{name}: {failure}", file=sys.stderr, flush=True)
    if failed:
        sys.exit(f"{len(failed)} of {len(names)} did not answer: {', '.join(failed)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
