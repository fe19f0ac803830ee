#!/bin/sh
# Gives the second environment the first one's NumPy, where both have the same: 62 MB once.
#
#   share_numpy.sh ENVIRONMENT ENVIRONMENT
set -eu
from=$(echo "$1"/lib/python3.*/site-packages)
to=$(echo "$2"/lib/python3.*/site-packages)
for folder in "$from"/numpy "$from"/numpy.libs "$from"/numpy-*.dist-info; do
  name=$(basename "$folder")
  [ -d "$to/$name" ] || { echo "tandem: $2 has no $name, so the two differ and cannot share NumPy" >&2; exit 3; }
  rm -rf "${to:?}/$name"
  ln -s "$folder" "$to/$name"
done
