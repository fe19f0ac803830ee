"""What became of each request of a soak, and whose death cost it? Pure.

Accepted is what was neither turned away at the door nor refused honestly with when to come again. An accepted request is answered, late
(an honest 504), or lost. What was on its way when a gateway was killed was held by it, and is counted apart: it is in that memory only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from loadtest.bench.soak.plan import Victim
from loadtest.sending.sent_request import Shot

REFUSALS = ("overloaded", "not_ready")  # 503 that say the work was not taken; `upstream_lost` says that it was
NOBODY = "nobody"
CLOSED_S = 0.2  # a process is a zombie before the last of its threads has let go of its sockets (guess, not measured)


class Fate(Enum):
    ANSWERED = auto()
    REFUSED = auto()  # honestly: 503 with when to come again, 429
    TURNED_AWAY = auto()  # there was no listener
    LATE = auto()
    LOST = auto()


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL at `at_s`; the process was no more at `gone_s`. Both by the clock of the shots."""

    at_s: float
    gone_s: float
    victim: Victim


def fate(shot: Shot) -> Fate:
    if shot.is_answered:
        return Fate.ANSWERED
    if shot.status is None:
        return Fate.LOST if shot.is_sent else Fate.TURNED_AWAY
    if shot.status == 429 or (shot.is_honest and shot.tandem_error in REFUSALS):
        return Fate.REFUSED
    return Fate.LATE if shot.status == 504 and shot.is_honest else Fate.LOST


@dataclass(slots=True)
class Losses:
    """By (who was killed, what they ended with), `lost` of the accepted; `held`: those that a killed gateway had."""

    num_sent: int = 0
    fates: Counter[Fate] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    held: int = 0
    late: Counter[str] = field(default_factory=Counter)  # by who was killed
    words: dict[str, str] = field(default_factory=dict)  # what the first one was told that ended so

    def add(self, shots: Iterable[Shot], kills: Sequence[Kill]) -> None:
        """`kills`: all that were before the last of these ended, in their order in time."""
        for shot in shots:
            became = fate(shot)
            self.num_sent += 1
            self.fates[became] += 1
            if became in (Fate.ANSWERED, Fate.TURNED_AWAY):
                continue
            kill = _met(shot, kills)
            who = kill.victim.value if kill else NOBODY
            if became is Fate.REFUSED:
                self.refused[who, shot.tandem_error or str(shot.status)] += 1
            elif became is Fate.LATE:
                self.late[who] += 1
            elif (
                kill and kill.victim is Victim.GATEWAY and shot.status is None and shot.sent_s <= kill.gone_s + CLOSED_S
            ):
                self.held += 1
            else:
                self.lost[who, str(shot)] += 1
                self.words.setdefault(str(shot), shot.error)

    @property
    def num_accepted(self) -> int:
        return self.num_sent - self.fates[Fate.REFUSED] - self.fates[Fate.TURNED_AWAY]

    @property
    def num_lost(self) -> int:
        """But for what a killed gateway held."""
        return self.lost.total()

    def num_lost_to(self, who: str) -> int:
        return sum(count for (killed, _), count in self.lost.items() if killed == who)

    def listed(self) -> str:
        return ", ".join(f"{count} × {what} ({who} was killed)" for (who, what), count in self.lost.most_common(4))

    @property
    def refused_as(self) -> Counter[str]:
        found = Counter[str]()
        for (_, what), count in self.refused.items():
            found[what] += count
        return found


def _met(shot: Shot, kills: Sequence[Kill]) -> Kill | None:
    """The last one before it ended, unless that was long over when it was sent."""
    before = [kill for kill in kills if kill.at_s <= shot.ended_s]
    return before[-1] if before and shot.sent_s - before[-1].at_s < AFTERMATH_S else None


AFTERMATH_S = (
    20.0  # in which what was killed is back: 2 to 5 s, and as much again on a busy machine (guess, not measured)
)
