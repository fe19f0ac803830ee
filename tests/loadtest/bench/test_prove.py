"""What `make prove` says where something is gone, too busy or not there to be written to: quick, without Triton."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.bench import gateway, variants
from loadtest.bench.prove import __main__ as command
from loadtest.bench.prove.emulated import LOG, TOO_BUSY, num_too_busy
from loadtest.bench.verdicts import AtMost, Verdict
from loadtest.processes import ROOT
from loadtest.sending.sender import closed_loop, infer
from serving.ports import free_ports


def dies(folder: Path) -> Iterator[Verdict]:
    """A part whose gateway is gone after its first line, and whose machine had too much to do."""
    (folder / "cheap").mkdir()
    (folder / "cheap" / LOG).write_text(f"W 1: {TOO_BUSY}\nI 2\nW 3: {TOO_BUSY}\n")
    (folder / "dear").mkdir()
    (folder / "dear" / LOG).write_text("I 1\n")
    yield Verdict("first", 1.0, AtMost(1.0))
    (port,) = free_ports(1)
    closed_loop([infer(f"http://127.0.0.1:{port}", "digits", b"{}")], 1, 0.1)


def refused(_: Path) -> Iterator[Verdict]:
    raise ConnectionRefusedError(111, "Connection refused")
    yield


def lives(_: Path) -> Iterator[Verdict]:
    yield Verdict("last", 1.0, AtMost(1.0))


def test_a_gateway_that_is_gone_is_told_and_the_other_parts_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {"dies": dies, "refused": refused, "lives": lives}
    monkeypatch.setattr(command, "PARTS", {name: command.Part(measure, 1.0) for name, measure in parts.items()})
    assert command.main([]) == 3
    said = capsys.readouterr().out
    assert "first" in said
    assert "last" in said
    assert "not measured: dies: 127.0.0.1:" in said
    assert "takes no connection" in said
    assert "[Errno 111] Connection refused" in said
    assert "dies/cheap 2\n" in said
    assert "took: dies 0 s, refused 0 s, lives 0 s\n" in said


def test_make_help_says_how_long_all_parts_take() -> None:
    (line,) = (line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("prove:"))
    assert f": {command.in_minutes(command.PARTS.values())}; a part: " in line


def test_the_lines_of_a_log_that_say_the_machine_was_too_busy_are_counted_by_pool(tmp_path: Path) -> None:
    next(dies(tmp_path))
    assert num_too_busy(tmp_path) == {"cheap": 2}


@pytest.mark.parametrize("main", [command.main, gateway.main, variants.main], ids=["prove", "gateway", "variants"])
@pytest.mark.parametrize(("file", "why"), [("gone/x.json", "there is no folder"), (".", "is a folder")])
def test_a_result_that_could_not_be_written_is_refused_before_anything_is_measured(
    main: object, file: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(main)
    with pytest.raises(SystemExit) as ended:
        main(["--json", str(tmp_path / file)])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err
