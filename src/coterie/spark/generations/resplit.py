"""The re-split: closes a checkpoint generation and creates the next one from its tasks' positions, at most once.

Theory of operation. Every worker can repeat every step, beginning with the first one, also while another worker
performs the same step, and also after a suspension during which newer generations were created.

a. :func:`close` creates the file ``closed`` with the plan of the next generation, by a link: only the first plan is
   stored, so that all workers create the same generation.
b. The runtimes poll for ``closed``, stop their queries at a batch boundary and call :func:`release`. If a runtime does
   not, one of its batches is replayed.
c. :meth:`Finisher.take` takes over each checkpoint by an exchange, which stops its query, and moves the checkpoint to
   ``closing/``, where no start searches for it.
d. :meth:`Finisher.run_batches` runs each batch in flight with the split and the lineage of the closed generation: the
   sink commits each batch once.
e. :meth:`Finisher.commit` reads the positions, assigns them to the new tasks, writes the new generation to a temporary
   folder and renames that folder. The rename publishes the generation. It fails if another generation with this number
   exists or existed.
f. The herder publishes the task configs, which are derived from the manifest. A task starts only in the generation that
   its config names, so that late copies of other configs start no task.
g. :func:`retire_old` replaces all generations but the last two by plain files, so that late renames and queries fail.

After c. no batch is planned in the closed generation. So after d. its positions do not change any more, and all workers
read the same positions.
"""

import errno
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from coterie.nouns.errors import CoterieError
from coterie.spark.checkpoint import GENESIS, LINEAGE, HeldCheckpoint, is_taken, make_first, was_started
from coterie.spark.fence import Fence
from coterie.spark.generations.durable import RETIRED_PREFIX, put_first, remove, retire, sync_folder, sync_tree
from coterie.spark.generations.layout import (
    ALIVE,
    CLOSED,
    CLOSING,
    MANIFEST,
    RELEASED,
    generation_folder,
    seed_prefix,
    standing,
)
from coterie.spark.generations.manifest import (
    Manifest,
    Plan,
    manifest_text,
    plan_text,
    read_manifest,
    read_plan,
)
from coterie.spark.generations.split import SplitFunction, gathered
from coterie.spark.generations.stores import PositionStore
from coterie.spark.generations.taking import take_closed
from coterie.spark.positions import Positions

SIGN_EVERY_MS = 2_000
"""Longest interval at which the worker that performs a re-split touches the liveness file."""


RetireLineages: TypeAlias = Callable[[Manifest, Mapping[int, str]], bool]
"""Removes the data that the sink of an old generation keeps for its lineages, which are given by task number.
Idempotent. Returns False when that failed: the generation then stays until the next attempt."""


def nothing_to_retire(manifest: Manifest, lineages: Mapping[int, str]) -> bool:
    """The :data:`RetireLineages` of sinks that keep no data for lineages."""
    return True


class OvertakenError(CoterieError):
    """Another worker has taken over this re-split or has created another generation: this worker's re-split ends."""


# -- a. and b. --------------------------------------------------------------------------------------------------------


def adopt(connector: Path, manifest: Manifest) -> None:
    """Write the manifest of generation 0, for the tasks of a version of Coterie without checkpoint generations."""
    assert manifest.generation.number == 0
    put_first(connector / MANIFEST, manifest_text(manifest))


def close(connector: Path, plan: Plan) -> Plan:
    """Close the generation before ``plan``; returns the stored plan, which another worker may have written before.

    :raises OSError: when that generation does not exist (any more).
    """
    generation = generation_folder(connector, plan.generation.number - 1)
    put_first(generation / CLOSED, plan_text(plan))
    standing_plan = read_plan(generation)
    assert standing_plan is not None
    return standing_plan


def release(generation: Path, task: int) -> None:
    """Record in the generation's folder that the query of a task has stopped. Does nothing if the generation was
    removed."""
    try:
        (generation / RELEASED).mkdir(exist_ok=True)
        (generation / RELEASED / str(task)).touch()
    except (FileNotFoundError, FileExistsError, NotADirectoryError):
        pass


def unreleased(generation: Path, manifest: Manifest) -> frozenset[int]:
    """The tasks that were started, and whose stop no runtime has recorded by :func:`release`."""
    try:
        released = {int(name) for name in os.listdir(generation / RELEASED)}
    except (FileNotFoundError, NotADirectoryError):
        released = set()
    tasks = frozenset(range(len(manifest.split.tasks))) - released
    return frozenset(task for task in tasks if was_started(generation / str(task)))


def sign_of_life(generation: Path) -> int | None:
    """The time of the last touch of the liveness file, in ns of the file system's clock; None before the first touch.
    Compare it only with an earlier result: the clocks of workers differ."""
    try:
        return (generation / CLOSING / ALIVE).stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None


# -- c. to e. ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Finisher:
    """Creates the next checkpoint generation of one connector."""

    connector: Path
    store: PositionStore
    run_batch: Callable[[Manifest, int, HeldCheckpoint], None]
    """Runs the batch in flight of a task of a closed generation; returns when the batch is committed."""
    fence: Fence
    """Is closed when this worker may no longer act for the connector."""
    retire_lineages: RetireLineages = nothing_to_retire

    def begin(self, plan: Plan) -> Manifest:
        """Create generation 1 of a connector without generations: all tasks start at the plan's ``starts``."""
        assert plan.generation.number == 1
        # Manifests and plans contain the connector's config, which may contain a password.
        self.connector.mkdir(mode=0o770, parents=True, exist_ok=True)
        self._put_in_place(plan.born({}))
        return self.newest()

    def finish(self, number: int) -> Manifest:
        """Create the generation after ``number``, which is closed. Returns the newest generation, which another worker
        may have created.

        :raises OvertakenError: when another worker has taken over this re-split.
        :raises FencedError: when the fence is closed.
        """
        try:
            with self._showing_life(number):
                held = self.take(number)
                self.run_batches(number, held)
                self.commit(number, held)
        except OSError:
            # A removed generation is a plain file: all operations in it fail.
            if standing(self.connector) in (None, number):
                raise
        return self.newest()

    def take(self, number: int) -> list[HeldCheckpoint]:
        """Step c.: take over the checkpoints of all tasks, so that no query plans a batch on them."""
        generation = generation_folder(self.connector, number)
        manifest = read_manifest(generation)
        held = []
        for task in range(len(manifest.split.tasks)):
            if number == 0:
                # A task that was never started gets a checkpoint without batches.
                make_first(generation / str(task))
            held.append(take_closed(generation, task))
            self.show_life(number)
        return held

    def run_batches(self, number: int, held: Sequence[HeldCheckpoint]) -> None:
        """Step d.: run the batches in flight."""
        manifest = read_manifest(generation_folder(self.connector, number))
        for task, one in enumerate(held):
            if one.batch_in_flight is not None:
                self.run_batch(manifest, task, one)
                self.show_life(number)

    def commit(self, number: int, held: Sequence[HeldCheckpoint]) -> None:
        """Step e.: read the positions, and publish the generation that resumes at these positions."""
        generation = generation_folder(self.connector, number)
        manifest, plan = read_manifest(generation), read_plan(generation)
        assert plan is not None, f"{generation} is not closed"
        read: dict[int, Positions] = {}
        for task, one in enumerate(held):
            try:
                read[task] = self.store.read(one.path, manifest.split.tasks[task])
            except OSError as error:
                if is_taken(one.path):
                    raise OvertakenError(f"{one.path} was taken over by a re-split of another worker") from error
                raise
            if is_taken(one.path):
                raise OvertakenError(f"{one.path} was taken over by a re-split of another worker")
        self._put_in_place(plan.born(gathered(manifest.parked, read, manifest.split)))

    def show_life(self, number: int) -> None:
        (generation_folder(self.connector, number) / CLOSING / ALIVE).touch()

    @contextmanager
    def _showing_life(self, number: int) -> Iterator[None]:
        """Touch the liveness file on a thread during the block: a batch, or reading many positions, can take long."""
        is_done = threading.Event()

        def show() -> None:
            while not is_done.wait(SIGN_EVERY_MS / 1000):
                with suppress(OSError):
                    self.show_life(number)

        signs = threading.Thread(target=show, name="coterie-signs", daemon=True)
        signs.start()
        try:
            yield
        finally:
            is_done.set()
            signs.join()

    def newest(self) -> Manifest:
        """The manifest of the newest generation."""
        while True:
            number = standing(self.connector)
            assert number, f"{self.connector} has no generation"
            try:
                return read_manifest(generation_folder(self.connector, number))
            except OSError:
                # The generation was removed after the listing: newer ones exist.
                if standing(self.connector) == number:
                    raise

    def _put_in_place(self, manifest: Manifest) -> None:
        """Write the generation to a temporary folder and rename it, unless a generation with this number exists or
        existed."""
        number = manifest.generation.number
        seed = self.connector / f"{seed_prefix(number)}{uuid.uuid4().hex}"
        seed.mkdir()
        (seed / MANIFEST).write_text(manifest_text(manifest))
        by_hash = manifest.split.function is not SplitFunction.PARTS_V1
        for task in range(len(manifest.split.tasks)):
            checkpoint = seed / str(task) / GENESIS
            checkpoint.mkdir(parents=True)
            (checkpoint / LINEAGE).write_text(uuid.uuid4().hex)
            # With a hash split, every task lists all files: it must not read again the files that other tasks have
            # read.
            positions = manifest.positions if by_hash else manifest.split.own(task, manifest.positions)
            self.store.seed(checkpoint, positions)
        sync_tree(seed)
        try:
            with self.fence.passing():
                os.rename(seed, generation_folder(self.connector, number))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            remove(seed)
        else:
            sync_folder(self.connector)


# -- g. ---------------------------------------------------------------------------------------------------------------


def lineages(generation: Path, manifest: Manifest) -> dict[int, str]:
    """The lineages of the checkpoints of a closed generation, by task number."""
    found: dict[int, str] = {}
    for task in range(len(manifest.split.tasks)):
        for folder in (generation / CLOSING / str(task), generation / str(task)):
            for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
                with suppress(FileNotFoundError, NotADirectoryError):
                    found[task] = (folder / name / LINEAGE).read_text()
    return found


def retire_old(connector: Path, retire_lineages: RetireLineages = nothing_to_retire) -> None:
    """Replace all generations but the last two by plain files, and remove temporary files of earlier re-splits."""
    newest = standing(connector)
    if newest is None:
        return
    names = sorted(os.listdir(connector))
    for number in range(1, newest - 1):
        folder = generation_folder(connector, number)
        with suppress(FileNotFoundError, NotADirectoryError):  # Another worker has removed it.
            manifest = read_manifest(folder)
            if retire_lineages(manifest, lineages(folder, manifest)):
                retire(folder)
    if newest >= 2:
        for name in names:
            if (name.isdigit() or name in (CLOSING, RELEASED)) and (connector / name).is_dir():
                retire(connector / name)
    for name in names:
        # Keep the temporary folder of a generation that does not exist yet: another worker may be about to rename it.
        is_late_seed = any(name.startswith(seed_prefix(number)) for number in range(1, newest + 1))
        if is_late_seed or name.startswith(RETIRED_PREFIX):
            remove(connector / name)
