"""Which Job `--attach` means, how long it may still take, and what is said where there is none of that name."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from serving.cluster.campaign.command import CampaignJob, is_ours, only
from serving.cluster.campaign.ending import JobCommands
from serving.cluster.campaign.manifests import job as manifest
from serving.cluster.objects.fields import Object
from serving.cluster.objects.pods import Job
from serving.errors import UserError
from tests.cluster.campaign.test_target import found, given

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def job(
    name: str = "tandem-campaign-mine-x2x4v", end: str = "", started: str = "2026-11-22T11:59:00Z", **labels: str
) -> Any:
    it: Any = dict(manifest(name, found(), given(), 100))
    it["metadata"] = {**it["metadata"], "creationTimestamp": "2026-11-22T11:58:00Z"}
    it["metadata"]["labels"] = {
        **it["metadata"]["labels"],
        **{f"app.kubernetes.io/{key}": value for key, value in labels.items()},
    }
    ends = [{"type": end, "status": "True"}] if end else []
    return {**it, "status": {"conditions": ends, **({"startTime": started} if started else {})}}


def parse(**labels: str) -> Job:
    return Job.parse(job(**labels))


def test_what_was_made_is_known_again() -> None:
    assert CampaignJob.of(Job.parse(job()), NOW) == CampaignJob(
        "tandem-campaign-mine-x2x4v", "mine", 100, rest_s=40.0, is_over=False
    )


@pytest.mark.parametrize(
    ("it", "rest_s"),
    [
        (job(end="Complete"), 0.0),
        (job(end="Failed"), 0.0),
        (job(started=""), 0.0),  # made two minutes ago, and waits
        (job(started="2026-11-22T12:30:00Z"), 100.0),  # by a clock that is ahead
    ],
)
def test_the_rest_is_between_none_and_all_of_its_time(it: Object, rest_s: float) -> None:
    assert CampaignJob.of(Job.parse(it), NOW).rest_s == rest_s


def test_only_what_this_verb_made_is_followed() -> None:
    assert is_ours(parse())
    assert not is_ours(parse(**{"managed-by": "Helm"}))  # the chart's own load test
    assert not is_ours(parse(component="gateway"))


def test_the_only_one_needs_no_name() -> None:
    assert only([Job.parse(job("a"))], "serve", "", is_another=False).name == "a"


@pytest.mark.parametrize(
    ("there", "name", "is_another", "words"),
    [
        ([job("a"), job("b", end="Failed")], "", False, "several campaign Jobs in namespace 'serve': give --attach JOB; there are a (goes on), b (over)"),
        ([job("a")], "x", False, "no campaign Job 'x' in namespace 'serve'; there is a (goes on)"),
        ([job("a")], "x", True, "Job 'x' in namespace 'serve' is not one of `tandem cluster campaign`; there is a (goes on)"),
        ([], "x", False, "no campaign Job 'x' in namespace 'serve'; there is none; another --namespace?"),
        ([], "", False, "no campaign Job in namespace 'serve'; there is none; another --namespace?"),
        (None, "", False, "no campaign Job in namespace 'serve' that this user may see: give --attach JOB"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_told_with_those_that_there_are(
    there: list[Object] | None, name: str, is_another: bool, words: str
) -> None:
    with pytest.raises(UserError) as error:
        only(None if there is None else [Job.parse(it) for it in there], "serve", name, is_another=is_another)
    assert str(error.value) == words


def test_the_words_for_a_job_that_is_left_go_to_the_cluster_that_was_asked() -> None:
    here = JobCommands("j", "serve", None)
    assert here.to_attach == "tandem cluster campaign --attach j --namespace serve"
    assert here.to_delete == "kubectl delete job j --namespace serve"
    assert (
        JobCommands("j", "serve", "me at work").to_read == "kubectl logs job/j --namespace serve --context 'me at work'"
    )


# -- the command line ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--attach", "j", "--fail-if", "p99_s > 1"], "takes no --fail-if"),
        (["mine.yaml", "--attach", "j", "--image", "x:1"], "takes no FILE and no --image"),
        (["--attach", "--timeout", "9"], "--attach JOB follows a Job as it was made, so it takes no --timeout"),
        ([], "--attach JOB"),
        (["--attach", "j", "--output", "full"], "full is not empty"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_asked(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from serving.cli import main

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "report.html").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr("sys.argv", ["tandem", "cluster", "campaign", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert told in capsys.readouterr().err


def test_no_empty_folder_is_left_where_nothing_came_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from serving.cli import main

    file = tmp_path / "mine.yaml"
    file.write_text("version: 1\nname: mine\nmodel: digits\narms: [{variant: fp32, pool: cpu}]\n")
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    for words in ([str(file)], [str(file), "--output=new"], [str(file), "--output=mine"], ["--attach", "--output=new"]):
        monkeypatch.setattr("sys.argv", ["tandem", "cluster", "campaign", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 3
    assert list(tmp_path.glob("results/*")) == []
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "mine").exists()  # was there before


@pytest.mark.parametrize(
    ("asked_s", "words"), [("5", "--timeout 5 is less than the 36 s that the runs of mine.yaml last"), ("36", None)]
)
def test_a_time_that_cannot_be_enough_is_refused(
    asked_s: str, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from serving.cli import main

    file = tmp_path / "mine.yaml"
    load = "{users: 2, warmup_s: 2, duration_s: 10, repeats: 3}"
    file.write_text(f"version: 1\nname: mine\nmodel: digits\narms: [{{variant: fp32, pool: cpu}}]\nload: {load}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr("sys.argv", ["tandem", "cluster", "campaign", str(file), "--timeout", asked_s])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == (2 if words else 3)
    assert (words or "no kubeconfig") in capsys.readouterr().err
