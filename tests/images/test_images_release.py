"""A release to a real registry, and from there: images with SBOM and provenance by digest, and a chart that installs itself with these images."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import serving
from scripts import release
from serving.ports import free_ports
from tests.cluster.bed.build import built as bed_programs
from tests.cluster.bed.cluster import Bed
from tests.local.harness import Program, wait_until

from .conftest import TIMEOUT_S
from .pods import ROOT, Image

pytestmark = [pytest.mark.images, pytest.mark.timeout(TIMEOUT_S)]
REGISTRY_PROGRAMS = ("docker-registry", "registry")  # CNCF distribution, as Debian names it and as its Go module does
MODULE = "github.com/distribution/distribution/v3/cmd/registry@v3.0.0"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of one that runs."""
    program = next((found for name in REGISTRY_PROGRAMS if (found := shutil.which(name))), None)
    assert program, f"this test needs a registry (Debian: apt-get install docker-registry; or go install {MODULE})"
    folder, (port,) = tmp_path_factory.mktemp("registry"), free_ports(1)
    config = {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (folder / "config.yml").write_text(json.dumps(config))
    process = Program([program, "serve", str(folder / "config.yml")], folder / "log")
    try:
        wait_until(lambda: answers(port), "the registry answers")
        yield f"127.0.0.1:{port}"
    finally:
        process.end()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def released(registry: str, gateway: Image) -> dict[str, Any]:
    """What the release wrote down."""
    words = ["--registry", f"{registry}/team", "--built", "--dirty", "gateway"]
    environment = {**os.environ, "HELM": str(bed_programs().helm)}
    done = subprocess.run(
        [sys.executable, "-m", "scripts.release", *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert ("not signed: " in done.stdout) != (shutil.which("cosign") is not None and "COSIGN_KEY" in os.environ)
    if os.uname().machine == "x86_64" and not Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists():
        assert "arm64" in done.stdout
    found: dict[str, Any] = json.loads((ROOT / "dist" / serving.__version__ / "release.json").read_text())
    return found


def layer(registry: str, repository: str, tag: str) -> bytes:
    """The only layer of an artifact."""
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{registry}/v2/{repository}/manifests/{tag}", headers=accept)
    ) as answer:
        (only,) = json.load(answer)["layers"]
    with urllib.request.urlopen(f"http://{registry}/v2/{repository}/blobs/{only['digest']}") as answer:
        return bytes(answer.read())


def test_an_image_is_found_by_its_digest_with_its_sbom_and_its_provenance(
    registry: str, released: dict[str, Any], gateway: Image
) -> None:
    image = released["pushed"]["gateway"]
    assert image["reference"] == f"{registry}/team/tandem-gateway:{serving.__version__}"
    inspected = subprocess.run(
        ["skopeo", "inspect", "--tls-verify=false", f"docker://{registry}/team/tandem-gateway@{image['digest']}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(inspected.stdout)["Labels"]["org.opencontainers.image.version"] == serving.__version__
    attached = image["digest"].replace(":", "-")
    assert (
        layer(registry, "team/tandem-gateway", f"{attached}.sbom")
        == (gateway.root / "usr/share/tandem/sbom.json").read_bytes()
    )
    statement = json.loads(layer(registry, "team/tandem-gateway", f"{attached}.provenance"))
    assert statement["subject"][0]["digest"] == {"sha256": image["digest"].removeprefix("sha256:")}
    (commit,) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert commit["digest"]["gitCommit"] == released["commit"]


def test_the_chart_installs_out_of_the_registry_with_the_images_that_were_pushed(
    registry: str, released: dict[str, Any]
) -> None:
    with Bed(bed_programs()) as bed:
        words = ("--plain-http", "--namespace=published", "--create-namespace", "--set=auth.insecureNoAuth=true")
        bed.helm("install", "tandem", f"oci://{registry}/team/tandem", "--version", serving.__version__, *words)
        (deployment,) = bed.api.items(
            "/apis/apps/v1/namespaces/published/deployments?labelSelector=app.kubernetes.io/component=gateway"
        )
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"] == f"{registry}/team/tandem-gateway@{released['pushed']['gateway']['digest']}"
        (chart,) = json.loads(bed.helm("list", "--namespace=published", "--output=json"))
        assert chart["chart"] == f"tandem-{serving.__version__}"


@pytest.mark.skipif(not shutil.which("cosign"), reason="cosign is not here")
def test_what_was_pushed_is_signed_and_what_is_said_of_an_image_is_attested(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chart stands for an image, which takes minutes to build."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("COSIGN_PASSWORD", "test"), ("HELM", str(bed_programs().helm)), ("COSIGN_KEY", "cosign.key")):
        monkeypatch.setenv(name, value)
    subprocess.run(["cosign", "generate-key-pair"], check=True, capture_output=True)
    monkeypatch.setattr(release, "OUT", tmp_path)
    ours = release.Release(f"{registry}/signed", release.Source("0" * 40, False, ""))
    chart = ours.push_chart()
    image = release.Pushed("gateway", chart.reference, chart.digest)
    sbom = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": []}
    (ours.out / "tandem-gateway.sbom.json").write_text(json.dumps(sbom))
    statement = release.provenance(image, ours.source, ours.base, ours.began, {})
    (ours.out / "tandem-gateway.provenance.json").write_text(json.dumps(statement))
    ours.pushed.append(image)
    ours.sign()
    plain = [
        "--key",
        "cosign.pub",
        "--insecure-ignore-tlog",
        "--allow-http-registry",
        f"{image.repository}@{image.digest}",
    ]
    signed = subprocess.run(["cosign", "verify", *plain], capture_output=True, text=True, check=True)
    assert chart.digest in signed.stdout
    attested = {}
    for kind in ("cyclonedx", "slsaprovenance1"):
        words = ["cosign", "verify-attestation", "--type", kind, *plain]
        found = subprocess.run(words, capture_output=True, text=True, check=True)
        attested[kind] = json.loads(base64.b64decode(json.loads(found.stdout.splitlines()[0])["payload"]))["predicate"]
    assert attested["cyclonedx"]["bomFormat"] == "CycloneDX"
    (commit,) = attested["slsaprovenance1"]["buildDefinition"]["resolvedDependencies"]
    assert commit["digest"] == {"gitCommit": "0" * 40}
    other = ["cosign", "verify", *plain[:-1], f"{image.repository}@sha256:{'0' * 64}"]
    assert subprocess.run(other, capture_output=True).returncode != 0
