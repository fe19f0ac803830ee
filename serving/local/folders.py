"""Which folders does Tandem use on this machine?

Cache: may be deleted at any time, which costs time only. State: logs and the settings of each run (`logs.py`).
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Triton's environments and measured speeds."""
    return _place("TANDEM_CACHE", "XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """Logs and written settings of `tandem up`."""
    return _place("TANDEM_STATE", "XDG_STATE_HOME", ".local/state")


def _place(own: str, shared: str, under_home: str) -> Path:
    if named := os.environ.get(own):
        return Path(named).expanduser().absolute()
    if base := os.environ.get(shared):
        return Path(base).absolute() / "tandem"
    return Path.home() / under_home / "tandem"
