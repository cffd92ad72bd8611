"""The coordinator of connect groups in a small world with faults: no job runs twice, and everything settles."""

import pytest

from tests.groups.connect.faulty_play import play


@pytest.mark.parametrize("seed", range(60))
def test_no_job_runs_twice_and_all_settles_after_faults(seed: int) -> None:
    play(seed).settle()
