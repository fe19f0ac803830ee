#!/usr/bin/env bash
# CPU against GPU on a machine with an NVIDIA card, for digits and for a net in which computing dominates (ResNet-50).
#
#   TANDEM_WHEELS=DIR loadtest/gpu/run.sh [--output DIR]
#   loadtest/gpu/run.sh --dry-run [--output DIR]     everything that needs no card, on the cpu pool, with short times
#
# TANDEM_WHEELS  folder with the wheels of loadtest/gpu/wheels.sh; nothing is fetched from a network
# PROJECT_PYTHON  an environment's python that has the project and its needs already; then none is made
# PYTHON         the python3 to make environments with (default python3)
# DIR is absolute, or counts from the root of the project; default loadtest/gpu/results/<date>-<card>.
# Exit code: 0 all ran, 1 a part failed or is missing (summary.md says which), 2 wrong use, 3 no environment.
set -uo pipefail
cd "$(dirname "$0")/../.."
dry=false output=""
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) dry=true ;;
    --output) output=${2:?--output needs a folder}; shift ;;
    *) sed -n 2,12p "$0" >&2; exit 2 ;;
  esac
  shift
done

work=$(mktemp -d "${TMPDIR:-/tmp}/tandem-gpu-XXXXXX")
server=""
finish() {
  if [ -n "$server" ]; then kill -TERM "$server" 2>/dev/null; wait "$server" 2>/dev/null; fi
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM
say() { printf '== %s\n' "$*"; }

card=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
has_card=true; [ -n "$card" ] || has_card=false
if ! $has_card && ! $dry; then echo "tandem: no NVIDIA card with a driver here (nvidia-smi finds none); --dry-run tries the rest" >&2; exit 2; fi
if $dry; then has_card=false; fi
name=$(printf '%s' "${card%%,*}" | tr -cs 'A-Za-z0-9' '-' | sed 's/^-//; s/-$//'); $dry && name=dry-run
output=${output:-loadtest/gpu/results/$(date +%Y-%m-%d)-$name}
mkdir -p "$output" || exit 2
done_parts=() missing_parts=()
ran() { done_parts+=("$1"); say "done: $1"; }
missing() { missing_parts+=("$1"); say "not done: $1"; }

# -- the project's environment ------------------------------------------------------------------------------------------
if [ -n "${PROJECT_PYTHON:-}" ]; then
  python=$PROJECT_PYTHON
elif [ -n "${TANDEM_WHEELS:-}" ]; then
  say "making the project's environment from $TANDEM_WHEELS"
  python=$work/venv/bin/python
  "${PYTHON:-python3}" -m venv "$work/venv" || exit 3
  PYTHON=$python loadtest/gpu/wheels.sh --requirements >"$work/requirements.txt" || exit 3
  "$python" -m pip install --quiet --no-index --find-links "$TANDEM_WHEELS" -r "$work/requirements.txt" || exit 3
  ran "project's environment from carried wheels"
elif [ -x .venv/bin/python ]; then
  python=.venv/bin/python
else
  echo "tandem: set TANDEM_WHEELS to a folder of wheels (loadtest/gpu/wheels.sh --download DIR), or PROJECT_PYTHON" >&2; exit 3
fi
[ -n "${TANDEM_WHEELS:-}" ] || missing "environment from carried wheels (TANDEM_WHEELS is not set; $python was used)"
tandem=("$python" -m serving)
export ORT_DISABLE_TELEMETRY=1 # ONNX Runtime 1.31 sends usage data to its maker unless told otherwise
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

# -- the models: digits as committed, ResNet-50 made here -----------------------------------------------------------------
say "making a repository with digits and ResNet-50"
mkdir "$work/models" && cp -r model_repo/digits-* "$work/models/"
if "$python" -m serving.export.resnet50 "$work/models" 2>"$work/resnet50.log"; then ran "ResNet-50 made"; else missing "ResNet-50: $(tail -n 1 "$work/resnet50.log")"; fi
grep -q 'is not made' "$work/resnet50.log" && missing "$(grep 'is not made' "$work/resnet50.log")"

# -- the pools ----------------------------------------------------------------------------------------------------------
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
start() { # pools...
  "${tandem[@]}" up --no-measure --model-repository "$work/models" --port "$port" "${@/#/--pool=}" >"$work/up.log" 2>&1 &
  server=$!
  for _ in $(seq 1 1800); do # 15 minutes: the first start makes Triton's environments, the GPU's from 2 GB of wheels
    if ! kill -0 "$server" 2>/dev/null; then wait "$server"; server=""; return 1; fi
    grep -q '^ready in ' "$work/up.log" && return 0 # every pool has loaded what it can, and the gateway has seen it
    sleep 0.5
  done
  kill -TERM "$server"; wait "$server"; server=""
  return 1
}
gpu_served=false
if $has_card; then
  if start cpu gpu; then gpu_served=true; ran "cpu and gpu pools behind the gateway on $card"
  else missing "gpu pool: $(grep -v '^ *$' "$work/up.log" | tail -n 1)"; cp "$work/up.log" "$output/gpu-pool-failed.log"; fi
else
  missing "gpu pool (no card was used)"
fi
if ! $gpu_served; then
  [ -z "$server" ] || { kill -TERM "$server"; wait "$server"; server=""; }
  if start cpu; then ran "cpu pool behind the gateway"; else missing "cpu pool: $(grep -v '^ *$' "$work/up.log" | tail -n 1)"; fi
fi

# -- the campaigns ------------------------------------------------------------------------------------------------------
for campaign in digits resnet50; do
  short=(); if $dry; then short=(--duration 1 --warmup 0.2 --repeats 1); fi
  if $dry && [ $campaign = resnet50 ]; then short=(--duration 4 --warmup 1 --repeats 1); fi # 16 users wait 0.6 s each on two free cores
  [ -n "$server" ] || { missing "campaign $campaign (no pool runs)"; continue; }
  say "campaign $campaign"
  if "${tandem[@]}" campaign run "loadtest/campaigns/$campaign.yaml" --url "$url" --output "$output/$campaign" "${short[@]}"
  then ran "campaign $campaign"
  elif $dry && [ -f "$output/$campaign/report.json" ]; then ran "campaign $campaign" # too short for this machine; it ran and reported
  else missing "campaign $campaign: an arm has no valid run (its report says why)"; fi
  rm -rf "$output/$campaign/runs" # the raw rows: tens of megabytes
  $gpu_served || missing "gpu arms of $campaign"
done
if [ -n "$server" ]; then kill -TERM "$server"; wait "$server"; server=""; fi

# -- without a server: the ceiling, and all there is if the gpu pool could not run ----------------------------------------
timing=(--seconds 3 --batch-size 1 --batch-size 8 --batch-size 32); if $dry; then timing=(--seconds 0.3 --batch-size 1); fi
in_process() { # python provider variant
  local file=$work/models/resnet50-$3/1/model.onnx
  [ -f "$file" ] || return 1
  "$1" serving/export/in_process.py "$file" --provider "$2" "${timing[@]}" \
    >"$work/in_process.json" 2>"$work/in_process.log" && mv "$work/in_process.json" "$output/in-process-$2-$3.json"
}
if in_process "$python" cpu fp32; then ran "ResNet-50 in process on cpu"; else missing "ResNet-50 in process on cpu: $(tail -n 1 "$work/in_process.log")"; fi
if $has_card; then
  cache=${TANDEM_CACHE:-${XDG_CACHE_HOME:+$XDG_CACHE_HOME/tandem}}
  for found in "${CUDA_PYTHON:-}" "${cache:-$HOME/.cache/tandem}"/environments/gpu-*/bin/python3; do
    [ -x "$found" ] && cuda=$found && break
  done
  for variant in fp32 fp16; do
    if in_process "${cuda:-$python}" cuda "$variant"; then ran "ResNet-50 $variant in process on cuda"
    else missing "ResNet-50 $variant in process on cuda: $(tail -n 1 "$work/in_process.log" 2>/dev/null)"; fi
  done
  $gpu_served || say "the gpu pool could not be served: what is told of the GPU was measured in process, without Triton and gateway"
else
  missing "ResNet-50 in process on cuda (no card was used)"
fi

# -- what it was ----------------------------------------------------------------------------------------------------------
{
  echo "# CPU against GPU, $(date +%Y-%m-%d)"
  echo
  if $dry; then echo "**Dry run: short times, no card used; not a measurement.**"; echo; fi
  if $has_card && ! $gpu_served; then echo "**The gpu pool could not be served. What is told of the GPU was measured in process, without Triton and gateway.**"; echo; fi
  echo "- Card: ${card:-none}"
  echo "- Processor: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores"
  echo "- System: $(uname -sr), $("$python" --version)"
  echo "- Tandem: $("$python" -c 'import serving; print(serving.__version__)')$(git rev-parse --short HEAD 2>/dev/null | sed 's/^/, commit /')"
  echo "- Wheels: $(if [ -n "${TANDEM_WHEELS:-}" ]; then find "$TANDEM_WHEELS" -name '*.whl' | wc -l; else echo none carried; fi)"
  echo; echo "Done:"; echo; for part in "${done_parts[@]}"; do echo "- $part"; done
  if [ ${#missing_parts[@]} -gt 0 ]; then echo; echo "Not done:"; echo; for part in "${missing_parts[@]}"; do echo "- $part"; done; fi
} >"$output/summary.md"
say "results: $output"
cat "$output/summary.md"
if $dry; then # what a dry run leaves out by intention is no failure
  for part in "ResNet-50 made" "cpu pool behind the gateway" "campaign digits" "campaign resnet50" "ResNet-50 in process on cpu"; do
    printf '%s\n' "${done_parts[@]}" | grep -qx "$part" || exit 1
  done
  exit 0
fi
[ ${#missing_parts[@]} -eq 0 ]
