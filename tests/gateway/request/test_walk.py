"""The walk of one request through the gateway's files stays short and goes down."""

from __future__ import annotations

import json
import os
import subprocess
import sys

WALK = "import json; from scripts.trace_walk import request; print(json.dumps(request().below('gateway')))"


def test_a_request_is_read_through_few_files_and_hardly_any_of_them_twice() -> None:
    environment = {**os.environ, "TANDEM_COMPILED": "0"}  # no tracer sees what is compiled
    done = subprocess.run([sys.executable, "-c", WALK], env=environment, capture_output=True, text=True, check=True)
    stays = json.loads(done.stdout)
    num_returns = len(stays) - len(set(stays))
    found = f"{len(stays)} stays, {num_returns} returns, other rooms as one place each: {stays}"
    assert "scheduling" in stays
    assert len(stays) <= 20, found
    assert num_returns <= 5, found
