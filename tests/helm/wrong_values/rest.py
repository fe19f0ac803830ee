"""Contradictions in everything else."""

from __future__ import annotations

from tests.helm.conftest import Object

# (values, the whole sentence)
CONTRADICTIONS: dict[str, tuple[Object, str]] = {
    "a tag that moves": (
        {"images": {"nvidia": {"tag": "latest"}}},
        "images.nvidia.tag is latest, which is another image tomorrow. Name a version or a digest.",
    ),
    "a claim without a name": (
        {"modelRepository": {"source": "claim"}},
        "modelRepository.source is claim, but no claim is named. Set modelRepository.claimName to a PersistentVolumeClaim "
        "that holds the model repository.",
    ),
    "a claim that would be ignored": (
        {"modelRepository": {"claimName": "models"}},
        "modelRepository.claimName is set, but modelRepository.source is image, so the claim would be ignored. "
        "Set modelRepository.source=claim.",
    ),
    "no pool": (
        {"pools": {"cpu": {"enabled": False}}},
        "no pool is on, so nothing would serve. Set pools.cpu.enabled=true or another pool's.",
    ),
}
