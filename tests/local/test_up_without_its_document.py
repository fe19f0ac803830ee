"""`tandem up` whose control document is away at its start: it says so, waits, and serves once the document can be read.

Status tells which of its models nobody has.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from serving.local.environments import ENGINES
from serving.local.folders import cache_dir
from serving.ports import free_ports
from tests.command import tandem
from tests.home import in_users_cache, link
from tests.local.harness import Program
from tests.local.repository import publish_digits
from tests.redis_server import RedisServer


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.triton
def test_it_says_what_is_away_and_serves_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_digits(tmp_path / "repository", precisions=["fp32"])
    link(in_users_cache(ENGINES["cpu"]), cache_dir())
    redis = RedisServer(tmp_path)
    redis.kill()
    port = free_ports(1)[0]
    words = ["up", "--port", str(port), "--no-measure", "--control", redis.url]
    words += ["--model-repository", str(tmp_path / "repository")]
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    program = Program([sys.executable, "-m", "serving", *words], tmp_path / "log")
    try:
        program.wait_for(f"still starting: the Redis 127.0.0.1:{redis.port}/0 does not answer")
        redis.start()
        program.wait_for("Ctrl-C stops it")
        (tmp_path / "misspelt.yaml").write_text("version: 1\nmodels: {digit: {pin: {version: 1}}}\n")
        place = ["--control", redis.url, "--url", f"http://127.0.0.1:{port}"]
        assert tandem("apply", str(tmp_path / "misspelt.yaml"), *place).returncode == 0
        [told] = [line for line in tandem("status").stdout.splitlines() if line.strip().startswith("digit:")]
        assert "no server" in told
    finally:
        program.end()
        redis.kill()
