"""Publishes this version: builds the images, and pushes them and the chart to an OCI registry, each with what says what it is.

    make release REGISTRY=registry.example.com/team                       # all images, and the chart
    make release REGISTRY=localhost:5000/tandem ARGS="gateway"            # some images, and the chart

An image gets an SBOM (what its build wrote down of what is installed), a provenance (SLSA 1: of which sources and which base it was
built) and, where cosign and a key are there, a signature of all three. The chart names this registry, and the images by digest. What cannot
be done here (another processor's image, a signature) is said and not pretended. Rule: nothing is pushed before everything is built.
Needs buildah, skopeo and helm.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import serving

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm" / "tandem"
OUT = ROOT / "dist"
# Image -> its name under `images` of the chart's values.
IMAGES = {
    "gateway": "gateway",
    "triton-cpu": "tritonCpu",
    "triton-cpu-openvino": "tritonCpuOpenvino",
    "triton-gpu": "tritonGpu",
    "loadtest": "loadtest",
}
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
BINFMT = Path("/proc/sys/fs/binfmt_misc")
SBOM_IN_IMAGE = "usr/share/tandem/sbom.json"
CYCLONEDX, IN_TOTO = "application/vnd.cyclonedx+json", "application/vnd.in-toto+json"
MANIFEST, EMPTY = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.empty.v1+json"
COSIGN = "go install github.com/sigstore/cosign/v2/cmd/cosign@v2.6.1"
LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/|$)")  # spoken to without TLS, as docker and helm do


class Refused(Exception):
    """Said to the user as it is. `code`: 2 the user's to mend, 3 the environment's."""

    def __init__(self, text: str, code: int = 3) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Pushed:
    """`digest`: sha256:…, of the manifest."""

    name: str
    reference: str  # registry/name:tag
    digest: str

    @property
    def repository(self) -> str:
        return self.reference.rpartition(":")[0]

    def attached(self, kind: str) -> str:
        """Where what belongs to it is found, by the name that cosign uses too: …:sha256-HEX.sbom"""
        return f"{self.repository}:{self.digest.replace(':', '-')}.{kind}"


@dataclass(frozen=True, slots=True)
class Source:
    """What is built: the commit, and whether the checkout differs from it."""

    commit: str
    is_dirty: bool
    origin: str  # URL of the repository, as git knows it

    @classmethod
    def of(cls, folder: Path) -> Source:
        def git(*words: str) -> str:
            done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
            return done.stdout.strip() if done.returncode == 0 else ""

        commit = git("rev-parse", "HEAD")
        if not commit:
            raise Refused("this is no git checkout, and a release says which commit it was built of")
        return cls(commit, bool(git("status", "--porcelain")), git("remote", "get-url", "origin"))


def cannot_build(architecture: str, machine: str, binfmt: Path = BINFMT) -> str:
    """Why this builder cannot make an image for another processor; empty where it can."""
    here = MACHINES.get(machine, machine)
    if architecture == here:
        return ""
    emulator = binfmt / f"qemu-{next(name for name, it in MACHINES.items() if it == architecture)}"
    if emulator.exists() and emulator.read_text().startswith("enabled"):
        return ""
    return (
        f"this {here} machine runs no {architecture} programs ({emulator} is not registered: install qemu-user-static)"
    )


def provenance(
    image: Pushed, source: Source, base: str, began: datetime, environment: Mapping[str, str]
) -> dict[str, object]:
    """An in-toto statement with SLSA's predicate: who built which image of what, and when."""
    run = environment.get("GITHUB_RUN_ID")
    of_github = f"{environment.get('GITHUB_SERVER_URL', '')}/{environment.get('GITHUB_REPOSITORY', '')}"
    commit = {"uri": f"git+{source.origin or of_github}", "digest": {"gitCommit": source.commit}}
    if source.is_dirty:
        commit["annotations"] = {"dirty": "the checkout differed from this commit"}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": image.repository, "digest": {"sha256": image.digest.removeprefix("sha256:")}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:tandem:make-release:v1",
                "externalParameters": {"image": image.name, "version": serving.__version__, "base": base},
                "internalParameters": {"builder": builder_version()},
                "resolvedDependencies": [commit],
            },
            "runDetails": {
                "builder": {"id": f"{of_github}/actions/runs/{run}" if run else f"urn:tandem:machine:{platform.machine()}"},
                "metadata": {"startedOn": moment(began), "finishedOn": moment(datetime.now(UTC))},
            },
        },
    }  # fmt: skip


def moment(it: datetime) -> str:
    return it.isoformat(timespec="seconds")


def builder_version() -> str:
    return subprocess.run(["buildah", "--version"], capture_output=True, text=True, check=True).stdout.strip()


def chart_values(text: str, registry: str, digests: Mapping[str, str]) -> str:
    """The chart's values.yaml with this registry, and images by digest (`digests`: by the name under `images`). Raises Refused."""
    text, found = re.subn(r'^imageRegistry: ""$', f'imageRegistry: "{registry}"', text, flags=re.MULTILINE)
    if found != 1:
        raise Refused("helm/tandem/values.yaml has no empty imageRegistry to fill in")
    for name, digest in digests.items():
        text, found = re.subn(rf'^(  {name}: \{{.*digest: )""', rf'\g<1>"{digest}"', text, flags=re.MULTILINE)
        if found != 1:
            raise Refused(f"helm/tandem/values.yaml has no images.{name} with an empty digest")
    return text


def artifact(folder: Path, content: bytes, media_type: str, subject: Mapping[str, object], title: str) -> None:
    """An OCI layout of one artifact that belongs to `subject`, as registries list it under that (OCI 1.1)."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    layer = {**blob(content, media_type), "annotations": {"org.opencontainers.image.title": title}}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": media_type,
        "config": blob(b"{}", EMPTY),
        "layers": [layer],
        "subject": subject,
    }
    index = {"schemaVersion": 2, "manifests": [blob(json.dumps(manifest).encode(), MANIFEST)]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


class Release:
    """One run. `say` prints a line."""

    def __init__(self, registry: str, source: Source) -> None:
        self.registry, self.source = registry, source
        self.version = serving.__version__
        self.began = datetime.now(UTC)
        self.base = os.environ.get("PYTHON_IMAGE", "docker.io/library/python:3.11-slim-bookworm")
        self.is_plain = LOOPBACK.match(registry) is not None
        self.tls = f"--tls-verify={'false' if self.is_plain else 'true'}"
        self.own = MACHINES.get(platform.machine(), platform.machine())
        self.out = OUT / self.version
        self.out.mkdir(parents=True, exist_ok=True)
        self.pushed: list[Pushed] = []

    def build(self, names: Sequence[str], architectures: Sequence[str]) -> None:
        for it in architectures:
            of_it = {} if it == self.own else {"ARCH": it}
            run([str(ROOT / "scripts" / "build_images.sh"), *names], env={**os.environ, "BUILDER": "buildah", **of_it})

    def push_image(self, name: str, architectures: Sequence[str]) -> Pushed:
        """One image for one processor; of several each, and an index of them under the version."""
        if len(architectures) == 1:
            image = self.push_one(name, self.version, "")
        else:
            each = [
                self.push_one(name, f"{self.version}-{it}", "" if it == self.own else f"-{it}") for it in architectures
            ]
            image = self.push_index(name, each)
        self.pushed.append(image)
        say(f"{image.reference} is {image.digest}, with SBOM and provenance")
        return image

    def push_index(self, name: str, each: Sequence[Pushed]) -> Pushed:
        local, reference = (
            f"localhost/tandem-{name}:{self.version}-index",
            f"{self.registry}/tandem-{name}:{self.version}",
        )
        subprocess.run(["buildah", "manifest", "rm", local], capture_output=True)
        run(["buildah", "manifest", "create", local])
        for it in each:
            run(["buildah", "manifest", "add", self.tls, local, f"docker://{it.repository}@{it.digest}"])
        digest = self.out / f"tandem-{name}.digest"
        run(
            [
                "buildah",
                "manifest",
                "push",
                self.tls,
                "--all",
                "--digestfile",
                str(digest),
                local,
                f"docker://{reference}",
            ]
        )
        return Pushed(name, reference, digest.read_text().strip())

    def push_one(self, name: str, tag: str, suffix: str) -> Pushed:
        """`suffix`: of the local tag, as build_images.sh names what is for another processor."""
        reference, local = f"{self.registry}/tandem-{name}:{tag}", f"localhost/tandem-{name}:{self.version}{suffix}"
        digest = self.out / f"tandem-{name}{suffix}.digest"
        run(["buildah", "push", self.tls, "--digestfile", str(digest), local, f"docker://{reference}"])
        image = Pushed(name, reference, digest.read_text().strip())
        sbom = self.sbom(local)
        statement = json.dumps(provenance(image, self.source, self.base, self.began, os.environ), indent=1).encode()
        for kind, content, media_type in (("sbom", sbom, CYCLONEDX), ("provenance", statement, IN_TOTO)):
            file = self.out / f"tandem-{name}{suffix}.{kind}.json"
            file.write_bytes(content)
            self.attach(image, kind, content, media_type, file.name)
        return image

    def sbom(self, local: str) -> bytes:
        container = output(["buildah", "from", "--pull-never", local])
        try:
            return (Path(output(["buildah", "mount", container])) / SBOM_IN_IMAGE).read_bytes()
        finally:
            output(["buildah", "rm", container])

    def attach(self, image: Pushed, kind: str, content: bytes, media_type: str, title: str) -> None:
        asked = ["skopeo", "inspect", "--raw", self.tls, f"docker://{image.repository}@{image.digest}"]
        raw = subprocess.run(asked, capture_output=True, check=True).stdout
        subject = {"mediaType": json.loads(raw)["mediaType"], "digest": image.digest, "size": len(raw)}
        with tempfile.TemporaryDirectory() as folder:
            artifact(Path(folder), content, media_type, subject, title)
            to = f"docker://{image.attached(kind)}"
            run(["skopeo", "copy", "--quiet", f"--dest{self.tls[1:]}", "--preserve-digests", f"oci:{folder}", to])

    def push_chart(self) -> Pushed:
        """With this registry in its values, and the images that were pushed by digest."""
        digests = {IMAGES[it.name]: it.digest for it in self.pushed if it.name in IMAGES}
        with tempfile.TemporaryDirectory() as folder:
            chart = Path(shutil.copytree(CHART, Path(folder) / "tandem"))
            values = chart / "values.yaml"
            values.write_text(chart_values(values.read_text(), self.registry, digests))
            helm = os.environ.get("HELM", "helm")
            run([helm, "package", str(chart), "--destination", folder])
            (package,) = Path(folder).glob("*.tgz")
            shutil.copy(package, self.out)
            words = [helm, "push", str(package), f"oci://{self.registry}", *(["--plain-http"] if self.is_plain else [])]
            done = subprocess.run(words, capture_output=True, text=True)
            found = re.search(r"Digest: (sha256:[0-9a-f]{64})", done.stdout + done.stderr)
            if done.returncode != 0 or found is None:
                raise Refused(f"the chart could not be pushed: {(done.stderr or done.stdout).strip()[-500:]}")
        chart_version = package.stem.removeprefix("tandem-")
        pushed = Pushed("chart", f"{self.registry}/tandem:{chart_version}", found[1])
        self.pushed.append(pushed)
        say(f"helm install tandem oci://{self.registry}/tandem --version {chart_version} is {pushed.digest}")
        return pushed

    def sign(self) -> None:
        """All that was pushed, and what is said about the images; or says why not."""
        key, is_known = os.environ.get("COSIGN_KEY"), "ACTIONS_ID_TOKEN_REQUEST_URL" in os.environ
        if shutil.which("cosign") is None:
            say(f"not signed: there is no cosign here ({COSIGN})")
            return
        if not key and not is_known:
            say(
                "not signed: COSIGN_KEY names no key (cosign generate-key-pair), and this is no CI job with an identity of its own"
            )
            return
        who = ["--key", key, "--tlog-upload=false"] if key else []
        plain = ["--allow-http-registry"] if self.is_plain else []
        for it in self.pushed:
            what = f"{it.repository}@{it.digest}"
            run(["cosign", "sign", "--yes", *who, *plain, what])
            for kind, told in (("sbom", "cyclonedx"), ("provenance", "slsaprovenance1")):
                if it.name in IMAGES:
                    predicate = self.predicate(it.name, kind)
                    run(
                        ["cosign", "attest", "--yes", *who, *plain, "--type", told, "--predicate", str(predicate), what]
                    )
        say(f"signed: {', '.join(it.reference for it in self.pushed)}")

    def predicate(self, name: str, kind: str) -> Path:
        """What cosign signs; it puts its own statement around it."""
        file = self.out / f"tandem-{name}.{kind}.json"
        if kind == "sbom":
            return file
        inner = self.out / f"tandem-{name}.predicate.json"
        inner.write_text(json.dumps(json.loads(file.read_text())["predicate"]))
        return inner

    def write(self) -> None:
        listed = {it.name: {"reference": it.reference, "digest": it.digest} for it in self.pushed}
        record = {
            "version": self.version,
            "commit": self.source.commit,
            "is_dirty": self.source.is_dirty,
            "pushed": listed,
        }
        (self.out / "release.json").write_text(json.dumps(record, indent=1) + "\n")


def say(line: str) -> None:
    print(f"tandem: {line}", flush=True)


def run(words: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(words, env=env)
    if done.returncode != 0:
        raise Refused(f"{' '.join(words[:3])} … ended with {done.returncode}; above is why")


def output(words: Sequence[str]) -> str:
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        "make release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", nargs="*", metavar="IMAGE", help=f"of {', '.join(IMAGES)}; all by default")
    parser.add_argument("--registry", required=True, help="HOST[:PORT][/PATH], under which all names stand")
    parser.add_argument(
        "--built", action="store_true", help="pushes the images of this version as they are, and builds none"
    )
    parser.add_argument(
        "--dirty",
        action="store_true",
        help="releases a checkout that differs from its commit; the provenance says so",
    )
    given = parser.parse_args()
    try:
        release(
            given.registry.rstrip("/"), given.images or list(IMAGES), is_built=given.built, may_be_dirty=given.dirty
        )
    except Refused as error:
        print(f"tandem: {error}", file=sys.stderr)
        return error.code
    return 0


def release(registry: str, names: Sequence[str], *, is_built: bool = False, may_be_dirty: bool = False) -> None:
    if unknown := [it for it in names if it not in IMAGES]:
        raise Refused(f"there is no image {unknown[0]}; there are {', '.join(IMAGES)}", 2)
    if not re.fullmatch(r"[\w.\[\]:-]+(/[a-z0-9._-]+)*", registry):
        raise Refused(
            f"REGISTRY={registry} is not HOST[:PORT][/path] in lower case, as in registry.example.com/team", 2
        )
    helm = os.environ.get("HELM", "helm")
    if lacking := [it for it in ("buildah", "skopeo", helm) if shutil.which(it) is None]:
        raise Refused(
            f"a release needs {', '.join(lacking)} (Debian: apt-get install buildah skopeo; https://helm.sh, or HELM=/path/to/helm)"
        )
    source = Source.of(ROOT)
    if source.is_dirty and not may_be_dirty:
        raise Refused(
            f"the checkout differs from {source.commit[:12]}: commit first, or ARGS=--dirty, which the provenance then says",
            2,
        )
    architectures = []
    for it in MACHINES.values():
        if why := cannot_build(it, platform.machine()):
            say(f"no images for {it}: {why}")
        else:
            architectures.append(it)
    run_of = Release(registry, source)
    if not is_built:
        run_of.build(names, architectures)
    for name in names:
        run_of.push_image(name, architectures)
    run_of.push_chart()
    run_of.sign()
    run_of.write()


if __name__ == "__main__":
    sys.exit(main())
