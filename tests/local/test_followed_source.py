"""`tandem up` serves what lies in a bucket: new versions without a restart, nothing that is broken, and all of it while the bucket is away."""

from __future__ import annotations

import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from serving.local.environments import ENGINES
from serving.local.folders import cache_dir
from serving.ports import free_ports
from serving.repository import Repository
from tests.home import in_users_cache, link
from tests.local.harness import Program, wait_until
from tests.local.repository import publish_digits
from tests.local.test_later_exports import Up, another

pytestmark = [
    pytest.mark.slow,
    pytest.mark.triton,
    pytest.mark.skipif(shutil.which("rclone") is None, reason="needs rclone: apt-get install rclone"),
]


@pytest.mark.thorough
def test_a_bucket_is_followed_while_requests_are_answered(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    publish_digits(bucket / "prod", precisions=["fp32"])
    link(in_users_cache(ENGINES["cpu"]), cache_dir())
    port = free_ports(1)[0]
    words = ["up", "--port", str(port), "--no-measure", "--model-repository", "rclone://models/prod"]
    variables = {
        "RCLONE_CONFIG_MODELS_TYPE": "alias",
        "RCLONE_CONFIG_MODELS_REMOTE": str(bucket),
        "TANDEM_STATE": str(tmp_path / "state"),
    }
    program = Program([sys.executable, "-m", "serving", *words], tmp_path / "log", variables)
    there = Up(program, f"http://127.0.0.1:{port}", bucket / "prod")

    def source() -> Any:
        return there.ask("/admin/status")[1]["model_source"]

    try:
        program.wait_for("Ctrl-C stops it")
        assert there.digest("digits") == there.exported("digits-fp32")
        publish_digits(there.repository, precisions=["fp32"], version=2, model_file=another(2))
        wait_until(lambda: there.digest("digits") == there.exported("digits-fp32"), "the new version answers")
        served = there.digest("digits")
        aside = tmp_path / "aside"
        shutil.copytree(there.repository, aside)
        publish_digits(aside, precisions=["fp32"], version=3, model_file=another(3))
        Repository(aside).variant("digits-fp32").model_path.write_bytes(b"half of it")
        there.repository.rename(tmp_path / "before")
        aside.rename(there.repository)
        wait_until(lambda: source()["refused"], "it says what it does not take")
        (log,) = (tmp_path / "state").rglob("up.log")
        wait_until(lambda: "not taken: digits-fp32" in log.read_text(), "and its log, which `tandem logs` shows")
        told = Program([sys.executable, "-m", "serving", "status"], tmp_path / "told", variables)
        try:
            told.wait_for("not taken: digits-fp32")
        finally:
            told.end()
        bucket.rename(tmp_path / "away")
        wait_until(lambda: source()["problem"], "it says that the bucket is away")
        assert there.digest("digits") == served
        with urllib.request.urlopen(f"{there.url}/metrics") as answer:
            assert b"tandem_model_source_current 0.0" in answer.read()
    finally:
        program.end()
