"""Take-over of a task's checkpoint in a checkpoint generation: by a start of the task while the generation is open, by
a re-split once the generation is closed.

Both use the exchange of :mod:`coterie.spark.checkpoint`. A start searches the checkpoint only in the task's folder. A
re-split takes over the checkpoint there, moves its entry to ``closing/<task>/`` and checks the entry. If the entry is a
plain file, a start has taken over the checkpoint between the exchange and the move, and the re-split takes over the
checkpoint again. In ``closing/<task>/`` the re-splits of several workers take over the checkpoint from each other.
"""

import contextlib
import os
import time
from pathlib import Path

from coterie.nouns.errors import CoterieError, WorldError
from coterie.spark.checkpoint import TAKE_OVER_TIMEOUT_MS, HeldCheckpoint, open_if_held, take_over, try_take_over
from coterie.spark.generations.layout import CLOSED_FILE, CLOSING_FOLDER, STOPPED_FOLDER, GenerationId
from coterie.spark.generations.manifest import read_manifest


class GenerationClosedError(CoterieError):
    """The checkpoint generation is closed or removed, so its tasks do not start: they wait for configs that name
    another checkpoint generation."""


class GenerationAbsentError(WorldError):
    """The checkpoint generation that a task's config names is not on the file system of this worker, or not yet."""


def is_closed(generation: Path) -> bool:
    """Whether the checkpoint generation is closed or was removed."""
    return (generation / CLOSED_FILE).exists() or generation.is_file()


def take_over_in_open(generation: Path, expected: GenerationId, task: int) -> HeldCheckpoint:
    """Take over the checkpoint of ``task`` from its holder, for a start of the task. ``generation`` is the generation's
    folder, and ``expected`` the generation that the task's config names. Creates neither a generation nor a checkpoint.

    :raises GenerationClosedError: when the generation is closed or was removed.
    :raises GenerationAbsentError: when there is no generation at ``generation``, or another than ``expected``.
    :raises WorldError: when the folder cannot be used, contains no checkpoint for :data:`TAKE_OVER_TIMEOUT_MS`, or
        another version of Coterie wrote the manifest.
    """
    _check_open(generation, expected)
    # The file records that an earlier run of the task was stopped. If that run writes the file again after this line, a
    # re-split does not wait until this run ends its batch, and replays the batch.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (generation / STOPPED_FOLDER / str(task)).unlink()
    try:
        return take_over(generation / str(task), check=lambda: _check_open(generation, expected))
    except WorldError:
        _check_open(generation, expected)
        raise


def take_over_in_closed(generation: Path, task: int) -> HeldCheckpoint:
    """Take over the checkpoint of ``task`` in a closed generation, for a re-split, and move the checkpoint to
    ``closing/<task>/`` unless it is there.

    :raises OSError: when the generation was removed.
    :raises WorldError: when no checkpoint was found for :data:`TAKE_OVER_TIMEOUT_MS`.
    """
    opened, closing = generation / str(task), generation / CLOSING_FOLDER / str(task)
    for folder in (closing.parent, closing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
    deadline = time.monotonic() + TAKE_OVER_TIMEOUT_MS / 1000
    while True:
        mine = try_take_over(closing)
        if mine is None and (moved := try_take_over(opened)) is not None:
            mine = closing / moved.name
            os.rename(moved, mine)
        if mine is not None and (held := open_if_held(mine)) is not None:
            return held
        if mine is not None:
            continue  # Another re-split has taken the checkpoint over: take it over again.
        if time.monotonic() > deadline:
            raise WorldError(
                f"{opened} and {closing} contain no checkpoint directory: check whether files were removed there"
            )
        time.sleep(0.001)


def _check_open(generation: Path, expected: GenerationId) -> None:
    """Check that the folder ``generation`` contains the generation ``expected``, and that it is open.

    :raises GenerationClosedError, GenerationAbsentError, WorldError: as :func:`take_over_in_open`.
    """
    if is_closed(generation):
        raise GenerationClosedError(f"The checkpoint generation {generation} is closed")
    try:
        stands = read_manifest(generation).generation
    except NotADirectoryError as error:
        raise GenerationClosedError(f"The checkpoint generation {generation} was removed") from error
    except FileNotFoundError as error:
        raise GenerationAbsentError(
            f"Checkpoint generation {expected} was not found at {generation}: check that all workers share "
            "checkpoint.location"
        ) from error
    if stands != expected:
        raise GenerationAbsentError(
            f"The folder {generation} has checkpoint generation {stands}, but the task's config names {expected}"
        )
