"""Compiles serving/scheduling/ with mypyc for the environment that runs it; serving/compiled.py finds it there.

    .venv/bin/python scripts/compile.py                           for this environment
    python scripts/compile.py --prefix /opt/venv --source FOLDER  for another one of the same Python, in which serving/ is in FOLDER

Where that cannot be done, it says why, and nothing is wrong: the sources run. Where mypyc is not installed it comes from the registry
for this once. Takes 15 s of CPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_path

HERE = Path(__file__).resolve().parents[1]
PACKAGE = Path("serving", "scheduling")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile what decides about requests, where a C compiler is found.")
    parser.add_argument("--prefix", type=Path, default=Path(sys.prefix), help="environment that will run it")
    parser.add_argument("--source", type=Path, default=HERE, help="folder in which serving/ is")
    options = parser.parse_args()
    sys.path.insert(0, str(options.source))
    from serving.compiled import folder

    found = folder(options.source / PACKAGE, options.prefix)
    if found.is_dir():
        return 0
    if why := _missing():
        print(f"tandem: decides in Python, at half the speed: {why}", file=sys.stderr)
        return 0
    if found.parent.is_dir():
        print("tandem: compiles what decides about requests, whose sources have changed (15 s of CPU)", file=sys.stderr)
    try:
        with tempfile.TemporaryDirectory() as name:
            done = _compile(options.source, Path(name))
            if done is None:  # slower, and as right
                return 0
            shutil.rmtree(found.parent, ignore_errors=True)  # of earlier sources
            found.parent.mkdir(parents=True)
            half = found.with_suffix(".half")
            shutil.copytree(done, half)
            half.rename(found)
    except OSError as error:  # a full disk, an environment of somebody else, or another one that does the same
        print(f"tandem: decides in Python, at half the speed: {error}", file=sys.stderr)
    return 0


def _missing() -> str:
    if not any(shutil.which(name) for name in (os.environ.get("CC", "cc").split()[0], "gcc")):
        return "no C compiler is here (Debian: apt-get install gcc)"
    if not Path(get_path("include"), "Python.h").is_file():
        return "Python's headers are not here (Debian: apt-get install python3-dev)"
    return ""


def _compile(source: Path, work: Path) -> Path | None:
    """The folder that has the extensions, and nothing else."""
    environment = {**os.environ, "TANDEM_COMPILED": "0"}
    packages = Path(get_path("purelib"))
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        packages = work / "tools"
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", packages, "-c", HERE / "constraints.txt"]
        if subprocess.run([*pip, "mypy", "setuptools"], check=False).returncode:
            print("tandem: decides in Python, at half the speed: mypyc cannot be installed", file=sys.stderr)
            return None
        environment["PYTHONPATH"] = str(packages)
    sources = work / "sources"
    shutil.copytree(source / "serving", sources / "serving", ignore=shutil.ignore_patterns("__pycache__"))
    modules = sorted(path.relative_to(sources) for path in (sources / PACKAGE).glob("[!_]*.py"))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [sys.executable, "-m", "mypyc", "--python-version", version, "--cache-dir", work / "cache", *modules]
    done = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"tandem: mypyc failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}", file=sys.stderr)
        return None
    out = work / "out"
    out.mkdir()
    _tell_of_runtime(packages, out)
    for extension in [*sources.glob("*.so"), *(sources / PACKAGE).glob("*.so")]:
        target = out / extension.relative_to(sources)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(extension, target)
    return out


def _tell_of_runtime(packages: Path, out: Path) -> None:
    """Each extension contains a part of mypyc: its metadata and licences lie beside them as those of a distribution, for an SBOM."""
    for info in packages.glob("mypy-*.dist-info"):
        said = [info / "METADATA", *(file for file in info.glob("licenses/**/*") if file.is_file())]
        places = [file.relative_to(packages) for file in said]
        for file, place in zip(said, places, strict=True):
            (out / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, out / place)
        (out / info.name / "RECORD").write_text("".join(f"{place},,\n" for place in places), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
