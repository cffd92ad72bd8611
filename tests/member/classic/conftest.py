"""The member's fixture."""

import pytest

from tests.member.classic.driving import Worker


@pytest.fixture
def worker() -> Worker:
    return Worker()
