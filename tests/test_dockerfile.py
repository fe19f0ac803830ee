"""The images' recipe without building them: hadolint, and what a careful reader of a Dockerfile would look for.

Building and starting them is tests/images (`make test-images`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "Dockerfile"
SERVERS = ("gateway", "triton-cpu", "triton-cpu-openvino", "triton-gpu")
TARGETS = (*SERVERS, "loadtest")


@pytest.fixture(scope="module")
def stages() -> dict[str, str]:
    """Name -> the text of each stage, after that of the stages it starts from."""
    text = DOCKERFILE.read_text()
    starts = [*re.finditer(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)]
    ends = [*(start.start() for start in starts[1:]), len(text)]
    found: dict[str, str] = {}
    for start, end in zip(starts, ends, strict=True):
        found[start[2]] = found.get(start[1], "") + text[start.start() : end]
    return found


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
    assert re.findall(r"^HEALTHCHECK (NONE)?", stage, re.MULTILINE) == ([""] if target in SERVERS else ["NONE"])


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_called_what_build_and_chart_call_it_and_has_sbom_and_notices(
    target: str, stages: dict[str, str]
) -> None:
    assert f'org.opencontainers.image.title="tandem-{target}"' in stages[target]
    assert f"COPY --from={target}-environment /out/usr /usr" in stages[target]
    assert f"--image tandem-{target} " in stages[f"{target}-environment"]


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_nothing_as_root_but_the_making_of_its_user(target: str, stages: dict[str, str]) -> None:
    assert re.findall(r"^RUN (\S+)", stages[target], re.MULTILINE) == ["groupadd"]


def test_process_1_of_a_server_is_tandem_itself(stages: dict[str, str]) -> None:
    first = {target: re.findall(r'^CMD \["([^"]+)"', stages[target], re.MULTILINE) for target in SERVERS}
    assert first == {
        "gateway": ["gateway"],
        "triton-cpu": ["triton"],
        "triton-cpu-openvino": ["triton"],
        "triton-gpu": ["triton"],
    }


def test_the_gateway_asks_for_keys_unless_it_is_told_otherwise(stages: dict[str, str]) -> None:
    (command,) = re.findall(r"^CMD (\[.+\])$", stages["gateway"], re.MULTILINE)
    assert "--keys=/etc/tandem/keys.json" in json.loads(command)
    assert "insecure" not in DOCKERFILE.read_text()


def test_the_gateways_models_are_the_committed_ones(stages: dict[str, str]) -> None:
    assert "COPY --from=wheel /src/model_repo /opt/tandem/model_repo" in stages["gateway"]


def test_the_gpu_image_is_not_made_where_a_library_lacks_another(stages: dict[str, str]) -> None:
    assert "scripts/images/resolve.py /opt/tandem/environments/gpu-*" in stages["triton-gpu-environment"]


@pytest.mark.skipif(shutil.which("strip") is None, reason="needs strip: apt-get install binutils")
@pytest.mark.parametrize(
    ("said", "stays", "code"), [(None, True, 0), ("yes", True, 0), ("no", False, 0), ("0", True, 2)]
)
def test_the_gpu_image_is_made_without_cudnn_where_that_is_asked_for(
    tmp_path: Path, stages: dict[str, str], said: str | None, stays: bool, code: int
) -> None:
    assert "ARG CUDNN=yes" in stages["triton-gpu-environment"]
    assert "ARG CUDNN" not in stages["triton-cpu-environment"]
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for folder in ("nvidia/cudnn/lib", "nvidia/cu13/lib", "nvidia_cudnn_cu13-9.26.0.51.dist-info"):
        (site / folder).mkdir(parents=True)
    environment = {**os.environ, **({"CUDNN": said} if said else {})}
    done = subprocess.run([ROOT / "scripts/images/trim.sh", tmp_path], env=environment, capture_output=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert [path.exists() for path in (site / "nvidia/cudnn", site / "nvidia_cudnn_cu13-9.26.0.51.dist-info")] == [
        stays
    ] * 2
    assert (site / "nvidia/cu13/lib").exists()


def test_pip_is_told_of_networks_by_a_secret_only() -> None:
    text = DOCKERFILE.read_text()
    installs = [
        step
        for step in re.split(r"^(?=RUN|COPY|FROM)", text, flags=re.MULTILINE)
        if step[:3] == "RUN" and re.search(r"pip .*--constraint|tandem environment", step)
    ]
    assert len(installs) > 5
    assert all("--mount=type=secret,id=pip" in step for step in installs)
    assert "index-url" not in text
    assert "INDEX_URL" not in text
    assert "https://" not in text


def test_every_install_obeys_the_constraints_or_fetches_nothing() -> None:
    steps = re.sub(r"\\\n", " ", DOCKERFILE.read_text()).splitlines()
    installs = [part for step in steps for part in step.split("&&") if re.search(r"bin/pip .*install ", part)]
    assert len(installs) > 3
    for part in installs:
        assert "--constraint constraints.txt" in part or "--no-deps --no-index /wheels" in part, part


def test_the_version_is_the_packages_and_the_charts() -> None:
    (image,) = {*re.findall(r"^ARG VERSION=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)}
    (package,) = re.findall(r'^__version__ = "(.+)"$', (ROOT / "serving" / "__init__.py").read_text(), re.MULTILINE)
    chart = yaml.safe_load((ROOT / "helm" / "tandem" / "Chart.yaml").read_text())
    assert image == package == chart["appVersion"]


def test_what_the_chart_copies_is_where_the_image_has_it(stages: dict[str, str]) -> None:
    values = yaml.safe_load((ROOT / "helm" / "tandem" / "values.yaml").read_text())
    assert f"COPY --from=wheel /src/model_repo {values['modelRepository']['image']['path']}\n" in stages["gateway"]


def test_the_chart_calls_every_image_by_its_name() -> None:
    values = yaml.safe_load((ROOT / "helm" / "tandem" / "values.yaml").read_text())
    named = {image["repository"] for image in values["images"].values()}
    assert {f"tandem-{target}" for target in TARGETS} <= named


def test_only_what_the_wheel_holds_reaches_a_build() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    for stage in DOCKERFILE.read_text().split("\nFROM "):
        for copied in re.findall(r"^COPY (?!--from)(.+)$", stage, re.MULTILINE):
            for source in copied.split()[:-1]:
                assert any(
                    f"{source}/".startswith(f"{line[1:]}/") or line.startswith(f"!{source}") for line in lines
                ), source


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
    assert "docker or buildah" in done.stderr


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
    assert "triton-cpu triton-cpu-openvino triton-gpu" in done.stderr
    assert "loadtest" in done.stderr


def test_the_compiler_stays_out_of_what_images_take_over(stages: dict[str, str]) -> None:
    with_compiler = {name for name, text in stages.items() if "libc6-dev" in text}
    assert with_compiler == {"compiled"}
    assert re.findall(r"^COPY --from=compiled .+$", DOCKERFILE.read_text(), re.MULTILINE) == [
        "COPY --from=compiled /opt/compiled/ /opt/venv/"
    ]
    assert "COPY --from=compiled" in stages["gateway-environment"]
