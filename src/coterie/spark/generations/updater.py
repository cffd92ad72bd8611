"""Makes a connector's newest checkpoint generation match the connector's config. Runs on the worker to which the
connector is assigned; any worker that runs one of the tasks may finish an abandoned re-split.
"""

import logging
import stat
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from coterie.nouns.errors import WorldError
from coterie.spark.fence import FencedError
from coterie.spark.generations.checkpoint_take_over import is_generation_closed_or_removed
from coterie.spark.generations.layout import MANIFEST_FILE, GenerationId, generation_folder, newest_generation_number
from coterie.spark.generations.manifest import (
    GenerationPlan,
    Manifest,
    PositionChange,
    read_manifest,
    read_plan_of_next_generation,
)
from coterie.spark.generations.resplit import (
    ResplitFinisher,
    SupersededError,
    close_generation_and_return_stored_plan,
    remove_all_but_last_two_generations,
    resplit_liveness_mtime_ns,
    started_tasks_without_recorded_stop,
    write_legacy_layout_manifest_if_absent,
)
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.generations.stores import UnmovablePositionStore
from coterie.spark.positions import Positions

log = logging.getLogger(__name__)

LIVENESS_TIMEOUT_MS = 10_000
"""Liveness timeout of a re-split: when the modification time of its liveness file has not changed for this time,
another worker continues the re-split."""
RESPLIT_POSTPONEMENT = (
    "One of the connector's tasks is failing, so the tasks keep their source partitions, although the partitions or "
    "the number of tasks have changed; the connector is split again once no task is FAILED, and none RESTARTING "
    "because of an error"
)
"""Why a generation that does not match the config is kept, for the connector's status and the log."""
POLL_INTERVAL_MS = 50
"""The interval, in ms, at which this worker reads files that another worker changes, while it waits for a change."""


class FindInitialPositions(Protocol):
    """A function that returns the initial positions of the source partitions ``source_partitions``, which were never
    read or were reset by a user. ``is_new_connector``: they are read as a new connector reads them; otherwise they were
    added to an existing connector."""

    def __call__(self, source_partitions: Sequence[str], *, is_new_connector: bool) -> Positions: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What a connector's config requires of its checkpoint generation, and what is needed to create one. While a task
    of the connector is failing (``keeps_source_parts``), a generation that does not match may be kept."""

    config: Mapping[str, str] = field(repr=False)
    """The connector's config, with unresolved references."""
    split: Split
    """The split that the config and the existing source partitions require."""
    identify_sink: Callable[[Mapping[str, str]], Mapping[str, str | None]]
    """Returns the values that identify the sink of a connector config. A batch in flight is written to the sink of the
    generation that has planned the batch, so another sink requires another generation."""
    find_initial_positions: FindInitialPositions
    keys_to_infer: frozenset[str]
    """The source's keys, without ``source.``, whose values must be inferred, because the config does not set them."""
    infer_values: Callable[[Mapping[str, str]], Mapping[str, str]] = field(repr=False)
    """Returns values for those of the ``keys_to_infer`` that are not in the mapping that it receives."""
    is_split_fixed: bool
    """Whether the connector's split can never change, because positions of one split cannot be used in another."""
    has_task_configs_with_generation: bool
    """Whether the connector has task configs that name a checkpoint generation. If the folder then contains no
    generation, this worker does not have the file system of the other workers."""
    make_legacy_layout_manifest: Callable[[], Manifest] | None
    """Returns the manifest of generation 0; None unless the connector has task configs, and all of them are of a
    version of Coterie without checkpoint generations or of Kafka Connect. Called only if there is a generation 0."""
    keeps_source_parts: bool = False
    """Whether the generation may be kept although the source partitions or the number of tasks have changed, because a
    task of the connector is failing. The other tasks then continue: see
    :meth:`GenerationUpdater._may_keep_generation_while_task_fails`."""

    def keep_or_infer_values(self, previous: Manifest | None) -> Mapping[str, str]:
        """Values for all of ``keys_to_infer``. If this request has a source partition in common with ``previous``, the
        manifest of the generation before (None for generation 1), the values of ``previous`` are kept, and only missing
        values are inferred now. Otherwise all values are inferred now."""
        kept_values: Mapping[str, str] = {}
        if previous is not None and previous.split.common_partitions(self.split.source_partitions):
            kept_values = {key: value for key, value in previous.inferred_values.items() if key in self.keys_to_infer}
        return (
            kept_values
            if self.keys_to_infer <= kept_values.keys()
            else {**self.infer_values(kept_values), **kept_values}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionChangeRequest:
    """A change of a connector's positions, and what is needed to create the generation with the changed positions.
    ``config`` and ``split_function`` are those of the new generation only if the connector has no generation of its
    class of source."""

    change: PositionChange
    config: Mapping[str, str] = field(repr=False)
    """The connector's config, with unresolved references. Used when the connector has no generation of its class of
    source."""
    split_function: SplitFunction
    """The function by which the connector's source is divided between tasks. Used when the connector has no generation
    of its class of source."""
    has_task_configs_with_generation: bool
    """Whether the connector has task configs that name a checkpoint generation
    (:attr:`GenerationRequest.has_task_configs_with_generation`)."""


class GenerationUpdater:
    """Makes the newest checkpoint generation of one connector match the connector's config, changes the connector's
    positions, or finishes a re-split. All methods block: call them on threads."""

    def __init__(
        self, finisher: ResplitFinisher, *, tasks_stop_timeout_ms: int, liveness_timeout_ms: int = LIVENESS_TIMEOUT_MS
    ) -> None:
        """``tasks_stop_timeout_ms`` is how long a re-split waits, after the generation was closed, for the tasks to
        stop at a batch boundary. ``liveness_timeout_ms``: see :data:`LIVENESS_TIMEOUT_MS`."""
        self._resplit_finisher = finisher
        self._connector_path = finisher.connector_path
        self._tasks_stop_timeout_ms = tasks_stop_timeout_ms
        self._liveness_timeout_ms = liveness_timeout_ms

    def update(self, request: GenerationRequest) -> Manifest:
        """Create generations until the newest one matches ``request`` or may be kept
        (:meth:`_may_keep_generation_while_task_fails`). Then remove old generations, and return the manifest of the
        newest one.

        Only the generation that is the newest at the call is closed if it does not match. A later generation is not
        closed: ``request`` can be older than that generation.

        :raises FencedError: when the fence is closed: this worker may no longer act for the connector.
        :raises SupersededError: when another worker has created a generation that does not match.
        :raises WorldError: when no generation is found although there was one, or another one cannot be created.
        :raises ConfigError: when the config determines no initial position, or values of its keys cannot be inferred.
        :raises OSError: when the folder cannot be read or written.
        """
        _revoke_access_outside_owner_group(self._connector_path)
        first_number = newest_generation_number(self._connector_path)
        while True:
            number = newest_generation_number(self._connector_path)
            try:
                if (
                    manifest := self._return_match_else_create_next(number, request, may_close=number == first_number)
                ) is not None:
                    remove_all_but_last_two_generations(
                        self._connector_path, self._resplit_finisher.remove_deduplication_data
                    )
                    return manifest
            except OSError:
                # Another worker has created newer generations and removed generation `number`.
                if newest_generation_number(self._connector_path) == number:
                    raise

    def change_positions(self, request: PositionChangeRequest) -> None:
        """Create a generation with the split of the newest one and the changed positions, as a re-split creates a
        generation: the tasks that still run are stopped, and the batches in flight are run first. If another worker
        has begun a re-split or change, that one is finished first.

        A connector without a generation of its class of source gets one without tasks: its next split takes the
        positions from there.

        :raises FencedError: when the fence is closed. If this call had closed the newest generation before, the change
            is stored, and the worker that finishes the re-split creates the generation with the changed positions.
        :raises WorldError: as :meth:`update`.
        :raises OSError: when the folder cannot be read or written.
        """
        _revoke_access_outside_owner_group(self._connector_path)
        while not self._try_change_positions(request, newest_generation_number(self._connector_path)):
            pass
        remove_all_but_last_two_generations(self._connector_path, self._resplit_finisher.remove_deduplication_data)

    def _try_change_positions(self, request: PositionChangeRequest, number: int | None) -> bool:
        """Close the generation ``number``, the newest, and create the next one; create generation 1 if ``number`` is
        None, because there is no generation. Returns True if the created generation has the changed positions; False if
        another worker has closed ``number``, or created generation 1, first: the caller then tries again.

        :raises FencedError, WorldError, OSError: as :meth:`change_positions`.
        """
        if number is None:
            if request.has_task_configs_with_generation:
                raise self._make_no_generation_error()
            plan = _make_plan_without_tasks(1, request)
            return self._resplit_finisher.create_first_generation(plan).generation == plan.generation
        if number == 0:
            raise WorldError(
                f"The checkpoints in {self._connector_path} are those of an older version of Coterie: resume the "
                "connector once with this version, then stop it again"
            )
        generation_path = generation_folder(self._connector_path, number)
        is_own_plan = False
        try:
            manifest = read_manifest(generation_path)
            if read_plan_of_next_generation(generation_path) is None:
                if self._resplit_finisher.is_source_class_changed(manifest.config, request.config):
                    plan = _make_plan_without_tasks(number + 1, request)
                else:
                    plan = GenerationPlan(
                        generation=GenerationId(number=number + 1, id=uuid.uuid4().hex),
                        split=manifest.split,
                        config=manifest.config,
                        inferred_values=manifest.inferred_values,
                        initial_positions={},
                        position_change=request.change,
                    )
                # Do not close the generation if this worker could not finish the re-split.
                self._resplit_finisher.find_position_store(plan.config)
                with self._resplit_finisher.fence.commit_or_raise_if_closed():
                    stored_plan = close_generation_and_return_stored_plan(self._connector_path, plan)
                is_own_plan = stored_plan.generation == plan.generation
            while newest_generation_number(self._connector_path) == number:
                self._finish_resplit_or_wait_for_other_worker(number, manifest)
        except OSError:
            # Another worker has created newer generations and removed generation `number`.
            if newest_generation_number(self._connector_path) == number:
                raise
        return is_own_plan

    def finish_abandoned_resplit_and_read_newest(self) -> Manifest | None:
        """Return the manifest of the newest generation; None if no task can start in it
        (:attr:`Manifest.reset_partitions_without_position`).

        If the newest generation is closed, first finish the re-split, unless another worker touches the liveness file
        or finishes the re-split within the liveness timeout, counted from the call: then return None. Also None when
        another worker takes over the re-split from this worker.

        :raises FencedError: when the fence is closed: this worker may no longer act for the connector.
        :raises OSError, WorldError: as :meth:`ResplitFinisher.create_next_generation`.
        """
        number = newest_generation_number(self._connector_path)
        assert number is not None, f"{self._connector_path} has no generation"
        generation_path = generation_folder(self._connector_path, number)
        if is_generation_closed_or_removed(generation_path):
            last_seen_ns = resplit_liveness_mtime_ns(generation_path)
            if self._wait_until(lambda: self._has_resplit_progressed(number, last_seen_ns), self._liveness_timeout_ms):
                return None
            try:
                self._resplit_finisher.create_next_generation(number)
            except SupersededError:
                return None
        manifest = self._resplit_finisher.read_newest_manifest()
        return None if manifest.reset_partitions_without_position else manifest

    def _has_resplit_progressed(self, number: int, last_seen_ns: int | None) -> bool:
        """Whether another worker has finished the re-split of generation ``number``, or has changed the liveness file
        since :func:`resplit_liveness_mtime_ns` returned ``last_seen_ns``."""
        generation_path = generation_folder(self._connector_path, number)
        return (
            newest_generation_number(self._connector_path) != number
            or resplit_liveness_mtime_ns(generation_path) != last_seen_ns
        )

    def _return_match_else_create_next(
        self, number: int | None, request: GenerationRequest, *, may_close: bool
    ) -> Manifest | None:
        """Return the manifest of generation ``number``, the newest, if it matches ``request`` or may be kept. Otherwise
        create the next generation, or wait while another worker creates it, and return None: the caller then checks the
        newest generation again. ``number`` is None when there is no generation.

        :raises SupersededError: when the generation does not match and must not be closed, because ``may_close`` is
            False.
        :raises WorldError: when no generation is found although there was one, or another one cannot be created.
        """
        if number is None:
            if request.has_task_configs_with_generation:
                raise self._make_no_generation_error()
            self._resplit_finisher.create_first_generation(self._make_plan(1, request, None))
            return None
        generation_path = generation_folder(self._connector_path, number)
        if number == 0:
            self._ensure_legacy_layout_manifest(request)
        manifest = read_manifest(generation_path)
        if read_plan_of_next_generation(generation_path) is None:
            # Only before the tasks are first published: the class of a connector with task configs is not changed.
            is_source_class_changed = self._resplit_finisher.is_source_class_changed(manifest.config, request.config)
            if (
                number > 0
                and not is_source_class_changed
                and (
                    matches_request(manifest, request) or self._may_keep_generation_while_task_fails(manifest, request)
                )
            ):
                return manifest
            if not may_close:
                raise SupersededError(
                    f"Another worker has created checkpoint generation {manifest.generation} in "
                    f"{self._connector_path}, which does not match what this worker requires"
                )
            has_fixed_tasks = request.is_split_fixed and number > 0 and manifest.split.partitions_by_task
            if (
                has_fixed_tasks
                and not is_source_class_changed
                and manifest.split.with_digests_if_hash_split() != request.split.with_digests_if_hash_split()
            ):
                raise WorldError(
                    f"The connector has checkpoints of {len(manifest.split.partitions_by_task)} task(s), and their "
                    "source partitions cannot be divided in another way: keep the number of tasks and the source "
                    "partitions, or create a connector under another name"
                )
            if not is_source_class_changed and isinstance(
                self._resplit_finisher.find_position_store(request.config), UnmovablePositionStore
            ):
                # Do not close the generation: the re-split could never be finished.
                raise WorldError(
                    "The positions in the connector's checkpoint cannot be moved to another checkpoint, so the sink "
                    "cannot be changed: configure the former sink again, or create a connector under another name"
                )
            plan = self._make_plan(number + 1, request, None if is_source_class_changed else manifest)
            with self._resplit_finisher.fence.commit_or_raise_if_closed():
                close_generation_and_return_stored_plan(self._connector_path, plan)
        self._finish_resplit_or_wait_for_other_worker(number, manifest)
        return None

    def _finish_resplit_or_wait_for_other_worker(self, number: int, manifest: Manifest) -> None:
        """Finish the re-split of generation ``number``, which is closed and has ``manifest``: wait until its tasks have
        stopped, but no longer than the updater waits for tasks; then create the next generation in any case. If another
        worker takes the re-split over, instead wait until that worker has finished, or has made no progress for the
        liveness timeout, and return: the next generation need not exist then, and the caller checks again."""
        if number > 0:
            # Not for generation 0: no runtime of this version runs its tasks.
            generation_path = generation_folder(self._connector_path, number)
            self._wait_until(
                lambda: not started_tasks_without_recorded_stop(generation_path, manifest), self._tasks_stop_timeout_ms
            )
        try:
            self._resplit_finisher.create_next_generation(number)
        except SupersededError:
            self._wait_while_resplit_progresses(number)

    def _make_no_generation_error(self) -> WorldError:
        return WorldError(
            f"No checkpoint generation was found in the folder {self._connector_path}, although the configs of the "
            "connector's tasks name one: check that all workers share checkpoint.location"
        )

    def _may_keep_generation_while_task_fails(self, manifest: Manifest, request: GenerationRequest) -> bool:
        """Whether a generation that does not match ``request`` is kept because a task of the connector is failing
        (:attr:`GenerationRequest.keeps_source_parts`). All source partitions of the generation must still exist, none
        of them may be reset, all inferred values must be known, and the sink must be the same. Logs a warning when the
        generation is kept."""
        if not (
            request.keeps_source_parts
            and not manifest.reset_partitions_without_position
            and _has_all_inferred_values(manifest, request)
            and _has_same_sink(manifest, request)
        ):
            return False
        if not manifest.split.has_only_partitions_in(request.split.source_partitions):
            return False
        log.warning(
            "The connector with the checkpoint folder %s is not split again now. %s",
            self._connector_path,
            RESPLIT_POSTPONEMENT,
        )
        return True

    def _ensure_legacy_layout_manifest(self, request: GenerationRequest) -> None:
        """Write the manifest of generation 0 (the layout of versions of Coterie without checkpoint generations), unless
        it was written before.

        :raises WorldError: when there is no such manifest, and ``request`` contains none.
        """
        if request.make_legacy_layout_manifest is not None:
            write_legacy_layout_manifest_if_absent(self._connector_path, request.make_legacy_layout_manifest())
        elif not (self._connector_path / MANIFEST_FILE).exists():
            raise WorldError(
                f"The folder {self._connector_path} contains checkpoints, but the config topic contains no configs of "
                "their tasks: move the folder to another path; the connector then reads all input again and writes it "
                "to the sink again"
            )

    def _make_plan(self, number: int, request: GenerationRequest, previous: Manifest | None) -> GenerationPlan:
        """The plan of generation ``number``, which matches ``request``; ``previous`` is the manifest of the generation
        before, None for the first one of a connector or of its class of source."""
        known_positions = {} if previous is None else {**previous.positions, **previous.absent_partition_positions}
        new_partitions = request.split.source_partitions - known_positions.keys()
        # A generation without tasks only has the positions that a user has set before the first start, and if all
        # positions are reset, the connector begins as a new one: partitions that were added since count as its first.
        # If its input was deleted and created again, it still has the positions that were set for the new partitions.
        # Positions of partitions that are not read now do not count: they were kept for a return of these partitions.
        has_read = previous is not None and (
            not previous.split.source_partitions <= set(previous.reset_partitions_without_position)
            or bool(previous.split.source_partitions and request.split.source_partitions & known_positions.keys())
        )
        later_partitions = (
            new_partitions - set(previous.reset_partitions_without_position) if previous and has_read else frozenset()
        )
        initial_positions: dict[str, int] = {}
        if first_partitions := new_partitions - later_partitions:
            initial_positions |= request.find_initial_positions(sorted(first_partitions), is_new_connector=True)
        if later_partitions:
            initial_positions |= request.find_initial_positions(sorted(later_partitions), is_new_connector=False)
        return GenerationPlan(
            generation=GenerationId(number=number, id=uuid.uuid4().hex),
            split=request.split,
            config=request.config,
            inferred_values=request.keep_or_infer_values(previous),
            initial_positions=initial_positions,
        )

    def _wait_while_resplit_progresses(self, number: int) -> None:
        """Wait until another worker has finished the re-split of generation ``number``, or has not changed the liveness
        file for the liveness timeout."""
        while newest_generation_number(self._connector_path) == number:
            last_seen_ns = resplit_liveness_mtime_ns(generation_folder(self._connector_path, number))
            has_progressed = partial(self._has_resplit_progressed, number, last_seen_ns)
            if not self._wait_until(has_progressed, self._liveness_timeout_ms):
                return

    def _wait_until(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until ``condition`` returns True, at most ``timeout_ms`` from the call. Returns whether ``condition``
        returned True. Polls, because other workers write the files that ``condition`` reads.

        :raises FencedError: when the fence is closed meanwhile.
        """
        deadline_s = time.monotonic() + timeout_ms / 1000
        while not condition():
            if self._resplit_finisher.fence.is_closed:
                raise FencedError
            if time.monotonic() > deadline_s:
                return False
            time.sleep(POLL_INTERVAL_MS / 1000)
        return True


def read_newest_plan_or_manifest(connector_path: Path) -> GenerationPlan | Manifest | None:
    """The newest document in the connector's folder: if the newest generation is closed, the plan of the next one, else
    the manifest of the newest. None when there is no generation, or when generation 0 is the newest and not closed."""
    while True:
        number = newest_generation_number(connector_path)
        if number is None:
            return None
        generation_path = generation_folder(connector_path, number)
        try:
            plan = read_plan_of_next_generation(generation_path)
            if plan is None and number == 0:
                return None
            return plan or read_manifest(generation_path)
        except OSError:
            if newest_generation_number(connector_path) == number:
                raise


def _make_plan_without_tasks(number: int, request: PositionChangeRequest) -> GenerationPlan:
    """The plan of generation ``number``, which has the positions of the change and no tasks: the connector has no
    generation, or one of another class of source."""
    return GenerationPlan(
        generation=GenerationId(number=number, id=uuid.uuid4().hex),
        split=Split(function=request.split_function, partitions_by_task=()),
        config=request.config,
        inferred_values={},
        initial_positions={},
        position_change=request.change,
    )


def matches_request(manifest: Manifest, request: GenerationRequest) -> bool:
    """Whether the generation of ``manifest`` matches ``request``: the same split and the same sink, values for all
    ``request.keys_to_infer``, and no reset source partitions."""
    return (
        manifest.split.with_digests_if_hash_split() == request.split.with_digests_if_hash_split()
        and not manifest.reset_partitions_without_position
        and _has_all_inferred_values(manifest, request)
        and _has_same_sink(manifest, request)
    )


def _has_all_inferred_values(manifest: Manifest, request: GenerationRequest) -> bool:
    """Whether the generation of ``manifest`` has values for all ``keys_to_infer`` of ``request``."""
    return request.keys_to_infer <= manifest.inferred_values.keys()


def _revoke_access_outside_owner_group(connector_path: Path) -> None:
    """Revoke the access of users outside the owner's group to the connector's folder, which an older version of Coterie
    may have created: the manifests in it may contain passwords. A failure is logged."""
    try:
        mode = stat.S_IMODE(connector_path.stat().st_mode)
        if mode & stat.S_IRWXO:
            connector_path.chmod(mode & ~stat.S_IRWXO)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning(
            "The folder %s may contain passwords, and revoking other users' access to it failed: %s; remove the access "
            "by chmod o-rwx",
            connector_path,
            error,
        )


def _has_same_sink(manifest: Manifest, request: GenerationRequest) -> bool:
    """Whether the generation's config and the config of ``request`` identify the same sink."""
    return request.identify_sink(manifest.config) == request.identify_sink(request.config)
