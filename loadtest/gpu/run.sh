#!/usr/bin/env bash
# CPU against GPU on a machine with an NVIDIA card: served, for digits and for a net in which computing dominates (ResNet-50);
# in process, as a table of untrained nets, variants and engines; and the claims suite with the card.
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
    *) sed -n 2,13p "$0" >&2; exit 2 ;;
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
ours=.venv; [ -z "${PROJECT_PYTHON:-}" ] || ours="PROJECT_PYTHON's"
[ -n "${TANDEM_WHEELS:-}" ] || missing "environment from carried wheels (TANDEM_WHEELS is not set; $ours was used)"
tandem=("$python" -m serving)
export ORT_DISABLE_TELEMETRY=1 # ONNX Runtime 1.31 sends usage data to its maker unless told otherwise
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

# -- the models: digits as committed, the untrained nets made here -------------------------------------------------------
nets=(resnet50 efficientnet-b2 bert-base minilm mlp) variants=(fp32 fp16 int8)
if $dry; then nets=(resnet50) variants=(fp32 int8); fi
say "making a repository with digits and ResNet-50, and one with the other nets"
mkdir "$work/models" "$work/nets" && cp -r model_repo/digits-* "$work/models/"
for net in "${nets[@]}"; do # one by one: a BERT-base holds 2 GB in the making, and a net that fails leaves the others
  if "$python" -m serving.export.speed_nets "$work/nets" --net "$net" "${variants[@]/#/--variant=}" 2>"$work/nets.log"; then ran "untrained $net made"
  else missing "untrained $net: $(tail -n 1 "$work/nets.log")"; fi
done
cp -rl "$work"/nets/resnet50-* "$work/models/" 2>/dev/null

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

# -- without a server: every net, variant and engine; and all there is of the GPU if its pool could not run -----------------
engine_python() { # engine: its environment's, if that is made
  "$python" -c 'import sys; from serving.local import environments as e; f = e.find(e.ENGINES[sys.argv[1]]); print(f.python if f else "")' "$1"
}
if ! $dry && [ -n "${TANDEM_WHEELS:-}" ]; then "${tandem[@]}" environment openvino >/dev/null 2>"$work/openvino.log" || missing "OpenVINO: $(tail -n 1 "$work/openvino.log")"; fi
cpu=$(engine_python cpu) openvino=$(engine_python openvino) cuda=""
if $has_card; then cuda=${CUDA_PYTHON:-$(engine_python gpu)}; cuda=${cuda:-$python}; fi
timing=(); if $dry; then timing=(--seconds 0.1 --rounds 3 --batch-size 1); fi
engines=("--python=cpu=${cpu:-$python}" ${openvino:+"--python=openvino=$openvino"} ${cuda:+"--python=cuda=$cuda"})
say "timing ${nets[*]} in process"
if "$python" -m serving.export.speed_nets.compare "$work/nets" "${engines[@]}" "${timing[@]}" --output "$output/nets.json" 2>"$work/table.log"
then ran "untrained nets in process on cpu"; else missing "untrained nets in process: $(tail -n 1 "$work/table.log")"; fi
for engine in openvino cuda; do
  if ! grep -qs "| $engine [0-9]" "$output/nets.md"; then
    why="its environment is not made"; [ -z "${!engine}" ] || why="nets.md says why"
    [ $engine = openvino ] || $has_card || why="no card was used"
    missing "untrained nets in process on $engine ($why)"
  elif grep "^- .* on $engine: " "$output/nets.md" | grep -qv ' bf16 on '; then missing "some untrained nets in process on $engine (nets.md says which)"
  else ran "untrained nets in process on $engine"; fi # BF16 is left out where the processor has none
done
# -- the claims suite -----------------------------------------------------------------------------------------------------
which=(); if $dry; then which=(--quick --only served-gpu-path --only served-cpu-path); fi
say "putting claims to the test"
if "$python" -m loadtest.claims loadtest/campaigns/claims.yaml --nets "$work/nets" "${engines[@]}" "${which[@]}" --output "$output/claims"
then ran "claims suite"; else missing "claims suite: an experiment was not run (claims/claims.md says which)"; fi
# The aim, on the card; without one the same is rehearsed on the cpu pool.
aim=served-gpu-path; $has_card || aim=served-cpu-path
told=$("$python" -c 'import json, sys
found = {one["name"]: one for one in json.load(open(sys.argv[1]))["results"]}[sys.argv[2]]
print(found["numbers"] + ": " + found["answer"])' "$output/claims/claims.json" $aim) || told="not run"
say "served, of what ONNX Runtime does in process at the best batch size (aim: 80 %), $aim: $told"
$has_card || missing "claims about a GPU, and the aim of its served path (no card was used)"
$has_card && ! $gpu_served && say "the gpu pool could not be served: what is told of the GPU was measured in process, without Triton and gateway"

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
  if [ -n "$told" ]; then echo; echo "Served, of what ONNX Runtime does in process at the best batch size (aim: 80 %), $aim: $told"; fi
  if [ -f "$output/nets.md" ]; then echo; echo "## Nets, variants and engines"; echo; cat "$output/nets.md"; fi
  if [ -f "$output/claims/claims.md" ]; then echo; echo "## Claims"; echo; sed -e 1,2d -e 's/^## /### /' "$output/claims/claims.md"; fi
} >"$output/summary.md"
say "results: $output"
cat "$output/summary.md"
if $dry; then # what a dry run leaves out by intention is no failure
  for part in "untrained resnet50 made" "cpu pool behind the gateway" "campaign digits" "campaign resnet50" "untrained nets in process on cpu" "claims suite"; do
    printf '%s\n' "${done_parts[@]}" | grep -qx "$part" || exit 1
  done
  exit 0
fi
[ ${#missing_parts[@]} -eq 0 ]
