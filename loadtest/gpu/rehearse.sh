#!/usr/bin/env bash
# Rehearses a day with a card without one: packs, carries the parts into an empty Debian 12 without a network, joins, measures, is cut off,
# goes on. The CPU provider stands in for CUDA's.
#
#   loadtest/gpu/rehearse.sh      needs root, debootstrap and .venv; minutes. Exit code 0: everything happened as it should
set -euo pipefail
cd "$(dirname "$0")/../.."
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || { echo "tandem: this needs root and debootstrap" >&2; exit 3; }
work=$(mktemp -d "${TMPDIR:-/tmp}/tandem-card-XXXXXX"); trap 'rm -rf "$work"' EXIT
machine=$work/machine
stop() { echo "tandem: $1" >&2; exit 1; }
say() { printf -- '-- %s s: %s\n' "$SECONDS" "$1"; }

say "packing"
loadtest/gpu/pack.sh "$work/parts" --python 3.11 --mb 40 --stand-in
find "$work/parts" -size +40M | grep -q . && stop "a part is larger than it may be"

say "an empty machine with this checkout"
scripts/images/base.sh "$machine"
mkdir -p "$machine/srv/tandem" "$machine/srv/come"
{ git ls-files; git ls-files --others --exclude-standard; } | sort -u | while read -r file; do [ ! -e "$file" ] || echo "$file"; done |
  tar -cf - -T - | tar -C "$machine/srv/tandem" -xf -
there() { # a command in the machine, which has no network but loopback
  unshare --mount --net --pid --fork --kill-child sh -c '
    mount --make-rprivate /; mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; mount --rbind /sys "$1/sys"
    ip link set lo up 2>/dev/null || python3 -c "import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack(\"16sh\", b\"lo\", 0x49))"
    exec chroot "$1" env -i HOME=/srv PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 sh -c "cd /srv/tandem && $2"' there "$machine" "$1"
}

say "parts come one by one, the last first, one of them damaged"
cp "$work/parts/index.json" "$machine/srv/come/"
damaged=$(find "$work/parts" -name 'part-*' | sort | head -n 1)
for part in $(find "$work/parts" -name 'part-*' | sort -r); do
  cp "$part" "$machine/srv/come/"
  [ "$part" != "$damaged" ] || printf x | dd of="$machine/srv/come/${part##*/}" conv=notrunc status=none
  if there "loadtest/gpu/unpack.sh ../come" >"$work/unpack.log"; then stop "a damaged set was taken for whole"; fi
done
grep -q "part-001 is damaged" "$work/unpack.log" || stop "the damaged part was not named"
if there "loadtest/gpu/run.sh --stand-in sanity" 2>"$work/early.log"; then stop "it ran without its files"; fi
cp "$damaged" "$machine/srv/come/"
there "loadtest/gpu/unpack.sh ../come" || stop "what has come is not whole"

say "the first stage, then a run that is cut off"
there "loadtest/gpu/run.sh --stand-in sanity" || stop "the first stage failed"
there "timeout -s KILL ${CUT_OFF_S:-45} loadtest/gpu/run.sh --stand-in table served" && stop "it was not cut off" || true
report=$machine/srv/tandem/loadtest/gpu/results/stand-in
[ -s "$report/report.html" ] && [ -s "$report/gpu.json" ] || stop "the run that was cut off left no report"
cp "$report/ledger.jsonl" "$work/before.jsonl"

say "the next run goes on"
there "loadtest/gpu/run.sh --stand-in" || stop "a stage failed or was not reached"
head -c "$(wc -c <"$work/before.jsonl")" "$report/ledger.jsonl" | cmp -s - "$work/before.jsonl" || stop "what was measured before was measured again"
grep -q '"unit": "the card wakes, and is killed", "outcome": "done"' "$report/ledger.jsonl" || stop "the bridge was not crossed"
if [ -e "$machine/srv/tandem/build/gpu/files/compiled.tar.gz" ]; then
  grep -q '"arm": "gateway, not compiled"' "$report/ledger.jsonl" || stop "what is compiled was carried, and not used"
fi
say "all of it happened as it should"
