"""How does one add an extra to the Tandem that runs here? Asked wherever a package is missing.

No index has this project, so `pip install 'NAME[extra]'` would fetch whatever somebody puts under its name. What pip wrote down
when it installed this one (PEP 610's direct_url.json) says where it came from, and that is what is named. Standard library only.
"""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

PROJECT = "tandem-serving"
ROOT = Path(__file__).resolve().parents[1]  # of a checkout; else site-packages


def how_to_add(extra: str) -> str:
    """What completes "…, which is not installed: "; a command wherever there is one."""
    direct = _direct_url()
    url = str(direct.get("url", ""))
    if "dir_info" in direct or (not direct and (ROOT / "pyproject.toml").is_file()):
        folder = Path(url2pathname(urlsplit(url).path)) if url else ROOT
        is_editable = not direct or direct["dir_info"].get("editable", False)
        where = "." if folder == Path.cwd() else str(folder)
        return _pip(*(["-e"] if is_editable else []), f"{where}[{extra}]")
    if direct:
        vcs = direct.get("vcs_info")
        at = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
        inside = f"#subdirectory={direct['subdirectory']}" if "subdirectory" in direct else ""
        return _pip(f"{PROJECT}[{extra}] @ {at}{inside}")
    return f"install Tandem again from where this one came from, with the extra [{extra}]"


def _pip(*words: str) -> str:
    python, here = Path(sys.executable), Path.cwd()
    shown = python.relative_to(here) if python.is_relative_to(here) else python
    quoted = [word if word == "-e" else f"'{word}'" if "'" not in word else shlex.quote(word) for word in words]
    return " ".join([shlex.quote(str(shown)), "-m pip install", *quoted])


def _direct_url() -> dict[str, Any]:
    """Empty where pip took it from an index, or did not install it."""
    try:
        said = metadata.distribution(PROJECT).read_text("direct_url.json")
        found = json.loads(said or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
