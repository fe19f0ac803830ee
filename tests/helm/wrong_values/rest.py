"""Contradictions in everything else."""

from __future__ import annotations

from tests.helm.conftest import Object

# (values, the whole sentence)
CONTRADICTIONS: dict[str, tuple[Object, str]] = {
    "a tag that moves": (
        {"images": {"nvidia": {"tag": "latest"}}},
        "images.nvidia.tag is latest, which is another image tomorrow. Name a version or a digest.",
    ),
    "no pool": (
        {"pools": {"cpu": {"enabled": False}}},
        "no pool is on, so nothing would serve. Set pools.cpu.enabled=true or another pool's.",
    ),
}
