"""What a release says about itself: which images the chart names, what each was built of, what cannot be built here, who may publish it."""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from scripts import release
from scripts.release import (
    CHART,
    CYCLONEDX,
    IMAGES,
    ROOT,
    Pushed,
    Source,
    artifact,
    cannot_build,
    chart_values,
    provenance,
)

DIGEST = "sha256:" + "ab" * 32
IMAGE = Pushed("gateway", "registry.example.com/team/tandem-gateway:0.1.0", DIGEST)
BEGAN = datetime(2026, 11, 25, 12, tzinfo=UTC)


def test_the_published_chart_names_the_registry_and_its_images_by_digest() -> None:
    text = (CHART / "values.yaml").read_text()
    before, after = (
        yaml.safe_load(text),
        yaml.safe_load(chart_values(text, "r.example.com/t", dict.fromkeys(IMAGES.values(), DIGEST))),
    )
    assert (before["imageRegistry"], after["imageRegistry"]) == ("", "r.example.com/t")
    assert {name for name, it in after["images"].items() if it["digest"] == DIGEST} == set(IMAGES.values())
    for name in IMAGES.values():
        before["images"][name]["digest"] = DIGEST
    assert after == {**before, "imageRegistry": "r.example.com/t"}, "nothing else changes"
    with pytest.raises(release.Refused):
        chart_values(text, "r.example.com/t", {"other": DIGEST})


def test_another_processors_image_is_built_only_where_its_programs_run(tmp_path: Path) -> None:
    assert cannot_build("amd64", "x86_64", tmp_path) == ""
    assert "runs no arm64 programs" in cannot_build("arm64", "x86_64", tmp_path)
    (tmp_path / "qemu-aarch64").write_text("enabled\ninterpreter /usr/bin/qemu-aarch64-static\n")
    assert cannot_build("arm64", "x86_64", tmp_path) == ""
    assert cannot_build("arm64", "aarch64", tmp_path) == ""
    assert "amd64" in cannot_build("amd64", "aarch64", tmp_path)


def test_a_provenance_is_of_that_image_and_names_commit_base_and_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "builder_version", lambda: "buildah version 1.28.2")
    source = Source("c0ffee", is_dirty=False, origin="https://example.com/tandem.git")
    job = {"GITHUB_RUN_ID": "7", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "team/tandem"}
    it = json.loads(json.dumps(provenance(IMAGE, source, "python:3.11", BEGAN, job)))
    assert it["subject"] == [{"name": "registry.example.com/team/tandem-gateway", "digest": {"sha256": "ab" * 32}}]
    assert it["predicateType"] == "https://slsa.dev/provenance/v1"
    build, details = it["predicate"]["buildDefinition"], it["predicate"]["runDetails"]
    assert build["resolvedDependencies"] == [
        {"uri": "git+https://example.com/tandem.git", "digest": {"gitCommit": "c0ffee"}}
    ]
    assert build["externalParameters"]["base"] == "python:3.11"
    assert details["builder"]["id"] == "https://github.com/team/tandem/actions/runs/7"
    assert details["metadata"]["startedOn"] == "2026-11-25T12:00:00+00:00"
    dirty = provenance(IMAGE, Source("c0ffee", is_dirty=True, origin=""), "python:3.11", BEGAN, {})
    assert "dirty" in json.dumps(dirty)


def test_what_belongs_to_an_image_is_an_artifact_whose_digests_are_right(tmp_path: Path) -> None:
    subject = {"mediaType": "a/b", "digest": DIGEST, "size": 3}
    artifact(tmp_path, b'{"bomFormat": "CycloneDX"}', CYCLONEDX, subject, "sbom.json")
    for blob in (tmp_path / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    (entry,) = json.loads((tmp_path / "index.json").read_text())["manifests"]
    manifest = json.loads((tmp_path / "blobs" / "sha256" / entry["digest"].removeprefix("sha256:")).read_text())
    assert (manifest["subject"], manifest["artifactType"]) == (subject, CYCLONEDX)
    assert manifest["layers"][0]["size"] == len(b'{"bomFormat": "CycloneDX"}')


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--registry", "r.example.com/team", "gatewy"], "there is no image gatewy"),
        (["--registry", ""], "is not HOST"),
        (["--registry", "https://r.example.com"], "is not HOST"),
        (["--registry", "r.example.com/Team"], "lower case"),
    ],
)
def test_a_mistake_is_the_users_and_pushes_nothing(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["release", *words])
    assert release.main() == 2
    told = capsys.readouterr()
    assert (told.out, says in told.err) == ("", True)


def test_the_workflow_does_what_anybody_can_do_and_may_do_no_more() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())
    assert workflow["permissions"] == {"contents": "read", "packages": "write", "id-token": "write"}
    steps = workflow["jobs"]["release"]["steps"]
    (publishing,) = [it["run"] for it in steps if "make release" in it.get("run", "")]
    assert "REGISTRY=" in publishing
    installed = " ".join(it.get("run", "") for it in steps)
    for tool in ("buildah", "skopeo", "cmd/helm@v", release.COSIGN):
        assert tool in installed
