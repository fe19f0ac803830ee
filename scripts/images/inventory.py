"""What is in an image, and under which licences: an SBOM (CycloneDX 1.6, JSON) and the notices, made while the image is built.

Answers from what is installed: the metadata and licence files of Python's distributions, the SBOMs and the shared libraries
that their wheels carry, and Debian's package database. Nothing is fetched. Runs in the build stage, which has cyclonedx-python-lib.
Not here: licences of Debian's packages, whose texts stay at /usr/share/doc/PACKAGE/copyright.
Keep: what a wheel does not say is written as not said, never guessed from its name.

    python inventory.py --image NAME --version VERSION --site FOLDER… --out FOLDER --packages STATUS
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

SBOM = Path("usr/share/tandem/sbom.json")
NOTICES = Path("usr/share/doc/tandem/NOTICES")
LICENSE_FILE = re.compile(r"(licen[cs]e|copying|notice|thirdpartynotices|copyright)[^/]*$", re.IGNORECASE)
CODE = {".py", ".pyc", ".so", ".pyi", ".h"}
VENDORED = Path(__file__).with_name("vendored.toml")  # licences of libraries that wheels carry without saying so
HASH_IN_NAME = re.compile(r"-[0-9a-f]{8}(?=[.-])")  # put there by auditwheel
MAX_LICENSE_NAME = 60  # a longer "License" field is the whole text, which the notices have


@dataclass(frozen=True, slots=True)
class Part:
    """Something inside a distribution: a library that its wheel carries, or what its own SBOM names."""

    name: str
    version: str | None = None
    license: str | None = None
    purl: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A licence text, and the file of the distribution that it stands in."""

    place: str
    text: str


@dataclass(frozen=True, slots=True)
class Distribution:
    name: str
    version: str
    license: str | None
    parts: tuple[Part, ...] = ()
    texts: tuple[Text, ...] = ()

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{re.sub(r'[-_.]+', '-', self.name).lower()}@{self.version}"


@dataclass(frozen=True, slots=True)
class Package:
    """Of Debian."""

    name: str
    version: str
    architecture: str
    release: str  # of Debian: 12

    @property
    def purl(self) -> str:
        version = self.version.replace("+", "%2B").replace(":", "%3A")
        return f"pkg:deb/debian/{self.name}@{version}?arch={self.architecture}&distro=debian-{self.release}"


# -- reading -----------------------------------------------------------------------------------------------------------


def stated_license(said: metadata.PackageMetadata) -> str | None:
    """As the metadata say it: the expression, a short "License", or the classifiers."""
    for expression in said.get_all("License-Expression") or []:
        return str(expression)
    free = "".join(map(str, said.get_all("License") or [])).strip()
    if free and free != "UNKNOWN" and "\n" not in free and len(free) <= MAX_LICENSE_NAME:
        return free
    classifiers = [str(line).split(" :: ")[-1] for line in said.get_all("Classifier") or [] if "License ::" in line]
    return " AND ".join(sorted({name for name in classifiers if name != "OSI Approved"})) or None


def vendored_license(library: str, table: Mapping[str, str]) -> str | None:
    """By the longest beginning of its name that the table has."""
    known = [prefix for prefix in table if library.startswith(prefix)]
    return table[max(known, key=len)] if known else None


def packages(status: str, release: str) -> Iterator[Package]:
    """Those that are installed, from the text of /var/lib/dpkg/status."""
    for block in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed"):
            yield Package(fields["Package"], fields["Version"], fields["Architecture"], release)


def distributions(sites: Sequence[Path], vendored: Mapping[str, Mapping[str, str]]) -> list[Distribution]:
    """Those in several of the folders count once."""
    found = (read(it, vendored) for it in metadata.distributions(path=[str(site) for site in sites]))
    once = {(it.name.lower(), it.version): it for it in found}
    return [it for _, it in sorted(once.items())]


def read(installed: metadata.Distribution, vendored: Mapping[str, Mapping[str, str]]) -> Distribution:
    said = installed.metadata
    name, version = str(said["Name"]), str(said["Version"])
    files = [(str(file), Path(str(file.locate()))) for file in installed.files or []]
    there = [(place, path) for place, path in files if path.is_file()]
    own = vendored.get("in", {}).get(name.lower())
    parts = [*libraries(there, vendored["libraries"]), *(it for place, path in there for it in own_sbom(place, path))]
    if own:
        product, _, rest = own.partition(" ")
        of_version, _, under = rest.partition(" ")
        parts.insert(0, Part(product, of_version, under))
    return Distribution(
        name, version, stated_license(said), tuple(parts), tuple(texts(there, is_nested=own is not None))
    )


def libraries(files: Iterable[tuple[str, Path]], table: Mapping[str, str]) -> Iterator[Part]:
    """Shared libraries that auditwheel put into a folder NAME.libs."""
    for place, path in files:
        if ".libs/" in place and ".so" in path.name:
            name = HASH_IN_NAME.sub("", path.name)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            yield Part(name, license=vendored_license(name, table), sha256=digest)


def own_sbom(place: str, path: Path) -> Iterator[Part]:
    """What a wheel's own CycloneDX SBOM names (PEP 770)."""
    if ".dist-info/sboms/" not in place or path.suffix != ".json":
        return
    for component in json.loads(path.read_text(encoding="utf-8")).get("components", []):
        licenses = [it.get("expression") or it.get("license", {}).get("id") for it in component.get("licenses", [])]
        known = " AND ".join(filter(None, licenses)) or None
        yield Part(component["name"], component.get("version"), known, component.get("purl"))


def texts(files: Iterable[tuple[str, Path]], *, is_nested: bool) -> Iterator[Text]:
    """Licence files; of a wheel with another product inside also the licence that its source files begin with."""
    for place, path in files:
        if LICENSE_FILE.search(place) and path.suffix not in CODE:
            yield Text(place, path.read_text(encoding="utf-8", errors="replace").strip())
        elif is_nested and path.name == "triton_python_backend_utils.py":
            head = re.match(r"(?:#.*\n)+", path.read_text(encoding="utf-8"))
            yield Text(
                f"{place} (its first lines)", re.sub(r"^# ?", "", head[0] if head else "", flags=re.MULTILINE).strip()
            )


# -- writing -----------------------------------------------------------------------------------------------------------


def notices(image: str, found: Sequence[Distribution]) -> str:
    """Every distribution with its licence and texts; a text that several share stands once."""
    lines = [
        f"Software in the image {image}, besides Tandem itself, and its licences.",
        "Debian's packages: /usr/share/doc/PACKAGE/copyright. All of it with versions: /usr/share/tandem/sbom.json.",
    ]
    where: dict[str, str] = {}
    for it in found:
        lines += ["", "=" * 100, f"{it.name} {it.version}", f"licence: {it.license or 'not said in its metadata'}"]
        carried = [part for part in it.parts if part.sha256 or part.purl is None]
        lines += [f"  carries {_titled(part)}: {part.license or 'licence not said in the wheel'}" for part in carried]
        if not it.texts:
            lines.append("Its wheel has no licence text.")
        for text in it.texts:
            first = where.setdefault(text.text, f"{it.name} {it.version}, {text.place}")
            own = first == f"{it.name} {it.version}, {text.place}"
            lines += ["", f"--- {text.place}", text.text if own else f"(the same text as {first})"]
    return "\n".join(lines) + "\n"


def _titled(part: Part) -> str:
    return f"{part.name} {part.version}" if part.version else part.name


def sbom(image: str, version: str, found: Sequence[Distribution], debian: Sequence[Package]) -> str:
    """CycloneDX 1.6 as JSON, checked against its schema."""
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    from packageurl import PackageURL

    licenses = LicenseFactory()

    def component(name: str, of_version: str | None, under: str | None, purl: str | None) -> Component:
        return Component(
            name=name,
            version=of_version,
            type=ComponentType.LIBRARY,
            licenses=[licenses.make_from_string(under)] if under else [],
            purl=PackageURL.from_string(purl) if purl else None,
            bom_ref=None,
        )

    root = Component(name=image, version=version, type=ComponentType.CONTAINER)
    bom = Bom()
    bom.metadata.component = root
    for it in found:
        outer = component(it.name, it.version, it.license, it.purl)
        for part in it.parts:
            inner = component(part.name, part.version, part.license, part.purl)
            if part.sha256:
                inner.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=part.sha256))
            outer.components.add(inner)
        bom.components.add(outer)
    for package in debian:
        bom.components.add(component(package.name, package.version, None, package.purl))
    if not any(package.name == "python3.11" for package in debian):  # built from source, as Docker's official image is
        bom.components.add(component("cpython", platform.python_version(), "PSF-2.0", None))
    bom.register_dependency(root, bom.components)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1)
    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise SystemExit(f"the SBOM breaks CycloneDX's schema: {fault}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--site", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--packages", type=Path, default=Path("/var/lib/dpkg/status"))
    asked = parser.parse_args()
    found = distributions(asked.site, tomllib.loads(VENDORED.read_text(encoding="utf-8")))
    release = platform.freedesktop_os_release().get("VERSION_ID", "")
    debian = list(packages(asked.packages.read_text(encoding="utf-8"), release))
    for place, text in (
        (SBOM, sbom(asked.image, asked.version, found, debian)),
        (NOTICES, notices(asked.image, found)),
    ):
        target = asked.out / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    print(f"{asked.image}: {len(found)} distributions, {len(debian)} packages of Debian in its SBOM")


if __name__ == "__main__":
    main()
