#!/bin/sh
# Makes a base image of Debian 12 and its own Python 3.11, for machines that reach Debian's packages and no container registry.
#
#   scripts/images/base.sh          prints the image's name, which build_images.sh takes as PYTHON_IMAGE; needs root, debootstrap, buildah
#   scripts/images/base.sh FOLDER   no image: unpacks its root file system there; needs root and debootstrap
#   DEBIAN_MIRROR=URL DEBIAN_SECURITY_MIRROR=URL    Debian's packages from there, not from where this machine's apt has them
#
# The root file system is kept under ~/.cache/tandem/image-base (TANDEM_CACHE moves it), named by this file's content: change what is installed
# and another is made. It has the security updates of the day it was made on: delete that folder to renew it.
# It stands in for docker.io's python:3.11-slim-bookworm: the same Debian, Python at the same place, nothing of documentation but licences.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

stop() { printf 'tandem: %s\n' "$1" >&2; exit 3; }

[ "$(id -u)" = 0 ] || stop "making a base image needs root, because debootstrap does"
folder=${1:-} tools=debootstrap
[ -n "$folder" ] || tools="buildah debootstrap"
for tool in $tools; do
  command -v "$tool" > /dev/null || stop "making a base image needs $tool (Debian, Ubuntu: apt-get install buildah debootstrap)"
done

# libpython: Triton's stub loads it. venv: the images' environments are made with it. The CA certificates are Debian's and this machine's.
packages=python3,python3-venv,libpython3.11,ca-certificates
key=$(sha256sum "$here/base.sh" | cut -c1-12)
image=localhost/tandem-python:3.11-bookworm-$key
cache=${TANDEM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem}/image-base
tar=$cache/$key.tar

# Where Debian comes from: as told, or as this machine's apt has it. mirror SUITE TOLD VARIABLE
mirror() {
  found=${2:-$(apt-get indextargets --format '$(REPO_URI)' "Release: $1" 'Created-By: Packages' 2> /dev/null | head -n 1)}
  [ -n "$found" ] || stop "this machine's apt has no source for Debian's $1; set $3 to the URL of a mirror that has it"
  echo "$found"
}

make_tar() {
  debian=$(mirror bookworm "${DEBIAN_MIRROR:-}" DEBIAN_MIRROR)
  security=$(mirror bookworm-security "${DEBIAN_SECURITY_MIRROR:-}" DEBIAN_SECURITY_MIRROR)
  root=$(mktemp -d "$cache/root.XXXXXX")
  trap 'rm -rf "$root" "$tar.new"' EXIT
  debootstrap --variant=minbase --include="$packages" bookworm "$root" "$debian" > "$cache/$key.log" 2>&1 ||
    stop "debootstrap failed: $(tail -n 1 "$cache/$key.log") (log: $cache/$key.log)"
  printf 'deb %s bookworm main\ndeb %s bookworm-security main\n' "$debian" "$security" > "$root/etc/apt/sources.list"
  env -u TMPDIR chroot "$root" sh -c 'apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq --yes upgrade && apt-get clean' >> "$cache/$key.log" 2>&1 ||
    stop "Debian's security updates did not install: $(tail -n 1 "$cache/$key.log") (log: $cache/$key.log)"
  ln -s /usr/bin/python3.11 "$root/usr/local/bin/python3.11"
  ln -s python3.11 "$root/usr/local/bin/python3"
  ln -s python3.11 "$root/usr/local/bin/python"
  # What Debian's slim images leave out too; copyright files stay.
  find "$root/usr/share/doc" -type f ! -name copyright -delete
  rm -rf "$root"/usr/share/man/* "$root"/usr/share/info/* "$root"/usr/share/locale/* "$root"/usr/share/lintian \
    "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/* "$root"/var/cache/debconf/*-old \
    "$root"/var/cache/ldconfig/* "$root"/var/log/*.log "$root"/var/log/apt "$root"/dev/* "$root"/etc/resolv.conf "$root"/etc/hostname
  # So that pip trusts, during a build, what this machine trusts: a mirror behind a CA of its own needs it.
  cat /etc/ssl/certs/ca-certificates.crt > "$root/etc/ssl/certs/ca-certificates.crt"
  tar -C "$root" --numeric-owner --sort=name -cf "$tar.new" .
  mv "$tar.new" "$tar"
  rm -rf "$root"
  trap - EXIT
}

mkdir -p "$cache"
[ -f "$tar" ] || make_tar >&2
if [ -n "$folder" ]; then
  mkdir -p "$folder"
  tar -C "$folder" --numeric-owner -xpf "$tar"
  exit 0
fi
if ! buildah images --quiet "$image" > /dev/null 2>&1; then
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$tar" / > /dev/null
  buildah config --env PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin --env LANG=C.UTF-8 --cmd python3 "$container"
  buildah commit --quiet --rm --format docker "$container" "$image" > /dev/null
fi
echo "$image"
