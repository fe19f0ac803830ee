"""For how long is a model left alone whose process died? Triton gives up on what waited for it batch by batch, a second each."""

from __future__ import annotations

import asyncio
from math import inf, nextafter
from time import perf_counter

from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.server import SUSPEND_S, Server
from serving.settings import GatewaySettings


def a_server() -> tuple[Catalogue, Server]:
    async def make() -> tuple[Catalogue, Server]:
        settings = GatewaySettings.model_validate(
            {"version": 1, "pools": {"cpu": {"urls": ["http://127.0.0.1:9"], "device": "cpu"}}}
        )
        catalogue = Catalogue(settings, lambda: None)
        return catalogue, catalogue.pools["cpu"][0]

    return asyncio.run(make())


def test_a_death_keeps_requests_away_for_as_long_as_a_reload_takes() -> None:
    catalogue, server = a_server()
    catalogue.suspend(server, "m", sent=0.0)
    assert server.suspended["m"] == server.died["m"] + SUSPEND_S


def test_requests_sent_before_the_death_was_noticed_do_not_keep_the_new_process_away() -> None:
    catalogue, server = a_server()
    catalogue.suspend(server, "m", sent=0.0)
    until = server.suspended["m"]
    for sent in (0.0, server.died["m"] - 0.5, nextafter(server.died["m"], 0.0)):
        catalogue.suspend(server, "m", sent)
        assert server.suspended["m"] == until


def test_a_request_sent_after_it_that_dies_too_is_another_death() -> None:
    catalogue, server = a_server()
    catalogue.suspend(server, "m", sent=0.0)
    until, noticed = server.suspended["m"], server.died["m"]
    catalogue.suspend(server, "m", sent=nextafter(noticed, inf))
    assert server.suspended["m"] > until


def test_the_death_of_one_model_says_nothing_of_another() -> None:
    catalogue, server = a_server()
    catalogue.suspend(server, "m", sent=0.0)
    catalogue.suspend(server, "other", sent=0.0)
    assert server.suspended.keys() == {"m", "other"}


def test_a_death_that_is_told_after_the_model_is_back_does_not_keep_it_away() -> None:
    catalogue, server = a_server()
    server.back["m"] = perf_counter()
    catalogue.suspend(server, "m", sent=server.back["m"] - 1.0)
    assert not server.suspended
    catalogue.suspend(server, "m", sent=perf_counter())
    assert server.suspended
