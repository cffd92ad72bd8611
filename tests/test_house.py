"""Rules of the tests themselves, read from their syntax trees, and of the decisions."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TREES = {path.relative_to(TESTS).as_posix(): ast.parse(path.read_text()) for path in sorted(TESTS.rglob("*.py"))}


def modules_imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
            case _:
                pass


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def patches(tree: ast.Module) -> Iterator[str]:
    """Assignments to a private attribute of an object other than ``self``, and calls of setattr with a private name."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=owner, attr=name, ctx=ast.Store() | ast.Del()) if is_private(name):
                if not (isinstance(owner, ast.Name) and owner.id in ("self", "cls")):
                    yield f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr") | ast.Name(id="setattr" | "delattr")):
                names = [str(one.value) for one in node.args[:2] if isinstance(one, ast.Constant)]
                yield from (f"line {node.lineno}: {name}" for name in names if any(map(is_private, name.split("."))))
            case _:
                pass


def test_no_module_imports_a_test_module() -> None:
    imports = {
        f"{name} imports {module}"
        for name, tree in TREES.items()
        for module in modules_imported(tree)
        if module.startswith("tests.") and any(part.startswith("test_") for part in module.split("."))
    }
    assert sorted(imports) == []


def test_no_private_name_is_patched() -> None:
    assert [f"{name}, {patch}" for name, tree in TREES.items() for patch in patches(tree)] == []


@pytest.mark.parametrize(
    "line",
    [
        "module._x = 1",
        "one.two._x: int = 1",
        "one._x += 1",
        "(one._x, two) = 1, 2",
        "monkeypatch.setattr(module, '_x', 1)",
        "monkeypatch.setattr('package.module._X', 1)",
        "setattr(one, '_x', 1)",
        "del one._x",
    ],
)
def test_each_way_to_patch_is_detected(line: str) -> None:
    assert len(list(patches(ast.parse(line)))) == 1


def test_each_decision_has_a_number_of_its_own() -> None:
    numbers = [int(path.name[:4]) for path in sorted((TESTS.parent / "docs" / "decisions").glob("0*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
