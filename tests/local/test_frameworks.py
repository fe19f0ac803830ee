"""Environments for heavy frameworks: what they hold, who is asked, what an interruption leaves, and going on in one.

Made for real, by venv and pip, from a wheel of a few bytes instead of the gigabytes.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from serving.errors import EnvironmentFault, UserError
from serving.local import frameworks as module
from serving.local.frameworks import Frameworks, ensure, frameworks, made, requirements, run_there
from serving.local.venvs import explain

ROOT = Path(__file__).parents[2]


def silent(_: str) -> None:
    pass


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test, and no index."""
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TANDEM_WHEELS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path: Path) -> Frameworks:
    """An extra of one package of a few bytes, whose wheel is at hand."""
    files = {
        "tandem_tiny.py": "answer = 42\n",
        "tandem_tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tandem-tiny\nVersion: 1.0\n",
        "tandem_tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(tmp_path / "wheels" / "tandem_tiny-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr("tandem_tiny-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in files))
    return Frameworks("tiny", ("tandem-tiny>=1", "tandem-other; python_version < '3'"), size_mb=1)


# -- what an environment holds ----------------------------------------------------------------------------------------

SAID = [
    "click>=8.1",
    "uvloop>=0.21; sys_platform != 'win32'",
    "numpy>=2; extra == 'onnx'",
    "onnx>=1.17 ; extra == \"onnx\"",
    "tomli; python_version < '3.12' and extra == 'onnx'",
    "pillow; (python_version < '3.12') and extra == 'onnx'",
    "tandem-serving[onnx]; extra == 'export'",
    "torch>=2.9; extra == 'export'",
    "Tandem_Serving[export,onnx]; extra == 'keras'",
    "keras[tree]>=3.8; extra == 'keras'",
]  # fmt: skip
BASE = ("click>=8.1", "uvloop>=0.21; sys_platform != 'win32'")
ONNX = ("numpy>=2", "onnx>=1.17", "tomli; python_version < '3.12'", "pillow; (python_version < '3.12')")


@pytest.mark.parametrize(
    ("extra", "needs"),
    [
        ("onnx", (*BASE, *ONNX)),
        ("export", (*BASE, "torch>=2.9", *ONNX)),
        ("keras", (*BASE, "keras[tree]>=3.8", "torch>=2.9", *ONNX)),
    ],
)
def test_extras_that_name_extras_are_followed_and_other_markers_are_left_to_pip(
    extra: str, needs: tuple[str, ...]
) -> None:
    found = requirements(extra, SAID)
    assert sorted(found) == sorted(needs)
    assert found[:2] == BASE


def test_extras_that_name_each_other_end() -> None:
    assert requirements(
        "a", ["tandem-serving[b]; extra == 'a'", "tandem-serving[a]; extra == 'b'", "x; extra == 'b'"]
    ) == ("x",)


def test_an_extra_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match=r"tandem-serving.*extra.*'tensorflow'"):
        requirements("tensorflow", SAID)


def test_this_projects_own_metadata_say_what_export_needs() -> None:
    wanted = frameworks("export")
    names = {module._name(line) for line in wanted.requirements}
    assert {"torch", "transformers", "onnx", "click"} <= names
    assert not any("extra" in line for line in wanted.requirements)
    assert "torch==" in wanted.constraints
    assert set(names) < {module._name(line) for line in frameworks("keras").requirements}


def test_the_packages_that_are_missing_here_are_known_by_name() -> None:
    assert Frameworks("x", ("click>=8.1", "No_Such.Package[a]>=3; sys_platform == 'linux'")).missing == (
        "no-such-package",
    )


@pytest.mark.parametrize("change", [{"requirements": ("a>=2",)}, {"constraints": "a==2"}, {"name": "other"}])
def test_other_content_is_another_environment(change: dict[str, object]) -> None:
    first: dict[str, object] = {"name": "x", "requirements": ("a>=1",), "constraints": "a==1"}
    assert Frameworks(**first).folder != Frameworks(**{**first, **change}).folder  # type: ignore[arg-type]


@pytest.mark.parametrize(("size_mb", "says"), [(6200, "6.2 GB"), (590, "590 MB"), (None, "size unknown")])
def test_a_size_is_told_in_the_unit_that_people_use(size_mb: int | None, says: str) -> None:
    assert Frameworks("x", (), size_mb=size_mb).size == says


# -- who is asked -----------------------------------------------------------------------------------------------------


def test_where_nobody_can_be_asked_the_message_names_the_extra_and_the_way_to_say_yes(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "requirements", lambda extra, said: ("torch>=2.9", "no-such-package"))
    with pytest.raises(UserError) as refusal:
        ensure("export", is_yes=False, say=silent)
    assert re.search(r"no-such-package.*6\.2 GB, 3\.2 GB", str(refusal.value))
    assert not cache.exists()


# Makes the terminal at its input the one that it is controlled by, as a login does.
TAKE_TERMINAL = "import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"


def in_a_terminal(code: str, when: bytes, typed: bytes) -> str:
    """What a Python program says in a terminal where somebody types something when it has said something."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL + code], stdin=follower, stdout=follower, stderr=follower, cwd=ROOT
    ):
        os.close(follower)
        said = b""
        with contextlib.suppress(OSError):  # EIO: the other end has gone
            while chunk := os.read(leader, 4096):
                said += chunk
                if when in said and typed:
                    os.write(leader, typed)
                    typed = b""
    os.close(leader)
    return said.decode()


ASKING = """
from serving.errors import UserError
from serving.local.frameworks import Frameworks, made
try:
    print("made", made(Frameworks("tiny", ("tandem-tiny>=1",), size_mb=1), is_yes=False, say=print))
except UserError as error:
    print("refused:", error)
"""


@pytest.mark.slow
def test_in_a_terminal_a_yes_makes_it_once(tiny: Frameworks) -> None:
    said = in_a_terminal(ASKING, b"[y/N]", b"y\n")
    assert "tandem-tiny" in said
    assert "made /" in said
    lines: list[str] = []
    python = made(Frameworks("tiny", ("tandem-tiny>=1",), size_mb=1), is_yes=False, say=lines.append)
    assert ask(python, "import tandem_tiny; print(tandem_tiny.answer)") == "42"
    assert lines == []


@pytest.mark.slow
@pytest.mark.parametrize("answer", [b"n\n", b"\n"])
def test_in_a_terminal_anything_but_yes_makes_nothing(cache: Path, tiny: Frameworks, answer: bytes) -> None:
    said = in_a_terminal(ASKING, b"[y/N]", answer)
    assert re.search("refused: .*tandem-tiny", said)
    assert not list(cache.glob("environments/*"))


# -- making one -------------------------------------------------------------------------------------------------------


def ask(python: Path, code: str) -> str:
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.thorough  # one is made in a terminal, above
def test_a_real_environment_has_what_was_asked_for_and_is_made_once(tiny: Frameworks) -> None:
    lines: list[str] = []
    python = made(tiny, is_yes=True, say=lines.append)
    assert ask(python, "import tandem_tiny; print(tandem_tiny.answer)") == "42"
    assert re.search(rf"\[tiny\] \(1 MB.*{tiny.folder}$", lines[0])
    assert any("tandem-tiny" in line for line in lines[1:])
    lines.clear()
    assert made(tiny, is_yes=False, say=lines.append) == python
    assert lines == []


@pytest.mark.slow
def test_constraints_hold(tiny: Frameworks) -> None:
    other = Frameworks("tiny", ("tandem-tiny",), constraints="tandem-tiny==2.0")
    with pytest.raises(EnvironmentFault) as fault:
        made(other, is_yes=True, say=silent)
    assert "tandem-tiny" in Path(f"{other.folder}.log").read_text()
    assert "\n" not in str(fault.value)
    assert not other.is_complete


@pytest.mark.slow
@pytest.mark.thorough  # so do the engines' environments: test_environments.py
def test_a_package_that_is_nowhere_is_named_with_the_place_that_was_searched(tmp_path: Path) -> None:
    wanted = Frameworks("tiny", ("tandem-no-such-package>=3",))
    with pytest.raises(EnvironmentFault, match=r"tandem-no-such-package>=3.*/wheels.*Python") as fault:
        made(wanted, is_yes=True, say=silent)
    assert str(fault.value).endswith(f"(log: {wanted.folder}.log)")
    assert not wanted.is_complete


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "[Errno 28] No space left on device",
            r"for an environment with \[tiny\] \(1 MB\); free some or set TANDEM_CACHE",
        ),
        ("ProxyError('Cannot connect to proxy.')", r"no network to fetch the wheels of an environment with \[tiny\]"),
        ("SSLError(CERTIFICATE_VERIFY_FAILED", "set its CA with 'pip config"),
        ("Traceback\nKeyError: 'x'\n", r"could not make an environment with \[tiny\]: KeyError: 'x'"),
    ],
)
def test_what_pip_says_becomes_one_line_about_this_environment(tmp_path: Path, words: str, says: str) -> None:
    with pytest.raises(EnvironmentFault, match=says) as fault:
        raise explain(words, Frameworks("tiny", (), size_mb=1).venv)
    assert "Triton" not in str(fault.value)
    assert "\n" not in str(fault.value)


def test_without_the_space_nothing_is_begun(cache: Path) -> None:
    wanted = Frameworks("tiny", (), size_mb=10**9)
    with pytest.raises(EnvironmentFault, match=r"GB.*environment.*\[tiny\].*1000000\.0 GB"):
        made(wanted, is_yes=True, say=silent)
    assert not wanted.folder.exists()


def test_a_cache_that_cannot_be_written_says_which_setting_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(EnvironmentFault, match=r"TANDEM_CACHE.*folder"):
        made(Frameworks("tiny", ()), is_yes=True, say=silent)


def test_an_environment_without_its_marker_is_not_complete(tiny: Frameworks) -> None:
    (tiny.folder / "bin").mkdir(parents=True)
    tiny.venv.python.symlink_to(sys.executable)
    assert not tiny.is_complete
    (tiny.folder / "complete.json").write_text("{}")
    assert tiny.is_complete


def test_an_environment_whose_interpreter_has_gone_is_not_complete(tiny: Frameworks) -> None:
    (tiny.folder / "bin").mkdir(parents=True)
    tiny.venv.python.symlink_to("/nowhere/python3")
    (tiny.folder / "complete.json").write_text("{}")
    assert not tiny.is_complete


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGKILL])
def test_an_interrupted_making_is_done_again_from_the_start(tiny: Frameworks, number: signal.Signals) -> None:
    code = ASKING.replace("is_yes=False, say=print", "is_yes=True, say=lambda line: print(line, flush=True)")
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline().startswith("making an environment")
        maker.send_signal(number)
        assert maker.wait(timeout=60) != 0
    left = Frameworks("tiny", ("tandem-tiny>=1",), size_mb=1)
    assert not left.is_complete
    left.folder.mkdir(parents=True, exist_ok=True)
    (left.folder / "half a file").touch()
    assert ask(made(left, is_yes=True, say=silent), "import tandem_tiny; print(tandem_tiny.answer)") == "42"
    assert not (left.folder / "half a file").exists()


@pytest.mark.slow
def test_of_several_makers_at_once_one_makes_it_and_the_others_wait(tiny: Frameworks) -> None:
    lines: list[str] = []
    makers = [
        threading.Thread(target=made, args=(tiny,), kwargs={"is_yes": True, "say": lines.append}) for _ in range(3)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert tiny.is_complete
    assert len([line for line in lines if line.startswith("making")]) == 1


def test_a_command_that_went_on_in_an_incomplete_environment_does_not_go_on_for_ever(
    tiny: Frameworks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tiny.folder))
    with pytest.raises(EnvironmentFault, match=r"packages.*delete"):
        made(tiny, is_yes=True, say=silent)


# -- going on in one --------------------------------------------------------------------------------------------------


def script(folder: Path, text: str) -> Path:
    """A program in the place of a Python; it gets `-P -m serving ARGUMENTS…`."""
    path = folder / "python3"
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
    path.chmod(0o755)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["no-such-verb"], 2)])
def test_a_command_goes_on_there_and_its_exit_code_comes_back(
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: Sequence[str],
    code: int,
) -> None:
    """From a folder in which another package `serving` lies."""
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving" / "__main__.py").write_text("raise SystemExit(99)")
    monkeypatch.chdir(tmp_path)
    assert run_there(Path(sys.executable), arguments) == code
    assert "tandem" in "".join(capfd.readouterr())


def test_the_project_comes_before_what_the_user_has_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert (
        run_there(script(tmp_path, "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:])"), ["models", "-h"])
        == 0
    )
    assert capfd.readouterr().out == f"{ROOT}:/mine ['-P', '-m', 'serving', 'models', '-h']\n"


def test_an_installed_project_comes_without_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site-packages"
    (site / "serving").mkdir(parents=True)
    (site / "serving" / "__init__.py").touch()
    (site / "numpy.py").touch()
    monkeypatch.setattr(module.serving, "__file__", str(site / "serving" / "__init__.py"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python = script(tmp_path, "import os; print(*os.listdir(os.environ['PYTHONPATH']))")
    for _ in range(2):
        assert run_there(python, []) == 0
        assert capfd.readouterr().out == "serving\n"
    assert module._constraints() == ""


def test_a_python_that_does_not_run_is_the_machines_fault(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"nowhere.*file"):
        run_there(tmp_path / "nowhere", [])


def test_the_end_by_a_signal_is_told_as_shells_tell_it(tmp_path: Path) -> None:
    assert run_there(script(tmp_path, "import os; os.kill(os.getpid(), 9)"), []) == 137


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.thorough), signal.SIGINT]
)
def test_signals_reach_the_command_and_ours_waits_for_its_end(tmp_path: Path, number: signal.Signals) -> None:
    """It puts its things away and chooses its exit code. Without a terminal, Ctrl-C's signal is passed on too."""
    python = script(
        tmp_path,
        f"""
        import signal, sys, time
        signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])  # a handler could come just before a sleep, and be run after it
        print("ready", flush=True)
        signal.sigwait([{int(number)}])
        time.sleep(0.2)
        sys.exit(7)
        """,
    )
    code = f"import sys; from pathlib import Path; from serving.local.frameworks import run_there; sys.exit(run_there(Path({str(python)!r}), []))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    ) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == "ready\n"
        ours.send_signal(number)
        assert ours.wait(timeout=60) == 7


def test_a_signal_that_comes_while_the_command_starts_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = subprocess.Popen

    def interrupted(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = really(*words, **options)
        os.kill(os.getpid(), signal.SIGHUP)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    ours: list[int] = []
    usual = signal.signal(signal.SIGHUP, lambda number, _: ours.append(number))
    try:
        assert run_there(script(tmp_path, "import time; time.sleep(20)"), []) == 128 + signal.SIGHUP
        os.kill(os.getpid(), signal.SIGHUP)
        assert ours == [signal.SIGHUP], "afterwards signals are the caller's again"
    finally:
        signal.signal(signal.SIGHUP, usual)


def test_ctrl_c_in_a_terminal_arrives_once(tmp_path: Path) -> None:
    python = script(
        tmp_path,
        """
        import signal, time
        seen = []
        signal.signal(signal.SIGINT, lambda *_: seen.append(1))
        print("ready", flush=True)
        end = time.monotonic() + 60
        while not seen and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)  # in which a second one would come
        print("seen", len(seen), flush=True)
        """,
    )
    code = f"from pathlib import Path; from serving.local.frameworks import run_there; run_there(Path({str(python)!r}), [])"
    assert "seen 1" in in_a_terminal(code, b"ready", b"\x03")


def test_ctrl_c_in_a_terminal_before_the_command_has_started_reaches_it(tmp_path: Path) -> None:
    there = script(tmp_path, "import time; time.sleep(20)")
    there.write_text("#!/bin/sh\nexec sleep 20\n")  # a Python that still starts would say something else of a SIGINT
    code = f"""
import os, signal, subprocess
from pathlib import Path
from serving.local.frameworks import run_there

really = subprocess.Popen

def interrupted(*words, **options):
    os.kill(os.getpid(), signal.SIGINT)
    return really(*words, **options)

subprocess.Popen = interrupted
print("ended", run_there(Path({str(there)!r}), []), flush=True)
"""
    assert f"ended {128 + signal.SIGINT}" in in_a_terminal(code, b"ended", b"")


def test_a_download_tells_its_whole_size_before_and_how_far_it_is_and_how_long_it_takes_while() -> None:
    wanted = Frameworks("big", ("torch",), size_mb=6200, download_mb=3000)
    assert re.findall(r"\d\.\d GB", wanted.size) == ["6.2 GB", "3.0 GB"]
    downloads = module.Downloads(wanted.download_mb)
    assert downloads.progress("Collecting torch", 1.0) == ""
    assert downloads.progress("Downloading small-1-py3-none-any.whl (500 kB)", 1.0) == ", 0 MB of 3.0 GB done"
    assert downloads.progress("Downloading torch-2-cp311.whl (1.5 GB)", 2.0) == ", 0 MB of 3.0 GB done"
    assert downloads.progress("Downloading cuda-1-cp311.whl (700.0 MB)", 60.0).endswith(" 60 s left")
    assert downloads.progress("Downloading more-1.whl (2.0 GB)", 90.0).startswith(", 2.2 GB of 3.0 GB done")


def test_where_the_size_is_not_known_nothing_is_made_up() -> None:
    downloads = module.Downloads(None)
    assert downloads.progress("Downloading torch-2-cp311.whl (1.5 GB)", 2.0) == ""
    assert downloads.progress("Downloading torch-2-cp311.whl (1.5 GB)", 2.0) == ""


WITHOUT_LOCUST = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "locust" else found(name, *rest)
sys.argv = ["tandem", *sys.argv[1:]]
from serving.__main__ import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["verdict", "digts", "--rate", "5", "--p99", "20ms"],
        *(
            pytest.param(it, marks=pytest.mark.thorough)
            for it in (["profile", "digts"], ["campaign", "run", "no.yaml"])
        ),
    ],
)
def test_what_measures_goes_on_in_an_environment_of_its_own_where_something_is_missing(
    words: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", WITHOUT_LOCUST, *words]
    refused = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    folder = frameworks("quickstart").folder  # as if it had been made: its Python is this one
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python3").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text(Path(sys.prefix, "pyvenv.cfg").read_text())
    (folder / "lib").symlink_to(Path(sys.prefix, "lib"))
    (folder / "complete.json").write_text("{}")
    went_on = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (went_on.returncode, "did you mean 'digits'" in went_on.stderr or "no.yaml" in went_on.stderr) == (2, True)
