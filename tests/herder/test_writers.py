"""Each field of a herder's state is assigned in one module: a value that two modules assign has no one who answers for
it."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie.herder

HOME = Path(coterie.herder.__file__).parent
PARTS = ("place", "rounds", "lead", "work", "requests", "life", "rotation", "run", "split", "write", "wait", "herder")
"""What the parts are called wherever one of their fields is assigned."""


def assigned_fields(module: Path) -> Iterator[tuple[str, str]]:
    """Part and field of each assignment, of entries of a field as well; but for those of constructors."""
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                for one in targets:
                    yield from _fields_of(one)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                yield from _fields_of(target)
            case _:
                pass


def _fields_of(target: ast.expr) -> Iterator[tuple[str, str]]:
    match target:
        case ast.Tuple(elts=targets):
            for one in targets:
                yield from _fields_of(one)
        case ast.Subscript(value=value):
            yield from _fields_of(value)
        case ast.Attribute(value=ast.Name(id=part) | ast.Attribute(attr=part), attr=field) if part != "self":
            yield part, field
        case _:
            pass


@pytest.fixture(scope="module")
def writers() -> dict[tuple[str, str], set[str]]:
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for module in sorted(HOME.rglob("*.py")):
        for part_and_field in assigned_fields(module):
            found[part_and_field].add(str(module.relative_to(HOME)))
    return found


def test_each_field_is_assigned_in_one_module(writers: dict[tuple[str, str], set[str]]) -> None:
    assert len(writers) > 40, "the parts are found"
    assert {field: modules for field, modules in writers.items() if len(modules) > 1} == {}


def test_fields_are_assigned_by_the_names_of_their_parts_alone(writers: dict[tuple[str, str], set[str]]) -> None:
    """Otherwise two names of one part could hide two writers."""
    assert {part for part, _ in writers} <= set(PARTS)
