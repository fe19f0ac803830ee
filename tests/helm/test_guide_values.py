"""The values that docs/kubernetes.md shows are values: each block renders, after the page's own first steps, and changes something."""

from __future__ import annotations

import re

import pytest
import yaml

from tests import api_server

from .conftest import ROOT, Object, Render

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
KEYS: Object = {"auth": {"insecureNoAuth": False, "existingSecret": "tandem-keys", "client": {"existingSecret": "tandem-client-key"}}}  # fmt: skip


def test_the_page_has_values() -> None:
    assert len(BLOCKS) >= 6


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_values_renders_something_else_than_the_default(block: str, render: Render) -> None:
    given, default = render({**KEYS, **yaml.safe_load(block)}), render(KEYS)
    assert given.objects != default.objects
    for it in given.objects:
        if it not in default.objects and it["apiVersion"].partition("/")[0] in ("v1", "apps", "networking.k8s.io"):
            api_server.validate(it, "1.37")


def test_every_profile_is_in_the_pages_table_and_no_other() -> None:
    named = set(re.findall(r"`(values-[a-z-]+\.yaml)`", PAGE.split("| profile | for |")[1].split("**4.")[0]))
    assert named == {path.name for path in (ROOT / "helm" / "tandem").glob("values-*.yaml")}
