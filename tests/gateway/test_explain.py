"""`tandem explain` before a real gateway and Triton: it says of a request what its receipt says, and more."""

from __future__ import annotations

import json

from tests.command import tandem
from tests.gateway.conftest import SAMPLE, Running


def test_it_says_where_a_request_went_and_why(gateway: Running) -> None:
    receipt = gateway.infer(SAMPLE).headers
    identity = receipt["tandem-request-id"]
    said = tandem("explain", identity, "--url", f"http://{gateway.url}", "--json")
    assert said.returncode == 0, said.stderr
    (told,) = json.loads(said.stdout)["decisions"]
    assert told["id"] == identity
    assert [told[name] for name in ("pool", "variant", "reason")] == [
        receipt[f"tandem-{name}"] for name in ("pool", "variant", "reason")
    ]
    timing = dict(part.strip().split(";dur=") for part in receipt["server-timing"].split(","))
    assert abs(told["backend_s"] * 1000 - float(timing["backend"])) < 0.002
    text = tandem("explain", identity[:20], "--url", f"http://{gateway.url}")
    assert text.returncode == 0
    assert identity in text.stdout
    assert f"went to {told['pool']} ({told['variant']})" in text.stdout
    assert f"took {told['actual_s'] * 1000:.2f} ms" in text.stdout


def test_what_it_cannot_say_is_the_users_to_mend(gateway: Running) -> None:
    for words, why in (
        (("ffff", "--url", f"http://{gateway.url}"), "remembers no request 'ffff'"),
        (("../status", "--url", f"http://{gateway.url}"), "is no request's id"),
        (("ffff", "--url", "http://127.0.0.1:1"), "does not tell its decisions"),
    ):
        said = tandem("explain", *words)
        assert said.returncode == 2
        assert why in said.stderr
