"""The real coordinator and the real members in small cases: two workers and two or three jobs, in each order of events.

Each test visits all states that a number of choices reaches, with one fault at most on each path: a connection that
ends at the worker, with or without its requests arriving later; a connection that the client closes; or a crash of the
coordinator after any of the first five records of a step. The choices begin at each point of the course without faults.
The simulator's checks of steps and of responses run at every step, and every last state must settle.

`make test` explores 3 choices from the begin and 2 from five of the next 9 points, with an assignor of the members for
two jobs and one of the coordinator for three. `make soak` runs all four combinations, explores from each point, and
goes 6 and 3 choices deep.
"""

from collections.abc import Callable

import pytest

from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from tests.groups.connect.small_group import SmallGroup, explore

NAME = ConnectorName("c")
TWO_JOBS = Jobs.of([NAME, ConnectorTaskId(NAME, 0)])
THREE_JOBS = Jobs.of([NAME, ConnectorTaskId(NAME, 0), ConnectorTaskId(NAME, 1)])
POINTS = 10
"""The number of points of the course without faults: after so many choices each change is complete."""


def settled(*names: str, jobs: Jobs, server: bool) -> SmallGroup:
    """A settled group of the workers ``names``."""
    small = SmallGroup(jobs, uses_server_assignor=server)
    for name in names:
        small.start(name)
        small.settle()
    return small


def joins(jobs: Jobs, server: bool) -> SmallGroup:
    small = settled("w1", jobs=jobs, server=server)
    small.start("w2")
    return small


def leaves(jobs: Jobs, server: bool) -> SmallGroup:
    small = settled("w1", "w2", jobs=jobs, server=server)
    small.leave("w2", is_permanent=True)
    return small


def leaves_and_returns(jobs: Jobs, server: bool) -> SmallGroup:
    small = settled("w1", "w2", jobs=jobs, server=server)
    small.leave("w2", is_permanent=False)
    small.start("w2", "w2-again")
    return small


def removes_a_job(jobs: Jobs, server: bool) -> SmallGroup:
    small = settled("w1", "w2", jobs=jobs, server=server)
    small.configure(jobs - Jobs.of([ConnectorTaskId(NAME, 0)]))
    return small


def both_join(jobs: Jobs, server: bool) -> SmallGroup:
    small = settled(jobs=jobs, server=server)
    small.start("w1")
    small.start("w2")
    return small


CHANGES = [joins, leaves, leaves_and_returns, removes_a_job, both_join]


SHORT, LONG = (3, 2), (6, 3)
"""The depths of `make test` and of `make soak`: the number of choices from the begin, and from each later point."""
SHORT_STEP = 2
"""`make test` explores from every second point."""


Change = Callable[[Jobs, bool], SmallGroup]


def case(change: Change, jobs: Jobs, server: bool, depths: tuple[int, int]) -> object:
    """`make test` has each change once: those with the most states, with a target that the coordinator computes, and
    the others with a target that a member computes."""
    in_test = (jobs, server) == (
        (THREE_JOBS, True) if change in (leaves_and_returns, removes_a_job) else (TWO_JOBS, False)
    )
    marks = [pytest.mark.timeout(3_600 if depths == LONG else 600)]
    if depths == LONG or not in_test:
        marks.append(pytest.mark.soak)
    size, side = ("two" if jobs == TWO_JOBS else "three"), ("server" if server else "client")
    name = f"{change.__name__}-{size}-jobs-{side}-side-{depths[0]}-{depths[1]}"
    return pytest.param(change, jobs, server, *depths, id=name, marks=marks)


@pytest.mark.parametrize(
    ("change", "jobs", "server", "depth_from_begin", "depth_from_point"),
    [
        case(change, jobs, server, depths)
        for change in CHANGES
        for jobs in (TWO_JOBS, THREE_JOBS)
        for server in (False, True)
        for depths in (SHORT, LONG)
    ],
)
def test_every_order_of_events_keeps_the_invariants_and_settles(
    change: Change, jobs: Jobs, server: bool, depth_from_begin: int, depth_from_point: int
) -> None:
    def begin(choices_before: int) -> SmallGroup:
        small = change(jobs, server)
        small.choose_first(choices_before)
        small.faults_left = 1
        return small

    state_count = explore(lambda: begin(0), depth=depth_from_begin)
    step = SHORT_STEP if (depth_from_begin, depth_from_point) == SHORT else 1
    for point in range(1, POINTS, step):
        state_count += explore(lambda: begin(point), depth=depth_from_point)  # noqa: B023 (called at once)
    assert state_count > 200, "so few states test nothing"


def test_a_course_without_faults_moves_only_what_must_move() -> None:
    small = joins(THREE_JOBS, False)
    before = small.workers["w1"].running
    small.settle()
    first, second = small.workers["w1"].running, small.workers["w2"].running
    assert (first <= before, len(first), len(second)) == (True, 2, 1)
    assert first & second == NO_JOBS
