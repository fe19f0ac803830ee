"""What `--help` shows is true: examples parse, every option is in a group, and nothing heavy is imported for it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from serving.cli import cli
from serving.cli.help import EXAMPLES, GROUPS
from tests.command import ROOT, tandem

HEAVY = {"asyncio", "fastapi", "grpc", "jinja2", "numpy", "onnx", "orjson", "PIL", "pydantic", "rich", "yaml"}
GROUPED_FROM = 12  # options
WITHOUT_JSON = {  # what they tell is a stream, until they end, or text for a shell
    "tandem models mirror",
    "tandem up",
    "tandem run",
    "tandem gateway",
    "tandem triton",
    "tandem completion",
    "tandem cluster scaler",
    "tandem cluster campaign",
}


def verbs(command: click.Command = cli, path: str = "tandem") -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from verbs(one, f"{path} {name}")


VERBS = dict(verbs())


@pytest.mark.parametrize("path", VERBS)
def test_every_verb_has_examples_and_shows_them_as_they_are_typed(path: str) -> None:
    shown = tandem(*path.split()[1:], "--help").stdout.splitlines()
    assert EXAMPLES[path]
    assert all(f"  {example}" in shown for example in EXAMPLES[path])


@pytest.mark.parametrize("example", [line for lines in EXAMPLES.values() for line in lines])
def test_an_example_has_words_that_its_verb_takes(example: str) -> None:
    words = shlex.split(example)
    words = words[words.index("|") + 1 :] if "|" in words else words
    words = words[: words.index(">")] if ">" in words else words
    assert words[0] == "tandem"
    command, path = VERBS["tandem"], "tandem"
    while isinstance(command, click.Group) and len(words) > 1 and words[1] in command.commands:
        path, command, words = f"{path} {words[1]}", command.commands[words[1]], words[1:]
    command.make_context(path, words[1:], help_option_names=["-h", "--help"])  # raises for what is unknown or missing


def test_the_tables_name_verbs_and_options_that_there_are() -> None:
    assert EXAMPLES.keys() <= VERBS.keys()
    for path, groups in GROUPS.items():
        command = VERBS[path]
        there = set(command.commands) if isinstance(command, click.Group) else {it.name for it in command.params}
        named = [name for names in groups.values() for name in names]
        assert len(named) == len(set(named))
        assert set(named) <= there


@pytest.mark.parametrize(
    "path", [path for path, it in VERBS.items() if sum(isinstance(o, click.Option) for o in it.params) >= GROUPED_FROM]
)
def test_a_verb_of_many_options_has_each_in_a_group(path: str) -> None:
    named = {name for names in GROUPS[path].values() for name in names}
    assert {it.name for it in VERBS[path].params if isinstance(it, click.Option)} - named <= {"as_json", "form"}


def test_every_verb_that_tells_a_result_tells_it_as_json() -> None:
    lacking = {
        path
        for path, it in VERBS.items()
        if not isinstance(it, click.Group) and not any(option.name == "as_json" for option in it.params)
    }
    assert lacking == WITHOUT_JSON


def test_results_of_what_changes_something_are_one_json_object(tmp_path: Path) -> None:
    keys, repository = ["--keys", str(tmp_path / "keys.json")], tmp_path / "repository"
    added = json.loads(tandem("keys", "add", *keys, "--name", "ann", "--scope", "infer", "--json").stdout)
    assert (added["name"], added["state"], len(added["key"]) > 20) == ("ann", "valid", True)
    revoked = json.loads(tandem("keys", "revoke", *keys, added["id"], "--json").stdout)
    assert (revoked["id"], revoked["state"], "key" in revoked) == (added["id"], "revoked", False)
    shutil.copytree(ROOT / "model_repo", repository)
    removed = tandem("models", "rm", "digits-int8", "--model-repository", str(repository), "--json")
    assert json.loads(removed.stdout)["removed"] == ["digits-int8"]
    assert not (repository / "digits-int8").exists()


def test_help_starts_fast_because_it_imports_nothing_heavy() -> None:
    code = "import sys; from serving.cli import cli; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert HEAVY & set(done.stdout.split()) == set()
    assert "click" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_verbs_and_options(shell: str) -> None:
    sourced = tandem("completion", shell)
    assert (sourced.returncode, f"_TANDEM_COMPLETE={shell}_complete" in sourced.stdout) == (0, True)
    asked = {"_TANDEM_COMPLETE": f"{shell}_complete", "COMP_WORDS": "tandem up --grp", "COMP_CWORD": "2"}
    words = [sys.executable, "-m", "serving"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **asked}, check=False)
    assert "--grpc-port" in done.stdout or shell == "fish"  # which asks in another way


def test_python_m_serving_is_tandem() -> None:
    command = [sys.executable, "-m", "serving", "up", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == tandem("up", "--help").stdout.split()


@pytest.mark.parametrize("verb", [("models",), ("status",), ("models", "show", "digits")])
def test_o_json_is_json_wherever_it_stands_and_table_is_what_is_printed_without(
    verb: tuple[str, ...], tmp_path: Path
) -> None:
    state = {"TANDEM_STATE": str(tmp_path)}
    as_json = tandem(*verb, "--json", **state)
    assert json.loads(as_json.stdout)["version"] == 1
    assert tandem(*verb, "-o", "json", **state).stdout == as_json.stdout
    assert tandem(*verb, "-o", "table", **state).stdout == tandem(*verb, **state).stdout != as_json.stdout
    for words in (("-o", "table", "--json"), ("--json", "-o", "wide"), ("-o", "yaml")):
        assert tandem(*verb, *words, **state).returncode == 2


@pytest.mark.parametrize("verb", [("models",), ("models", "show", "digits"), ("models", "history", "digits")])
def test_wide_has_what_a_table_leaves_out_and_breaks_no_line(verb: tuple[str, ...], tmp_path: Path) -> None:
    state = {"TANDEM_STATE": str(tmp_path), "COLUMNS": "60"}
    record = json.loads((ROOT / "model_repo" / "digits-fp32" / "tandem.json").read_text())
    table, wide = (tandem(*verb, "-o", form, **state).stdout for form in ("table", "wide"))
    rows = json.loads(tandem(*verb, "--json", **state).stdout)["versions" if "history" in verb else "variants"]
    whole = next(row["digest"] for row in rows if row["name"] == "digits-fp32")
    last_check = record["gate"]["checks"][-1]["metric"]
    for said in (whole, last_check):
        assert said in wide
        assert said not in table
