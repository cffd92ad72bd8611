"""Every interleaving of two owners of a task over two batches: no row is lost or doubled; faulty protocols fail."""

import pytest

from tests.spark.sinks.file_model import Fault, visit


def test_no_order_of_the_steps_of_two_owners_loses_or_doubles_a_row() -> None:
    states, found = visit(2)
    assert found is None
    assert states > 1_000


@pytest.mark.soak
def test_no_order_of_the_steps_of_three_owners_loses_or_doubles_a_row() -> None:
    states, found = visit(3)
    assert found is None
    assert states > 30_000


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        (Fault.NO_MARK, "doubled"),
        (Fault.NO_LOOK_AT_THE_MARK, "lost"),
        (Fault.ENOENT_ENDS_THE_MOVE, "lost"),
        (Fault.COMMIT_BEFORE_THE_MOVE, "lost"),
        (Fault.MARKS_GO_WITH_THE_NEXT_BATCH, "doubled"),
        (Fault.RETIRED_NAME_IS_FREE, "doubled"),
        (Fault.GOOD_AND_BAD_ROWS_BY_TWO_STEPS, "doubled"),
    ],
)
def test_the_model_finds_each_planted_fault(fault: Fault, finding: str) -> None:
    _, found = visit(2, fault)
    assert found is not None
    assert found.startswith(finding)
