"""Sets of jobs in the messages of connect groups."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.nouns.errors import WireError
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.wire.connect_group_jobs import InvalidFieldError, distinct_jobs_in_arrays, job_arrays, listed_jobs
from coterie.wire.connect_group_messages.structs import ConnectorsAndTasks
from coterie.wire.kio_entities import build_entity

NAMES = st.text(min_size=1, max_size=4).map(ConnectorName)
JOBS = st.lists(NAMES | st.builds(ConnectorTaskId, NAMES, st.integers(0, 2**31 - 1))).map(Jobs.of)


def struct(connectors: list[str], *tasks: tuple[str, list[int]]) -> Any:
    return build_entity(
        ConnectorsAndTasks,
        {"connectors": connectors, "tasks": [{"connector_id": one, "task_ids": ids} for one, ids in tasks]},
    )


def jobs(*names: str) -> Jobs:
    return Jobs.of(
        ConnectorTaskId.parse(name) if "-" in name else ConnectorName(name)  # "c" a connector, "c-0" a task
        for name in names
    )


@given(JOBS)
def test_any_set_of_jobs_is_the_same_after_its_way_over_the_wire(some: Jobs) -> None:
    arrays = build_entity(ConnectorsAndTasks, job_arrays(some))
    assert distinct_jobs_in_arrays(arrays) == some
    listed = listed_jobs([arrays])
    assert (listed.jobs, listed.jobs_listed_twice) == (some, NO_JOBS)


def test_jobs_are_written_sorted_with_one_entry_for_each_connector() -> None:
    assert job_arrays(jobs("b", "a", "c-10", "c-9", "b-0")) == {
        "connectors": ["a", "b"],
        "tasks": [{"connector_id": "b", "task_ids": [0]}, {"connector_id": "c", "task_ids": [9, 10]}],
    }


def test_a_repeated_job_counts_once_and_is_reported() -> None:
    twice = struct(["a", "b", "a"], ("a", [0, 1, 0]), ("b", [7]), ("a", [1, 2]))
    assert distinct_jobs_in_arrays(twice) == jobs("a", "b", "a-0", "a-1", "a-2", "b-7")
    assert listed_jobs([twice]).jobs_listed_twice == jobs("a", "a-0", "a-1")


def test_a_job_of_two_structs_is_repeated() -> None:
    listed = listed_jobs([struct(["a"], ("a", [0])), struct(["b"], ("a", [0, 1])), struct(["a"])])
    assert listed.jobs == jobs("a", "b", "a-0", "a-1")
    assert listed.jobs_listed_twice == jobs("a", "a-0")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (struct([""]), "the name of a connector is empty"),
        (struct(["a"], ("", [])), "the name of a connector is empty"),
        (struct([], ("a", [3, -1])), "connector 'a' has the task number -1; the lowest allowed number is 0"),
        (struct([], ("a" * 30_000, [-(2**31)])), f"connector '{'a' * 100}' has the task number -2147483648"),
    ],
)
def test_an_empty_name_or_a_negative_number_is_refused(arrays: Any, message: str) -> None:
    assert issubclass(InvalidFieldError, WireError)
    for convert in (distinct_jobs_in_arrays, lambda one: listed_jobs([one])):
        with pytest.raises(InvalidFieldError, match=message):
            convert(arrays)
