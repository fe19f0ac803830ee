#!/bin/sh
# Builds Tandem's images with whatever is here, docker or buildah, and prints their sizes beside the aims.
#
#   scripts/build_images.sh [gateway] [triton-cpu] [triton-cpu-openvino] [triton-gpu] [loadtest]      all by default
#   scripts/build_images.sh --sizes [IMAGE…]            builds nothing, prints what is there
#
#   PYTHON_IMAGE=registry.example.com/python:3.11       another base than docker.io's, for instance one with your CA in it
#   PYTHON_IMAGE=$(scripts/images/base.sh)              one made here from Debian's packages, where no registry can be reached
#   PIP_CONFIG_FILE=$HOME/.config/pip/pip.conf          what pip must know of your network; never part of the image
#   BUILDER=buildah                                     not docker, where both are here
#   ARCH=arm64                                          for another processor than this one, where it can be imitated; tagged …:VERSION-arm64
#   BUILD_FLAGS="--isolation chroot --network host"     more flags for the builder; these let buildah run inside a container
set -eu
cd "$(dirname "$0")/.."
all="gateway triton-cpu triton-cpu-openvino triton-gpu loadtest"

stop() { printf 'tandem: %s\n' "$1" >&2; exit 3; }

# Uncompressed, in MB (10^6 bytes); aims, of which docs/images.md says how far they were reached.
aim() { case $1 in gateway) echo 300 ;; triton-cpu) echo 400 ;; triton-gpu) echo 2500 ;; esac; }

size_bytes() {
  case $builder in
    docker*) docker image inspect --format '{{.Size}}' "$1" ;;
    # buildah rounds: "381 MB", "1.2 GB"
    *) buildah images --format '{{.Size}}' "$1" | awk '{ printf "%.0f", $1 * ($2 == "GB" ? 1e9 : $2 == "MB" ? 1e6 : $2 == "KB" ? 1e3 : 1) }' ;;
  esac 2> /dev/null || true
}

print_size() {
  bytes=$(size_bytes "tandem-$1:$version")
  [ -n "$bytes" ] || { echo "tandem: tandem-$1:$version is not built"; return; }
  mb=$(( (bytes + 500000) / 1000000 )) limit=$(aim "$1") words="no aim"
  if [ -n "$limit" ]; then
    if [ "$mb" -le "$limit" ]; then words="aim $limit MB, reached"; else words="aim $limit MB, MISSED by $((mb - limit)) MB"; fi
  fi
  echo "tandem: tandem-$1:$version, $mb MB ($words)"
}

# buildah 1.28 never takes a RUN with a mount from its cache, so the layers of steps would fill the disk for nothing.
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' serving/__init__.py)
if [ "${BUILDER:-docker}" = docker ] && docker info >/dev/null 2>&1; then builder="docker build"
elif command -v buildah >/dev/null 2>&1; then builder="buildah build --format docker --layers=false --pull=false"
elif command -v docker >/dev/null 2>&1; then stop "docker is installed, but its daemon does not answer. Start it, or install buildah (Debian, Ubuntu: apt-get install buildah)."
else stop "building images needs docker or buildah, and neither is here. Install one of them (Debian, Ubuntu: apt-get install buildah)."
fi

build=yes
[ "${1:-}" != --sizes ] || { build=no; shift; }
# shellcheck disable=SC2086  # the names are several words
[ $# -gt 0 ] || set -- $all
for target in "$@"; do
  case " $all " in *" $target "*) ;; *) printf 'tandem: there is no image %s; there are %s\n' "$target" "$all" >&2; exit 2 ;; esac
done
for target in "$@"; do
  [ $build = yes ] || continue
  echo "tandem: building tandem-$target:$version with ${builder%% *}"
  # shellcheck disable=SC2086  # builder and BUILD_FLAGS are several words
  $builder ${BUILD_FLAGS:-} ${ARCH:+--platform "linux/$ARCH"} --target "$target" --tag "tandem-$target:$version${ARCH:+-$ARCH}" --build-arg "VERSION=$version" \
    ${PYTHON_IMAGE:+--build-arg "PYTHON_IMAGE=$PYTHON_IMAGE"} ${PIP_CONFIG_FILE:+--secret "id=pip,src=$PIP_CONFIG_FILE"} .
done
for target in "$@"; do print_size "$target"; done
