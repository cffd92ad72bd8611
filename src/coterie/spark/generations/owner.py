"""What the worker that has a connector does about its generations: the newest one is made to fit the config."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.nouns.errors import WorldError
from coterie.spark.fence import FencedError
from coterie.spark.generations.layout import GenerationId, generation_folder, standing
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
from coterie.spark.positions import Positions

SILENCE_MS = 10_000
"""A finisher that gave no sign of life for so long has died, or stands still: another one goes on."""
LOOK_EVERY_MS = 50
SINK = "sink."
SINK_OPTION = "sink.option."
"""A batch in flight is written by the sink of its own generation: another sink needs another generation. The options of
a format do not name a sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a connector's config asks for."""

    config: Mapping[str, str] = field(repr=False)
    split: Split
    starts: Callable[[Sequence[str]], Positions]
    """Where to begin with parts that were never read. Asked before the first generation, and for new parts later."""
    is_known: bool
    """The connector's tasks have been started before: if no generation stands, the shared file system is not there."""
    flat: Manifest | None
    """What the tasks read that ran before there were generations."""


class Owner:
    """Makes the newest generation of one connector fit its config. All methods block: they are called on threads."""

    def __init__(self, finisher: Finisher, *, grace_ms: int, silence_ms: int = SILENCE_MS) -> None:
        self._finisher = finisher
        self._connector = finisher.connector
        self._grace_ms = grace_ms
        self._silence_ms = silence_ms

    def settle(self, wanted: Wanted) -> Manifest:
        """Return the newest generation once it fits; close it and make the next one as long as it does not.

        :raises FencedError: when this worker may no longer act for the connector.
        :raises WorldError: when no generation stands though there was one.
        """
        while True:
            number = standing(self._connector)
            try:
                if (manifest := self._newest(number, wanted)) is not None:
                    retire_old(self._connector)
                    return manifest
            except OSError:
                # Another finisher has made a newer generation, and has retired the one that was looked at.
                if standing(self._connector) == number:
                    raise

    def _newest(self, number: int | None, wanted: Wanted) -> Manifest | None:
        """Generation ``number`` if it fits; otherwise another one has been made, or begun."""
        if number is None:
            if wanted.is_known:
                raise WorldError(
                    f"No generation of checkpoints stands at {self._connector}, and the connector's tasks have run: "
                    "do all workers share checkpoint.location?"
                )
            return self._finisher.begin(self._plan(1, wanted, None))
        generation = generation_folder(self._connector, number)
        if number == 0:
            assert wanted.flat is not None, f"{self._connector} holds checkpoints, and no tasks are known"
            adopt(self._connector, wanted.flat)
        manifest = read_manifest(generation)
        if read_plan(generation) is None:
            if number > 0 and fits(manifest, wanted):
                return manifest
            close(self._connector, self._plan(number + 1, wanted, manifest))
        if number > 0:
            # Of generation 0 no runtime of this version runs a task.
            self._wait(lambda: not unreleased(generation, manifest), self._grace_ms)
        try:
            self._finisher.finish(number)
        except OvertakenError:
            self._wait_for_silence(number)
        return None

    def _plan(self, number: int, wanted: Wanted, former: Manifest | None) -> Plan:
        known = {} if former is None else {**former.positions, **former.parked}
        parts = sorted({part for task in wanted.split.tasks for part in task} - known.keys())
        return Plan(
            generation=GenerationId(number=number, id=uuid.uuid4().hex),
            split=wanted.split,
            config=wanted.config,
            schema=None,
            starts=wanted.starts(parts),
        )

    def _wait_for_silence(self, number: int) -> None:
        generation = generation_folder(self._connector, number)
        while standing(self._connector) == number:
            heard = sign_of_life(generation)
            if not self._wait(
                lambda: standing(self._connector) != number or sign_of_life(generation) != heard,  # noqa: B023
                self._silence_ms,
            ):
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


def fits(manifest: Manifest, wanted: Wanted) -> bool:
    """Whether the tasks of a generation do what the config asks for: they read the same and write to the same sink."""
    return manifest.split == wanted.split and _sink(manifest.config) == _sink(wanted.config)


def _sink(config: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value.strip() for key, value in config.items() if key.startswith(SINK) and not key.startswith(SINK_OPTION)
    }
