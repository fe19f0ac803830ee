"""Builds the images of a slim install and the load test's, once for all tests, on a base made from Debian's packages.

TEST_IMAGES=all builds and tries the two others too: gigabytes of downloads, so CI leaves them out. TEST_IMAGES=built builds nothing
and tries all five as they are.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import serving

from .installs import repository
from .pods import ROOT, Image, opened

# Of pip's settings here, what a build needs too; its CA is in the base.
OF_PIP = ("index-url", "extra-index-url", "trusted-host", "proxy")

ASKED = os.environ.get("TEST_IMAGES", "")
ALL = ASKED in ("all", "built")
TIMEOUT_S = 3600 if ALL else 540  # of a test and what it waits for: the first builds the images
Digit = tuple[NDArray[np.float32], int]


def pip_settings() -> dict[str, str]:
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    lines = (line.partition("=") for line in said.stdout.splitlines())
    settings = {key.rpartition(".")[2]: value.strip("'") for key, _, value in lines}
    return {key: value for key, value in settings.items() if key in OF_PIP}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Builds them and gives their tag."""
    if ASKED == "built":
        return serving.__version__
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
    targets = [] if ALL else ["gateway", "triton-cpu", "loadtest"]
    with subprocess.Popen([script, *targets], env=environment, start_new_session=True) as build:
        try:
            assert build.wait() == 0, "building failed; see above"
        except BaseException:  # a timeout, Ctrl-C: what the script started has to end as well
            with contextlib.suppress(ProcessLookupError):
                os.killpg(build.pid, signal.SIGTERM)
            raise
    return serving.__version__


@pytest.fixture(scope="session")
def gateway(built: str) -> Iterator[Image]:
    with opened(f"localhost/tandem-gateway:{built}") as image:
        yield image


@pytest.fixture(scope="session")
def triton(built: str) -> Iterator[Image]:
    with opened(f"localhost/tandem-triton-cpu:{built}") as image:
        yield image


@pytest.fixture(scope="session")
def loadtest(built: str) -> Iterator[Image]:
    with opened(f"localhost/tandem-loadtest:{built}") as image:
        yield image


@pytest.fixture(scope="session")
def models(gateway: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(gateway, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def digit() -> Digit:
    """A held-out digit that no variant is in doubt about: [1, 1, 8, 8] in 0..1, and its label."""
    held_out = np.load(ROOT / "loadtest" / "payloads" / "digits.npz")
    return held_out["image"][:1].astype(np.float32), int(held_out["labels"][0])
