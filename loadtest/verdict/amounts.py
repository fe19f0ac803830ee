"""Writes amounts: money, rates, times, days and cards. Three digits at most, as no measurement here is better."""

from __future__ import annotations

from datetime import datetime


def money(value: float, currency: str) -> str:
    """Two digits after the point, or two that say something: $0.18, $0.0042, $1,234."""
    if value >= 100:
        return f"{currency}{value:,.0f}"
    return f"{currency}{value:.2f}" if value >= 0.1 or value == 0 else f"{currency}{value:.2g}"


def rate(value: float) -> str:
    """`820/s`: three digits that say something, as no measurement here is better."""
    told = float(f"{value:.3g}")
    return f"{told:,.0f}/s" if told >= 1000 else f"{told:g}/s"


def times(value_s: float) -> str:
    return f"{value_s * 1000:.3g} ms" if value_s < 0.9995 else f"{value_s:.3g} s"


def day(iso: str) -> str:
    try:
        return datetime.fromisoformat(iso).strftime("%-d %B %Y")
    except ValueError:
        return iso


def card(device_name: str) -> str:
    """`a T4`, `an H200`: a card as people call it."""
    name = device_name.removeprefix("NVIDIA ").removeprefix("Tesla ").split(",")[0].strip()
    spelled = len(name) > 1 and (name[1].isdigit() or name[:2].isupper())
    starts = "AEFHILMNORSX" if spelled else "AEIO"
    return f"{'an' if name[:1].upper() in starts else 'a'} {name}"
