"""Builds the two images that every install of the slim kind needs, once for all tests, on a base made from Debian's packages."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import serving

from .pods import Image, opened

ROOT = Path(__file__).resolve().parents[2]
# Of pip's settings here, what a build needs too; its CA is in the base.
OF_PIP = ("index-url", "extra-index-url", "trusted-host", "proxy")


def pip_settings() -> dict[str, str]:
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    lines = (line.partition("=") for line in said.stdout.splitlines())
    settings = {key.rpartition(".")[2]: value.strip("'") for key, _, value in lines}
    return {key: value for key, value in settings.items() if key in OF_PIP}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Builds both and gives their tag."""
    lacking = [tool for tool in ("buildah", "debootstrap", "unshare", "nsenter", "ip") if not shutil.which(tool)]
    assert not lacking, f"these tests need {', '.join(lacking)} (Debian: apt-get install buildah debootstrap iproute2)"
    assert os.getuid() == 0, "these tests need root: debootstrap, buildah and mounts do"
    base = subprocess.run(
        [ROOT / "scripts/images/base.sh"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    settings = configparser.ConfigParser(interpolation=None)
    settings["global"] = pip_settings()
    pip_conf = tmp_path_factory.mktemp("pip") / "pip.conf"
    with pip_conf.open("w") as file:
        settings.write(file)
    environment = {
        **os.environ,
        "BUILDER": "buildah",
        "BUILD_FLAGS": "--isolation chroot --network host",
        "PYTHON_IMAGE": base,
        "PIP_CONFIG_FILE": str(pip_conf),
    }
    environment = {name: value for name, value in environment.items() if name not in ("PIP_CERT", "PIP_FIND_LINKS")}
    script = ROOT / "scripts/build_images.sh"
    subprocess.run([script, "gateway", "triton-cpu"], env=environment, check=True)
    return serving.__version__


@pytest.fixture(scope="session")
def gateway(built: str) -> Iterator[Image]:
    with opened(f"localhost/tandem-gateway:{built}") as image:
        yield image


@pytest.fixture(scope="session")
def triton(built: str) -> Iterator[Image]:
    with opened(f"localhost/tandem-triton-cpu:{built}") as image:
        yield image
