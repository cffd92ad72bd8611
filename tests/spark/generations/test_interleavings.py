"""Workers and finishers interleaved at every file-system operation, killed and frozen: no row is lost or doubled."""

import os
import random
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from coterie.spark.checkpoint import LINEAGE_FILE, HeldCheckpoint
from coterie.spark.generations import resplit
from coterie.spark.generations.layout import generation_folder
from coterie.spark.generations.manifest import read_manifest
from coterie.spark.generations.resplit import ResplitFinisher, SupersededError
from coterie.spark.generations.stores import PositionStore
from tests.spark.generations import model
from tests.spark.generations.model import Files, Source, Topic, World
from tests.spark.generations.stepped import Stage, install

WORKERS = 4
STEPS = 2500
SEEDS = pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 300), marks=pytest.mark.soak)])


def play(
    folder: Path,
    seed: int,
    source: Source,
    patch: pytest.MonkeyPatch,
    *,
    flat: bool = False,
    changes_positions: bool = False,
) -> World:
    """Four workers that all start tasks and act as owner; then, without faults, all data is read and counted.

    With ``flat`` the connector has checkpoints without generations, and its queries keep running. With
    ``changes_positions`` the workers also let the connector read some of its rows again.
    """
    rng = random.Random(seed)
    world = World(folder, source, rng, changes_positions=changes_positions)
    stage = Stage(rng, kill=0.001, freeze=0.004)
    install(patch, stage)
    try:
        if flat:
            source.grow(rng)
            source.grow(rng)
            for task, held in enumerate(world.lay_flat()):
                stage.enter(f"flat task {task}", partial(world.go_on_flat, task, held))
        for number in range(WORKERS):
            stage.enter(f"worker {number}", world.worker)
        names = iter(range(WORKERS, 10_000))
        for _ in range(STEPS // 50):
            source.grow(rng)
            stage.run(50, on_death=lambda: stage.enter(f"worker {next(names)}", world.worker))
        world.is_over = True
        stage.run_to_the_end()
        world.drain()
        world.check()
    except AssertionError as error:
        error.add_note(f"seed {seed}; the last operations:\n" + "\n".join(stage.story))
        raise
    finally:
        stage.kill_all()
    return world


@pytest.mark.timeout(1800)
@SEEDS
@pytest.mark.parametrize("source", [Files, Topic])
def test_no_row_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Callable[[], Source], seeds: range
) -> None:
    for seed in seeds:
        with monkeypatch.context() as patch:
            world = play(tmp_path / str(seed), seed, source(), patch)
        assert world.generations > 2
        shutil.rmtree(tmp_path / str(seed))


@pytest.mark.timeout(1800)
@SEEDS
def test_checkpoints_without_generations_are_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    for seed in seeds:
        with monkeypatch.context() as patch:
            play(tmp_path / str(seed), seed, Files(), patch, flat=True)
        shutil.rmtree(tmp_path / str(seed))


@pytest.mark.timeout(1800)
@SEEDS
@pytest.mark.parametrize("source", [Files, Topic])
def test_a_change_of_positions_loses_no_row_and_doubles_only_the_rows_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Callable[[], Source], seeds: range
) -> None:
    changed = 0
    for seed in seeds:
        with monkeypatch.context() as patch:
            world = play(tmp_path / str(seed), seed, source(), patch, changes_positions=True)
        changed += world.changes
        shutil.rmtree(tmp_path / str(seed))
    assert changed > len(seeds)


# -- planted bugs -----------------------------------------------------------------------------------------------------


def find(generation: Path, task: int) -> HeldCheckpoint:
    """The checkpoint of a task, without taking it over."""
    while os.listdir(generation):
        for folder in (generation / "closing" / str(task), generation / str(task)):
            for name in os.listdir(folder) if folder.is_dir() else ():
                if (lineage := folder / name / LINEAGE_FILE).is_file():
                    return HeldCheckpoint(
                        path=folder / name, task_start_number=0, lineage_id=lineage.read_text(), batch_id_in_flight=None
                    )
    raise AssertionError(f"{generation} is empty")


def found(finisher: ResplitFinisher, number: int) -> list[HeldCheckpoint]:
    generation = generation_folder(finisher.connector_path, number)
    return [find(generation, task) for task in range(len(read_manifest(generation).split.partitions_by_task))]


def take_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ResplitFinisher, "take_over_checkpoints", found)


def leave_batches_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ResplitFinisher, "run_batches_in_flight", lambda *_: None)


def read_positions_before_the_exchange(patch: pytest.MonkeyPatch) -> None:
    commit, take = ResplitFinisher.publish_next_generation, ResplitFinisher.take_over_checkpoints
    read: dict[int, list[dict[str, int]]] = {}

    def read_and_take(finisher: ResplitFinisher, number: int) -> list[HeldCheckpoint]:
        tasks = read_manifest(generation_folder(finisher.connector_path, number)).split.partitions_by_task
        try:
            read[threading.get_ident()] = [
                dict(finisher.find_position_store({}).read(held.path, parts))
                for held, parts in zip(found(finisher, number), tasks, strict=True)
            ]
        except OSError as error:
            raise SupersededError from error
        return take(finisher, number)

    class Read:
        """Returns the positions that were read before the exchange."""

        def __init__(self, store: PositionStore) -> None:
            self._store = store
            self._read = iter(read[threading.get_ident()])

        def read(self, checkpoint: Path, parts: Sequence[str]) -> Mapping[str, int]:
            return next(self._read)

        def write_to_new_checkpoint(self, checkpoint: Path, positions: Mapping[str, int]) -> None:
            self._store.write_to_new_checkpoint(checkpoint, positions)

    patch.setattr(ResplitFinisher, "take_over_checkpoints", read_and_take)
    patch.setattr(
        ResplitFinisher,
        "publish_next_generation",
        lambda self, number, held: commit(with_store(self, Read(self.find_position_store({}))), number, held),
    )


def with_store(finisher: ResplitFinisher, store: PositionStore) -> ResplitFinisher:
    return replace(finisher, find_position_store=lambda config: store)


def sweep_seeds_of_others(patch: pytest.MonkeyPatch) -> None:
    sweep = resplit.remove_all_but_last_two_generations

    def sweep_all(connector: Path) -> None:
        for path in connector.glob(".gen-*"):
            shutil.rmtree(path, ignore_errors=True)
        sweep(connector)

    patch.setattr(model, "remove_all_but_last_two_generations", sweep_all)


def begin_new_partitions_at_their_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Topic, "initial_positions", lambda self: dict(zip(self.parts(None), self.ends, strict=True)))


@pytest.mark.parametrize(
    ("plant", "finding"),
    [
        (take_nothing, "doubled"),
        (leave_batches_in_flight, "doubled"),
        (read_positions_before_the_exchange, "doubled"),
        (sweep_seeds_of_others, "worker [0-9]+ failed|lost|doubled"),
        (begin_new_partitions_at_their_end, "lost"),
    ],
)
def test_a_planted_bug_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], finding: str
) -> None:
    plant(monkeypatch)
    for seed in range(40):
        with monkeypatch.context() as patch:
            try:
                play(tmp_path / str(seed), seed, Topic(), patch)
            except AssertionError as found:
                assert re.search(finding, str(found))  # noqa: PT017 - most plays do not meet the bug
                assert not [thread for thread in threading.enumerate() if thread.name == "coterie-signs"]
                return
    pytest.fail("not found in 40 plays")
