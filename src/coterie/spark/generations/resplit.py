"""The re-split: closes a checkpoint generation and creates the next one from the positions of the closed generation's
tasks, at most once.

Theory of operation. Every worker can repeat every step, beginning with the first one, also while another worker
performs the same step, and also after a suspension during which newer generations were created.

a. :func:`close_generation_and_return_stored_plan` creates the file ``closed`` with the plan of the next
   generation, by a link: only the first plan is stored, so that all workers create the same generation.
b. The runtimes poll for ``closed``, stop their queries at a batch boundary and call :func:`record_task_stopped`. If a
   runtime does not stop a query in time, the query's last batch is replayed in step d.
c. :meth:`ResplitFinisher.take_over_checkpoints` takes over each checkpoint by an exchange of names, after which the
   next write of its query fails, and moves the checkpoint to ``closing/``, where no start searches for it.
d. :meth:`ResplitFinisher.run_batches_in_flight` runs each batch in flight (planned and not committed) with the split of
   the closed generation and the lineage of its checkpoint, which is the id by which the sink knows the checkpoint's
   batches. So the sink commits each batch once.
e. :meth:`ResplitFinisher.publish_next_generation` reads the positions, assigns them to the new tasks, writes the new
   generation to a temporary folder and renames that folder. The rename publishes the generation, and fails if another
   generation with this number exists or existed.
f. The herder publishes the task configs, which are derived from the manifest. A task starts only in the generation that
   its config names, so that late copies of other configs start no task.
g. :func:`remove_all_but_last_two_generations` replaces all generations but the last two by plain files, so that late
   renames and queries fail.

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

from coterie.config.durable_files import fsync_folder
from coterie.nouns.errors import CoterieError
from coterie.spark.checkpoint import (
    FIRST_CHECKPOINT_NAME,
    LINEAGE_FILE,
    HeldCheckpoint,
    create_first_checkpoint_if_absent,
    find_checkpoint_directory,
    is_checkpoint_taken_over_or_absent,
    was_task_started,
)
from coterie.spark.fence import Fence
from coterie.spark.generations.checkpoint_take_over import take_over_in_closed_generation
from coterie.spark.generations.durable import (
    REPLACED_PREFIX,
    create_file_if_absent,
    fsync_folder_tree,
    replace_folder_by_file,
    try_remove_path,
)
from coterie.spark.generations.layout import (
    CLOSED_FILE,
    CLOSING_FOLDER,
    LIVENESS_FILE,
    MANIFEST_FILE,
    STOPPED_FOLDER,
    generation_folder,
    newest_generation_number,
    unfinished_folder_prefix,
)
from coterie.spark.generations.manifest import (
    GenerationPlan,
    Manifest,
    manifest_to_json,
    plan_to_json,
    read_manifest,
    read_plan_of_next_generation,
)
from coterie.spark.generations.split import SplitFunction, merge_positions
from coterie.spark.generations.stores import PositionStore
from coterie.spark.positions import Positions

LIVENESS_INTERVAL_MS = 2_000
"""The interval, in ms, at which the worker that performs a re-split sets the modification time of the liveness file."""


RemoveDeduplicationData: TypeAlias = Callable[[Manifest, Mapping[int, str]], bool]
"""Removes the data that the sink of an old generation keeps for each checkpoint lineage, to reject a second copy of a
batch. The arguments are the generation's manifest and its lineages by task number. Idempotent. Returns False when the
removal failed: the generation is then kept until the next attempt."""


def return_true_for_no_deduplication_data(manifest: Manifest, lineages: Mapping[int, str]) -> bool:
    """The :data:`RemoveDeduplicationData` of sinks that keep no data for lineages: does nothing, returns True."""
    return True


IsSourceClassChanged: TypeAlias = Callable[[Mapping[str, str], Mapping[str, str]], bool]
"""Whether a former and a newer config of a connector, the arguments, name two classes of sources. Positions of one
class have no meaning for another, so they are then dropped. False if a class is not known on this worker."""


def return_false_for_source_change(former_config: Mapping[str, str], newer_config: Mapping[str, str]) -> bool:
    """The :data:`IsSourceClassChanged` of connectors that always have the same class of source: returns False."""
    return False


FindPositionStore: TypeAlias = Callable[[Mapping[str, str]], PositionStore]
"""Returns the position store of the class of source that a connector's config, the argument, names. Raises a WorldError
if this worker does not know the class."""


class SupersededError(CoterieError):
    """Another worker has taken over this re-split or has created another generation, so this worker's re-split has
    ended without a result."""


# -- a. and b. --------------------------------------------------------------------------------------------------------


def write_legacy_layout_manifest_if_absent(connector_path: Path, manifest: Manifest) -> None:
    """Write ``manifest``, of generation 0, unless it was written before. Generation 0 is the layout of
    versions of Coterie without checkpoint generations. ``connector_path`` is the connector's folder."""
    assert manifest.generation.number == 0
    create_file_if_absent(connector_path / MANIFEST_FILE, manifest_to_json(manifest))


def close_generation_and_return_stored_plan(connector_path: Path, plan: GenerationPlan) -> GenerationPlan:
    """Close the generation before the one that ``plan`` describes, in the connector's folder ``connector_path``.
    Returns the stored plan: ``plan``, or the plan of another worker, if that worker has closed the generation first.

    :raises OSError: when the generation to close does not exist, or was removed.
    """
    generation_path = generation_folder(connector_path, plan.generation.number - 1)
    create_file_if_absent(generation_path / CLOSED_FILE, plan_to_json(plan))
    stored_plan = read_plan_of_next_generation(generation_path)
    assert stored_plan is not None
    return stored_plan


def record_task_stopped(generation_path: Path, task_number: int) -> None:
    """Record in the generation's folder ``generation_path`` that the query of ``task_number`` has stopped. Does nothing
    if the generation was removed."""
    try:
        (generation_path / STOPPED_FOLDER).mkdir(exist_ok=True)
        (generation_path / STOPPED_FOLDER / str(task_number)).touch()
    except (FileNotFoundError, FileExistsError, NotADirectoryError):
        pass


def started_tasks_without_recorded_stop(generation_path: Path, manifest: Manifest) -> frozenset[int]:
    """The numbers of the tasks that were started in the generation, and whose stop no runtime has recorded by
    :func:`record_task_stopped`."""
    try:
        stopped_tasks = set(os.listdir(generation_path / STOPPED_FOLDER))
    except (FileNotFoundError, NotADirectoryError):
        stopped_tasks = set()
    return frozenset(
        task
        for task in range(len(manifest.split.partitions_by_task))
        if str(task) not in stopped_tasks and was_task_started(generation_path / str(task))
    )


def resplit_liveness_mtime_ns(generation_path: Path) -> int | None:
    """The modification time of the liveness file of a closed generation, in ns of the file system's clock; None before
    the file is created. Compare it only with an earlier result: the clocks of workers differ."""
    try:
        return (generation_path / CLOSING_FOLDER / LIVENESS_FILE).stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None


# -- c. to e. ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ResplitFinisher:
    """Finishes re-splits of one connector, on one worker, after their generation was closed: takes over the
    checkpoints, runs the batches in flight and publishes the next generation (steps c. to e. of the module docstring).
    If another worker has published that generation before, this one publishes nothing; the methods that create a
    generation return the newest one. ``remove_deduplication_data`` is called before an old generation is removed.

    In the methods, ``closed_generation_number`` is the number of the closed generation.
    """

    connector_path: Path
    """The connector's folder."""
    find_position_store: FindPositionStore
    """Finds the store that reads the positions of the old checkpoints and writes them into the new ones: the one of the
    plan's config. This worker's newest config may already name another class of source than the plan."""
    run_batch_in_flight: Callable[[Manifest, int, HeldCheckpoint], None]
    """Runs the batch in flight of one task of a closed generation. The arguments are the generation's manifest, the
    task's number and the task's checkpoint. Returns when the batch is committed."""
    fence: Fence
    """Is closed when this worker may no longer act for the connector: then it publishes no generation and commits no
    batch."""
    remove_deduplication_data: RemoveDeduplicationData = return_true_for_no_deduplication_data
    """The function with which :class:`GenerationUpdater` removes the sink's data of an old generation. It is called
    before the generation is removed."""
    is_source_class_changed: IsSourceClassChanged = return_false_for_source_change
    """Returns whether a former and a newer config of the connector name two classes of sources."""

    def create_first_generation(self, plan: GenerationPlan) -> Manifest:
        """Create generation 1 of a connector without generations: all tasks begin at the initial positions of ``plan``.
        Returns the newest generation, which another worker may have created.

        :raises FencedError: when the fence is closed.
        :raises OSError: when the generation cannot be written.
        """
        assert plan.generation.number == 1
        # Manifests and plans contain the connector's config, which may contain a password.
        self.connector_path.mkdir(mode=0o770, parents=True, exist_ok=True)
        self._publish_generation_unless_exists(plan.to_manifest({}))
        return self.read_newest_manifest()

    def create_next_generation(self, closed_generation_number: int) -> Manifest:
        """Create the generation after ``closed_generation_number``, which is closed. Returns the newest generation,
        which another worker may have created.

        :raises SupersededError: when another worker has taken over this re-split.
        :raises FencedError: when the fence is closed.
        :raises OSError, WorldError: when this worker does not know the plan's class of source, a checkpoint cannot be
            taken over or read, a batch in flight fails, or the generation cannot be written; the re-split may be tried
            again.
        """
        try:
            plan = read_plan_of_next_generation(generation_folder(self.connector_path, closed_generation_number))
            assert plan is not None, f"generation {closed_generation_number} is not closed"
            self.find_position_store(plan.config)  # Otherwise the checkpoints would be taken over for nothing.
            with self._touching_liveness(closed_generation_number):
                held_checkpoints = self.take_over_checkpoints(closed_generation_number)
                self.run_batches_in_flight(closed_generation_number, held_checkpoints)
                self.publish_next_generation(closed_generation_number, held_checkpoints)
        except OSError:
            # A removed generation is a plain file: all operations in it fail.
            if newest_generation_number(self.connector_path) in (None, closed_generation_number):
                raise
        return self.read_newest_manifest()

    def take_over_checkpoints(self, closed_generation_number: int) -> list[HeldCheckpoint]:
        """Take over the checkpoints of all tasks of the closed generation ``closed_generation_number``, so that no
        query plans a batch on them any more: step c. of the re-split (module docstring). Returns the checkpoints in the
        order of the tasks' numbers.

        :raises OSError: when the generation was removed.
        :raises WorldError: when the checkpoint of a task was not found.
        """
        generation_path = generation_folder(self.connector_path, closed_generation_number)
        manifest = read_manifest(generation_path)
        held_checkpoints = []
        for task in range(len(manifest.split.partitions_by_task)):
            if closed_generation_number == 0:
                # A task that was never started gets a checkpoint without batches.
                create_first_checkpoint_if_absent(generation_path / str(task))
            held_checkpoints.append(take_over_in_closed_generation(generation_path, task))
            self.touch_liveness(closed_generation_number)
        return held_checkpoints

    def run_batches_in_flight(self, closed_generation_number: int, held_checkpoints: Sequence[HeldCheckpoint]) -> None:
        """Run the batch in flight of each checkpoint in ``held_checkpoints`` that has one: step d. of the re-split.
        ``held_checkpoints`` are those of the closed generation ``closed_generation_number``, in the order of the tasks'
        numbers.

        Exceptions of :attr:`run_batch_in_flight`, such as a WorldError when a batch fails, are raised unchanged; the
        remaining batches are then not run.
        """
        manifest = read_manifest(generation_folder(self.connector_path, closed_generation_number))
        for task, checkpoint in enumerate(held_checkpoints):
            if checkpoint.batch_id_in_flight is not None:
                self.run_batch_in_flight(manifest, task, checkpoint)
                self.touch_liveness(closed_generation_number)

    def publish_next_generation(
        self, closed_generation_number: int, held_checkpoints: Sequence[HeldCheckpoint]
    ) -> None:
        """Read the positions of the checkpoints ``held_checkpoints``, and publish the generation after
        ``closed_generation_number``, which begins at these positions: step e. of the re-split. If the new generation
        has another class of source, it begins without them. If another worker has published that generation before,
        nothing is published.

        :raises SupersededError: when another worker has taken over one of the checkpoints.
        :raises FencedError: when the fence is closed.
        :raises OSError, WorldError: when the positions cannot be read, or the generation cannot be written.
        """
        generation_path = generation_folder(self.connector_path, closed_generation_number)
        manifest, plan = read_manifest(generation_path), read_plan_of_next_generation(generation_path)
        assert plan is not None, f"{generation_path} is not closed"
        is_source_class_changed = self.is_source_class_changed(manifest.config, plan.config)
        position_store = self.find_position_store(plan.config)
        positions_by_task: dict[int, Positions] = {}
        for task, checkpoint in enumerate(held_checkpoints):
            try:
                if not is_source_class_changed:
                    positions_by_task[task] = position_store.read(
                        checkpoint.path, manifest.split.partitions_by_task[task]
                    )
            except OSError as error:
                if is_checkpoint_taken_over_or_absent(checkpoint.path):
                    raise SupersededError(
                        f"The checkpoint {checkpoint.path} was taken over by another worker, which performs the "
                        "same re-split"
                    ) from error
                raise
            if is_checkpoint_taken_over_or_absent(checkpoint.path):
                raise SupersededError(
                    f"The checkpoint {checkpoint.path} was taken over by another worker, which performs the same "
                    "re-split"
                )
        reached_positions = (
            {}
            if is_source_class_changed
            else merge_positions(manifest.absent_partition_positions, positions_by_task, manifest.split)
        )
        self._publish_generation_unless_exists(plan.to_manifest(reached_positions))

    def touch_liveness(self, closed_generation_number: int) -> None:
        """Set the modification time of the liveness file of the closed generation ``closed_generation_number`` to now,
        and create the file if it is missing: other workers then do not continue this re-split."""
        (generation_folder(self.connector_path, closed_generation_number) / CLOSING_FOLDER / LIVENESS_FILE).touch()

    @contextmanager
    def _touching_liveness(self, closed_generation_number: int) -> Iterator[None]:
        """Context manager: during the block a thread calls :meth:`touch_liveness` every :data:`LIVENESS_INTERVAL_MS`,
        since a batch, or reading many positions, can take long."""
        is_done = threading.Event()

        def touch_repeatedly() -> None:
            # With a closed fence the block publishes nothing, and it may hang in a plug-in: another worker continues.
            while not is_done.wait(LIVENESS_INTERVAL_MS / 1000) and not self.fence.is_closed:
                with suppress(OSError):
                    self.touch_liveness(closed_generation_number)

        thread = threading.Thread(target=touch_repeatedly, name="coterie-signs", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()

    def read_newest_manifest(self) -> Manifest:
        """The manifest of the connector's newest generation, of which at least generation 1 must exist."""
        while True:
            number = newest_generation_number(self.connector_path)
            assert number, f"{self.connector_path} has no generation"
            try:
                return read_manifest(generation_folder(self.connector_path, number))
            except OSError:
                # The generation was removed after the listing: newer ones exist.
                if newest_generation_number(self.connector_path) == number:
                    raise

    def _publish_generation_unless_exists(self, manifest: Manifest) -> None:
        """Write the generation of ``manifest`` to a temporary folder, and publish the generation by renaming the
        folder. If a generation with this number exists or existed, remove the temporary folder instead.

        :raises FencedError: when the fence is closed.
        """
        number = manifest.generation.number
        position_store = self.find_position_store(manifest.config)
        unfinished_folder = self.connector_path / f"{unfinished_folder_prefix(number)}{uuid.uuid4().hex}"
        unfinished_folder.mkdir()
        (unfinished_folder / MANIFEST_FILE).write_text(manifest_to_json(manifest))
        is_split_by_hash = manifest.split.function is not SplitFunction.PARTS_V1
        for task in range(len(manifest.split.partitions_by_task)):
            checkpoint = unfinished_folder / str(task) / FIRST_CHECKPOINT_NAME
            checkpoint.mkdir(parents=True)
            (checkpoint / LINEAGE_FILE).write_text(uuid.uuid4().hex)
            # With a hash split, every task lists all files: it must not read again the files that other tasks have
            # read.
            positions = (
                manifest.positions if is_split_by_hash else manifest.split.positions_of_task(task, manifest.positions)
            )
            position_store.write_to_new_checkpoint(checkpoint, positions)
        fsync_folder_tree(unfinished_folder)
        try:
            with self.fence.commit_or_raise_if_closed():
                os.rename(unfinished_folder, generation_folder(self.connector_path, number))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            try_remove_path(unfinished_folder)
        else:
            fsync_folder(self.connector_path)


# -- g. ---------------------------------------------------------------------------------------------------------------


def find_checkpoint_of_task(generation_path: Path, task_number: int) -> Path | None:
    """The checkpoint of the task ``task_number`` in the generation's folder ``generation_path``, whether or not the
    generation is closed. Nothing is taken over. None when no checkpoint is found: another worker may be moving it."""
    for folder in (generation_path / CLOSING_FOLDER / str(task_number), generation_path / str(task_number)):
        with suppress(FileNotFoundError, NotADirectoryError):
            if (checkpoint := find_checkpoint_directory(folder)) is not None:
                return checkpoint
    return None


def read_lineage_id_by_task(generation_path: Path, manifest: Manifest) -> dict[int, str]:
    """The lineages of the checkpoints of a closed generation, by task number. A task whose checkpoint is not found is
    missing."""
    lineages: dict[int, str] = {}
    for task in range(len(manifest.split.partitions_by_task)):
        if (checkpoint := find_checkpoint_of_task(generation_path, task)) is not None:
            with suppress(FileNotFoundError, NotADirectoryError):
                lineages[task] = (checkpoint / LINEAGE_FILE).read_text()
    return lineages


def remove_all_but_last_two_generations(
    connector_path: Path, remove_deduplication_data: RemoveDeduplicationData = return_true_for_no_deduplication_data
) -> None:
    """Replace all generations but the newest two by plain files (step g. of the re-split), except those whose data in
    the sink cannot be removed now; and remove temporary files of earlier re-splits. ``connector_path`` is the
    connector's folder."""
    newest = newest_generation_number(connector_path)
    if newest is None:
        return
    names = sorted(os.listdir(connector_path))
    for number in range(1, newest - 1):
        folder = generation_folder(connector_path, number)
        with suppress(FileNotFoundError, NotADirectoryError):  # Another worker has removed it.
            manifest = read_manifest(folder)
            if remove_deduplication_data(manifest, read_lineage_id_by_task(folder, manifest)):
                replace_folder_by_file(folder)
    if newest >= 2:
        for name in names:
            if (name.isdigit() or name in (CLOSING_FOLDER, STOPPED_FOLDER)) and (connector_path / name).is_dir():
                replace_folder_by_file(connector_path / name)
    for name in names:
        # Keep the temporary folder of a generation that does not exist yet: another worker may be about to rename it.
        is_outdated_folder = any(name.startswith(unfinished_folder_prefix(number)) for number in range(1, newest + 1))
        if is_outdated_folder or name.startswith(REPLACED_PREFIX):
            try_remove_path(connector_path / name)
