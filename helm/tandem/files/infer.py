"""Sends one inference through the gateway and says what answered: the body of `helm test`.

Runs inside the gateway image with Python's standard library only. A gateway that is not ready yet is asked again for a minute;
any other answer than a result fails at once.
"""

import json
import pathlib
import sys
import time
import urllib.error
import urllib.request

TRY_FOR_S = "60"  # `helm test` may follow an install that did not wait; a guess, not measured


def infer(url: str, body: bytes, try_for_s: float) -> tuple[dict[str, str], bytes]:
    """The receipt and the body of the first answer that is a result; HTTPError or URLError when none comes."""
    give_up = time.monotonic() + try_for_s
    while True:
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > give_up:
                raise
        except urllib.error.URLError:
            if time.monotonic() > give_up:
                raise
        time.sleep(1)


def main(gateway: str, model: str, sample: str, try_for_s: str = TRY_FOR_S) -> None:
    body = pathlib.Path(sample).read_bytes()
    try:
        headers, answer = infer(f"{gateway}/v2/models/{model}/infer", body, float(try_for_s))
    except urllib.error.HTTPError as error:
        sys.exit(f"{model}: {error.code} {error.read().decode(errors='replace')}")
    except urllib.error.URLError as error:
        sys.exit(f"{model}: no answer from {gateway}: {error.reason}")
    outputs = json.loads(answer)["outputs"]
    receipt = "  ".join(f"{name}: {value}" for name, value in headers.items() if name.lower().startswith("tandem-"))
    print(f"{model}: {len(outputs)} output(s), {outputs[0]['name']} {outputs[0]['shape']}  {receipt}")


if __name__ == "__main__":
    main(*sys.argv[1:])
