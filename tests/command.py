"""`tandem` in this process: a start of Python for each call would take most of a test's time. Not for verbs that start children."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from serving.cli.command import main

ROOT = Path(__file__).parents[1]


def tandem(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a user sees who calls it in the checkout."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        patch.dict(os.environ, environment),
        patch.object(sys, "argv", ["tandem", *words]),
        contextlib.chdir(ROOT),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
