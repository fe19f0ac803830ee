"""The judges of two gateways before one real Redis that is killed in the middle: each goes on alone, and nothing is counted twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from serving.control.evidence import Comparison
from serving.control.stores import RedisStore
from serving.decisions.rollout import Block, Judge
from serving.gateway.request.shared_judge import SharedJudge
from tests.decisions.test_rollout import NUM, blocks
from tests.redis_server import RedisServer

ONE = Comparison("m", "d1", 3)


def judge(metric: str) -> Judge:
    return Judge(metrics=(metric,) if metric else ())


async def hear(of: Sequence[Block], *gateways: SharedJudge) -> None:
    """All see the same blocks."""
    for block in of:
        for gateway in gateways:
            await gateway.hear(block)


def test_what_was_seen_while_redis_was_away_is_told_later_and_counted_once(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)

    async def run() -> None:
        with RedisStore(redis.url) as of_a, RedisStore(redis.url) as of_b, RedisStore(redis.url) as of_c:
            a, b = SharedJudge(ONE, of_a, judge), SharedJudge(ONE, of_b, judge)
            await hear(blocks(5), a, b)
            assert (a.problem, b.problem) == ("", "")
            redis.kill()
            before = a.judge.judgement().num_candidate
            await hear(blocks(3), a)
            assert a.problem
            assert a.judge.judgement().num_candidate >= before + 3 * NUM  # it goes on by what it sees itself
            await hear(blocks(2), b)
            redis.start()
            for it in (a, b, a, b):  # the last two hear what the others said first
                await it.hear(None)
            assert (a.problem, b.problem) == ("", "")
            c = SharedJudge(ONE, of_c, judge)  # one that was started again
            await c.hear(None)
            seen = (5 + 3 + 5 + 2) * NUM
            for it in (a, b, c):  # but for what no other has told beside yet
                assert 0 <= seen - it.judge.judgement().num_candidate <= 2 * NUM
                assert (it.num_gateways, it.metric) == (2, "agreement")

    try:
        asyncio.run(run())
    finally:
        redis.kill()


def test_a_log_that_is_lost_begins_anew_for_all(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)

    async def run() -> None:
        with RedisStore(redis.url) as of_a, RedisStore(redis.url) as of_b, redis.client() as client:
            a, b = SharedJudge(ONE, of_a, judge), SharedJudge(ONE, of_b, judge)
            await hear(blocks(5), a, b)
            client.ask("FLUSHALL")
            await hear(blocks(4), a, b)
            await a.hear(None)
            told = [it.judge.judgement(with_intervals=False) for it in (a, b)]
            assert told[0] == told[1]
            assert told[0].num_candidate == 2 * 4 * NUM

    try:
        asyncio.run(run())
    finally:
        redis.kill()
