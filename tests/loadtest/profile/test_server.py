"""A server is started again as it was profiled, and its numbers are not taken for another setting's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.profile.server import as_profiled, setup_of
from loadtest.verdict.build import name_of
from serving.decisions.profile import ServerProfile, Settings
from serving.repository import Repository

COMMITTED = Path(__file__).parents[3] / "model_repo"
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
            replace(SERVER, settings=Settings(1, 2, 32, 0, tuning=("batch_buckets=1,8", "prefer_nhwc=1"))),
            "--instances 1 --threads 2 --queue-delay-us 0 --batch-buckets 1,8 --cuda-option prefer_nhwc=1",
            "int8-cpu-cpu-1x2-buckets=1+8-prefer_nhwc=1",
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


def test_what_a_triton_was_told_is_read_back_from_its_configuration() -> None:
    """The same words whichever place of the configuration they stand in."""
    cuda = {"cudnn_conv_algo_search": "HEURISTIC", "gpu_mem_limit": "7", "prefer_nhwc": "1"}
    own = {"batch_buckets": "1,8", "tandem_device_name": "a card"}
    variant = Repository(COMMITTED).variant("digits-fp16")
    setup = setup_of(json.loads(variant.config("gpu").with_cuda(cuda).with_parameters(own).to_json()))
    assert dict(word.split("=") for word in setup.settings.tuning) == {**cuda, "batch_buckets": "1,8"}
    assert setup_of(json.loads(variant.config("gpu").to_json())).settings.tuning == ()
