#!/usr/bin/env bash
# CPU against GPU on a machine with an NVIDIA card and no network: stages that leave results at once and continue each other.
#
#   loadtest/gpu/run.sh [STAGE…] [--minutes 9] [--output DIR]     sanity, table, served, bridge, conclusions; default: all
#   loadtest/gpu/run.sh table --only WORDS                        units of a stage whose names have these words
#   loadtest/gpu/run.sh --stand-in                                a rehearsal without a card, with short times
#
# What is needed beside this checkout lies in build/gpu/files, where loadtest/gpu/unpack.sh puts it; without it .venv is used.
# PROJECT_PYTHON  an environment's python that has the project and its needs already; then none is made
# PYTHON          the python3 to make environments with, whose PyTorch lends CUDA's libraries (default python3)
# Exit code: 0 all is done, 1 something failed or was not reached (the same command goes on), 2 wrong use, 3 no environment.
set -uo pipefail
cd "$(dirname "$0")/../.."
base=${PYTHON:-python3} files=$PWD/build/gpu/files venv=$PWD/build/gpu/venv
for word in "$@"; do case $word in -h | --help) sed -n 2,11p "$0"; exit 0 ;; esac; done

# CUDA, cuBLAS and cuDNN: PyTorch's, where it has the right ones; else from carried wheels.
folders=""
if folders=$("$base" loadtest/gpu/libraries.py); then export TANDEM_SYSTEM_CUDA=1; fi

if [ -n "${PROJECT_PYTHON:-}" ]; then
  python=$PROJECT_PYTHON
elif [ -f "$files/engine.txt" ]; then
  python=$venv/bin/python
  if [ ! -e "$venv/complete" ]; then
    echo "making the project's environment from $files" >&2
    rm -rf "$venv"
    "$base" -m venv "$venv" || exit 3
    "$python" -m pip install --quiet --disable-pip-version-check --no-index --find-links "$files" --no-deps -r "$files/engine.txt" || exit 3
    "$python" -m pip install --quiet --disable-pip-version-check --no-index --find-links "$files" -r "$files/requirements.txt" || exit 3
    if [ -f "$files/compiled.tar.gz" ]; then tar -C "$venv" -xzf "$files/compiled.tar.gz"; fi
    touch "$venv/complete"
  fi
  PIP_NO_INDEX=1 PIP_FIND_LINKS=$files "$python" scripts/compile.py # nothing where it is compiled; else it compiles, or says why not
  export TANDEM_WHEELS=$files
elif [ -x .venv/bin/python ]; then
  python=$PWD/.venv/bin/python
else
  echo "tandem: join the parts of loadtest/gpu/pack.sh (loadtest/gpu/unpack.sh PARTS), or set PROJECT_PYTHON" >&2
  exit 3
fi
for folder in "$venv"/lib/python3*/site-packages/nvidia/*/lib; do [ ! -d "$folder" ] || folders=${folders:+$folders:}$folder; done
[ -z "$folders" ] || export LD_LIBRARY_PATH=$folders${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export ORT_DISABLE_TELEMETRY=1 # ONNX Runtime 1.31 sends usage data to its maker unless told otherwise
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
exec "$python" -m loadtest.gpu "$@"
