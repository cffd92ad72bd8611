"""A model of a connector: tasks that plan, write and commit batches as Spark does, without Spark; and its owners.

Rows are names. A batch puts the rows of its task under its lineage and number, once, and so does a replay.
"""

import json
import os
import random
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from coterie.spark.checkpoint import (
    HeldCheckpoint,
    create_first_checkpoint_if_absent,
    find_batch_id_in_flight,
    is_checkpoint_taken_over_or_absent,
    last_batch_id_in_log,
    take_over_checkpoint,
)
from coterie.spark.fence import Fence
from coterie.spark.generations.checkpoint_take_over import (
    GenerationAbsentError,
    GenerationClosedError,
    is_generation_closed_or_removed,
    take_over_in_open_generation,
)
from coterie.spark.generations.layout import GenerationId, generation_folder, newest_generation_number
from coterie.spark.generations.manifest import GenerationPlan, Manifest, PositionChange, read_plan_of_next_generation
from coterie.spark.generations.resplit import (
    ResplitFinisher,
    SupersededError,
    close_generation_and_return_stored_plan,
    record_task_stopped,
    remove_all_but_last_two_generations,
    write_legacy_layout_manifest_if_absent,
)
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.generations.stores import FileSourcePositionStore, PositionStore
from coterie.spark.generations.updater import GenerationUpdater, PositionChangeRequest
from coterie.spark.sources.kafka_positions import KafkaPositionStore, TopicIdPartition


class Source:
    """The data to read; it grows while the tasks read."""

    function: ClassVar[SplitFunction]
    position_store: PositionStore

    def grow(self, rng: random.Random) -> None:
        raise NotImplementedError

    def rows(self) -> list[str]:
        """All existing rows."""
        raise NotImplementedError

    def parts(self, rng: random.Random | None) -> list[str]:
        """The current parts; without ``rng`` all parts that ever existed."""
        raise NotImplementedError

    def initial_positions(self) -> dict[str, int]:
        """The positions of parts that were never read."""
        raise NotImplementedError

    def key_of(self, row: str) -> str:
        """The key of the position that contains a row."""
        raise NotImplementedError

    def is_read(self, row: str, positions: Mapping[str, int]) -> bool:
        """Whether ``positions`` are behind a row."""
        raise NotImplementedError

    def positions_to_read_again(self, rng: random.Random) -> tuple[dict[str, int | None], str]:
        """Changed positions, and the key of the one whose rows they let tasks read again."""
        raise NotImplementedError

    def plan(self, checkpoint: Path, number: int, parts: tuple[str, ...], rng: random.Random | None) -> str | None:
        """The end offset of the next batch; None if there is nothing new."""
        raise NotImplementedError

    def batch(self, checkpoint: Path, number: int, manifest: Manifest, task: int) -> list[str]:
        """The rows of a planned batch."""
        raise NotImplementedError


class Files(Source):
    """A folder. Every task lists all files and reads those that hash to it."""

    function = SplitFunction.PATH_HASH_V1
    position_store = FileSourcePositionStore()

    def __init__(self) -> None:
        self.names: list[str] = []

    def grow(self, rng: random.Random) -> None:
        self.names += [f"file:///in/{len(self.names) + number}.csv" for number in range(rng.randrange(1, 4))]

    def rows(self) -> list[str]:
        return list(self.names)

    def parts(self, rng: random.Random | None) -> list[str]:
        return ["/in"]

    def initial_positions(self) -> dict[str, int]:
        return {}

    def key_of(self, row: str) -> str:
        return row

    def is_read(self, row: str, positions: Mapping[str, int]) -> bool:
        return row in positions

    def positions_to_read_again(self, rng: random.Random) -> tuple[dict[str, int | None], str]:
        name = rng.choice(self.names or ["file:///in/none.csv"])
        return {name: None}, name

    def plan(self, checkpoint: Path, number: int, parts: tuple[str, ...], rng: random.Random | None) -> str | None:
        log = checkpoint / "sources" / "0"
        last = last_batch_id_in_log(log)
        seen = {path for entry in range((-1 if last is None else last) + 1) for path in _entries(log, entry)}
        before = _log_offset(checkpoint, number - 1)
        end = -1 if last is None else last
        if new := [name for name in self.names if name not in seen]:
            end += 1
            new = new[: None if rng is None else rng.randrange(1, 4)]
            lines = [json.dumps({"path": name, "timestamp": 1, "batchId": end}) for name in new]
            write_as_spark(log / str(end), "\n".join(["v1", *lines]))
        return json.dumps({"logOffset": end}) if end > before else None

    def batch(self, checkpoint: Path, number: int, manifest: Manifest, task: int) -> list[str]:
        log = checkpoint / "sources" / "0"
        first, last = _log_offset(checkpoint, number - 1) + 1, _log_offset(checkpoint, number)
        names = {path: 1 for entry in range(first, last + 1) for path in _entries(log, entry)}
        return sorted(manifest.split.positions_of_task(task, names))


class Topic(Source):
    """A topic whose partitions grow and become more. Some may be invisible for a time."""

    function = SplitFunction.PARTS_V1
    position_store = KafkaPositionStore()

    def __init__(self, *, new_parts_at_latest: bool = False) -> None:
        self.ends = [0, 0]
        self._at_latest = new_parts_at_latest

    def grow(self, rng: random.Random) -> None:
        if rng.random() < 0.1 and len(self.ends) < 7:
            self.ends.append(0)
        self.ends[rng.randrange(len(self.ends))] += rng.randrange(1, 6)

    def rows(self) -> list[str]:
        return [f"{partition}:{offset}" for partition, end in enumerate(self.ends) for offset in range(end)]

    def parts(self, rng: random.Random | None) -> list[str]:
        all_ = [str(TopicIdPartition(topic="t", partition=number, topic_id="id")) for number in range(len(self.ends))]
        return all_ if rng is None or rng.random() < 0.7 else rng.sample(all_, rng.randrange(1, len(all_)))

    def initial_positions(self) -> dict[str, int]:
        return dict(zip(self.parts(None), self.ends if self._at_latest else [0] * len(self.ends), strict=True))

    def key_of(self, row: str) -> str:
        return str(TopicIdPartition(topic="t", partition=int(row.partition(":")[0]), topic_id="id"))

    def is_read(self, row: str, positions: Mapping[str, int]) -> bool:
        return int(row.partition(":")[2]) < positions.get(self.key_of(row), 0)

    def positions_to_read_again(self, rng: random.Random) -> tuple[dict[str, int | None], str]:
        key = rng.choice(self.parts(None))
        return {key: 0}, key

    def plan(self, checkpoint: Path, number: int, parts: tuple[str, ...], rng: random.Random | None) -> str | None:
        before = self._offsets(checkpoint, number - 1)
        most = 1000 if rng is None else rng.randrange(1, 5)
        after = {p: min(at + most, self.ends[int(p)]) for p, at in before.items()}
        return json.dumps({"t": after}) if after != before else None

    def batch(self, checkpoint: Path, number: int, manifest: Manifest, task: int) -> list[str]:
        before, after = self._offsets(checkpoint, number - 1), self._offsets(checkpoint, number)
        return [f"{p}:{offset}" for p in after for offset in range(before[p], after[p])]

    def _offsets(self, checkpoint: Path, number: int) -> dict[str, int]:
        if number >= 0:
            line = (checkpoint / "offsets" / str(number)).read_text().splitlines()[2]
        else:
            line = (checkpoint / "sources" / "0" / "0").read_text().splitlines()[1]
        offsets: dict[str, int] = json.loads(line).get("t", {})
        return offsets


class World:
    """One connector, the config topic, and the sink of its tasks."""

    def __init__(self, folder: Path, source: Source, rng: random.Random, *, changes_positions: bool = False) -> None:
        self.changes_positions = changes_positions
        self.connector, self.out = folder / "c-i", folder / "out"
        self.source = source
        self.rng = rng
        self.topic: list[Manifest] = []
        self.is_over = False
        self.generations = 0
        self.overtaken = 0
        self.doubts: list[str] = []
        self.changes = 0
        self.read_again: Counter[str] = Counter()
        """How often changes of positions may have let the rows of each position's key be read again."""

    # -- tasks --------------------------------------------------------------------------------------------------------

    def run_task(self) -> None:
        """Start any task of the last published generation, even if it runs elsewhere, and run some batches."""
        if not self.topic:
            return
        manifest = self.topic[-1]
        task = self.rng.randrange(len(manifest.split.partitions_by_task))
        generation = generation_folder(self.connector, manifest.generation.number)
        try:
            held = take_over_in_open_generation(generation, manifest.generation, task)
            for _ in range(self.rng.randrange(1, 5)):
                if is_checkpoint_taken_over_or_absent(held.path):
                    return
                if is_generation_closed_or_removed(generation):
                    break
                self.run_batch(manifest, task, held, self.rng)
        except (GenerationClosedError, GenerationAbsentError):
            return
        except OSError as error:
            if error.filename is not None and not is_checkpoint_taken_over_or_absent(held.path):
                raise
            return
        if is_generation_closed_or_removed(generation):
            record_task_stopped(generation, task)

    def run_batch(self, manifest: Manifest, task: int, held: HeldCheckpoint, rng: random.Random | None) -> bool:
        """Run the batch in flight, or the next one if there is something to read."""
        path = held.path
        number = find_batch_id_in_flight(path)
        if number is None:
            number = self.plan_batch(manifest, task, held, rng)
            if number is None:
                return False
        rows = self.source.batch(path, number, manifest, task)
        self.put(manifest, task, held.lineage_id, number, rows)
        write_as_spark(path / "commits" / str(number), "v1\n{}")
        return True

    def plan_batch(self, manifest: Manifest, task: int, held: HeldCheckpoint, rng: random.Random | None) -> int | None:
        """The number of the batch that is now in flight; None if there is nothing new to read."""
        planned = last_batch_id_in_log(held.path / "offsets")
        number = 0 if planned is None else planned + 1
        line = self.source.plan(held.path, number, manifest.split.partitions_by_task[task], rng)
        if line is None:
            return None
        write_as_spark(held.path / "offsets" / str(number), f"v1\n{{}}\n{line}")
        return number

    def finish_batch(self, manifest: Manifest, task: int, held: HeldCheckpoint) -> None:
        try:
            if find_batch_id_in_flight(held.path) is not None:
                self.run_batch(manifest, task, held, None)
        except OSError as error:
            if not is_checkpoint_taken_over_or_absent(held.path):
                raise
            raise SupersededError from error

    def put(self, manifest: Manifest, task: int, lineage: str, number: int, rows: list[str]) -> None:
        folder = self.out / f"{task}-{lineage}"
        folder.mkdir(parents=True, exist_ok=True)
        staged = folder / f".{uuid.uuid4().hex}"
        staged.write_text(json.dumps(rows))
        try:
            os.link(staged, folder / str(number))
        except FileExistsError:
            before = json.loads((folder / str(number)).read_text())
            if before != rows:
                self.doubts.append(f"batch {number} of {task}-{lineage} had {before}, and then {rows}")
        staged.unlink()

    # -- before generations --------------------------------------------------------------------------------------------

    @property
    def flat(self) -> Manifest:
        """The manifest of three tasks that are split as generation 0 splits."""
        return Manifest(
            generation=GenerationId(number=0, id="flat"),
            split=Split(function=SplitFunction.PATH_HASH_V0, partitions_by_task=(("/in",),) * 3),
            config={},
            inferred_values={},
            positions={},
            absent_partition_positions={},
        )

    def lay_flat(self) -> list[HeldCheckpoint]:
        """The files of a connector without generations: two tasks have read, one is in a batch, one never ran."""
        folders = [self.connector / str(task) for task in range(2)]
        for folder in folders:
            create_first_checkpoint_if_absent(folder)
        held = [take_over_checkpoint(folder) for folder in folders]
        for task, one in enumerate(held):
            self.run_batch(self.flat, task, one, self.rng)
        self.plan_batch(self.flat, 0, held[0], self.rng)
        return held

    def go_on_flat(self, task: int, held: HeldCheckpoint) -> None:
        """Do what a query of generation 0 does until it finds that its checkpoint was taken."""
        try:
            while not self.is_over:
                os.stat("/")
                self.run_batch(self.flat, task, held, self.rng)
        except OSError:
            if not is_checkpoint_taken_over_or_absent(held.path):
                raise

    # -- owners -------------------------------------------------------------------------------------------------------

    def finisher(self) -> ResplitFinisher:
        return ResplitFinisher(
            connector_path=self.connector,
            find_position_store=lambda config: self.source.position_store,
            run_batch_in_flight=self.finish_batch,
            fence=Fence(),
        )

    def own(self) -> None:
        """Do what an owner of the connector does, and another worker if the owner makes no progress: re-split,
        finish, publish."""
        finisher = self.finisher()
        number = newest_generation_number(self.connector)
        try:
            if number is None:
                finisher.create_first_generation(self.plan(1))
            else:
                generation = generation_folder(self.connector, number)
                if number == 0:
                    write_legacy_layout_manifest_if_absent(self.connector, self.flat)
                if read_plan_of_next_generation(generation) is None and (number == 0 or self.rng.random() < 0.5):
                    close_generation_and_return_stored_plan(self.connector, self.plan(number + 1))
                if is_generation_closed_or_removed(generation):
                    finisher.create_next_generation(number)
        except SupersededError:
            self.overtaken += 1
            return
        except OSError:
            if newest_generation_number(self.connector) == number:
                raise
            return
        self.publish(finisher.read_newest_manifest())
        remove_all_but_last_two_generations(self.connector)

    def publish(self, manifest: Manifest) -> None:
        os.stat("/")
        self.topic.append(manifest)

    def change_positions(self) -> None:
        """Let the connector read one row, or the rows of a partition, again, as a user's change of positions does."""
        if newest_generation_number(self.connector) in (None, 0):
            return
        positions, name = self.source.positions_to_read_again(self.rng)
        self.read_again[name] += 1
        updater = GenerationUpdater(self.finisher(), tasks_stop_timeout_ms=0, liveness_timeout_ms=0)
        updater.change_positions(
            PositionChangeRequest(
                change=PositionChange(positions=positions),
                config={},
                split_function=self.source.function,
                has_task_configs_with_generation=True,
            )
        )
        self.changes += 1

    def plan(self, number: int, rng: random.Random | None = None) -> GenerationPlan:
        parts = self.source.parts(rng or self.rng)
        count = self.rng.randrange(1, 5)
        if self.source.function is SplitFunction.PARTS_V1:
            tasks = tuple(filter(None, (tuple(parts[task::count]) for task in range(count))))
        else:
            tasks = tuple(tuple(parts) for _ in range(count))
        return GenerationPlan(
            generation=GenerationId(number=number, id=uuid.uuid4().hex),
            split=Split(function=self.source.function, partitions_by_task=tasks),
            config={"tasks.max": str(count)},
            inferred_values={},
            initial_positions=self.source.initial_positions(),
        )

    # -- the play -----------------------------------------------------------------------------------------------------

    def worker(self) -> None:
        """Do repeatedly what each worker does."""
        while not self.is_over:
            os.stat("/")
            if self.changes_positions and self.rng.random() < 0.1:
                self.change_positions()
            elif self.rng.random() < 0.3:
                self.own()
            else:
                self.run_task()

    def drain(self) -> None:
        """Without faults, read all data in a last generation of one task with all parts."""
        number = newest_generation_number(self.connector)
        finisher = self.finisher()
        if number == 0:
            write_legacy_layout_manifest_if_absent(self.connector, self.flat)
            close_generation_and_return_stored_plan(self.connector, self.plan(1))
        if number is None:
            number = finisher.create_first_generation(self.plan(1)).generation.number
        elif is_generation_closed_or_removed(generation_folder(self.connector, number)):
            number = finisher.create_next_generation(number).generation.number
        parts = self.source.parts(None)
        last = GenerationPlan(
            generation=GenerationId(number=number + 1, id="last"),
            split=Split(function=self.source.function, partitions_by_task=(tuple(parts),)),
            config={},
            inferred_values={},
            initial_positions=self.source.initial_positions(),
        )
        close_generation_and_return_stored_plan(self.connector, last)
        manifest = finisher.create_next_generation(number)
        remove_all_but_last_two_generations(self.connector)
        held = take_over_in_open_generation(generation_folder(self.connector, number + 1), manifest.generation, 0)
        while self.run_batch(manifest, 0, held, None):
            pass
        self.generations = number + 1

    def check(self) -> None:
        """Check that each row exists once, that replays had the same rows, and that no file is left over."""
        written: Counter[str] = Counter()
        for folder in self.out.glob("*"):
            for path in folder.glob("[0-9]*"):
                written.update(json.loads(path.read_text()))
        rows = self.source.rows()
        lost = [row for row in rows if not written[row]]
        doubled = [row for row in rows if written[row] > 1 + self.read_again[self.source.key_of(row)]]
        if lost or doubled or self.doubts:
            raise AssertionError(f"lost {lost}, doubled {doubled}, {self.doubts}")
        assert written.keys() == set(rows)
        visible = sorted(name for name in os.listdir(self.connector) if (self.connector / name).is_dir())
        assert visible == sorted(f"gen-{number}" for number in (self.generations - 1, self.generations))


def write_as_spark(path: Path, text: str) -> None:
    """Write a temporary file and rename it; missing folders are created, as Spark does with the fast settings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    aside.write_text(text)
    if path.exists():
        raise FileExistsError(path)
    aside.rename(path)


def _entries(log: Path, number: int) -> list[str]:
    try:
        lines = (log / str(number)).read_text().splitlines()[1:]
    except FileNotFoundError:
        return []
    return [json.loads(line)["path"] for line in lines if line]


def _log_offset(checkpoint: Path, number: int) -> int:
    if number < 0:
        return -1
    line = (checkpoint / "offsets" / str(number)).read_text().splitlines()[2]
    return int(json.loads(line)["logOffset"])
