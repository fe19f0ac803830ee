"""The import statements of a source file, found by their words: parsing hundreds of files whole takes seconds of a processor.

Rule: what this finds is what a parser finds, which tests/test_architecture.py says of every file of ours with THOROUGH=1. A file
with a line that begins like an import and was not taken for one is parsed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

NAME = r"[\w.]+(?: as \w+)?"
STATEMENT = re.compile(rf"^ *((?:from [\w.]+ )?import (?:\([^()]*\)|{NAME}(?:, {NAME})*)) *(?:#.*)?$", re.MULTILINE)
LIKE_ONE = re.compile(r"^\s*(?:import|from)\s", re.MULTILINE)
STRINGS = re.compile(r'""".*?"""', re.DOTALL)  # prose, and scripts for other processes
TYPES = re.compile(r"^( *)if TYPE_CHECKING:.*\n(?:\1 +\S.*\n|\n)+", re.MULTILINE)


def import_statements(source: str) -> Iterator[ast.Import | ast.ImportFrom]:
    """Wherever they stand."""
    found = [one[1] for one in STATEMENT.finditer(STRINGS.sub('""', source))]
    is_sure = len(found) == len(LIKE_ONE.findall(source))
    for node in ast.walk(ast.parse("\n".join(found) if is_sure else source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def without_types(source: str) -> str:
    """Without what is imported for types only."""
    return TYPES.sub("", source)
