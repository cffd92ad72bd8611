"""Re-splits whose owner is killed or stopped at a named point, each in its own process; see ``test_kills.py``.

``python -m tests.spark.generations.killed FOLDER TIMES`` prints a line for each point and fault.
"""

import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from coterie.spark.checkpoint import HeldCheckpoint
from coterie.spark.generations.checkpoint_take_over import (
    GenerationClosedError,
    is_generation_closed_or_removed,
    take_over_in_open_generation,
)
from coterie.spark.generations.layout import GenerationId, generation_folder, newest_generation_number
from coterie.spark.generations.manifest import Manifest
from coterie.spark.generations.resplit import (
    SupersededError,
    close_generation_and_return_stored_plan,
    record_task_stopped,
    remove_all_but_last_two_generations,
)
from tests.spark.generations.model import Files, Source, Topic, World

STEPS = "abcdefg"
POINTS = tuple(f"{when} {step}" for step in STEPS for when in ("before", "after"))
FAULTS = ("successor", "two finishers", "frozen")


class WorldOnDisk(World):
    """A world whose config topic is a file to which all processes write."""

    def publish(self, manifest: Manifest) -> None:
        with (self.connector.parent / "topic").open("a") as file:
            file.write(f"{manifest.generation}\n")

    def published(self) -> list[GenerationId]:
        return [GenerationId.parse(line) for line in (self.connector.parent / "topic").read_text().split()]


def prepared(folder: Path, source: Source, seed: int) -> WorldOnDisk:
    """A connector whose tasks have read; one task is inside a batch, before or after its effect."""
    world = WorldOnDisk(folder, source, random.Random(seed))
    for _ in range(8):
        source.grow(world.rng)
    manifest = world.finisher().create_first_generation(world.plan(1))
    world.publish(manifest)
    for task, held in enumerate(start(world, manifest)):
        world.run_batch(manifest, task, held, world.rng)
        source.grow(world.rng)
        number = world.plan_batch(manifest, task, held, world.rng)
        if number is not None and seed % 2:
            rows = source.batch(held.path, number, manifest, task)
            world.put(manifest, task, held.lineage_id, number, rows)
    return world


def start(world: World, manifest: Manifest) -> list[HeldCheckpoint]:
    generation = generation_folder(world.connector, manifest.generation.number)
    return [
        take_over_in_open_generation(generation, manifest.generation, task)
        for task in range(len(manifest.split.partitions_by_task))
    ]


def resplit(world: WorldOnDisk, number: int, at: Callable[[str], None]) -> None:
    """All steps of an owner, with the points between them."""
    finisher, generation = world.finisher(), generation_folder(world.connector, number)
    held: list[HeldCheckpoint] = []
    newest: list[Manifest] = []

    def release_all() -> None:
        for task in range(3):
            record_task_stopped(generation, task)

    def commit() -> None:
        finisher.publish_next_generation(number, held)
        newest.append(finisher.read_newest_manifest())

    steps: dict[str, Callable[[], object]] = {
        "a": lambda: close_generation_and_return_stored_plan(world.connector, world.plan(number + 1)),
        "b": release_all,
        "c": lambda: held.extend(finisher.take_over_checkpoints(number)),
        "d": lambda: finisher.run_batches_in_flight(number, held),
        "e": commit,
        "f": lambda: world.publish(newest[-1]),
        "g": lambda: remove_all_but_last_two_generations(world.connector),
    }
    for name, step in steps.items():
        at(f"before {name}")
        step()
        at(f"after {name}")


def end(how: signal.Signals, point: str, reached: str) -> None:
    if point == reached:
        os.kill(os.getpid(), how)


def succeed(world: WorldOnDisk, number: int) -> None:
    """Do what a successor does until generation ``number`` + 1 exists."""
    while newest_generation_number(world.connector) == number:
        try:
            if is_generation_closed_or_removed(generation_folder(world.connector, number)):
                world.publish(world.finisher().create_next_generation(number))
                remove_all_but_last_two_generations(world.connector)
            else:
                resplit(world, number, lambda _: None)
        except SupersededError:
            continue
        except OSError:
            if newest_generation_number(world.connector) == number:
                raise


def forked(world: World, play: Callable[[], None], number: int) -> int:
    """The id of a child process that plays and exits, with 1 if it fails although its generation still exists."""
    pid = os.fork()
    if pid:
        return pid
    code = 0
    try:
        play()
    except (OSError, SupersededError):
        if newest_generation_number(world.connector) == number:
            traceback.print_exc()
            code = 1
    except BaseException:  # noqa: BLE001 - a forked child must not run on in its parent's code
        traceback.print_exc()
        code = 1
    os._exit(code)


def run(folder: Path, point: str, fault: str, seed: int) -> None:
    world = prepared(folder, (Files, Topic)[seed // 2 % 2](), seed)
    how = signal.SIGSTOP if fault == "frozen" else signal.SIGKILL
    victim = forked(world, partial(resplit, world, 1, partial(end, how, point)), 1)
    _, status = os.waitpid(victim, os.WUNTRACED)
    if fault == "frozen":
        assert os.WIFSTOPPED(status), status
        for number in (1, 2):
            succeed(world, max(number, newest_generation_number(world.connector) or 0))
        os.kill(victim, signal.SIGCONT)
        _, status = os.waitpid(victim, 0)
        assert os.waitstatus_to_exitcode(status) == 0, (point, seed)
    else:
        assert os.WIFSIGNALED(status), status
        assert os.WTERMSIG(status) == signal.SIGKILL
        children = [forked(world, partial(succeed, world, 1), 1) for _ in range(2 if fault == "two finishers" else 1)]
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * len(children)
    newest = newest_generation_number(world.connector)
    assert newest is not None
    assert newest > 1
    # Of all published generations, in any order, only the newest one can be started.
    for generation in set(world.published()):
        if generation.number < newest:
            try:
                take_over_in_open_generation(generation_folder(world.connector, generation.number), generation, 0)
            except GenerationClosedError:
                continue
            raise AssertionError(f"{generation} was started although {newest} exists")
    world.drain()
    world.check()


def main() -> None:
    folder, times = Path(sys.argv[1]), int(sys.argv[2])
    for point in POINTS:
        for fault in FAULTS:
            for seed in range(times):
                run(folder / f"{point} {fault} {seed}".replace(" ", "-"), point, fault, seed)
            sys.stdout.write(f"{point}, {fault}: {times}\n")


if __name__ == "__main__":
    main()
