"""The balanced target: its guarantees on random and hostile loads, its moves against brute force."""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assignors import target
from coterie.assignors.target import Change, Load, balance, fewest_moves_bound
from coterie.nouns.jobs import ConnectorName

NAMES = [ConnectorName(name) for name in "abcde"]
COUNTS = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 6), max_size=5)
LOADS = st.lists(st.builds(Load, connectors=st.integers(0, 4), tasks=COUNTS), min_size=1, max_size=6)
GROUPS = st.tuples(LOADS, st.integers(0, 5), COUNTS)
Group = tuple[Sequence[Load], int, dict[ConnectorName, int]]


def applied(loads: Sequence[Load], changes: Sequence[Change]) -> list[Load]:
    after = []
    for load, change in zip(loads, changes, strict=True):
        tasks = Counter(load.tasks)
        tasks.update(change.tasks)
        assert all(count >= 0 for count in tasks.values()), "nobody gives what it does not have"
        after.append(Load(connectors=load.connectors + change.connectors, tasks=+tasks))
    return after


def moves_of(changes: Sequence[Change]) -> int:
    given_away = [max(0, -change.connectors) for change in changes]
    given_away += [max(0, -count) for change in changes for count in change.tasks.values()]
    return sum(given_away)


def squares(loads: Sequence[Load]) -> int:
    return sum(count * count for load in loads for count in load.tasks.values())


def is_level(counts: Sequence[int]) -> bool:
    return max(counts) - min(counts) <= 1


def fewest_moves(loads: Sequence[Load], connectors: int, tasks: int) -> int:
    """The optimum, by trying every way to deal out the extras."""
    workers = range(len(loads))
    floor_c, extra_c = divmod(connectors, len(loads))
    floor_t, extra_t = divmod(tasks, len(loads))
    best = []
    for with_c, with_t in product(combinations(workers, extra_c), combinations(workers, extra_t)):
        quotas = [(floor_c + (worker in with_c), floor_t + (worker in with_t)) for worker in workers]
        if is_level([sum(quota) for quota in quotas]):
            best.append(
                sum(
                    max(0, load.connectors - quota_c) + max(0, load.all_tasks - quota_t)
                    for load, (quota_c, quota_t) in zip(loads, quotas, strict=True)
                )
            )
    return min(best)


@settings(max_examples=500)
@given(group=GROUPS)
def test_all_is_kept_and_level_with_the_fewest_moves(group: Group) -> None:
    loads, free_connectors, free_tasks = group
    changes = balance(loads, connectors=free_connectors, tasks=free_tasks)
    after = applied(loads, changes)
    connectors = free_connectors + sum(load.connectors for load in loads)
    tasks = Counter(free_tasks)
    for load in loads:
        tasks.update(load.tasks)
    assert sum(load.connectors for load in after) == connectors
    for connector in NAMES:
        assert sum(load.tasks.get(connector, 0) for load in after) == tasks[connector]
    assert is_level([load.connectors for load in after])
    assert is_level([load.all_tasks for load in after])
    assert is_level([load.connectors + load.all_tasks for load in after])
    moves = moves_of(changes)
    assert moves == fewest_moves(loads, connectors, tasks.total())
    held = [load.connectors + load.all_tasks for load in loads]
    assert moves >= fewest_moves_bound(held, connectors + tasks.total())


@settings(max_examples=200)
@given(group=GROUPS)
def test_running_again_on_its_own_output_moves_nothing(group: Group) -> None:
    loads, free_connectors, free_tasks = group
    after = applied(loads, balance(loads, connectors=free_connectors, tasks=free_tasks))
    for change in balance(after, connectors=0, tasks={}):
        assert change.connectors == 0
        assert not any(change.tasks.values())


@settings(max_examples=200)
@given(tasks=COUNTS, workers=st.integers(1, 6))
def test_what_nobody_runs_yet_is_spread_as_evenly_as_can_be(tasks: dict[ConnectorName, int], workers: int) -> None:
    after = applied([Load()] * workers, balance([Load()] * workers, connectors=0, tasks=tasks))
    for connector in tasks:
        assert is_level([load.tasks.get(connector, 0) for load in after])


def test_d1_a_group_that_grows_worker_by_worker_keeps_every_connector_spread() -> None:
    """KAFKA-17049: Connect ends with all tasks of a connector on one worker (8 of 8 tasks, 1 to 8 workers)."""
    loads = [Load(connectors=8, tasks={ConnectorName(f"c{number}"): 8 for number in range(8)})]
    while len(loads) < 8:
        loads = [*loads, Load()]
        loads = applied(loads, balance(loads, connectors=0, tasks={}))
        for number in range(8):
            assert is_level([load.tasks.get(ConnectorName(f"c{number}"), 0) for load in loads])


def test_d7_nobody_gets_both_extras_while_another_gets_none() -> None:
    tasks = dict.fromkeys(NAMES[:4], 1)
    after = applied([Load()] * 3, balance([Load()] * 3, connectors=4, tasks=tasks))
    assert is_level([load.connectors + load.all_tasks for load in after])


def test_kafka_12309_a_third_worker_gets_a_third() -> None:
    a, b = NAMES[:2]
    loads = [Load(tasks={a: 8}), Load(tasks={b: 8}), Load()]
    changes = balance(loads, connectors=0, tasks={})
    assert sorted(load.all_tasks for load in applied(loads, changes)) == [5, 5, 6]
    assert moves_of(changes) == 5


@pytest.mark.parametrize(
    ("held", "jobs", "moves"),
    [([300] * 3 + [0], 900, 225), ([100] * 10 + [0], 1_000, 90), ([200] * 50 + [0], 10_000, 196), ([], 5, 0)],
)
def test_the_bound_is_the_published_one(held: list[int], jobs: int, moves: int) -> None:
    assert fewest_moves_bound(held, jobs) == moves


def test_the_bound_is_not_always_reachable() -> None:
    """Both workers run two jobs, but one has both connectors: connectors and tasks have to cross over."""
    loads = [Load(connectors=2), Load(tasks={NAMES[0]: 2})]
    assert fewest_moves_bound([2, 2], 4) == 0
    assert moves_of(balance(loads, connectors=0, tasks={})) == 2


def test_no_workers_have_no_changes() -> None:
    assert balance([], connectors=3, tasks={NAMES[0]: 2}) == ()


@settings(max_examples=60)
@given(
    loads=st.lists(st.builds(Load, tasks=st.dictionaries(st.sampled_from(NAMES[:2]), st.integers(1, 3))), max_size=3),
    free=st.dictionaries(st.sampled_from(NAMES[:2]), st.integers(1, 2)),
)
def test_the_spread_of_small_groups_is_near_the_best_that_needs_no_extra_stop(
    loads: list[Load], free: dict[ConnectorName, int]
) -> None:
    """Against every way to place every task, among those that are level and stop as few."""
    if not loads:
        return
    changes = balance(loads, connectors=0, tasks=free)
    ours = squares(applied(loads, changes))
    workers = range(len(loads))
    owners: list[tuple[ConnectorName, int | None]] = [
        (connector, worker)
        for worker in workers
        for connector, count in loads[worker].tasks.items()
        for _ in range(count)
    ]
    owners += [(connector, None) for connector, count in free.items() for _ in range(count)]
    if len(loads) ** len(owners) > 2_000:
        return
    best = ours
    for places in product(workers, repeat=len(owners)):
        stops = sum(owner is not None and owner != place for (_, owner), place in zip(owners, places, strict=True))
        if stops == moves_of(changes) and is_level([places.count(worker) for worker in workers]):
            cells = Counter((connector, place) for (connector, _), place in zip(owners, places, strict=True))
            best = min(best, sum(count * count for count in cells.values()))
    assert ours <= best * 1.25


class CountingHeap:
    """`heapq`, counting: what the target costs is the operations on its heaps."""

    def __init__(self) -> None:
        self.operations = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def counted(heap: list[Any], *arguments: Any) -> Any:
            self.operations += len(heap) if name == "heapify" else 1
            return getattr(heapq, name)(heap, *arguments)

        return counted


@pytest.mark.parametrize("arrivals", [0, 1, 100])
def test_the_cost_is_that_of_the_cells_and_of_the_tasks_that_move(
    monkeypatch: pytest.MonkeyPatch, arrivals: int
) -> None:
    """100,000 tasks of 1,000 connectors on 1,000 workers: what stays where it is costs nothing."""
    heap = CountingHeap()
    monkeypatch.setattr(target, "heapq", heap)
    names = [ConnectorName(f"c{number}") for number in range(1_000)]
    loads = [
        Load(connectors=1, tasks={names[(worker * 100 + n) % 1_000]: 1 for n in range(100)}) for worker in range(1_000)
    ]
    loads += [Load()] * arrivals
    changes = balance(loads, connectors=0, tasks={})
    cells = 100_000
    assert heap.operations <= 3 * cells + 12 * moves_of(changes) + 4 * len(loads)
    if not arrivals:
        assert heap.operations <= 4 * len(loads)
