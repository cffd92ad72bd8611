"""The member's fixture."""

import pytest

from tests.member.classic.driving import Worker, hurrying


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def hurried() -> Worker:
    """One whose heartbeats have the intervals of a real worker."""
    return hurrying()
