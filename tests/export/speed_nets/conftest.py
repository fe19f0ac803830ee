"""Each net is drawn once for all tests."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from serving.export.exported_model import ExportedModel
from serving.export.speed_nets import load

Made = Callable[[str], ExportedModel]


@pytest.fixture(scope="session")
def made() -> Made:
    return functools.cache(lambda name: load(name))
