"""Finds the CUDA libraries that ONNX Runtime needs in the PyTorch that is installed, so that 2 GB of wheels need not be carried.

    python3 libraries.py                  prints the folders for LD_LIBRARY_PATH, with colons; exit code 1 where it cannot be used, and why
    python3 libraries.py --load NAME …    loads each, and prints as JSON why it does not load, or null

Looks at files alone and imports nothing of PyTorch's. Rule: the standard library alone, because it runs with the machine's own Python.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# What libonnxruntime_providers_cuda.so 1.31.1 is linked with (readelf -d) beside the driver's libcuda.so.1, and cuDNN, which it loads for
# convolutions. The number behind `.so` is the version of each one's interface.
NEEDED = ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10", "libcudnn.so.9")
CUDA = 13
LEAST_TORCH = (2, 9)  # the first whose wheels are of CUDA 13


class CannotUse(Exception):
    """Why there are no libraries to be used."""


@dataclass(frozen=True, slots=True)
class Torch:
    """`folder`: its package; the wheels of its libraries lie beside it, in `nvidia/`."""

    folder: Path
    version: str
    cuda: str | None

    @classmethod
    def at(cls, folder: Path) -> Torch:
        """Raises CannotUse."""
        try:
            text = (folder / "version.py").read_text(encoding="utf-8")
        except OSError:
            raise CannotUse(f"{folder} tells no version of PyTorch") from None
        found = dict(re.findall(r"""^(__version__|cuda)(?:: [^=]+)? = ['"]([^'"]+)['"]""", text, re.MULTILINE))
        return cls(folder, found.get("__version__", "0"), found.get("cuda"))


def libraries(torch: Torch, needed: Iterable[str] = NEEDED) -> list[Path]:
    """The folders that hold them. Raises CannotUse."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", torch.version)[:2])
    if numbers < LEAST_TORCH:
        raise CannotUse(f"PyTorch {torch.version} is older than {'.'.join(map(str, LEAST_TORCH))}")
    if torch.cuda is None or int(torch.cuda.split(".")[0]) != CUDA:
        raise CannotUse(
            f"PyTorch {torch.version} is of {f'CUDA {torch.cuda}' if torch.cuda else 'no CUDA'}, want {CUDA}"
        )
    places = [torch.folder / "lib", *sorted(torch.folder.parent.glob("nvidia/*/lib"))]
    found = {name: next((place for place in places if (place / name).exists()), None) for name in needed}
    if lacking := [name for name, place in found.items() if place is None]:
        raise CannotUse(f"PyTorch {torch.version} with CUDA {torch.cuda} has no {', '.join(lacking)}")
    return list(dict.fromkeys(place for place in found.values() if place is not None))


def why_not(name: str) -> str | None:
    """Why the loader does not load it; None where it does."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return str(error)
    return None


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--load"]:
        print(json.dumps({name: why_not(name) for name in arguments[1:]}))
        return 0
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        print("tandem: no PyTorch is installed for this Python", file=sys.stderr)
        return 1
    try:
        torch = Torch.at(Path(next(iter(spec.submodule_search_locations))))
        print(":".join(map(str, libraries(torch))))
    except CannotUse as error:
        print(f"tandem: its libraries are not used: {error}", file=sys.stderr)
        return 1
    print(f"CUDA {torch.cuda} of PyTorch {torch.version} is used", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
