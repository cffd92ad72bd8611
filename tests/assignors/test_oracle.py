"""The oracle itself, compared with an exhaustive search over all placements of the jobs of small groups."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product

from coterie.assignors.target import Load
from coterie.nouns.jobs import ConnectorName
from tests.assignors.oracle import Optimum, fewest_moves, is_balanced, optimum

NAMES = [ConnectorName(name) for name in "abc"]
PLACEMENTS_MAX = 20_000


def exhaustive_optimum(loads: Sequence[Load], connectors: int, tasks: dict[ConnectorName, int]) -> Optimum:
    workers = range(len(loads))
    floor, extras = divmod(connectors + sum(load.connector_count for load in loads), len(loads))
    all_shares = [
        [floor + (worker in with_extra) for worker in workers] for with_extra in combinations(workers, extras)
    ]
    runs: list[tuple[ConnectorName, int | None]] = [
        (name, worker)
        for worker, load in enumerate(loads)
        for name, count in load.task_count_by_connector.items()
        for _ in range(count)
    ]
    runs += [(name, None) for name, count in tasks.items() for _ in range(count)]
    outcomes = []
    for placement in product(workers, repeat=len(runs)):
        at_worker = [placement.count(worker) for worker in workers]
        if not is_balanced(at_worker):
            continue
        stops = sum(owner is not None and owner != place for (_, owner), place in zip(runs, placement, strict=True))
        cells = Counter((name, place) for (name, _), place in zip(runs, placement, strict=True))
        squares = sum(count * count for count in cells.values())
        for shares in all_shares:
            if is_balanced([share + count for share, count in zip(shares, at_worker, strict=True)]):
                given = sum(max(0, load.connector_count - share) for load, share in zip(loads, shares, strict=True))
                outcomes.append((given + stops, squares))
    moves, squares = min(outcomes)
    return Optimum(moves=moves, squares=squares)


def test_the_oracle_agrees_with_an_exhaustive_search() -> None:
    rng = random.Random(415)
    tried = 0
    while tried < 300:
        loads = [
            Load(
                connector_count=rng.randint(0, 3),
                task_count_by_connector={name: rng.randint(1, 3) for name in NAMES if rng.random() < 0.5},
            )
            for _ in range(rng.randint(1, 4))
        ]
        connectors = rng.randint(0, 2)
        tasks = {name: rng.randint(1, 2) for name in NAMES if rng.random() < 0.4}
        all_tasks = sum(load.task_count for load in loads) + sum(tasks.values())
        if len(loads) ** all_tasks > PLACEMENTS_MAX:
            continue
        best = exhaustive_optimum(loads, connectors, tasks)
        assert optimum(loads, connectors=connectors, tasks=tasks) == best
        assert fewest_moves(loads, connectors=connectors, tasks=sum(tasks.values())) == best.moves
        tried += 1


def test_the_oracle_counts_moves_of_crossed_connectors_and_tasks_that_the_bound_misses() -> None:
    loads = [Load(connector_count=2), Load(task_count_by_connector={NAMES[0]: 2})]
    assert optimum(loads, connectors=0, tasks={}) == Optimum(moves=2, squares=2)
