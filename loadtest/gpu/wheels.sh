#!/usr/bin/env bash
# The wheels to carry to a machine with a card and no network: Linux x86_64, Python 3.12.
#
#   loadtest/gpu/wheels.sh                 print their file names, one a line
#   loadtest/gpu/wheels.sh --download DIR  fetch them into DIR (about 2.5 GB: most of it is CUDA)
#   loadtest/gpu/wheels.sh --requirements  print what the project's own environment is made of there
#
# PYTHON chooses the interpreter that asks pip (default .venv/bin/python). Versions are those of constraints.txt and of
# serving/local/environments.py, so the list is exact for this checkout.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
mode=${1:-print}
case $mode in print | --requirements) ;; --download) target=${2:?name a folder} ;; *) sed -n 2,7p "$0"; exit 2 ;; esac

# The project with embedded Triton and load tests, and what serving/export/speed_nets needs; no torch.
requirements() {
  "$python" - <<'PYTHON'
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = project["optional-dependencies"]
wanted = project["dependencies"] + extras["local"] + extras["local-gpu"] + extras["loadtest"] + ["onnx", "onnxruntime", "sympy"]
print("\n".join(dict.fromkeys(name for name in wanted if not name.startswith("tandem-serving"))))
PYTHON
}
# Triton's environments and OpenVINO's are made of these and nothing else (pip --no-deps).
triton() { "$python" -c 'from serving.local.environments import ENGINES
print("\n".join(sorted({pin for engine in ENGINES.values() for pin in engine.pins})))'; }

if [ "$mode" = --requirements ]; then requirements; exit; fi
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
requirements >"$folder/project.txt"; triton >"$folder/triton.txt"
for_target=(--only-binary=:all: --implementation cp --python-version 3.12 --quiet --disable-pip-version-check)
for tag in 2_39 2_38 2_35 2_34 2_31 2_28 2_27 2_26 2_24 2_17 2_12 2_5; do for_target+=(--platform "manylinux_${tag}_x86_64"); done
for tag in 2014 2010 1; do for_target+=(--platform "manylinux${tag}_x86_64"); done
if [ "$mode" = --download ]; then
  "$python" -m pip download "${for_target[@]}" -c constraints.txt -r "$folder/project.txt" -d "$target"
  "$python" -m pip download "${for_target[@]}" --no-deps -r "$folder/triton.txt" -d "$target"
  exit
fi
resolve() { "$python" -m pip install --dry-run --ignore-installed --target "$folder/nowhere" --report "$1" "${for_target[@]}" "${@:2}"; }
resolve "$folder/project.json" -c constraints.txt -r "$folder/project.txt" >&2
resolve "$folder/triton.json" --no-deps -r "$folder/triton.txt" >&2
"$python" - "$folder"/*.json <<'PYTHON'
import json, sys, urllib.parse
names = {urllib.parse.unquote(part["download_info"]["url"].rsplit("/", 1)[1]) for path in sys.argv[1:] for part in json.load(open(path))["install"]}
print("\n".join(sorted(names, key=str.lower)))
PYTHON
