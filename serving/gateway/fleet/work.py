"""What has a Triton done since it was last asked, for everybody who sends to it, and how long did its executions take?

Out of Triton's statistics, which count from its start. What follows for a gateway is not here (`scheduling/replica.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Executions = dict[
    int, tuple[int, float]
]  # of a model: by the rows of one, how many there were, and their seconds together


@dataclass(frozen=True, slots=True)
class Work:
    """`executions`: by the model's name and the rows of one, how many there were and their nanoseconds together.

    `num_ours`: of the requests, those that this gateway had answers to when it was told, at `told_s` (of any clock that goes on).
    """

    num_requests: int
    executions: Mapping[tuple[str, int], tuple[int, int]]
    num_ours: int = 0
    told_s: float = 0.0
    by_version: Mapping[tuple[str, str, int], tuple[int, int]] = field(
        default_factory=dict
    )  # the same, of each version
    waits: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # by the model's name: requests, and the nanoseconds for which they waited there, together

    def beside(
        self, before: Work, ours: tuple[str, str | None], theirs: tuple[str, str | None]
    ) -> tuple[float, float, float]:
        """Rows, and the seconds that each of two would have taken for them since then: of executions of as many rows, as many of each.

        `ours`, `theirs`: name and version, None for all. Nothing where they had no executions of as many rows.
        """
        found = [self._of_version(before, *it) for it in (ours, theirs)]
        rows_in_all = ours_s = theirs_s = 0.0
        for rows in found[0].keys() & found[1].keys():
            (num_ours, all_ours_s), (num_theirs, all_theirs_s) = found[0][rows], found[1][rows]
            num = min(num_ours, num_theirs)
            rows_in_all += num * rows
            ours_s += num * all_ours_s / num_ours
            theirs_s += num * all_theirs_s / num_theirs
        return rows_in_all, ours_s, theirs_s

    def _of_version(self, before: Work, name: str, version: str | None) -> dict[int, tuple[int, float]]:
        found: dict[int, tuple[int, float]] = {}
        for key, (num, ns) in self.by_version.items():
            if key[0] != name or version not in (None, key[1]):
                continue
            num_before, ns_before = before.by_version.get(key, (0, 0))
            if num > num_before and ns >= ns_before:  # fewer: its model was loaded again meanwhile
                others, others_s = found.get(key[2], (0, 0.0))
                found[key[2]] = others + num - num_before, others_s + (ns - ns_before) / 1e9
        return found

    def pace(self, before: Work, seconds: Callable[[str, int], float | None]) -> float:
        """What all models' executions took since then, as a multiple of what was expected: by `seconds`, None where nobody knows.

        1 where there were none.
        """
        took_s = expected_s = 0.0
        for name, executions in self.since(before).items():
            for rows, (num, all_s) in executions.items():
                if (each_s := seconds(name, rows)) is not None:
                    took_s += all_s
                    expected_s += num * each_s
        return took_s / expected_s if expected_s else 1.0

    def since(self, before: Work) -> dict[str, Executions]:
        """By the model's name."""
        found: dict[str, Executions] = {}
        for (name, rows), (num, ns) in self.executions.items():
            num_before, ns_before = before.executions.get((name, rows), (0, 0))
            of = found.setdefault(name, {})
            if num > num_before and ns >= ns_before:  # fewer: its model was loaded again meanwhile
                of[rows] = num - num_before, (ns - ns_before) / 1e9
        return found

    def rows_waiting(self, before: Work) -> dict[str, float]:
        """Of each model, on average since then, as far as requests were answered; these had as many rows as executions had for each."""
        lasting_s, found = self.told_s - before.told_s, {}
        for name, executions in self.since(before).items():
            num, ns = (now - past for now, past in zip(self.waits[name], before.waits.get(name, (0, 0)), strict=True))
            if num > 0 and lasting_s > 0:
                found[name] = ns / 1e9 / lasting_s * sum(rows * done for rows, (done, _) in executions.items()) / num
        return found


def pace_of(executions: Executions, seconds: Callable[[float], float]) -> float:
    """The same of one model's."""
    expected_s = sum(num * seconds(rows) for rows, (num, _) in executions.items())
    return sum(all_s for _, all_s in executions.values()) / expected_s if expected_s else 1.0


def read_work(statistics: Mapping[str, Any], num_ours: int = 0, told_s: float = 0.0) -> Work:
    """Of the answer to `GET /v2/models/stats`. Raises AttributeError, KeyError, TypeError and ValueError for what is none."""
    rows = statistics["model_stats"]
    by_version = {
        (row["name"], str(row.get("version", "")), int(size["batch_size"])): (
            int(size["compute_infer"]["count"]),
            sum(int(size[part]["ns"]) for part in ("compute_input", "compute_infer", "compute_output")),
        )
        for row in rows
        for size in row.get("batch_stats", ())
    }
    executions: dict[tuple[str, int], tuple[int, int]] = {}
    for (name, _, size), (num, ns) in by_version.items():
        others, others_ns = executions.get((name, size), (0, 0))
        executions[name, size] = others + num, others_ns + ns
    waits: dict[str, tuple[int, int]] = {}
    for row in rows:
        num, ns = waits.get(row["name"], (0, 0))
        asked = row["inference_stats"]
        waits[row["name"]] = num + int(asked["success"]["count"]), ns + int(asked["queue"]["ns"])
    num_requests = sum(num for num, _ in waits.values())
    return Work(num_requests, executions, num_ours, told_s, by_version, waits)
