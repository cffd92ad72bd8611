"""The re-split: closes a generation and makes the next one from the positions of all its tasks, at most once.

Theory of operation. Every step can be repeated by any worker, from the first one on, also while another worker is at
it, and also by a worker that stood still for generations.

a. :func:`close` puts the plan of the next generation at ``closed``, by a link: the first one wins, so that all
   finishers make the same generation.
b. The runtimes look for ``closed``, stop their queries at a batch boundary and call :func:`release`. A runtime that
   does not costs a replay, no more.
c. :meth:`Finisher.take` takes each checkpoint by an exchange, which stops its query, and moves it to ``closing/``,
   where no start looks.
d. :meth:`Finisher.run_batches` runs each batch in flight with the split and the lineage of the closed generation: the
   sink counts it once.
e. :meth:`Finisher.commit` gathers the positions, deals them out, writes the new generation aside and renames it to its
   name. The rename is the commit. It fails where another generation of that number stands or stood.
f. The configs of the tasks that the manifest states are published. A task starts only in the generation that its config
   names, so that a late copy of other configs starts nothing.
g. :func:`retire_old` exchanges all generations but the last two for plain files: a rename or a query that comes late
   finds a file.

After c. no batch is planned in the closed generation, so after d. its positions do not change any more: whoever gathers
them gathers the same.
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
"""How often a finisher shows life, at least."""


RetireLineages: TypeAlias = Callable[[Manifest, Mapping[int, str]], bool]
"""Has the sink of a generation that is to be retired forget the lineages of its tasks, by their number. Repeatable;
False when that cannot be done now: the generation then stays until the next time."""


def nothing_to_retire(manifest: Manifest, lineages: Mapping[int, str]) -> bool:
    """For sinks that keep nothing by lineage."""
    return True


class OvertakenError(CoterieError):
    """Another finisher has taken a checkpoint from this one: this one stops, and leaves the rest to the other."""


# -- a. and b. --------------------------------------------------------------------------------------------------------


def adopt(connector: Path, manifest: Manifest) -> None:
    """Say of the layout of before generations what its tasks read; from now on it is generation 0."""
    assert manifest.generation.number == 0
    put_first(connector / MANIFEST, manifest_text(manifest))


def close(connector: Path, plan: Plan) -> Plan:
    """Close the generation before ``plan``; returns the plan that it is closed with, which can be another's.

    :raises OSError: when that generation does not stand (any more).
    """
    generation = generation_folder(connector, plan.generation.number - 1)
    put_first(generation / CLOSED, plan_text(plan))
    standing_plan = read_plan(generation)
    assert standing_plan is not None
    return standing_plan


def release(generation: Path, task: int) -> None:
    """Say that the query of a task has stopped here. A generation that was retired is fine."""
    try:
        (generation / RELEASED).mkdir(exist_ok=True)
        (generation / RELEASED / str(task)).touch()
    except (FileNotFoundError, FileExistsError, NotADirectoryError):
        pass


def unreleased(generation: Path, manifest: Manifest) -> frozenset[int]:
    """The tasks that were started, and of which no runtime has said that it stopped them."""
    try:
        released = {int(name) for name in os.listdir(generation / RELEASED)}
    except (FileNotFoundError, NotADirectoryError):
        released = set()
    tasks = frozenset(range(len(manifest.split.tasks))) - released
    return frozenset(task for task in tasks if was_started(generation / str(task)))


def sign_of_life(generation: Path) -> int | None:
    """When a finisher was last at work, on the file system's clock; None before the first. To be compared only with an
    earlier answer: the clocks of workers differ."""
    try:
        return (generation / CLOSING / ALIVE).stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None


# -- c. to e. ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Finisher:
    """Makes the next generation of one connector."""

    connector: Path
    store: PositionStore
    run_batch: Callable[[Manifest, int, HeldCheckpoint], None]
    """Runs the batch in flight of a task of a closed generation; returns when it is committed."""
    fence: Fence
    """Closed when this worker may no longer act for the connector."""
    retire_lineages: RetireLineages = nothing_to_retire

    def begin(self, plan: Plan) -> Manifest:
        """Make generation 1 of a connector that has none: all tasks begin at the plan's ``starts``."""
        assert plan.generation.number == 1
        # Manifests and plans hold the connector's config, and it may hold a password.
        self.connector.mkdir(mode=0o770, parents=True, exist_ok=True)
        self._put_in_place(plan.born({}))
        return self.newest()

    def finish(self, number: int) -> Manifest:
        """Make the generation after ``number``, which is closed; returns the newest generation, whoever made it.

        :raises OvertakenError: when another finisher is at work.
        :raises FencedError: when the fence is closed.
        """
        try:
            with self._showing_life(number):
                held = self.take(number)
                self.run_batches(number, held)
                self.commit(number, held)
        except OSError:
            # A retired generation is a plain file: everything that is done in it fails.
            if standing(self.connector) in (None, number):
                raise
        return self.newest()

    def take(self, number: int) -> list[HeldCheckpoint]:
        """Step c.: hold the checkpoints of all tasks, so that no query plans a batch on them."""
        generation = generation_folder(self.connector, number)
        manifest = read_manifest(generation)
        held = []
        for task in range(len(manifest.split.tasks)):
            if number == 0:
                # A task that never started has a checkpoint without batches.
                make_first(generation / str(task))
            held.append(take_closed(generation, task))
            self.show_life(number)
        return held

    def run_batches(self, number: int, held: Sequence[HeldCheckpoint]) -> None:
        """Step d.: leave no batch in flight."""
        manifest = read_manifest(generation_folder(self.connector, number))
        for task, one in enumerate(held):
            if one.batch_in_flight is not None:
                self.run_batch(manifest, task, one)
                self.show_life(number)

    def commit(self, number: int, held: Sequence[HeldCheckpoint]) -> None:
        """Step e.: gather the positions, and put the generation that goes on there in place."""
        generation = generation_folder(self.connector, number)
        manifest, plan = read_manifest(generation), read_plan(generation)
        assert plan is not None, f"{generation} is not closed"
        read: dict[int, Positions] = {}
        for task, one in enumerate(held):
            try:
                read[task] = self.store.read(one.path, manifest.split.tasks[task])
            except OSError as error:
                if is_taken(one.path):
                    raise OvertakenError(f"{one.path} was taken by another finisher") from error
                raise
            if is_taken(one.path):
                raise OvertakenError(f"{one.path} was taken by another finisher")
        self._put_in_place(plan.born(gathered(manifest.parked, read, manifest.split)))

    def show_life(self, number: int) -> None:
        (generation_folder(self.connector, number) / CLOSING / ALIVE).touch()

    @contextmanager
    def _showing_life(self, number: int) -> Iterator[None]:
        """Show life also while one step takes long: a batch, or the gathering of many positions."""
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
                # Retired meanwhile: there are newer ones.
                if standing(self.connector) == number:
                    raise

    def _put_in_place(self, manifest: Manifest) -> None:
        """Write the generation aside and rename it to its name, unless another stands there or stood there."""
        number = manifest.generation.number
        seed = self.connector / f"{seed_prefix(number)}{uuid.uuid4().hex}"
        seed.mkdir()
        (seed / MANIFEST).write_text(manifest_text(manifest))
        by_hash = manifest.split.function is not SplitFunction.PARTS_V1
        for task in range(len(manifest.split.tasks)):
            checkpoint = seed / str(task) / GENESIS
            checkpoint.mkdir(parents=True)
            (checkpoint / LINEAGE).write_text(uuid.uuid4().hex)
            # By hash, every task lists all files: those that others have read must not come up again.
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
    """The lineages of the checkpoints of a closed generation, by task."""
    found: dict[int, str] = {}
    for task in range(len(manifest.split.tasks)):
        for folder in (generation / CLOSING / str(task), generation / str(task)):
            for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
                with suppress(FileNotFoundError, NotADirectoryError):
                    found[task] = (folder / name / LINEAGE).read_text()
    return found


def retire_old(connector: Path, retire_lineages: RetireLineages = nothing_to_retire) -> None:
    """Retire all generations but the last two, and remove what finishers and retirements have left behind."""
    newest = standing(connector)
    if newest is None:
        return
    names = sorted(os.listdir(connector))
    for number in range(1, newest - 1):
        folder = generation_folder(connector, number)
        with suppress(FileNotFoundError, NotADirectoryError):  # Another worker has retired it.
            manifest = read_manifest(folder)
            if retire_lineages(manifest, lineages(folder, manifest)):
                retire(folder)
    if newest >= 2:
        for name in names:
            if (name.isdigit() or name in (CLOSING, RELEASED)) and (connector / name).is_dir():
                retire(connector / name)
    for name in names:
        # A seed of a generation that does not stand yet may be about to be renamed by another finisher.
        is_late_seed = any(name.startswith(seed_prefix(number)) for number in range(1, newest + 1))
        if is_late_seed or name.startswith(RETIRED_PREFIX):
            remove(connector / name)
