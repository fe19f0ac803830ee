"""Which function does `--metric FILE.py:NAME` mean, and may it run? Nothing of it is imported here (`gates/custom.py` does that)."""

from __future__ import annotations

from pathlib import Path

from serving.errors import UserError


def check_metric(spec: str, *, is_trusted: bool) -> tuple[Path, str]:
    """The file and the function's name. Raises UserError where there is no such file, or nobody trusts it."""
    file, colon, name = spec.rpartition(":")
    path = Path(file)
    if not colon or not name.isidentifier() or path.suffix != ".py":
        raise UserError(f"--metric {spec}: want FILE.py:NAME")
    if not path.is_file():
        raise UserError(f"--metric {spec}: {path} is not there")
    if not is_trusted:
        raise UserError(f"--metric {spec} runs the code in {path}; read it, then say --trust")
    return path, name
