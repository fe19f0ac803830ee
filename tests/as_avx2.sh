#!/usr/bin/env bash
# Runs a command as on an x86-64 processor whose best instructions are AVX2: tests/as_avx2.sh .venv/bin/python -m pytest tests/export
# Whoever reads /proc/cpuinfo does not see AVX-512, VNNI, AMX and what follows them; oneDNN is told not to use them. ONNX Runtime asks the processor
# itself: with EMULATED=1 the command's first program runs on one without (qemu-x86_64-static, some ten times slower; its children do not).
set -euo pipefail
if [ -z "${HIDDEN-}" ]; then
  HIDDEN=$(mktemp)
  export HIDDEN ONEDNN_MAX_CPU_ISA=AVX2
  sed -E '/^flags/ s/ (avx512|avx_|amx|avx10)[a-z0-9_]*//g' /proc/cpuinfo > "$HIDDEN"
  trap 'rm -f "$HIDDEN"' EXIT
  # `unshare` gives this process a view of files of its own. Who is not root becomes it for that, and knows no other user there.
  if [ "$(id -u)" = 0 ]; then set -- --mount "$0" "$@"; else set -- --map-root-user --mount "$0" "$@"; fi
  unshare "$@"
else
  mount --bind "$HIDDEN" /proc/cpuinfo
  [ -z "${EMULATED-}" ] || set -- qemu-x86_64-static -cpu Haswell-v4 "$@"
  exec "$@"
fi
