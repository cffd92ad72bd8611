"""What the worker that has a connector does about its generations: the newest one is made to fit the config."""

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
"""A finisher that gave no sign of life for so long has died, or stands still: another one goes on."""
LOOK_EVERY_MS = 50


class Starts(Protocol):
    """Asks a source where to begin with parts that were never read; ``is_first``: the connector is new."""

    def __call__(self, parts: Sequence[str], *, is_first: bool) -> Positions: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a connector's config asks for."""

    config: Mapping[str, str] = field(repr=False)
    split: Split
    sink: Callable[[Mapping[str, str]], Mapping[str, str | None]]
    """What of a config says where rows are written. A batch in flight is written by the sink of its own generation, so
    that another sink needs another generation."""
    starts: Starts
    open_keys: frozenset[str]
    """Keys of the source that the config leaves out."""
    infer: Callable[[Mapping[str, str]], Mapping[str, str]] = field(repr=False)
    """Finds values for those of them that are not among the given ones."""
    is_fixed: bool
    """Positions of one split mean nothing to another: the split never changes."""
    is_known: bool
    """The connector's tasks have been started before: if no generation stands, the shared file system is not there."""
    flat: Manifest | None
    """What the tasks read that ran before there were generations."""
    keeps_split: bool = False
    """A task is FAILED: no task is stopped for other parts or another number of tasks."""

    def inferred(self, former: Manifest | None) -> Mapping[str, str]:
        """Values for the keys that the config leaves out: those of the former generation, as far as it has them, and
        reads a part that is still read."""
        known: Mapping[str, str] = {}
        if former is not None and not _parts_of(former.split).isdisjoint(_parts_of(self.split)):
            known = {key: value for key, value in former.inferred.items() if key in self.open_keys}
        return known if self.open_keys <= known.keys() else {**self.infer(known), **known}


class Owner:
    """Makes the newest generation of one connector fit its config. All methods block: they are called on threads."""

    def __init__(self, finisher: Finisher, *, grace_ms: int, silence_ms: int = SILENCE_MS) -> None:
        self._finisher = finisher
        self._connector = finisher.connector
        self._grace_ms = grace_ms
        self._silence_ms = silence_ms

    def settle(self, wanted: Wanted) -> Manifest:
        """Return the newest generation once it fits. The one that stands at first is closed if it does not; one that
        comes after it is not: ``wanted`` can be older than that one.

        :raises FencedError: when this worker may no longer act for the connector.
        :raises OvertakenError: when another worker has made a generation that does not fit.
        :raises WorldError: when no generation stands though there was one, or no other can be made.
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
                # Another finisher has made a newer generation, and has retired the one that was looked at.
                if standing(self._connector) == number:
                    raise

    def finish_after_silence(self) -> Manifest | None:
        """The newest generation. A closed one is finished first, unless a finisher gives a sign of life: then None."""
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
        """Whether a finisher has given a sign of life, or is done."""
        generation = generation_folder(self._connector, number)
        return standing(self._connector) != number or sign_of_life(generation) != heard

    def _newest(self, number: int | None, wanted: Wanted, *, may_close: bool) -> Manifest | None:
        """Generation ``number`` if it fits; otherwise another one has been made, or begun."""
        if number is None:
            if wanted.is_known:
                raise WorldError(
                    f"No generation of checkpoints stands at {self._connector}, and the connector's tasks have run: "
                    "do all workers share checkpoint.location?"
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
                    f"Another worker has made generation {manifest.generation} of {self._connector} meanwhile"
                )
            if wanted.is_fixed and number > 0 and manifest.split != wanted.split:
                raise WorldError(
                    f"The connector has checkpoints of {len(manifest.split.tasks)} task(s), which cannot be split "
                    f"anew: keep that number, or create a connector under another name"
                )
            if isinstance(self._finisher.store, NoPositions):
                # Once closed, the generation could not be finished.
                raise WorldError(
                    "The connector has a checkpoint, and its positions cannot be taken to another one: put the former "
                    "sink back, or create a connector under another name"
                )
            plan = self._plan(number + 1, wanted, manifest)
            with self._finisher.fence.passing():
                close(self._connector, plan)
        if number > 0:
            # Of generation 0 no runtime of this version runs a task.
            self._wait(lambda: not unreleased(generation, manifest), self._grace_ms)
        try:
            self._finisher.finish(number)
        except OvertakenError:
            self._wait_for_silence(number)
        return None

    def _is_kept(self, manifest: Manifest, wanted: Wanted) -> bool:
        """Whether a generation goes on that does not fit, since a task is FAILED: one that reads what exists, by known
        columns, and writes to the same sink."""
        if not (wanted.keeps_split and _has_columns(manifest, wanted) and _writes_the_same(manifest, wanted)):
            return False
        parts = {part for task in wanted.split.tasks for part in task}
        if any(part not in parts for task in manifest.split.tasks for part in task):
            return False
        log.warning(
            "%s: a task is FAILED, so the tasks keep their parts though other parts or another number of tasks are "
            "asked for; the connector is split anew once no task is FAILED",
            self._connector,
        )
        return True

    def _adopt(self, wanted: Wanted) -> None:
        if wanted.flat is not None:
            adopt(self._connector, wanted.flat)
        elif not (self._connector / MANIFEST).exists():
            raise WorldError(
                f"{self._connector} holds checkpoints, and the config topic says nothing of their tasks: move the "
                "folder away to read everything again"
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
        """Whether it came to be so within the limit. Other workers write what is looked at, so it is looked at again
        and again.

        :raises FencedError: when the fence is closed meanwhile.
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
    """The plan of the generation that a closed one is to become, else the newest generation; None when there is none,
    or when no worker has closed the layout of before generations yet."""
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
    """Whether the tasks of a generation do what the config asks for: they read the same, by columns that are known, and
    write to the same sink."""
    return manifest.split == wanted.split and _has_columns(manifest, wanted) and _writes_the_same(manifest, wanted)


def _has_columns(manifest: Manifest, wanted: Wanted) -> bool:
    return wanted.open_keys <= manifest.inferred.keys()


def _hide_from_others(connector: Path) -> None:
    """Take the rights of other users from a folder of before it was made without: its manifests may hold passwords."""
    try:
        mode = stat.S_IMODE(connector.stat().st_mode)
        if mode & stat.S_IRWXO:
            connector.chmod(mode & ~stat.S_IRWXO)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s may hold passwords, and other users' rights cannot be taken from it: %s", connector, error)


def _parts_of(split: Split) -> frozenset[str]:
    return frozenset(part for task in split.tasks for part in task)


def _writes_the_same(manifest: Manifest, wanted: Wanted) -> bool:
    return wanted.sink(manifest.config) == wanted.sink(wanted.config)
