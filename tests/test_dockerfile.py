"""The images' recipe without building them: hadolint, and what a careful reader of a Dockerfile would look for.

Building is `make image`; what this cannot see (does the image start, how large is it) is written in docs/images.md.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "Dockerfile"
TARGETS = ("gateway", "triton-cpu")


@pytest.fixture(scope="module")
def stages() -> dict[str, str]:
    """Name -> the text of each stage."""
    text = DOCKERFILE.read_text()
    starts = [*re.finditer(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)]
    ends = [*(start.start() for start in starts[1:]), len(text)]
    return {start[2]: text[start.start() : end] for start, end in zip(starts, ends, strict=True)}


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    check = subprocess.run([hadolint, "--no-color", DOCKERFILE], capture_output=True, text=True, timeout=60)
    assert check.returncode == 0, check.stdout + check.stderr


def test_the_base_is_pinned_and_named_in_full() -> None:
    (image,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    name, _, tag = image.rpartition(":")
    assert name == "docker.io/library/python"
    assert re.fullmatch(r"3\.1[12]-slim-bookworm", tag)


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_ends_as_a_user_without_rights_and_starts_tandem(target: str, stages: dict[str, str]) -> None:
    stage = stages[target]
    assert re.findall(r"^USER (\S+)$", stage, re.MULTILINE)[-1] == "1000:1000"
    assert 'ENTRYPOINT ["tandem"]' in stage
    assert "HEALTHCHECK" in stage
    assert "org.opencontainers.image.title" in stage


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_nothing_as_root_but_the_making_of_its_user(target: str, stages: dict[str, str]) -> None:
    assert re.findall(r"^RUN", stages[target], re.MULTILINE) == []
    assert re.findall(r"^RUN (\S+)", stages["base"], re.MULTILINE) == ["groupadd"]


def test_the_gateway_gets_no_extra_and_its_models_are_the_committed_ones(stages: dict[str, str]) -> None:
    assert "[local]" not in stages["gateway-environment"]
    assert "COPY --from=build /src/model_repo /opt/tandem/model_repo" in stages["gateway"]


def test_pip_is_told_of_networks_by_a_secret_only() -> None:
    text = DOCKERFILE.read_text()
    installs = [
        step
        for step in re.split(r"^(?=RUN|COPY|FROM)", text, flags=re.MULTILINE)
        if "pip" in step and step[:3] == "RUN"
    ]
    assert all("--mount=type=secret,id=pip" in step for step in installs if "install" in step or "wheel" in step)
    assert "index-url" not in text
    assert "INDEX_URL" not in text
    assert "https://" not in text


def test_every_install_obeys_the_constraints() -> None:
    lines = DOCKERFILE.read_text().splitlines()
    for line in lines:
        if "pip" in line and " install " in line:
            assert "--constraint constraints.txt" in line, line


def test_the_version_is_the_packages_and_the_charts() -> None:
    (image,) = re.findall(r"^ARG VERSION=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    (package,) = re.findall(r'^__version__ = "(.+)"$', (ROOT / "serving" / "__init__.py").read_text(), re.MULTILINE)
    chart = yaml.safe_load((ROOT / "helm" / "tandem" / "Chart.yaml").read_text())
    assert image == package == chart["appVersion"]


def test_what_the_chart_copies_is_where_the_image_has_it(stages: dict[str, str]) -> None:
    pools = (ROOT / "helm" / "tandem" / "templates" / "_pool.tpl").read_text()
    assert "[cp, -R, /opt/tandem/model_repo/., /models]" in pools
    assert "/opt/tandem/model_repo" in stages["gateway"]


def test_only_what_the_wheel_holds_reaches_a_build() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    for stage in DOCKERFILE.read_text().split("\nFROM "):
        for copied in re.findall(r"^COPY (?!--from)(.+)$", stage, re.MULTILINE):
            for source in copied.split()[:-1]:
                assert any(line.startswith(f"!{source}") for line in lines), source


def test_building_without_a_builder_says_what_to_install(tmp_path: Path) -> None:
    for tool in ("dirname", "sed", "sh"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}" if Path(f"/usr/bin/{tool}").exists() else f"/bin/{tool}")
    done = subprocess.run(
        [tmp_path / "sh", ROOT / "scripts" / "build_images.sh"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 3
    assert "needs docker or buildah, and neither is here" in done.stderr


def test_an_image_that_does_not_exist_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "docker").chmod(0o755)
    done = subprocess.run(
        [ROOT / "scripts" / "build_images.sh", "gatway"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2
    assert "there is no image gatway; there are gateway and triton-cpu" in done.stderr
