"""The balanced target: its guarantees on random and adversarial loads, its moves and its spread against the oracle."""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assignors import redistribution, spread
from coterie.assignors.target import Load, LoadChange, compute_balanced_target, fewest_moves_bound
from coterie.nouns.jobs import ConnectorName
from tests.assignors.oracle import is_balanced, optimum

NAMES = [ConnectorName(name) for name in "abcdefgh"]
COUNTS = st.dictionaries(st.sampled_from(NAMES[:5]), st.integers(1, 6), max_size=5)
LOADS = st.lists(
    st.builds(Load, connector_count=st.integers(0, 4), task_count_by_connector=COUNTS), min_size=1, max_size=6
)
GROUPS = st.tuples(LOADS, st.integers(0, 5), COUNTS)
Group = tuple[Sequence[Load], int, Mapping[ConnectorName, int]]


def apply_changes(loads: Sequence[Load], changes: Sequence[LoadChange]) -> list[Load]:
    after = []
    for load, change in zip(loads, changes, strict=True):
        tasks = Counter(load.task_count_by_connector)
        tasks.update(change.task_delta_by_connector)
        assert all(count >= 0 for count in tasks.values()), "a worker gives up only tasks that it has"
        after.append(
            Load(connector_count=load.connector_count + change.connector_delta, task_count_by_connector=+tasks)
        )
    return after


def moves_of(changes: Sequence[LoadChange]) -> int:
    given_away = [max(0, -change.connector_delta) for change in changes]
    given_away += [max(0, -count) for change in changes for count in change.task_delta_by_connector.values()]
    return sum(given_away)


def squares(loads: Sequence[Load]) -> int:
    return sum(count * count for load in loads for count in load.task_count_by_connector.values())


def tasks_by_connector(loads: Sequence[Load]) -> Counter[ConnectorName]:
    found: Counter[ConnectorName] = Counter()
    for load in loads:
        found.update(load.task_count_by_connector)
    return found


def assert_optimal(group: Group) -> None:
    """No job is lost, the target is balanced, and no balanced target has fewer moves, or as few and a better spread."""
    loads, free_connectors, free_tasks = group
    changes = compute_balanced_target(loads, unowned_connectors=free_connectors, unowned_tasks=free_tasks)
    after = apply_changes(loads, changes)
    connectors = free_connectors + sum(load.connector_count for load in loads)
    assert sum(load.connector_count for load in after) == connectors
    assert tasks_by_connector(after) == tasks_by_connector([*loads, Load(task_count_by_connector=free_tasks)])
    assert is_balanced([load.connector_count for load in after])
    assert is_balanced([load.task_count for load in after])
    assert is_balanced([load.connector_count + load.task_count for load in after])
    best = optimum(loads, connectors=free_connectors, tasks=free_tasks)
    assert (moves_of(changes), squares(after)) == (best.moves, best.squares)
    held = [load.connector_count + load.task_count for load in loads]
    assert best.moves >= fewest_moves_bound(held, sum(held) + free_connectors + sum(free_tasks.values()))


@settings(max_examples=300)
@given(group=GROUPS)
def test_no_balanced_target_has_fewer_moves_or_equal_moves_and_a_better_spread(group: Group) -> None:
    assert_optimal(group)


def unbalanced(rng: random.Random) -> Group:
    """Random jobs on random workers, most of them on the first workers."""
    names = NAMES[: rng.randint(1, len(NAMES))]
    size = rng.choice([1, 2, 6, 12])
    loads = []
    for place in range(rng.randint(1, 8)):
        density = rng.random() / (1 + place / 2)
        tasks = {name: rng.randint(1, size) for name in names if rng.random() < density}
        loads.append(Load(connector_count=rng.randint(0, 4), task_count_by_connector=tasks))
    return loads, rng.randint(0, 3), {name: rng.randint(1, 6) for name in names if rng.random() < 0.2}


def settled(rng: random.Random) -> list[Load]:
    """A fleet that `balance` itself has balanced."""
    tasks = {name: rng.randint(1, 12) for name in NAMES}
    loads = [Load()] * rng.randint(2, 8)
    return apply_changes(
        loads, compute_balanced_target(loads, unowned_connectors=rng.randint(0, 9), unowned_tasks=tasks)
    )


def departed(rng: random.Random) -> Group:
    """Some workers have left, or drain: their jobs are unowned."""
    loads = settled(rng)
    gone = [loads.pop(rng.randrange(len(loads))) for _ in range(rng.randint(1, len(loads) - 1))]
    return loads, sum(load.connector_count for load in gone), tasks_by_connector(gone)


def bounced(rng: random.Random) -> Group:
    """Some workers have left and others have joined."""
    loads, connectors, tasks = departed(rng)
    return [*loads, *[Load()] * rng.randint(1, 3)], connectors, tasks


def claimed(rng: random.Random) -> Group:
    """One connector and some tasks of another one are claimed, so they are excluded."""
    claims = {NAMES[0]: 12, NAMES[1]: 2}
    loads = [
        Load(
            connector_count=max(0, load.connector_count - 1),
            task_count_by_connector={
                name: count - claims.get(name, 0)
                for name, count in load.task_count_by_connector.items()
                if count > claims.get(name, 0)
            },
        )
        for load in settled(rng)
    ]
    return loads, rng.randint(0, 2), {}


def crossed(rng: random.Random) -> Group:
    """Some workers have connectors only, the others tasks only: {2, 0} and {0, 2}."""
    loads = [Load(connector_count=rng.randint(1, 3)) for _ in range(rng.randint(1, 4))]
    loads += [Load(task_count_by_connector={rng.choice(NAMES): rng.randint(1, 3)}) for _ in range(rng.randint(1, 4))]
    rng.shuffle(loads)
    return loads, rng.randint(0, 2), {}


def one_large_or_many_small_connectors(rng: random.Random) -> Group:
    """One connector of many tasks, or many connectors of one task."""
    if rng.random() < 0.5:
        return (
            [Load(task_count_by_connector={NAMES[0]: rng.randint(1, 40)}) for _ in range(rng.randint(1, 6))],
            1,
            {NAMES[0]: 7},
        )
    names = [ConnectorName(f"c{number}") for number in range(rng.randint(1, 40))]
    cells = [Counter[ConnectorName]() for _ in range(rng.randint(1, 6))]
    for name in names:
        cells[min(rng.randrange(len(cells)), rng.randrange(len(cells)))][name] += 1
    return (
        [Load(connector_count=rng.randint(0, 9), task_count_by_connector=tasks) for tasks in cells],
        0,
        dict.fromkeys(NAMES, 1),
    )


@pytest.mark.parametrize("kind", [unbalanced, departed, bounced, claimed, crossed, one_large_or_many_small_connectors])
def test_no_target_is_better_for_adversarial_groups(kind: Callable[[random.Random], Group]) -> None:
    rng = random.Random(987)
    for _ in range(250):
        assert_optimal(kind(rng))


@pytest.mark.parametrize(
    "group",
    [
        ([Load()], 0, {}),
        ([Load()], 3, {NAMES[0]: 4}),
        ([Load()] * 5, 0, {}),
        ([Load(connector_count=2), Load(task_count_by_connector={NAMES[0]: 2})], 0, {}),
        ([Load(connector_count=3, task_count_by_connector={NAMES[0]: 9, NAMES[1]: 1}), Load(), Load()], 0, {}),
    ],
)
def test_no_target_is_better_for_the_smallest_groups(group: Group) -> None:
    assert_optimal(group)


def test_no_target_is_better_in_any_order_of_equally_loaded_workers() -> None:
    loads = [
        Load(connector_count=1, task_count_by_connector={NAMES[0]: 2, NAMES[1]: 1}),
        Load(connector_count=1, task_count_by_connector={NAMES[1]: 2, NAMES[0]: 1}),
        Load(connector_count=0, task_count_by_connector={NAMES[2]: 4}),
        Load(connector_count=2),
        Load(),
    ]
    for ordered in permutations(loads):
        assert_optimal((ordered, 1, {NAMES[2]: 1}))


@settings(max_examples=100)
@given(group=GROUPS)
def test_the_order_of_the_connectors_does_not_matter(group: Group) -> None:
    loads, free_connectors, free_tasks = group
    turned = [
        Load(
            connector_count=load.connector_count,
            task_count_by_connector=dict(reversed([*load.task_count_by_connector.items()])),
        )
        for load in loads
    ]
    changes = compute_balanced_target(loads, unowned_connectors=free_connectors, unowned_tasks=free_tasks)
    assert (
        compute_balanced_target(
            turned, unowned_connectors=free_connectors, unowned_tasks=dict(reversed([*free_tasks.items()]))
        )
        == changes
    )


@settings(max_examples=200)
@given(group=GROUPS)
def test_balancing_a_balanced_group_moves_nothing(group: Group) -> None:
    loads, free_connectors, free_tasks = group
    after = apply_changes(
        loads, compute_balanced_target(loads, unowned_connectors=free_connectors, unowned_tasks=free_tasks)
    )
    for change in compute_balanced_target(after, unowned_connectors=0, unowned_tasks={}):
        assert change.connector_delta == 0
        assert not change.task_delta_by_connector


@settings(max_examples=200)
@given(tasks=COUNTS, workers=st.integers(1, 6), connectors=st.integers(0, 13))
def test_unowned_jobs_are_spread_as_evenly_as_possible(
    tasks: dict[ConnectorName, int], workers: int, connectors: int
) -> None:
    after = apply_changes(
        [Load()] * workers,
        compute_balanced_target([Load()] * workers, unowned_connectors=connectors, unowned_tasks=tasks),
    )
    for connector in tasks:
        assert is_balanced([load.task_count_by_connector.get(connector, 0) for load in after])
    assert is_balanced([load.connector_count for load in after])
    assert is_balanced([load.task_count for load in after])
    assert is_balanced([load.connector_count + load.task_count for load in after])


def test_d1_a_group_that_grows_worker_by_worker_keeps_every_connector_spread() -> None:
    """KAFKA-17049: Connect ends with all tasks of a connector on one worker (8 of 8 tasks, 1 to 8 workers)."""
    loads = [Load(connector_count=8, task_count_by_connector={ConnectorName(f"c{number}"): 8 for number in range(8)})]
    while len(loads) < 8:
        loads = [*loads, Load()]
        loads = apply_changes(loads, compute_balanced_target(loads, unowned_connectors=0, unowned_tasks={}))
        for number in range(8):
            assert is_balanced([load.task_count_by_connector.get(ConnectorName(f"c{number}"), 0) for load in loads])


def test_d7_no_worker_gets_both_extras_while_another_gets_none() -> None:
    tasks = dict.fromkeys(NAMES[:4], 1)
    after = apply_changes(
        [Load()] * 3, compute_balanced_target([Load()] * 3, unowned_connectors=4, unowned_tasks=tasks)
    )
    assert is_balanced([load.connector_count + load.task_count for load in after])


def test_kafka_12309_a_third_worker_gets_a_third() -> None:
    a, b = NAMES[:2]
    loads = [Load(task_count_by_connector={a: 8}), Load(task_count_by_connector={b: 8}), Load()]
    changes = compute_balanced_target(loads, unowned_connectors=0, unowned_tasks={})
    assert sorted(load.task_count for load in apply_changes(loads, changes)) == [5, 5, 6]
    assert moves_of(changes) == 5


@pytest.mark.parametrize(
    ("held", "jobs", "moves"),
    [([300] * 3 + [0], 900, 225), ([100] * 10 + [0], 1_000, 90), ([200] * 50 + [0], 10_000, 196), ([], 5, 0)],
)
def test_the_lower_bound_is_the_published_one(held: list[int], jobs: int, moves: int) -> None:
    assert fewest_moves_bound(held, jobs) == moves


def test_the_lower_bound_is_not_always_reachable() -> None:
    """Both workers run two jobs, but one has both connectors: a connector and a task have to be exchanged."""
    loads = [Load(connector_count=2), Load(task_count_by_connector={NAMES[0]: 2})]
    assert fewest_moves_bound([2, 2], 4) == 0
    assert moves_of(compute_balanced_target(loads, unowned_connectors=0, unowned_tasks={})) == 2


def test_without_workers_there_are_no_changes() -> None:
    assert compute_balanced_target([], unowned_connectors=3, unowned_tasks={NAMES[0]: 2}) == ()


class CountingHeap:
    """`heapq` that counts its operations: they are the cost of computing the target."""

    def __init__(self) -> None:
        self.operations = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def counted(heap: list[Any], *arguments: Any) -> Any:
            self.operations += len(heap) if name == "heapify" else 1
            return getattr(heapq, name)(heap, *arguments)

        return counted


@pytest.mark.parametrize("arrivals", [0, 1, 100])
def test_the_cost_depends_on_the_cells_and_the_moved_tasks_only(monkeypatch: pytest.MonkeyPatch, arrivals: int) -> None:
    """100,000 tasks of 1,000 connectors on 1,000 workers: a job that does not move costs no heap operation."""
    heap = CountingHeap()
    monkeypatch.setattr(redistribution, "heapq", heap)
    monkeypatch.setattr(spread, "heapq", heap)
    names = [ConnectorName(f"c{number}") for number in range(1_000)]
    loads = [
        Load(connector_count=1, task_count_by_connector={names[(worker * 100 + n) % 1_000]: 1 for n in range(100)})
        for worker in range(1_000)
    ]
    loads += [Load()] * arrivals
    changes = compute_balanced_target(loads, unowned_connectors=0, unowned_tasks={})
    cells = 100_000
    assert heap.operations <= 3 * cells + 12 * moves_of(changes) + 4 * len(loads)
    if not arrivals:
        assert heap.operations == 0
