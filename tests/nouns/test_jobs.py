"""Jobs: Connect's task names, and set operations on jobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs

A, B = ConnectorName("a"), ConnectorName("b")

names = st.text(min_size=1, max_size=8).map(ConnectorName)
task_ids = st.builds(ConnectorTaskId, names, st.integers(0, 2**31 - 1))
jobs = st.lists(st.one_of(names, task_ids), max_size=12).map(Jobs.of)


@given(task_ids)
def test_a_task_id_is_parsed_back_for_any_connector_name(task: ConnectorTaskId) -> None:
    assert ConnectorTaskId.parse(str(task)) == task


def test_a_task_id_splits_at_its_last_dash() -> None:
    assert ConnectorTaskId.parse("my-flights-12") == ConnectorTaskId(ConnectorName("my-flights"), 12)


@pytest.mark.parametrize("text", ["", "a", "a-", "-1", "a-b", "a--", "a-1x", "a-²", "a- 1"])
def test_an_invalid_task_id_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not <connector>-<task number>"):
        ConnectorTaskId.parse(text)


def test_jobs_are_sorted_connectors_first_then_by_name() -> None:
    shown: list[Job] = list(Jobs.of([ConnectorTaskId(B, 0), B, ConnectorTaskId(A, 10), ConnectorTaskId(A, 9), A]))
    assert shown == [A, B, ConnectorTaskId(A, 9), ConnectorTaskId(A, 10), ConnectorTaskId(B, 0)]


@given(jobs, jobs)
def test_operations_on_jobs_are_those_of_sets(left: Jobs, right: Jobs) -> None:
    assert set(left | right) == set(left) | set(right)
    assert set(left & right) == set(left) & set(right)
    assert set(left - right) == set(left) - set(right)
    assert (left <= right) == (set(left) <= set(right))
    assert len(left) == len(set(left))
    assert bool(left) == (left != NO_JOBS)
    assert all(job in left for job in left)
