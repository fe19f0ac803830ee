"""A real Redis of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import redis_client
from tests.local.harness import LIMIT_S
from tests.redis_server import RedisServer


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here needs a timeout: a Redis that is down was killed and refuses connections, and one that runs may be slow on a busy machine."""
    monkeypatch.setattr(redis_client, "TIMEOUT_S", LIMIT_S)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()
