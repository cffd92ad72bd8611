"""Makes a connector's newest checkpoint generation match the config; runs on the worker that has the connector."""

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
from coterie.spark.generations.layout import MANIFEST, GenerationId, generation_folder, standing
from coterie.spark.generations.manifest import Manifest, Plan, read_manifest, read_plan
from coterie.spark.generations.resplit import (
    Finisher,
    OvertakenError,
    adopt,
    close,
    retire_old,
    sign_of_life,
    unreleased,
)
from coterie.spark.generations.split import Split
from coterie.spark.generations.stores import NoPositions
from coterie.spark.generations.taking import is_closed
from coterie.spark.positions import Positions

log = logging.getLogger(__name__)

SILENCE_MS = 10_000
"""Liveness timeout of a re-split: when its liveness file was not touched for this time, another worker continues."""
LOOK_EVERY_MS = 50


class Starts(Protocol):
    """Returns a source's initial positions for partitions that were never read; ``is_first``: the connector is new."""

    def __call__(self, parts: Sequence[str], *, is_first: bool) -> Positions: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The requirements of a connector's config for its checkpoint generation."""

    config: Mapping[str, str] = field(repr=False)
    split: Split
    sink: Callable[[Mapping[str, str]], Mapping[str, str | None]]
    """Returns the identity of a config's sink. A batch in flight is written to the sink of its own generation, so that
    another sink requires another generation."""
    starts: Starts
    open_keys: frozenset[str]
    """Keys of the source whose values have to be inferred, because the config omits them."""
    infer: Callable[[Mapping[str, str]], Mapping[str, str]] = field(repr=False)
    """Infers values for those of the ``open_keys`` that are not in the given mapping."""
    is_fixed: bool
    """Whether the split never changes, because the positions of one split cannot be used in another."""
    is_known: bool
    """Whether the connector's tasks were started before. If no generation exists then, the shared file system is
    missing."""
    flat: Manifest | None
    """The manifest of generation 0, for tasks that a version of Coterie without checkpoint generations has started."""
    keeps_split: bool = False
    """Whether a task is FAILED. Then no task is stopped because of changed source partitions or another number of
    tasks."""

    def inferred(self, former: Manifest | None) -> Mapping[str, str]:
        """Values for ``open_keys``: the values of the former generation, if both generations have a common source
        partition, and newly inferred values for the other keys."""
        known: Mapping[str, str] = {}
        if former is not None and not _parts_of(former.split).isdisjoint(_parts_of(self.split)):
            known = {key: value for key, value in former.inferred.items() if key in self.open_keys}
        return known if self.open_keys <= known.keys() else {**self.infer(known), **known}


class Owner:
    """Makes the newest checkpoint generation of one connector match its config. All methods block: call them on
    threads."""

    def __init__(self, finisher: Finisher, *, grace_ms: int, silence_ms: int = SILENCE_MS) -> None:
        self._finisher = finisher
        self._connector = finisher.connector
        self._grace_ms = grace_ms
        self._silence_ms = silence_ms

    def settle(self, wanted: Wanted) -> Manifest:
        """Create generations until the newest one matches ``wanted``, and return it.

        Only the generation that is the newest at the call is closed if it does not match. A later one is not closed:
        ``wanted`` can be older than that generation.

        :raises FencedError: when this worker may no longer act for the connector.
        :raises OvertakenError: when another worker has created a generation that does not match.
        :raises WorldError: when no generation exists although there was one, or no other can be created.
        """
        _hide_from_others(self._connector)
        first = standing(self._connector)
        while True:
            number = standing(self._connector)
            try:
                if (manifest := self._newest(number, wanted, may_close=number == first)) is not None:
                    retire_old(self._connector, self._finisher.retire_lineages)
                    return manifest
            except OSError:
                # Another worker has created newer generations and removed generation `number`.
                if standing(self._connector) == number:
                    raise

    def finish_after_silence(self) -> Manifest | None:
        """Return the newest generation. If it is closed, first finish the re-split, unless another worker touches the
        liveness file or finishes the re-split within the liveness timeout: then return None."""
        number = standing(self._connector)
        assert number is not None, f"{self._connector} has no generation"
        generation = generation_folder(self._connector, number)
        if is_closed(generation):
            heard = sign_of_life(generation)
            if self._wait(lambda: self._has_moved(number, heard), self._silence_ms):
                return None
            try:
                self._finisher.finish(number)
            except OvertakenError:
                return None
        return self._finisher.newest()

    def _has_moved(self, number: int, heard: int | None) -> bool:
        """Whether another worker has touched the liveness file of the re-split, or has finished the re-split."""
        generation = generation_folder(self._connector, number)
        return standing(self._connector) != number or sign_of_life(generation) != heard

    def _newest(self, number: int | None, wanted: Wanted, *, may_close: bool) -> Manifest | None:
        """Return generation ``number`` if it matches ``wanted``. Otherwise perform one step towards another generation
        and return None."""
        if number is None:
            if wanted.is_known:
                raise WorldError(
                    f"No checkpoint generation was found in {self._connector}, although the connector's tasks have "
                    "run: check that all workers share checkpoint.location"
                )
            self._finisher.begin(self._plan(1, wanted, None))
            return None
        generation = generation_folder(self._connector, number)
        if number == 0:
            self._adopt(wanted)
        manifest = read_manifest(generation)
        if read_plan(generation) is None:
            if number > 0 and (fits(manifest, wanted) or self._is_kept(manifest, wanted)):
                return manifest
            if not may_close:
                raise OvertakenError(
                    f"Another worker has created checkpoint generation {manifest.generation} of {self._connector}"
                )
            if wanted.is_fixed and number > 0 and manifest.split != wanted.split:
                raise WorldError(
                    f"The connector has checkpoints of {len(manifest.split.tasks)} task(s), which cannot be split "
                    f"again: keep this number of tasks, or create a connector under another name"
                )
            if isinstance(self._finisher.store, NoPositions):
                # Do not close the generation: the re-split could never be finished.
                raise WorldError(
                    "The connector has a checkpoint, and its positions cannot be moved to another one: configure the "
                    "former sink again, or create a connector under another name"
                )
            plan = self._plan(number + 1, wanted, manifest)
            with self._finisher.fence.passing():
                close(self._connector, plan)
        if number > 0:
            # Not for generation 0: no runtime of this version runs its tasks.
            self._wait(lambda: not unreleased(generation, manifest), self._grace_ms)
        try:
            self._finisher.finish(number)
        except OvertakenError:
            self._wait_for_silence(number)
        return None

    def _is_kept(self, manifest: Manifest, wanted: Wanted) -> bool:
        """Whether a generation that does not match is kept because a task is FAILED: its source partitions must still
        exist, its columns must be known, and its sink must be the same."""
        if not (wanted.keeps_split and _has_columns(manifest, wanted) and _writes_the_same(manifest, wanted)):
            return False
        parts = {part for task in wanted.split.tasks for part in task}
        if any(part not in parts for task in manifest.split.tasks for part in task):
            return False
        log.warning(
            "%s: a task is FAILED, so the tasks keep their source partitions, although the partitions or the number of "
            "tasks have changed; the connector is split again once no task is FAILED",
            self._connector,
        )
        return True

    def _adopt(self, wanted: Wanted) -> None:
        if wanted.flat is not None:
            adopt(self._connector, wanted.flat)
        elif not (self._connector / MANIFEST).exists():
            raise WorldError(
                f"{self._connector} contains checkpoints, but the config topic contains no configs of their tasks: "
                "move the folder to another path to read everything again"
            )

    def _plan(self, number: int, wanted: Wanted, former: Manifest | None) -> Plan:
        known = {} if former is None else {**former.positions, **former.parked}
        parts = sorted({part for task in wanted.split.tasks for part in task} - known.keys())
        return Plan(
            generation=GenerationId(number=number, id=uuid.uuid4().hex),
            split=wanted.split,
            config=wanted.config,
            inferred=wanted.inferred(former),
            starts=wanted.starts(parts, is_first=former is None),
        )

    def _wait_for_silence(self, number: int) -> None:
        while standing(self._connector) == number:
            heard = sign_of_life(generation_folder(self._connector, number))
            if not self._wait(lambda: self._has_moved(number, heard), self._silence_ms):  # noqa: B023
                return

    def _wait(self, is_so: Callable[[], bool], limit_ms: int) -> bool:
        """Wait until ``is_so`` returns True; returns False when ``limit_ms`` is over. Polls, because other workers
        write the files that ``is_so`` reads.

        :raises FencedError: when the fence is closed before.
        """
        deadline = time.monotonic() + limit_ms / 1000
        while not is_so():
            if self._finisher.fence.closed:
                raise FencedError
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_EVERY_MS / 1000)
        return True


def newest_stated(connector: Path) -> Plan | Manifest | None:
    """The plan of the next generation if the newest generation is closed, else the newest generation's manifest. None
    when there is no generation, or when generation 0 is not closed."""
    while True:
        number = standing(connector)
        if number is None:
            return None
        generation = generation_folder(connector, number)
        try:
            plan = read_plan(generation)
            if plan is None and number == 0:
                return None
            return plan or read_manifest(generation)
        except OSError:
            if standing(connector) == number:
                raise


def fits(manifest: Manifest, wanted: Wanted) -> bool:
    """Whether a generation matches the requirements: it has the same split and the same sink, and values for all
    ``open_keys``."""
    return manifest.split == wanted.split and _has_columns(manifest, wanted) and _writes_the_same(manifest, wanted)


def _has_columns(manifest: Manifest, wanted: Wanted) -> bool:
    return wanted.open_keys <= manifest.inferred.keys()


def _hide_from_others(connector: Path) -> None:
    """Revoke other users' access to a folder that an older version of Coterie has created: its manifests may contain
    passwords."""
    try:
        mode = stat.S_IMODE(connector.stat().st_mode)
        if mode & stat.S_IRWXO:
            connector.chmod(mode & ~stat.S_IRWXO)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s may contain passwords, and revoking other users' access to it failed: %s", connector, error)


def _parts_of(split: Split) -> frozenset[str]:
    return frozenset(part for task in split.tasks for part in task)


def _writes_the_same(manifest: Manifest, wanted: Wanted) -> bool:
    return wanted.sink(manifest.config) == wanted.sink(wanted.config)
