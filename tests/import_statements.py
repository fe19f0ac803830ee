"""The import statements of a source file, found by their words: parsing hundreds of files whole takes seconds of a processor.

Rule: what this finds is what a parser finds, which tests/test_architecture.py says of every file of ours with THOROUGH=1.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

NAME = r"[\w.]+(?: as \w+)?"
STATEMENT = re.compile(rf"^ *((?:from [\w.]+ )?import (?:\([^)]*\)|{NAME}(?:, {NAME})*)) *(?:#.*)?$", re.MULTILINE)
STRINGS = re.compile(r'""".*?"""', re.DOTALL)  # prose, and scripts for other processes
TYPES = re.compile(r"^( *)if TYPE_CHECKING:.*\n(?:\1 +\S.*\n|\n)+", re.MULTILINE)


def import_statements(source: str) -> Iterator[ast.Import | ast.ImportFrom]:
    """Wherever they stand."""
    for statement in ast.parse("\n".join(found[1] for found in STATEMENT.finditer(STRINGS.sub('""', source)))).body:
        assert isinstance(statement, ast.Import | ast.ImportFrom)
        yield statement


def without_types(source: str) -> str:
    """Without what is imported for types only."""
    return TYPES.sub("", source)
