#!/usr/bin/env bash
# Joins the parts of loadtest/gpu/pack.sh that have come, and says what is missing for which stages; run it again when more have.
#
#   loadtest/gpu/unpack.sh PARTS [FILES]     FILES: default build/gpu/files, where run.sh looks
#
# Exit code: 0 all is there; 1 something is missing, and what is whole can be used; 2 wrong use.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] && [ $# -le 2 ] || { sed -n 4,6p "$0" >&2; exit 2; }
exec "${PYTHON:-python3}" "$here/parts.py" join "$1" "${2:-$here/../../build/gpu/files}"
