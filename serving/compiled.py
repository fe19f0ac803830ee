"""Is a package here as machine code, too, compiled from these very sources for this very interpreter?

`scripts/compile.py` puts it under `sys.prefix`, in a folder that is named by a digest of the sources: whoever changes one runs the sources
until they are compiled again. Nothing is compiled here.
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def folder(package: Path, prefix: Path = Path(sys.prefix)) -> Path:
    """Where it is, if it is anywhere."""
    digest = sha256(EXTENSION_SUFFIXES[0].encode())
    for source in sorted(package.glob("*.py")):
        digest.update(b"%b %d\n" % (source.name.encode(), source.stat().st_size))
        digest.update(source.read_bytes())
    return prefix / "lib" / "tandem-compiled" / digest.hexdigest()[:32]


def use(name: str, path: list[str]) -> None:
    """Puts it before the sources of the package of that name, whose `__path__` this is. TANDEM_COMPILED=0 leaves it out."""
    if os.environ.get("TANDEM_COMPILED") == "0":
        return
    found = folder(Path(path[0]))
    if found.is_dir():
        sys.path.append(str(found))  # of what its modules share
        path.insert(0, str(found.joinpath(*name.split("."))))
