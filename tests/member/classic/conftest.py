"""Fixtures: one member machine with its driver."""

import pytest

from tests.member.classic.driving import MemberDriver, short_heartbeat_driver


@pytest.fixture
def worker() -> MemberDriver:
    return MemberDriver()


@pytest.fixture
def short_heartbeat_worker() -> MemberDriver:
    """A member with a shorter heartbeat interval while the next rebalance is expected."""
    return short_heartbeat_driver()
