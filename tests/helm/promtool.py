"""Where is Prometheus' own checker of rules? On the PATH, else out of Debian's package, which is unpacked into the cache and not installed.

Installing the package would start a server. Any version will do that knows `test rules`; what runs here is Debian 12's 2.42.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

WAY_OUT = "put promtool on the PATH (it comes with Prometheus; on Debian, `apt-get update` lets this fetch it)"


class NotThere(Exception):
    """Said to the user as it is."""


def promtool() -> Path:
    if found := shutil.which("promtool"):
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem" / "promtool"
    if not cache.is_file():
        _unpack(cache)
    return cache


def _unpack(target: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise NotThere(f"there is no promtool: {WAY_OUT}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        try:
            _run(["apt-get", "download", "-q", "prometheus"], folder)
            (package,) = Path(folder).glob("*.deb")
            _run(["dpkg", "-x", str(package), "unpacked"], folder)
        except subprocess.CalledProcessError as error:
            raise NotThere(f"there is no promtool: {error.stderr.strip()}; {WAY_OUT}") from None
        (Path(folder) / "unpacked" / "usr" / "bin" / "promtool").rename(target)


def _run(command: list[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=300)
