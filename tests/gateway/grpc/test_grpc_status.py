"""Every kind of error has a status code and says in its metadata what HTTP says in its headers."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from serving import errors
from serving.gateway.grpc.status import CODES, Code, code_of, error_metadata

MAY_COME_AGAIN = (errors.Overloaded, errors.NotReady, errors.UpstreamLost)


def kinds(root: type[errors.RequestError]) -> Iterator[type[errors.RequestError]]:
    for kind in root.__subclasses__():
        yield kind
        yield from kinds(kind)


@pytest.mark.parametrize("kind", sorted(set(kinds(errors.RequestError)), key=lambda kind: kind.__name__))
def test_every_error_has_a_code_and_a_word(kind: type[errors.RequestError]) -> None:
    never = kind is errors.NeverInTime
    error = kind("no") if never else kind("no", retry_after_s=0.2)
    error.receipt = [(b"tandem-pool", b"cpu")]
    told = dict(error_metadata(error))
    assert told == {
        b"tandem-error": errors.HTTP[kind][1].encode(),
        **({} if never else {b"retry-after": b"1", b"retry-after-ms": b"200"}),
        b"grpc-retry-pushback-ms": b"-1" if never else b"200",
        b"tandem-pool": b"cpu",
    }
    assert all(name == name.lower() for name in told)
    is_unavailable = issubclass(kind, MAY_COME_AGAIN) and not never
    assert (code_of(error) is Code.UNAVAILABLE) is is_unavailable  # clients try these again by themselves
    assert code_of(error) not in (Code.OK, Code.UNKNOWN)


def test_errors_without_a_retry_say_nothing_of_one() -> None:
    assert error_metadata(errors.BadRequest("no")) == [(b"tandem-error", b"bad_request")]


def test_codes_have_the_numbers_of_grpc() -> None:
    assert {it.name: it.value[0] for it in grpc.StatusCode} == {it.name: it.value for it in Code}


def test_the_table_names_no_error_twice_under_another_code() -> None:
    for kind, code in CODES.items():
        assert code_of(kind("no")) is code
