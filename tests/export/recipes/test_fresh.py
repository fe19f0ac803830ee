"""Each recipe on a machine that has Tandem and nothing else: in the environment that `--yes` makes, from an empty cache.

One environment of 6.2 GB serves all of them. What the recipes' models are worth is asked in test_served.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.export.recipes import TRAINED
from serving.repository import Repository

from ..conftest import ROOT

pytestmark = [pytest.mark.recipes, pytest.mark.timeout(600, func_only=True)]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an installation as `make setup` makes it, and a cache that is empty until somebody says --yes."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([ROOT / "scripts" / "setup.sh", folder / "venv", "local"], check=True, timeout=300)
    yield folder
    shutil.rmtree(folder)  # 7 GB


@pytest.mark.parametrize("recipe", TRAINED)
def test_a_recipe_exports_in_the_environment_that_yes_makes(fresh: Path, recipe: str) -> None:
    quick = ("--precision", "fp32", "--engine", "cpu", "--seconds", "0.01")
    command = [fresh / "venv" / "bin" / "tandem", "export", recipe, "--yes", *quick]
    done = subprocess.run(
        [*command, "--model-repository", fresh / "models"],
        env={**os.environ, "TANDEM_CACHE": str(fresh / "cache")},
        cwd=fresh,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    Repository(fresh / "models").variant(f"{recipe}-fp32").verify()
    assert len(list((fresh / "cache" / "environments").glob("export-*/complete.json"))) == 1
