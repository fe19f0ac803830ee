"""Which `tandem up` serves a repository is known as long as it lives, also where it does not tell what it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.local.runs import Run, announce, serving
from tests.command import tandem
from tests.local.repository import publish_digits

NOBODY = "http://127.0.0.1:1"  # where no gateway answers, as one does not that wants a key


def test_what_a_run_serves_is_known_until_it_ends_and_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    repository = tmp_path / "repository"
    publish_digits(repository, precisions=["fp32"])
    where = ["--model-repository", str(repository)]
    folder = tmp_path / "state" / "runs" / "20261123-120000-1"
    folder.mkdir(parents=True)
    with announce(folder, Run(str(repository), NOBODY)):
        (tmp_path / "link").symlink_to(repository)
        assert [run.url for run in serving(tmp_path / "link")] == [NOBODY]
        assert serving(tmp_path) == []
        shown = tandem("models", *where)
        assert (shown.returncode, NOBODY in shown.stderr, "TANDEM_API_KEY" in shown.stderr) == (0, True, True)
        refused = tandem("models", "rm", "digits", *where)
        assert (refused.returncode, "--served" in refused.stderr) == (2, True)
        assert (repository / "digits-fp32").is_dir()
    assert serving(repository) == []
    assert tandem("models", "rm", "digits", *where).returncode == 0
    assert not (repository / "digits-fp32").exists()
