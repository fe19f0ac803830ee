"""The stopwatch: how fast variants are on the engines that are installed, beside each other, with what certainty.

`contest` lets them run in turns in `worker` processes of the engines' own Pythons, `results` says what came of it. Which variant
is served follows elsewhere. Rule: two times are compared only where they were taken in the same turns of one contest.
"""

from serving.decisions.engines import EnginePython
from serving.export.speed.contest import contest
from serving.export.speed.results import Entrant, Results

__all__ = ["EnginePython", "Entrant", "Results", "contest"]
