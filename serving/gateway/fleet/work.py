"""What has a Triton done since it was last asked, for everybody who sends to it, and how long did its executions take?

Out of Triton's statistics, which count from its start. What follows for a gateway is not here (`scheduling/replica.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Work:
    """`executions`: by the model's name and the rows of one, how many there were and their nanoseconds together.

    `num_ours`: of the requests, those that this gateway had answers to when it was told.
    """

    num_requests: int
    executions: Mapping[tuple[str, int], tuple[int, int]]
    num_ours: int = 0

    def pace(self, before: Work, seconds: Callable[[str, int], float | None]) -> float:
        """What executions took since then, as a multiple of what was expected: `seconds` of a model's, None where nobody knows.

        1 where there were none.
        """
        took_s = expected_s = 0.0
        for (name, rows), (num, ns) in self.executions.items():
            num_before, ns_before = before.executions.get((name, rows), (0, 0))
            if num > num_before and (each_s := seconds(name, rows)) is not None:
                took_s += (ns - ns_before) / 1e9
                expected_s += (num - num_before) * each_s
        return took_s / expected_s if expected_s else 1.0


def read_work(statistics: Mapping[str, Any], num_ours: int = 0) -> Work:
    """Of the answer to `GET /v2/models/stats`. Raises AttributeError, KeyError, TypeError and ValueError for what is none."""
    rows = statistics["model_stats"]
    executions = {
        (row["name"], int(size["batch_size"])): (
            int(size["compute_infer"]["count"]),
            sum(int(size[part]["ns"]) for part in ("compute_input", "compute_infer", "compute_output")),
        )
        for row in rows
        for size in row.get("batch_stats", ())
    }
    return Work(sum(int(row["inference_stats"]["success"]["count"]) for row in rows), executions, num_ours)
