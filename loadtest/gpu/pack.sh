#!/usr/bin/env bash
# Packs what a machine with a card and no network needs beside this checkout: parts of at most 60 MB, with digests.
#
#   loadtest/gpu/pack.sh PARTS [--python 3.12] [--mb 60] [--with-cuda] [--architecture 90] [--stand-in]
#
# PARTS         a new folder; carry it in any order, index.json first, and join it there with loadtest/gpu/unpack.sh
# --python      the version of Python on that machine (Linux x86_64)
# --with-cuda   with CUDA, cuBLAS and cuDNN (2 GB), for a machine without PyTorch 2.9 or later for CUDA 13
# --architecture  of that machine's card (90 is compute capability 9.0: H100, H200): ONNX Runtime without its code for others, and all
#               wheels compressed further (5 minutes of a core): 208 MB in place of 444 MB for an H200; the results will say so
# --stand-in    ONNX Runtime for processors in place of the GPU's: what `run.sh --stand-in` rehearses with
# PYTHON chooses the interpreter that asks pip (default .venv/bin/python). Versions are those of constraints.txt and of
# serving/local/environments.py, so the set is exact for this checkout.
set -euo pipefail
cd "$(dirname "$0")/../.."
usage() { sed -n 4,13p "$0" >&2; exit 2; }
parts="" version=3.12 mb=60 cuda=false stand_in=false architecture=""
while [ $# -gt 0 ]; do
  case $1 in
    --python) version=${2:?--python needs a version}; shift ;;
    --mb) mb=${2:?--mb needs a number}; shift ;;
    --with-cuda) cuda=true ;;
    --architecture) architecture=${2:?--architecture needs a number, as 90}; shift ;;
    --stand-in) stand_in=true ;;
    -*) usage ;;
    *) [ -z "$parts" ] || usage; parts=$1 ;;
  esac
  shift
done
[ -n "$parts" ] || usage
python=${PYTHON:-.venv/bin/python}
work=$(mktemp -d "${TMPDIR:-/tmp}/tandem-pack-XXXXXX"); trap 'rm -rf "$work"' EXIT

# pip asks this Python which requirements hold: what an older patch of that version needs beside (redis before 3.11.3) is named.
# Groups in the order in which they are needed. What stages 1 and 2 import, and nothing of servers, comes first.
measure=$work/files/1-measure serve=$work/files/2-serve
mkdir -p "$measure" "$serve"
"$python" - "$work" $cuda $stand_in <<'PYTHON'
import sys, tomllib
from pathlib import Path
from serving.local.environments import CUDA_PINS, ENGINES
folder, cuda, stand_in = Path(sys.argv[1]), sys.argv[2] == "true", sys.argv[3] == "true"
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = project["optional-dependencies"]
engine = next(pin for pin in ENGINES["cpu" if stand_in else "gpu"].pins if pin.startswith("onnxruntime"))
wanted = project["dependencies"] + extras["local"] + extras["local-gpu"] + extras["loadtest"] + ["onnx", "sympy"]
names = dict.fromkeys(name for name in wanted if not name.startswith("tandem-serving"))
(folder / "project.txt").write_text("\n".join([*names, "ml_dtypes", "flatbuffers", "packaging", "protobuf", "async-timeout"]))
(folder / "engine.txt").write_text("\n".join([engine, *(CUDA_PINS if cuda else ())]))
pins = {pin for name in (("cpu",) if stand_in else ("cpu", "gpu")) for pin in ENGINES[name].pins}
(folder / "triton.txt").write_text("\n".join(sorted(pins - {engine, *CUDA_PINS})))
PYTHON
tags=()
for tag in 2_39 2_38 2_36 2_35 2_34 2_31 2_28 2_27 2_26 2_24 2_17 2_12 2_5; do tags+=(--platform "manylinux_${tag}_x86_64"); done
for tag in 2014 2010 1; do tags+=(--platform "manylinux${tag}_x86_64"); done
fetch() { # folder, pip's words
  "$python" -m pip download --only-binary=:all: --implementation cp --python-version "$version" "${tags[@]}" \
    --quiet --disable-pip-version-check -d "$1" "${@:2}"
}
fetch "$measure" -c constraints.txt -r "$work/project.txt"
fetch "$measure" --no-deps -r "$work/engine.txt"
fetch "$serve" --no-deps -r "$work/triton.txt"
cp "$work/project.txt" "$measure/requirements.txt"
cat "$work/engine.txt" >"$measure/engine.txt"
# The boosted trees are trained here: scikit-learn, which trains them, is larger than all our small wheels.
"$python" - "$measure" <<'PYTHON' || echo "tandem: without boosted trees: they need scikit-learn and skl2onnx here" >&2
import sys, numpy
from pathlib import Path
from serving.export import speed_trees
folder = Path(sys.argv[1])
trees = speed_trees.write(folder)
numpy.savez(folder / "trees.npz", **trees.held_out)
PYTHON
# Scheduling as machine code is for one version of Python. Where this is another one, the tools are carried, and run.sh compiles there if it
# finds a C compiler.
if [ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = "$version" ]; then
  "$python" scripts/compile.py --prefix "$work/compiled"
  ! [ -d "$work/compiled/lib" ] || tar -C "$work/compiled" -czf "$measure/compiled.tar.gz" lib
else
  fetch "$serve" -c constraints.txt mypy setuptools
fi
[ -e "$measure/compiled.tar.gz" ] || echo "tandem: scheduling is not carried as machine code; run.sh says there whether it was compiled" >&2
for file in "$serve"/*; do [ ! -e "$measure/${file##*/}" ] || rm "$file"; done
if [ -n "$architecture" ]; then
  "$python" loadtest/gpu/wheels.py "$work/files" --architecture "$architecture"
  echo "ONNX Runtime was carried without its code for other cards than those of architecture $architecture." >"$measure/notes.txt"
fi
"$python" loadtest/gpu/parts.py cut "$work/files" "$parts" --mb "$mb"
