"""Triton's name and words for clients that look at texts: only where they are asked for, and only before our own sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving import errors
from serving.gateway.triton_words import WORDS, worded
from tests.gateway.conftest import SAMPLE, Running, gateway_before


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.NoSuchModel("ours", model="m"), "Request for unknown model: 'm' is not found; ours"),
        (
            errors.NoSuchVersion("ours", model="m", version="9"),
            "Request for unknown model: 'm' version 9 is not found; ours",
        ),
        (errors.NothingToLoad("ours", model="m"), "failed to load 'm', failed to poll from model repository; ours"),
        (errors.LoadRefused("ours", model="m"), "failed to load 'm'; ours"),
        (errors.Overloaded("ours"), "Exceeds maximum queue size; ours"),
        (errors.NeverInTime("ours"), "Exceeds maximum queue size; ours"),
        (errors.DeadlineExpired("ours"), "Request timeout expired; ours"),
        (errors.BadRequest("ours"), "ours"),
        (errors.NotFound("ours"), "ours"),
        (errors.Forbidden("ours"), "ours"),
    ],
)
def test_our_errors_in_tritons_words(error: errors.RequestError, words: str) -> None:
    assert str(worded(error)) == words
    assert str(worded(worded(error))) == words


def test_every_kind_that_has_words_has_a_status() -> None:
    assert WORDS.keys() <= errors.HTTP.keys()


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.protocol("v2 HTTP", "Triton's server name and words of errors, with `triton_words`", "supported")
def test_a_gateway_has_them_only_where_it_is_told_so(digits: str, gateway: Running, tmp_path: Path) -> None:
    def texts(running: Running) -> list[str]:
        late = running.infer(SAMPLE, headers={"Tandem-Deadline-Ms": "0.001"})
        unknown = [running.infer(SAMPLE, "nobody"), running.ask("/v2/models/nobody/config")]
        version = running.ask("/v2/models/digits/versions/9")
        assert [reply.status for reply in (late, *unknown, version)] == [504, 404, 404, 404]
        return [running.ask("/v2").json()["name"], *(r.json()["error"] for r in (late, *unknown, version))]

    ours = texts(gateway)
    with gateway_before(tmp_path, {"cpu": [digits]}, triton_words=True) as told:
        theirs = texts(told)
        assert "Request for" not in told.ask("/v1/models/nobody").body.decode()
    assert (ours[0], theirs[0]) == ("tandem", "triton")
    starts = ["Request timeout expired; ", *["Request for unknown model: 'nobody' is not found; "] * 2]
    starts.append("Request for unknown model: 'digits' version 9 is not found; ")
    assert [text.split("; ")[0] + "; " for text in theirs[1:]] == starts
    assert theirs[2:] == [start + text for start, text in zip(starts[1:], ours[2:], strict=True)]
