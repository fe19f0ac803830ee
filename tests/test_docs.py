"""What is generated is fresh, and what the docs name exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scripts.foreign import page as foreign_page

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def test_reference_pages_are_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "reference.py", "check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "fresh")


def test_the_page_of_foreign_models_is_what_was_measured() -> None:
    made = "\n".join(foreign_page.lines(json.loads(foreign_page.RESULTS.read_text("utf-8")))) + "\n"
    assert foreign_page.PAGE.read_text("utf-8") == made


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


def test_the_table_of_what_to_open_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| .+ \| (.+) \|$", page[page.index("## To change") :], re.MULTILINE)
    assert len(rows) > 30
    for row in rows:
        folder = ROOT
        for name in re.findall(
            r"`([\w/]+(?:/|\.\w+))`", row
        ):  # a bare name lies in the folder that was named before it
            folder = folder if "/" not in name else ROOT / (name if name.endswith("/") else Path(name).parent)
            assert (ROOT / name if "/" in name else folder / name).exists(), f"{name} in {row}"


def test_the_lives_of_requests_models_and_decisions_name_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    lives = page[page.index("## The life of a request") : page.index("## To change")]
    paths = [f"/{path.relative_to(ROOT)}" for path in (ROOT / "serving").rglob("*")]
    names = re.findall(r"`([\w/]+(?:/|\.py))`", lives)
    assert len(names) > 30
    for name in names:
        assert any(path.endswith(f"/{name.rstrip('/')}") for path in paths), name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages_install_an_extra_by_one_command(page: Path) -> None:
    commands = re.findall(r"`([^`\n]*pip install[^`\n]*\.\[[^`\n]*)`", page.read_text("utf-8"))
    assert all(re.fullmatch(r"\.venv/bin/python -m pip install -e '\.\[\w+\]'", command) for command in commands), (
        commands
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_make_targets_that_pages_name_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", page.read_text("utf-8"))) <= targets


def test_make_help_names_every_target_with_a_sentence() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert phony is not None
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.strip()}
    assert set(shown) == set(phony[1].split())


def test_constraints_pin_versions_and_name_no_host() -> None:
    rows = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert len(rows) > 50
    for row in rows:
        assert re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[^\s:/]+( ; .+)?", row), row


@pytest.mark.parametrize(
    ("page", "source"),
    [("http.md", "serving/gateway/metrics.py"), ("scaler.md", "serving/cluster/scaler/metrics.py")],
)
def test_every_metric_is_on_the_page_of_who_publishes_it(page: str, source: str) -> None:
    """Whole names: `tandem_demand_replicas` is not listed by `tandem_scaler_demand_replicas`, nor a counter without its `_total`."""
    names = re.findall(r'(Counter)?\w*\(\s*"(tandem_[a-z_]+)"', (ROOT / source).read_text("utf-8"))
    assert len(names) > 8
    listed = set(re.findall(r"\btandem_[a-z_]+", (ROOT / "docs" / page).read_text("utf-8")))
    assert {f"{name}_total" if is_counter else name for is_counter, name in names} <= listed


def leaves(nav: object) -> list[str]:
    if isinstance(nav, dict):
        return [leaf for part in nav.values() for leaf in leaves(part)]
    return [leaf for part in nav for leaf in leaves(part)] if isinstance(nav, list) else [str(nav)]


def test_the_site_names_every_page_once() -> None:
    """Whether links and anchors lead somewhere, `make docs` says, which fails where one does not."""
    named = leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    outside = re.findall(r'^    "([\w.-]+\.md)": "(.+)",$', (ROOT / "scripts/docs_site.py").read_text("utf-8"), re.M)
    assert len(outside) > 10
    assert all((ROOT / source).is_file() for _, source in outside)
    there = [
        *(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")),
        *(page for page, _ in outside),
    ]
    assert sorted(named) == sorted(there)
