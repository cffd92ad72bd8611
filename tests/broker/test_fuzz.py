"""A little of `make fuzz` in every run: the broker takes whatever comes, and goes on."""

import pytest

from tests.broker.fuzzing import run


@pytest.mark.processes
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_hostile_frames_leave_no_traceback_and_others_served(protocol: str) -> None:
    result = run(600, 5, protocol)
    assert result["findings"] == []
    assert result["frames"] in range(600, 640)
