"""A page's blocks of commands, run as they stand. The reader's cluster is a bed; what its clone's root has is linked into a folder.

A block whose paragraph above says *Not run here* is left out; every other one must succeed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.bed.cluster import Bed

ROOT = Path(__file__).resolve().parents[2]
BLOCK_S = 150  # the longest, an upgrade or an uninstall with --wait, takes half a minute


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    line: int
    commands: str
    is_run: bool


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in re.finditer(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        before = text[: match.start()]
        above = before.rstrip().rpartition("\n\n")[2]
        yield Block(page, before.count("\n") + 2, match[1], "Not run here" not in above)


class Reader:
    """Follows pages in one folder, and remembers what the commands said."""

    def __init__(self, bed: Bed, folder: Path) -> None:
        self._bed, self.folder = bed, folder
        self._said: list[tuple[str, str]] = []
        for name in ("helm", "k8s", "model_repo"):
            (folder / name).symlink_to(ROOT / name)

    def follow(self, page: Path) -> None:
        for block in blocks(page):
            if block.is_run:
                self.run(block.commands, f"{page.name}:{block.line}")

    def run(self, commands: str, where: str = "") -> str:
        programs = [str(self._bed.layout.programs.folder), str(Path(sys.executable).parent), os.environ["PATH"]]
        home, kubeconfig = str(self.folder / "home"), str(self._bed.layout.kubeconfig)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=self.folder, env={"PATH": ":".join(programs), "HOME": home, "KUBECONFIG": kubeconfig},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BLOCK_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{where}\n{commands}\n{done.stdout}"
        self._said.append((commands, done.stdout))
        return done.stdout

    def heard(self, command: str) -> str:
        """What the one block with this command said."""
        (found,) = [text for commands, text in self._said if command in commands]
        return found
