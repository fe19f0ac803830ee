from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving.local.environments import ENGINES, Environment
from tests.home import in_users_cache
from tests.local import models
from tests.local.harness import Served, served


@pytest.fixture(scope="session")
def environment() -> Environment:
    """Triton's environment for the CPU, made once in the user's cache."""
    return in_users_cache(ENGINES["cpu"])


@pytest.fixture(scope="session")
def openvino() -> Environment:
    """OpenVINO's environment, made once in the user's cache (100 MB of wheels)."""
    return in_users_cache(ENGINES["openvino"])


@pytest.fixture(scope="session")
def small_models(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One Triton for all tests that leave it as they found it."""
    assert environment.server.exists()
    folder = tmp_path_factory.mktemp("models")
    models.double(folder, "victim")  # loaded by the tests that give it a configuration
    with served(folder, models.write_all(folder)) as running:
        yield running
