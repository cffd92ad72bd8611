"""Every name of ours in a docstring exists: a name that was changed is changed in the docstrings that contain it.

Names are quoted with a role (``:func:`name```), in double backquotes (``name``) or in backquotes (`name`).
"""

import ast
import re
from collections.abc import Iterator, Set
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "benchmarks")
_QUOTED = re.compile(r"(?::(?P<role>\w+):)?(?P<quotes>`{1,2})(?P<name>[A-Za-z_][\w.]*)`{1,2}")
_NAME_FIELDS = ("id", "attr", "name", "arg", "asname", "module")
Documented: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

OTHERS_NAMES = {
    "AC0",
    "AT1",
    "exec",
    "getpeercert",
    "hashlib",
    "Infinity",
    "KEY_CONVERTER",
    "Origin",
    "pg_terminate_backend",
    "PreparingRebalance",
    "putSafe",
    "VALUE_CONVERTER",
    "_ms",
}
"""Names of other programs, and parts of names, that no code of ours contains."""


def names_in(tree: ast.AST) -> set[str]:
    """The identifiers in ``tree``, the words of its short strings, and the words of its modules' names."""
    found: set[str] = set()
    for node in ast.walk(tree):
        for field in _NAME_FIELDS:
            if isinstance(value := getattr(node, field, None), str):
                found |= set(value.split("."))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 60:
            found |= {node.value, *re.findall(r"\w+", node.value)}
    return found


def docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings of a module, of its classes, functions, fields and constants."""
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def missing_names(text: str, in_module: Set[str], anywhere: Set[str]) -> Iterator[str]:
    """The quoted names in ``text`` that do not exist: anywhere, or, with a role and without a dot, in the module."""
    for quoted in _QUOTED.finditer(text):
        first, last = quoted["name"].split(".")[0], quoted["name"].split(".")[-1]
        if last in OTHERS_NAMES or quoted["name"] in anywhere:
            continue
        is_local = quoted["role"] is not None and "." not in quoted["name"]
        if last not in (in_module if is_local else anywhere) and not (first in in_module and last in anywhere):
            yield quoted[0]


def test_every_name_in_a_docstring_exists() -> None:
    modules = {
        path: ast.parse(path.read_text()) for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))
    }
    names = {path: names_in(module) | {path.stem, path.name} for path, module in modules.items()}
    anywhere = set().union(*names.values(), (path.parent.name for path in modules))
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, module in modules.items()
        for line, text in docstrings(module)
        for name in missing_names(text, names[path], anywhere)
    ]
    assert found == []


def test_a_name_that_does_not_exist_is_found() -> None:
    text = "See :func:`gone`, ``old_name``, `module.lost` and :meth:`Kept.moved`; ``kept`` stays."
    assert list(missing_names(text, {"kept", "Kept"}, {"kept", "Kept", "module"})) == [
        ":func:`gone`",
        "``old_name``",
        "`module.lost`",
        ":meth:`Kept.moved`",
    ]


def names_in_first_column(page: str) -> Iterator[tuple[int, str]]:
    """Line and name for each name in backquotes in the first column of the tables of ``page``, in parts at its dots."""
    for line, text in enumerate(page.splitlines(), start=1):
        if text.startswith("|"):
            for quoted in re.findall(r"`([^`]+)`", text.split("|")[1]):
                yield from ((line, name) for name in re.findall(r"[A-Za-z_]\w{2,}", quoted))


def test_every_name_that_the_glossary_explains_exists() -> None:
    folders = (*SOURCES, "tests", "tools")
    code = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    words = set(re.findall(r"\w+", "\n".join(code)))
    explained = names_in_first_column((ROOT / "docs/glossary.md").read_text())
    assert [(line, name) for line, name in explained if name not in words] == []


def test_only_the_first_column_of_a_table_is_read() -> None:
    page = "`no_table`\n| name | was |\n| `now.is_here`, `Kept` | `gone` |\n"
    assert list(names_in_first_column(page)) == [(3, "now"), (3, "is_here"), (3, "Kept")]
