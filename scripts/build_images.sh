#!/bin/sh
# Builds Tandem's images with whatever is here, docker or buildah, and prints their sizes.
#
#   scripts/build_images.sh [gateway] [triton-cpu]      both by default
#
#   PYTHON_IMAGE=registry.example.com/python:3.11       another base than docker.io's, for instance one with your CA in it
#   PIP_CONFIG_FILE=$HOME/.config/pip/pip.conf          what pip must know of your network; never part of the image
#   BUILD_FLAGS="--isolation chroot --network host"     more flags for the builder; these let buildah run inside a container
set -eu
cd "$(dirname "$0")/.."

stop() { printf 'tandem: %s\n' "$1" >&2; exit 3; }

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' serving/__init__.py)
if docker info >/dev/null 2>&1; then builder="docker build"
elif command -v buildah >/dev/null 2>&1; then builder="buildah build --format docker --layers"
elif command -v docker >/dev/null 2>&1; then stop "docker is installed, but its daemon does not answer. Start it, or install buildah (Debian, Ubuntu: apt-get install buildah)."
else stop "building images needs docker or buildah, and neither is here. Install one of them (Debian, Ubuntu: apt-get install buildah)."
fi

[ $# -gt 0 ] || set -- gateway triton-cpu
for target in "$@"; do
  case $target in gateway | triton-cpu) ;; *) printf 'tandem: there is no image %s; there are gateway and triton-cpu\n' "$target" >&2; exit 2 ;; esac
  echo "tandem: building tandem-$target:$version with ${builder%% *}"
  # shellcheck disable=SC2086  # builder and BUILD_FLAGS are several words
  $builder ${BUILD_FLAGS:-} --target "$target" --tag "tandem-$target:$version" --build-arg "VERSION=$version" \
    ${PYTHON_IMAGE:+--build-arg "PYTHON_IMAGE=$PYTHON_IMAGE"} ${PIP_CONFIG_FILE:+--secret "id=pip,src=$PIP_CONFIG_FILE"} .
done
for target in "$@"; do
  case $builder in
    docker*) size=$(docker image ls --format '{{.Size}}' "tandem-$target:$version") ;;
    *) size=$(buildah images --format '{{.Size}}' "tandem-$target:$version") ;;
  esac
  echo "tandem: tandem-$target:$version, $(echo $size)"
done
