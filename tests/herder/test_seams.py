"""All seams of a herder: they have no method that the worker does not call."""

import ast
from pathlib import Path

import pytest

import coterie.worker
from coterie.herder.seams import LeaderClient, Membership, TaskRuntime

CALLED = {
    node.attr
    for module in Path(coterie.worker.__file__).parent.glob("*.py")
    for node in ast.walk(ast.parse(module.read_text()))
    if isinstance(node, ast.Attribute)
}


@pytest.mark.parametrize("seam", [Membership, TaskRuntime, LeaderClient], ids=lambda seam: seam.__name__)
def test_a_worker_calls_every_method_of_a_seam(seam: type) -> None:
    methods = {name for name in vars(seam) if not name.startswith("_")}
    assert methods
    assert methods - CALLED == set()
