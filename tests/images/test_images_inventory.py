"""SBOM and notices from made-up installs: what is stated, what is not, and that nothing is guessed."""

from __future__ import annotations

import importlib.util
import json
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from .pods import ROOT

VENDORED: Mapping[str, Mapping[str, str]] = {
    "in": {"outer": "server 2.51.0 BSD-3-Clause"},
    "libraries": {"libssl": "Apache-2.0", "libss": "wrong"},
}


def script(name: str, file: Path | None = None) -> ModuleType:
    """A file of scripts/images, which is no package, or another."""
    file = file or ROOT / "scripts" / "images" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"images_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


inventory = script("inventory")


def install(site: Path, name: str, said: str, files: Mapping[str, str]) -> None:
    info = f"{name}-1.0.dist-info"
    for place, text in {
        f"{info}/METADATA": f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{said}",
        **files,
    }.items():
        (site / place).parent.mkdir(parents=True, exist_ok=True)
        (site / place).write_text(text)
    (site / info / "RECORD").write_text("".join(f"{place},,\n" for place in [*files, f"{info}/METADATA"]))


@pytest.mark.parametrize(
    ("said", "stated"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: something else\n", "MIT OR Apache-2.0"),
        ("License: BSD-3-Clause\n", "BSD-3-Clause"),
        ("License: UNKNOWN\n", None),
        (f"License: {'a whole text ' * 9}\n", None),
        ("Classifier: License :: OSI Approved :: MIT License\nClassifier: Topic :: Software\n", "MIT License"),
        ("Classifier: License :: OSI Approved\n", None),
        ("", None),
    ],
)
def test_a_licence_is_what_the_metadata_say(said: str, stated: str | None, tmp_path: Path) -> None:
    install(tmp_path, "one", said, {})
    (found,) = inventory.distributions([tmp_path], VENDORED)
    assert found.license == stated


def test_what_is_not_said_is_written_as_not_said(tmp_path: Path) -> None:
    install(tmp_path, "one", "", {"one.libs/libodd-0123abcd.so.3": ""})
    text = inventory.notices("image", inventory.distributions([tmp_path], VENDORED))
    assert "licence: not said" in text
    assert "libodd.so.3: licence not said" in text
    assert "no licence text" in text


def test_a_text_that_two_share_stands_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        install(tmp_path, name, "License: MIT\n", {f"{name}-1.0.dist-info/licenses/LICENSE": "Do as you like.\n"})
    text = inventory.notices("image", inventory.distributions([tmp_path], VENDORED))
    assert text.count("Do as you like.") == 1
    assert "(the same text as one 1.0, one-1.0.dist-info/licenses/LICENSE)" in text


def test_a_distribution_in_two_environments_counts_once(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        install(tmp_path / folder, "one", "", {})
    assert len(inventory.distributions([tmp_path / "a", tmp_path / "b"], VENDORED)) == 1


def test_files_that_were_trimmed_away_are_not_listed(tmp_path: Path) -> None:
    install(tmp_path, "one", "", {"one.libs/libssl-0123abcd.so.3": "", "one-1.0.dist-info/licenses/LICENSE": "text"})
    (tmp_path / "one.libs/libssl-0123abcd.so.3").unlink()
    (tmp_path / "one-1.0.dist-info/licenses/LICENSE").unlink()
    (found,) = inventory.distributions([tmp_path], VENDORED)
    assert (found.parts, found.texts) == ((), ())


def test_code_that_is_called_after_a_licence_is_no_licence_text(tmp_path: Path) -> None:
    install(tmp_path, "one", "", {"one/license.py": "x = 1", "one/notice.h": "#define X"})
    (found,) = inventory.distributions([tmp_path], VENDORED)
    assert found.texts == ()


def test_the_product_inside_a_wheel_is_named_with_the_licence_its_sources_begin_with(tmp_path: Path) -> None:
    source = "# Copyright somebody.\n#\n# Do as you like.\n\nimport json\n"
    install(tmp_path, "outer", "License: Apache-2.0\n", {"outer/triton_python_backend_utils.py": source})
    (found,) = inventory.distributions([tmp_path], VENDORED)
    assert [(part.name, part.version, part.license) for part in found.parts] == [("server", "2.51.0", "BSD-3-Clause")]
    assert [text.text for text in found.texts] == ["Copyright somebody.\n\nDo as you like."]


def test_the_part_of_mypyc_inside_compiled_code_is_told_with_its_licences(tmp_path: Path) -> None:
    from mypy.version import __version__ as version

    compiling = script("compile", ROOT / "scripts" / "compile.py")
    compiling._tell_of_runtime(Path(sysconfig.get_path("purelib")), tmp_path)
    (runtime,) = inventory.distributions([tmp_path], VENDORED)
    assert (runtime.name, runtime.version, runtime.license) == ("mypy", version, "MIT")
    assert any("PYTHON SOFTWARE FOUNDATION LICENSE" in it.text for it in runtime.texts)


def test_the_longest_beginning_of_a_librarys_name_decides() -> None:
    assert inventory.vendored_license("libssl.so.3", VENDORED["libraries"]) == "Apache-2.0"
    assert inventory.vendored_license("libother.so", VENDORED["libraries"]) is None


def test_packages_that_were_removed_are_not_installed() -> None:
    status = (
        "Package: kept\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:2.0+b1\nDescription: a\n b: c\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n"
    )
    (found,) = inventory.packages(status, "12")
    assert found.purl == "pkg:deb/debian/kept@1%3A2.0%2Bb1?arch=amd64&distro=debian-12"


def test_the_sbom_has_parts_inside_their_distribution_and_obeys_its_schema(tmp_path: Path) -> None:
    own = {
        "components": [
            {"name": "crate", "version": "3", "purl": "pkg:cargo/crate@3", "licenses": [{"expression": "MIT"}]}
        ]
    }
    files = {"one.libs/libssl-0123abcd.so.3": "", "one-1.0.dist-info/sboms/own.cdx.json": json.dumps(own)}
    install(tmp_path, "one", "License: some words that are no SPDX\n", files)
    debian = [inventory.Package("libc6", "2.36", "amd64", "12")]
    sbom = json.loads(inventory.sbom("image", "0.1.0", inventory.distributions([tmp_path], VENDORED), debian))
    (one,) = [it for it in sbom["components"] if it["name"] == "one"]
    assert one["purl"] == "pkg:pypi/one@1.0"
    assert {it["name"] for it in one["components"]} == {"crate", "libssl.so.3"}
    assert {it["name"] for it in sbom["components"]} == {
        "one",
        "libc6",
        "cpython",
    }  # no Python of Debian's: built from source
