"""Lines of code of each room and of each folder of tests, without docstrings, comments, blank lines and imports.

``python tools/code_lines.py [CHECKOUT]``: a table of the files and lines below ``src/coterie`` and ``tests``.
"""

import ast
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import TypeGuard

SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(file: Path) -> int:
    """The number of code lines; a string that is a whole statement counts as a docstring."""
    with tokenize.open(file) as source:
        text = source.read()
    lines = set[int]()
    for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        if token.type not in SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def _is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def table(title: str, folder: Path) -> str:
    files, lines = Counter[str](), Counter[str]()
    for file in sorted(folder.rglob("*.py")):
        first = file.relative_to(folder).parts[0]
        name = first if (folder / first).is_dir() else "."
        files[name] += 1
        lines[name] += code_lines(file)
    rows = [f"| {name} | {files[name]} | {lines[name]} |\n" for name in sorted(files)]
    head = f"| {title} | files | code lines |\n|---|---:|---:|\n"
    return f"{head}{''.join(rows)}| all | {files.total()} | {lines.total()} |\n"


if __name__ == "__main__":
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    sys.stdout.write(f"{table('room', root / 'src' / 'coterie')}\n{table('tests', root / 'tests')}")
