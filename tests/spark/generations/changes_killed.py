"""Changes of positions whose worker is killed at a named step, each in its own process; see ``test_changes_killed.py``.

``python -m tests.spark.generations.changes_killed FOLDER TIMES`` prints a line for each point and successor.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from json import loads
from pathlib import Path
from typing import Any

from coterie.spark.generations import updater
from coterie.spark.generations.layout import generation_folder, newest_generation_number
from coterie.spark.generations.manifest import PositionChange, read_plan_of_next_generation
from coterie.spark.generations.reached import read_reached_positions
from coterie.spark.generations.resplit import ResplitFinisher, record_task_stopped
from coterie.spark.generations.updater import GenerationUpdater, PositionChangeRequest
from tests.spark.generations.killed import WorldOnDisk, end, forked, prepared
from tests.spark.generations.model import Files, Topic

STEPS: dict[str, tuple[Any, str]] = {
    "close": (updater, "close_generation_and_return_stored_plan"),
    "take over": (ResplitFinisher, "take_over_checkpoints"),
    "batches in flight": (ResplitFinisher, "run_batches_in_flight"),
    "publish": (ResplitFinisher, "publish_next_generation"),
    "remove": (updater, "remove_all_but_last_two_generations"),
}
POINTS = tuple(f"{when} {step}" for step in STEPS for when in ("before", "after"))
SUCCESSORS = ("resume", "the same change again")


def stop_at(point: str) -> None:
    """Kill this process before or after a step."""

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keys: Any) -> Any:
            end(signal.SIGKILL, point, f"before {name}")
            result = real(*args, **keys)
            end(signal.SIGKILL, point, f"after {name}")
            return result

        return call

    for name, (owner, attribute) in STEPS.items():
        setattr(owner, attribute, wrapped(name, getattr(owner, attribute)))


def change(world: WorldOnDisk, positions: dict[str, int | None], point: str | None = None) -> None:
    if point is not None:
        stop_at(point)
    GenerationUpdater(world.finisher(), tasks_stop_timeout_ms=0).change_positions(
        PositionChangeRequest(
            change=PositionChange(positions=positions),
            config={},
            split_function=world.source.function,
            has_task_configs_with_generation=True,
        )
    )


def written(world: WorldOnDisk) -> Counter[str]:
    paths = (path for folder in world.out.glob("*") for path in folder.glob("[0-9]*"))
    return Counter(row for path in paths for row in loads(path.read_text()))


def run(folder: Path, point: str, successor: str, seed: int) -> None:
    world = prepared(folder, (Files, Topic)[seed // 2 % 2](), seed)
    generation = generation_folder(world.connector, 1)
    for task in range(3):
        record_task_stopped(generation, task)  # The connector is stopped.
    before = read_reached_positions(world.connector, world.source.position_store, lambda config: True)
    read_rows = {row for row in written(world) if world.source.is_read(row, before)}
    key = world.source.key_of(sorted(read_rows)[0])
    positions: dict[str, int | None] = {key: None if isinstance(world.source, Files) else 0}
    named = {row for row in read_rows if world.source.key_of(row) == key}

    victim = forked(world, partial(change, world, positions, point), 1)
    _, status = os.waitpid(victim, os.WUNTRACED)
    assert os.WIFSIGNALED(status), status
    is_stored = point != "before close"
    newest = newest_generation_number(world.connector)
    assert newest is not None
    assert is_stored == (newest == 2 or read_plan_of_next_generation(generation) is not None)
    # The positions are the old or the new ones, with those of the batch in flight if it has been run.
    after = read_reached_positions(world.connector, world.source.position_store, lambda config: True)
    is_new = after.get(key) == positions[key]
    assert is_new == is_stored
    assert {name: at for name, at in before.items() if name != key and after.get(name, -1) < at} == {}
    if successor == "the same change again":
        change(world, positions)
        is_stored = True
    world.drain()
    counts = written(world)
    in_flight = {row for row in counts if world.source.key_of(row) == key} - named
    doubled = {row for row, count in counts.items() if count > 1}
    assert sorted(counts) == sorted(world.source.rows())
    assert not world.doubts
    assert max(counts.values()) <= 2
    # With a change, the rows of the batch in flight may be doubled too: the batch was finished before the change.
    assert named <= doubled <= named | in_flight if is_stored else not doubled


def main() -> None:
    folder, times = Path(sys.argv[1]), int(sys.argv[2])
    for point in POINTS:
        for successor in SUCCESSORS:
            for seed in range(times):
                run(folder / f"{point} {successor} {seed}".replace(" ", "-"), point, successor, seed)
            sys.stdout.write(f"{point}, {successor}: {times}\n")


if __name__ == "__main__":
    main()
