"""A short run of `make fuzz` in every test run: hostile frames do not stop the broker."""

import pytest

from tests.broker.fuzzing import run


@pytest.mark.processes
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_hostile_frames_cause_no_traceback_and_others_are_served(protocol: str) -> None:
    result = run(600, 5, protocol)
    assert result["findings"] == []
    assert result["frames"] in range(600, 640)
