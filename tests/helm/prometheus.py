"""Where are Prometheus and its checker of rules? On the PATH, else out of Debian's package, which is unpacked into the cache and not installed.

Installing the package would start a server. Any version will do that knows `promtool test rules`; what runs here is Debian 12's 2.42.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

WAY_OUT = "put prometheus and promtool on the PATH (on Debian, `apt-get update` lets this fetch them)"


class NotThere(Exception):
    """Said to the user as it is."""


def program(name: str) -> Path:
    """`prometheus` or `promtool`. Raises NotThere."""
    if found := shutil.which(name):
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem" / "prometheus"
    if not (cache / name).is_file():
        _unpack(cache)
    return cache / name


def _unpack(target: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise NotThere(f"there is no Prometheus: {WAY_OUT}")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as folder:
        try:
            _run(["apt-get", "download", "-q", "prometheus"], folder)
            (package,) = Path(folder).glob("*.deb")
            _run(["dpkg", "-x", str(package), "unpacked"], folder)
        except subprocess.CalledProcessError as error:
            raise NotThere(f"there is no Prometheus: {error.stderr.strip()}; {WAY_OUT}") from None
        for binary in ("prometheus", "promtool"):
            (Path(folder) / "unpacked" / "usr" / "bin" / binary).rename(target / binary)


def _run(command: list[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=300)
