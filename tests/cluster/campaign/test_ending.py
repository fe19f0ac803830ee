"""What is said and done at an end that the bed cannot bring about at will."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kubernetes import client

from serving.cluster.api import Connection
from serving.cluster.campaign.ending import Delivery, JobCommands, to_the_end
from serving.cluster.campaign.follow import JobFollower
from serving.cluster.campaign.job_status import JobStatus


class Interrupted(JobFollower):
    """By Ctrl-C, while the results of a campaign that is over come."""

    def to_the_end(self) -> JobStatus:
        raise KeyboardInterrupt


@pytest.mark.parametrize("line", ['tandem-results begin {"code": 0, "lines": 9, "sha256": "", "left_out": []}', None])
def test_ctrl_c_while_the_results_come_does_not_delete_what_holds_them(
    line: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with client.ApiClient(client.Configuration(host="http://127.0.0.1:1")) as api:  # whom nobody asks
        it = Interrupted(Connection("c", "http://127.0.0.1:1", "serve", api), "j", time.monotonic(), print)
        it.is_over = line is None
        it.frames.take(line or "")
        assert to_the_end(it, Delivery(tmp_path, 9, keep=False, commands=JobCommands("j", "serve", None))) == 130
    said = capsys.readouterr().err
    assert said.endswith(
        "to bring its results home: tandem cluster campaign --attach j --namespace serve; "
        "to delete it: kubectl delete job j --namespace serve\n"
    )
    assert "stopping" not in said
