"""Refuses a file of API keys that anybody but root and the user of this process could change: a line in it is access to everything.

The file, every folder on the way and every link are checked, because whoever may replace one of them decides what is read. A sticky folder
keeps others from that, so /tmp passes, and so does a Secret as Kubernetes mounts it: root's links and files in a sticky folder.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from serving.errors import UserError

OTHERS, GROUP = stat.S_IWOTH, stat.S_IWGRP
MAX_LINKS = 40  # Linux's own limit


def require_ours_alone(path: Path) -> None:
    """Raises UserError with what to do about it, OSError where the path leads nowhere."""
    waiting = list(reversed(path.absolute().parts[1:]))
    at, num_links = Path("/"), 0
    _check(at, at.lstat(), path)
    while waiting:
        part = waiting.pop()
        if part == "..":  # of what is no link any more
            at = at.parent
            continue
        place = at / part
        found = place.lstat()
        _check(place, found, path)
        if not stat.S_ISLNK(found.st_mode):
            at = place
            continue
        num_links += 1
        if num_links > MAX_LINKS:
            raise UserError(f"the API keys {path} are a link that leads to itself; remove it")
        target = place.readlink()
        at = Path("/") if target.is_absolute() else at
        waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _check(place: Path, found: os.stat_result, path: Path) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise UserError(
            f"{place} belongs to user {found.st_uid}, who could change the API keys {path}: `chown` it to root or to user {os.geteuid()}, "
            "who runs this, or keep the keys elsewhere"
        )
    if stat.S_ISLNK(found.st_mode):
        return
    mode = found.st_mode
    if stat.S_ISDIR(mode):
        # A group that has this process, too, is most often its user's own; root's is the one of arbitrary users on OpenShift.
        groups = 0 if found.st_gid in (0, os.getegid()) else GROUP
        if not mode & stat.S_ISVTX and mode & (OTHERS | groups):
            raise UserError(
                f"others may write into the folder {place}, and so change the API keys {path}: `chmod {_without(mode, groups)} {place}`"
            )
    elif mode & (OTHERS | GROUP):
        raise UserError(
            f"others may write to the API keys {place}: `chmod go-w {place}`, and look whether all keys are yours"
        )


def _without(mode: int, groups: int) -> str:
    return f"{'g' if mode & groups else ''}{'o' if mode & OTHERS else ''}-w"
