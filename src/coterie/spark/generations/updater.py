"""Makes a connector's newest checkpoint generation match the connector's config. Runs on the worker to which the
connector is assigned; any worker that runs one of the tasks may finish an abandoned re-split.
"""

import logging
import stat
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coterie.nouns.errors import WorldError
from coterie.spark.fence import FencedError
from coterie.spark.generations.checkpoint_take_over import is_closed
from coterie.spark.generations.layout import MANIFEST, GenerationId, generation_folder, newest_generation_number
from coterie.spark.generations.manifest import GenerationPlan, Manifest, read_manifest, read_plan
from coterie.spark.generations.resplit import (
    ResplitFinisher,
    SupersededError,
    close_generation,
    last_liveness_ns,
    remove_old_generations,
    tasks_still_running,
    write_generation_zero,
)
from coterie.spark.generations.split import Split
from coterie.spark.generations.stores import NoPositions
from coterie.spark.positions import Positions

log = logging.getLogger(__name__)

LIVENESS_TIMEOUT_MS = 10_000
"""Liveness timeout of a re-split: when the modification time of its liveness file has not changed for this time,
another worker continues the re-split."""
POLL_INTERVAL_MS = 50
"""How often files of other workers are read while this worker waits for a change."""


class InitialPositions(Protocol):
    """Returns the initial positions of the source partitions ``parts``, which were never read. ``is_new_connector``:
    the connector has no checkpoint generation."""

    def __call__(self, parts: Sequence[str], *, is_new_connector: bool) -> Positions: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What a connector's config requires of its checkpoint generation, and what is needed to create one."""

    config: Mapping[str, str] = field(repr=False)
    """The connector's config, with unresolved references."""
    split: Split
    """The split that the config and the existing source partitions require."""
    sink_identity_of: Callable[[Mapping[str, str]], Mapping[str, str | None]]
    """Returns what identifies the sink of a connector config. A batch in flight is written to the sink of the
    generation that has planned the batch, so another sink requires another generation."""
    initial_positions: InitialPositions
    keys_to_infer: frozenset[str]
    """The source's keys, without ``source.``, whose values must be inferred, because the config does not set them."""
    infer: Callable[[Mapping[str, str]], Mapping[str, str]] = field(repr=False)
    """Returns values for those of the ``keys_to_infer`` that are not in the mapping that it receives."""
    is_split_fixed: bool
    """Whether the connector's split can never change, because positions of one split cannot be used in another."""
    was_started: bool
    """Whether the connector has task configs that name a checkpoint generation. If the folder then contains no
    generation, this worker does not have the file system of the other workers."""
    generation_zero: Manifest | None
    """The manifest of generation 0, if the connector has task configs of a version of Coterie without checkpoint
    generations; otherwise None."""
    keeps_source_parts: bool = False
    """Whether a task of the connector is FAILED. The other tasks are then not stopped for changed source partitions or
    another number of tasks: see :meth:`GenerationUpdater._may_keep`."""

    def inferred(self, former: Manifest | None) -> Mapping[str, str]:
        """Values for all of ``keys_to_infer``. They are those of ``former``, the manifest of the generation before
        (None for generation 1), if this request has a source partition in common with it; values that are missing there
        are inferred now."""
        known: Mapping[str, str] = {}
        if former is not None and not _parts_of(former.split).isdisjoint(_parts_of(self.split)):
            known = {key: value for key, value in former.inferred.items() if key in self.keys_to_infer}
        return known if self.keys_to_infer <= known.keys() else {**self.infer(known), **known}


class GenerationUpdater:
    """Makes the newest checkpoint generation of one connector match the connector's config, or finishes a re-split. All
    methods block: call them on threads."""

    def __init__(
        self, finisher: ResplitFinisher, *, grace_ms: int, liveness_timeout_ms: int = LIVENESS_TIMEOUT_MS
    ) -> None:
        """``grace_ms`` is how long a re-split waits, after the generation was closed, for the tasks to stop at a batch
        boundary. ``liveness_timeout_ms``: see :data:`LIVENESS_TIMEOUT_MS`."""
        self._finisher = finisher
        self._connector = finisher.connector
        self._grace_ms = grace_ms
        self._liveness_timeout_ms = liveness_timeout_ms

    def update(self, request: GenerationRequest) -> Manifest:
        """Create generations until the newest one matches ``request`` or may be kept (:meth:`_may_keep`). Then remove
        old generations, and return the newest one.

        Only the generation that is the newest at the call is closed if it does not match. A later generation is not
        closed: ``request`` can be older than that generation.

        :raises FencedError: when the fence is closed: this worker may no longer act for the connector.
        :raises SupersededError: when another worker has created a generation that does not match.
        :raises WorldError: when no generation is found although there was one, or another one cannot be created.
        :raises OSError: when the folder cannot be read or written.
        """
        _revoke_access_of_others(self._connector)
        first = newest_generation_number(self._connector)
        while True:
            number = newest_generation_number(self._connector)
            try:
                if (manifest := self._newest(number, request, may_close=number == first)) is not None:
                    remove_old_generations(self._connector, self._finisher.remove_commit_markers)
                    return manifest
            except OSError:
                # Another worker has created newer generations and removed generation `number`.
                if newest_generation_number(self._connector) == number:
                    raise

    def finish_if_abandoned(self) -> Manifest | None:
        """Return the newest generation. If the generation is closed, first finish the re-split, unless another worker
        touches the liveness file or finishes the re-split within the liveness timeout, counted from the call: then
        return None. Also None when another worker takes over the re-split from this worker.

        :raises FencedError: when the fence is closed: this worker may no longer act for the connector.
        :raises OSError, WorldError: as :meth:`ResplitFinisher.create_next`.
        """
        number = newest_generation_number(self._connector)
        assert number is not None, f"{self._connector} has no generation"
        generation = generation_folder(self._connector, number)
        if is_closed(generation):
            heard = last_liveness_ns(generation)
            if self._wait(lambda: self._has_progressed(number, heard), self._liveness_timeout_ms):
                return None
            try:
                self._finisher.create_next(number)
            except SupersededError:
                return None
        return self._finisher.newest_manifest()

    def _has_progressed(self, number: int, last_seen_ns: int | None) -> bool:
        """Whether another worker has finished the re-split of generation ``number``, or has changed the liveness file
        since :func:`last_liveness_ns` returned ``last_seen_ns``."""
        generation = generation_folder(self._connector, number)
        return newest_generation_number(self._connector) != number or last_liveness_ns(generation) != last_seen_ns

    def _newest(self, number: int | None, request: GenerationRequest, *, may_close: bool) -> Manifest | None:
        """Return the manifest of generation ``number``, the newest, if it matches ``request`` or may be kept. Otherwise
        create the next generation, or wait while another worker creates it, and return None: the caller then checks the
        newest generation again. ``number`` is None when there is no generation.

        :raises SupersededError: when the generation does not match and must not be closed, because ``may_close`` is
            False.
        :raises WorldError: when no generation is found although there was one, or another one cannot be created.
        """
        if number is None:
            if request.was_started:
                raise WorldError(
                    f"No checkpoint generation was found in the folder {self._connector}, although the configs of the "
                    "connector's tasks name one: check that all workers share checkpoint.location"
                )
            self._finisher.create_first(self._plan(1, request, None))
            return None
        generation = generation_folder(self._connector, number)
        if number == 0:
            self._write_generation_zero(request)
        manifest = read_manifest(generation)
        if read_plan(generation) is None:
            if number > 0 and (satisfies(manifest, request) or self._may_keep(manifest, request)):
                return manifest
            if not may_close:
                raise SupersededError(
                    f"Another worker has created checkpoint generation {manifest.generation} in {self._connector}, "
                    "which does not match what this worker requires"
                )
            if request.is_split_fixed and number > 0 and manifest.split != request.split:
                raise WorldError(
                    f"The connector has checkpoints of {len(manifest.split.tasks)} task(s), which cannot be split "
                    f"again: keep this number of tasks, or create a connector under another name"
                )
            if isinstance(self._finisher.position_store, NoPositions):
                # Do not close the generation: the re-split could never be finished.
                raise WorldError(
                    "The positions in the connector's checkpoint cannot be moved to another checkpoint, so the sink "
                    "cannot be changed: configure the former sink again, or create a connector under another name"
                )
            plan = self._plan(number + 1, request, manifest)
            with self._finisher.fence.allow_commit():
                close_generation(self._connector, plan)
        if number > 0:
            # Not for generation 0: no runtime of this version runs its tasks.
            self._wait(lambda: not tasks_still_running(generation, manifest), self._grace_ms)
        try:
            self._finisher.create_next(number)
        except SupersededError:
            self._wait_for_liveness_timeout(number)
        return None

    def _may_keep(self, manifest: Manifest, request: GenerationRequest) -> bool:
        """Whether a generation that does not match ``request`` is kept because a task is FAILED. All source partitions
        of the generation must still exist, all inferred values must be known, and the sink must be the same. Logs a
        warning when the generation is kept."""
        if not (request.keeps_source_parts and _has_columns(manifest, request) and _has_same_sink(manifest, request)):
            return False
        parts = {part for task in request.split.tasks for part in task}
        if any(part not in parts for task in manifest.split.tasks for part in task):
            return False
        log.warning(
            "%s: a task of this connector is FAILED, so the tasks keep their source partitions, although the "
            "partitions or the number of tasks have changed; the connector is split again once no task is FAILED",
            self._connector,
        )
        return True

    def _write_generation_zero(self, request: GenerationRequest) -> None:
        """Write the manifest of generation 0, unless it was written before.

        :raises WorldError: when there is no such manifest, and ``request`` contains none.
        """
        if request.generation_zero is not None:
            write_generation_zero(self._connector, request.generation_zero)
        elif not (self._connector / MANIFEST).exists():
            raise WorldError(
                f"The folder {self._connector} contains checkpoints, but the config topic contains no configs of their "
                "tasks: move the folder to another path to read everything again"
            )

    def _plan(self, number: int, request: GenerationRequest, former: Manifest | None) -> GenerationPlan:
        """The plan of generation ``number``, which matches ``request``; ``former`` is the manifest of the generation
        before, None for the first one of a connector."""
        known = {} if former is None else {**former.positions, **former.positions_of_absent}
        parts = sorted({part for task in request.split.tasks for part in task} - known.keys())
        return GenerationPlan(
            generation=GenerationId(number=number, id=uuid.uuid4().hex),
            split=request.split,
            config=request.config,
            inferred=request.inferred(former),
            initial_positions=request.initial_positions(parts, is_new_connector=former is None),
        )

    def _wait_for_liveness_timeout(self, number: int) -> None:
        """Wait until another worker has finished the re-split of generation ``number``, or has not changed the liveness
        file for the liveness timeout."""
        while newest_generation_number(self._connector) == number:
            heard = last_liveness_ns(generation_folder(self._connector, number))
            if not self._wait(lambda: self._has_progressed(number, heard), self._liveness_timeout_ms):  # noqa: B023
                return

    def _wait(self, condition: Callable[[], bool], limit_ms: int) -> bool:
        """Wait until ``condition`` returns True, ``limit_ms`` from the call at most. Returns whether ``condition``
        returned True. Polls, because other workers write the files that ``condition`` reads.

        :raises FencedError: when the fence is closed meanwhile.
        """
        deadline = time.monotonic() + limit_ms / 1000
        while not condition():
            if self._finisher.fence.is_closed:
                raise FencedError
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_INTERVAL_MS / 1000)
        return True


def newest_plan_or_manifest(connector: Path) -> GenerationPlan | Manifest | None:
    """The newest document in the connector's folder: if the newest generation is closed, the plan of the next one, else
    the manifest of the newest. None when there is no generation, or when generation 0 is the newest and not closed."""
    while True:
        number = newest_generation_number(connector)
        if number is None:
            return None
        generation = generation_folder(connector, number)
        try:
            plan = read_plan(generation)
            if plan is None and number == 0:
                return None
            return plan or read_manifest(generation)
        except OSError:
            if newest_generation_number(connector) == number:
                raise


def satisfies(manifest: Manifest, request: GenerationRequest) -> bool:
    """Whether the generation of ``manifest`` matches ``request``: the same split and the same sink, and values for all
    ``request.keys_to_infer``."""
    return manifest.split == request.split and _has_columns(manifest, request) and _has_same_sink(manifest, request)


def _has_columns(manifest: Manifest, request: GenerationRequest) -> bool:
    """Whether the generation has values for all ``keys_to_infer``."""
    return request.keys_to_infer <= manifest.inferred.keys()


def _revoke_access_of_others(connector: Path) -> None:
    """Revoke the access of users outside the owner's group to the connector's folder, which an older version of Coterie
    may have created: the manifests in it may contain passwords. A failure is logged."""
    try:
        mode = stat.S_IMODE(connector.stat().st_mode)
        if mode & stat.S_IRWXO:
            connector.chmod(mode & ~stat.S_IRWXO)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning(
            "The folder %s may contain passwords, and revoking other users' access to it failed: %s", connector, error
        )


def _parts_of(split: Split) -> frozenset[str]:
    """The source partitions of all tasks."""
    return frozenset(part for task in split.tasks for part in task)


def _has_same_sink(manifest: Manifest, request: GenerationRequest) -> bool:
    """Whether the generation's config and the config of ``request`` identify the same sink."""
    return request.sink_identity_of(manifest.config) == request.sink_identity_of(request.config)
