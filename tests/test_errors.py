"""Every error has its status, and `Retry-After` is honest."""

from __future__ import annotations

import pytest

from serving import errors


def subclasses(cls: type) -> set[type]:
    return {cls} | {s for child in cls.__subclasses__() for s in subclasses(child)}


def test_every_request_error_has_a_status_and_a_word() -> None:
    leaves = subclasses(errors.RequestError) - {errors.RequestError}
    assert leaves == set(errors.HTTP)


def test_words_are_those_of_the_contract() -> None:
    assert {word for _, word in errors.HTTP.values()} == {
        "bad_request", "too_large", "unauthenticated", "forbidden", "not_found", "rate_limited", "quota_exceeded", "overloaded", "not_ready",
        "upstream_lost", "deadline_expired", "unsupported", "internal",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "header", "exact"),
    [(0.0, 1, 1), (0.2, 1, 200), (1.0, 1, 1000), (1.0001, 2, 1001), (59.5, 60, 59500)],
)
def test_retry_after_is_whole_seconds_rounded_up_with_the_exact_value_beside_it(
    seconds: float, header: int, exact: int
) -> None:
    assert errors.retry_after(seconds) == (header, exact)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.GateRefused("x"), 1),
        (errors.UserError("x"), 2),
        (errors.EnvironmentFault("x"), 3),
        (errors.BadRequest("x"), 2),
    ],
)
def test_exit_codes_say_whose_turn_it_is(error: errors.TandemError, code: int) -> None:
    assert errors.exit_code(error) == code
