"""What `tandem triton` does before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.errors import UserError
from serving.gateway import serve
from serving.local.triton import TritonOptions, run
from serving.ports import free_ports


def test_what_an_earlier_run_wrote_of_being_ready_is_gone_before_this_one_is(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ready.write_text("digits-fp32\n")
    http, grpc, metrics = free_ports(3)
    options = TritonOptions(
        model_repository=tmp_path / "with space",  # refused, so that nothing starts
        http_port=http,
        grpc_port=grpc,
        metrics_port=metrics,
        ready_file=ready,
    )
    with pytest.raises(UserError):
        run(options)
    assert not ready.exists()


def test_a_ready_file_that_cannot_be_made_is_told_before_anything_is_started(tmp_path: Path) -> None:
    ready = tmp_path / "nowhere" / "ready"
    http, grpc, metrics = free_ports(3)
    with pytest.raises(UserError, match=f"{ready}: No such file"):
        run(TritonOptions(tmp_path, http_port=http, grpc_port=grpc, metrics_port=metrics, ready_file=ready))
    with pytest.raises(UserError, match=f"{ready}: No such file"):
        serve.run(serve.Options(tmp_path / "tandem.yaml", ready_file=ready))
