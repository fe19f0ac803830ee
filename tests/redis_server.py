"""A real Redis of a test's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from serving.ports import free_ports
from serving.redis_client import RedisClient, Refused, Unreachable
from tests.local.harness import LIMIT_S, wait_until


class RedisServer:
    """Keeps what it holds over a restart."""

    def __init__(self, folder: Path, *options: str) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("needs redis-server: apt-get install redis-server")
        self.port = free_ports(1)[0]
        self.url = f"redis://127.0.0.1:{self.port}"
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)]
        # Written before it answers, so that a kill loses nothing; without waiting for the disk, which may take seconds on a busy machine.
        self._command += ["--save", "", "--appendonly", "yes", "--appendfsync", "no", *options]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        with RedisClient(self.url) as client:

            def answers() -> bool:
                try:
                    return client.ask("PING") == b"PONG"
                except Refused:  # it wants a password
                    return True
                except Unreachable:
                    return False

            wait_until(answers, "Redis answers")

    def client(self) -> RedisClient:
        return RedisClient(self.url, LIMIT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
