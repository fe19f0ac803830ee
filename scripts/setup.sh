#!/bin/sh
# Makes an environment: finds a Python 3.11 or 3.12 that can carry Tandem, or says what to install, and installs the project.
#
#   scripts/setup.sh ENVIRONMENT EXTRAS        e.g. scripts/setup.sh .venv quickstart
#   scripts/setup.sh ENVIRONMENT FOLDER/       what FOLDER/requirements.txt names, pinned by FOLDER/constraints.txt, and not the project
#
# PYTHON=/path/to/python3.12 chooses the interpreter; ROOM=enough leaves out the look for room on the disk. Needs nothing but that and a POSIX shell.
set -eu
cd "$(dirname "$0")/.."
environment=$1 extras=$2

stop() { printf 'tandem: %s\n' "$1" >&2; exit 3; }

[ "$(uname -s)" = Linux ] || stop "Tandem's set-up runs on Linux only (this is $(uname -s)). Serve from a Linux machine or container, or run 'python3 -m pip install .' in this folder and use 'tandem up --pool cpu=http://HOST:8000' with a Triton that runs elsewhere."
case $(uname -m) in x86_64 | aarch64) ;; *) stop "no Triton wheel exists for $(uname -m); x86_64 and aarch64 work." ;; esac

# Prints "VERSION|what is missing": an interpreter is usable when nothing is missing.
probe='
import ctypes, importlib.util, os, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
missing = []
if version not in ("3.11", "3.12"):
    missing.append("version")
if not all(importlib.util.find_spec(m) for m in ("venv", "ensurepip")):
    missing.append("venv")
name = sysconfig.get_config_var("INSTSONAME") or ""
name = name if ".so" in name else "libpython%s.so.1.0" % version
for candidate in (name, os.path.join(sysconfig.get_config_var("LIBDIR") or "", name)):
    try:
        ctypes.CDLL(candidate)
        break
    except OSError:
        pass
else:
    missing.append("libpython")
print(version + "|" + " ".join(missing))
'
chosen="" closest="" closest_missing="" closest_version=""
for candidate in ${PYTHON:-python3.12 python3.11 python3 python}; do
  answer=$("$candidate" -c "$probe" 2>/dev/null) || continue
  missing=${answer#*|}
  if [ -z "$missing" ]; then chosen=$candidate; break; fi
  case $missing in *version*) [ -n "$closest" ] && continue ;; esac
  closest=$candidate closest_missing=$missing closest_version=${answer%%|*}
done
if [ -z "$chosen" ]; then
  [ -z "${PYTHON:-}" ] || [ -n "$closest" ] || stop "PYTHON=$PYTHON does not run."
  [ -n "$closest" ] || stop "no Python found. Install Python 3.11 or 3.12 (Debian 12: apt-get install python3 python3-venv libpython3.11; Ubuntu 24.04: apt-get install python3 python3-venv libpython3.12t64), or name one with PYTHON=/path/to/python3.12."
  case $closest_missing in
    *version*) stop "$closest is Python $closest_version; Tandem needs 3.11 or 3.12. Install one of them, or name one with PYTHON=/path/to/python3.12." ;;
  esac
  packages="" what=""
  case $closest_missing in *venv*) packages="$packages python3-venv" what="the venv module" ;; esac
  case $closest_missing in *libpython*) packages="$packages libpython$closest_version" what="${what:+$what and }its shared library libpython$closest_version.so.1.0, which Triton loads" ;; esac
  stop "$closest (Python $closest_version) lacks $what. Install it (Debian, Ubuntu: apt-get install$packages; pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared), then run this again."
fi

# An environment whose interpreter has gone (an upgraded system, a moved clone) is made anew.
if [ -d "$environment" ] && ! "$environment/bin/python" -c 'import pip' 2>/dev/null; then rm -rf "$environment"; fi
if [ ! -d "$environment" ]; then
  echo "tandem: making $environment with $($chosen --version)"
  "$chosen" -m venv "$environment" || { rm -rf "$environment"; stop "$chosen could not make a virtual environment; see the lines above."; }
fi
mirror="Behind a proxy or a mirror, set it in pip's own configuration (pip config) and run this again."
# Python compiles what is imported when it is; to compile all that is installed takes half of the time.
install() { "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"; }
case $extras in */)
  echo "tandem: installing what ${extras}requirements.txt names into $environment (a minute or two the first time)"
  install -c "${extras}constraints.txt" -r "${extras}requirements.txt" || stop "pip could not install it; see the lines above. $mirror"
  exit 0
  ;;
esac
# PyTorch brings CUDA's libraries: 3.2 GB to download and 6.2 GB installed; the rest of these extras takes a little more. Says what lacks
# room, or "tight" where a second copy of the download, in pip's cache, would not fit.
room='
import os, shutil, sys, tempfile
from importlib.util import find_spec
needs, lacks, is_tight = {}, [], False
if not find_spec("torch"):
    for folder, gb in ((sys.argv[1], 7.0), (tempfile.gettempdir(), 3.5)):
        needs.setdefault(os.stat(folder).st_dev, []).append((folder, gb))
for parts in needs.values():
    gb, where = sum(gb for _, gb in parts), " and ".join(folder for folder, _ in parts)
    free_gb = shutil.disk_usage(parts[0][0]).free / 1e9
    if free_gb < gb:
        lacks.append(f"{gb:g} GB in {where}, where {free_gb:.1f} GB are free")
    is_tight = is_tight or free_gb < gb + 3.5
if lacks:
    print("PyTorch and the libraries of CUDA need", ", and ".join(lacks))
elif is_tight:
    print("tight")
'
cache=""
case ,$extras, in *,export,*)
  [ "${ROOM:-}" = enough ] && lacks="" || lacks=$("$environment/bin/python" -c "$room" "$environment" 2>/dev/null) || lacks=""
  case $lacks in
    "") ;;
    tight) cache=--no-cache-dir ;;
    *) stop "$lacks. Make room, or set TMPDIR to another disk for the 3.5 GB that are downloaded; ROOM=enough goes on all the same." ;;
  esac
  mirror="Where they say 'No space left on device': it needs 7 GB in $environment, and meanwhile 3.5 GB in ${TMPDIR:-/tmp}. $mirror"
  ;;
esac
echo "tandem: installing the project with [$extras] into $environment (a few minutes the first time)"
# What builds the project comes first: left to itself, pip fetches it unpinned.
install -c constraints.txt hatchling editables && install -c constraints.txt $cache --no-build-isolation -e ".[$extras]" ||
  stop "pip could not install the project; see the lines above. $mirror"
