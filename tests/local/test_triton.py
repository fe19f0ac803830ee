"""What `tandem triton` does before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.errors import UserError
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
