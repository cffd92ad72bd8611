"""Fixtures: one member machine of a connect group with its driver."""

import pytest

from tests.member.connect.driving import MemberDriver


@pytest.fixture
def worker() -> MemberDriver:
    return MemberDriver()
