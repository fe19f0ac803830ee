"""A server is started again as it was profiled, and its numbers are not taken for another setting's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.profile.server import as_profiled
from loadtest.verdict.build import name_of
from serving.decisions.profile import ServerProfile, Settings

SERVER = ServerProfile("int8", "cpu", "cpu", "a processor", None, Settings(1, 2, 32, 0))


@pytest.mark.parametrize(
    ("server", "options", "name"),
    [
        (SERVER, "--instances 1 --threads 2 --queue-delay-us 0", "int8-cpu-cpu-1x2"),
        (
            replace(SERVER, settings=Settings(2, 1, 8, 500, is_batch_limited=True)),
            "--instances 2 --threads 1 --max-batch 8 --queue-delay-us 500",
            "int8-cpu-cpu-2x1-batch8-delay500us",
        ),
        (
            replace(SERVER, variant="fp16", engine="cuda", device="gpu"),
            "--instances 1 --queue-delay-us 0",
            "fp16-cuda-gpu-1x2",
        ),
    ],
)
def test_it_is_started_as_it_was_profiled_under_a_name_of_its_own(
    server: ServerProfile, options: str, name: str
) -> None:
    assert as_profiled(server) == options.split()
    assert name_of(server) == name
