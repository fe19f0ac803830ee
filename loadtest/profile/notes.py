"""What must a reader of a profile know before believing it? Pure: one paragraph of plain sentences."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.profile.options import ProfileOptions

# Other work on the cores beyond this moves medians by as much as variants differ (guess: from rounds on busy and quiet machines).
BUSY_RATIO = 0.10


def notes(
    options: ProfileOptions,
    num_cores: float,
    others_ratio: float,
    asides: Sequence[str],
    priorities: Sequence[bool],
    *,
    is_partial: bool,
) -> str:
    """`priorities`: of each run under load whether the generator had real-time priority."""
    said = []
    if is_partial:
        said.append("Partial: it was interrupted, and what had not been measured by then is missing.")
    if options.emulate is not None:
        said.append(
            f"The times of {options.pool} follow the file {options.emulate.name}: a what-if, which proves nothing about a device."
        )
    said.append(
        f"Client, gateway and Triton shared this machine's {num_cores:g} cores: clients on machines of their own would leave the "
        "server more of them, so that rates are rather too low than too high."
    )
    if priorities:
        said.append(priority(priorities))
    if others_ratio > BUSY_RATIO:
        said.append(
            f"Other work took {others_ratio:.0%} of the cores meanwhile: times are too long and rates too low by an unknown part."
        )
    if options.is_quick:
        said.append("Quick: short runs and one estimate of each rate, for a first impression.")
    said += [f"{opened(aside).rstrip('.')}." for aside in dict.fromkeys(asides)]
    return " ".join(said)


def priority(priorities: Sequence[bool]) -> str:
    """Of some runs, at least one."""
    if not any(priorities):
        return "The load generator had no real-time priority: other work could make it late, and where that could matter a run is void."
    runs = "" if all(priorities) else f" in {sum(priorities)} of {len(priorities)} runs"
    return (
        f"The load generator had real-time priority{runs}: it went before all other work, the server's own too, so that it sent in time "
        "and took what it needed of the cores first."
    )


def opened(sentence: str) -> str:
    """With a capital, unless it begins with the name of a variant."""
    is_word = sentence.partition(" ")[0].isalpha()
    return f"{sentence[:1].upper()}{sentence[1:]}" if is_word else sentence
