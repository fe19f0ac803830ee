"""Why Triton could not do something, in one line that anybody may read.

Its own texts hold paths of its machine and, from a Python-based backend, a traceback: the log of the server keeps them.
"""

from __future__ import annotations

import json
import re

MAX_LETTERS = 300  # of a reason: the first sentence of the longest that was seen
_REQUEST = re.compile(r"\[request id: [^\]]*\]\s*")
_FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")


def reason_of(body: bytes) -> str:
    """Of Triton's answer to what it could not do."""
    try:
        return plain_reason(str(json.loads(body)["error"]))
    except (ValueError, KeyError, TypeError):
        return plain_reason("")


def plain_reason(message: str) -> str:
    """Without the way that Triton took to it, without the stub's Python traceback, and without folders before the names of files."""
    text = " ".join(message.split()).split(" At: ")[0]
    for marker in ("TritonModelException: ", "UNAVAILABLE state: "):
        text = text.rpartition(marker)[2]
    text = _REQUEST.sub("", text.removeprefix("Internal: ").rstrip(" ;"))
    return _FOLDERS.sub("", text)[:MAX_LETTERS] or "it gave no reason"
