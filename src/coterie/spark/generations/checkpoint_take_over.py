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
from coterie.spark.checkpoint import (
    TAKE_OVER_TIMEOUT_MS,
    HeldCheckpoint,
    clean_and_open_checkpoint_if_held,
    take_over_checkpoint,
    try_take_over_checkpoint_unverified,
)
from coterie.spark.generations.layout import CLOSED_FILE, CLOSING_FOLDER, STOPPED_FOLDER, GenerationId
from coterie.spark.generations.manifest import read_manifest


class GenerationClosedError(CoterieError):
    """The checkpoint generation is closed or removed, so its tasks do not start: they wait for configs that name
    another checkpoint generation."""


class GenerationAbsentError(WorldError):
    """The checkpoint generation that a task's config names is not on the file system of this worker, or not yet."""


def is_generation_closed_or_removed(generation_path: Path) -> bool:
    """Whether the checkpoint generation in the folder ``generation_path`` is closed (the folder contains
    :data:`.CLOSED_FILE`) or was removed (a plain file is in the folder's place). False when nothing is there."""
    return (generation_path / CLOSED_FILE).exists() or generation_path.is_file()


def take_over_in_open_generation(
    generation_path: Path, expected_generation: GenerationId, task_number: int
) -> HeldCheckpoint:
    """Take over the checkpoint of the task ``task_number`` from its holder, for a start of the task.
    ``generation_path`` is the generation's folder, and ``expected_generation`` the generation that the task's config
    names. Creates neither a generation nor a checkpoint.

    :raises GenerationClosedError: when the generation is closed or was removed.
    :raises GenerationAbsentError: when there is no generation at ``generation_path``, or another than
        ``expected_generation``.
    :raises WorldError: when the folder cannot be used, contains no checkpoint for :data:`TAKE_OVER_TIMEOUT_MS`, or
        another version of Coterie wrote the manifest.
    """
    _check_generation_open(generation_path, expected_generation)
    # The file records that an earlier run of the task was stopped. If that run writes the file again after this line, a
    # re-split does not wait until this run ends its batch, and replays the batch.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (generation_path / STOPPED_FOLDER / str(task_number)).unlink()
    try:
        return take_over_checkpoint(
            generation_path / str(task_number),
            check=lambda: _check_generation_open(generation_path, expected_generation),
        )
    except WorldError:
        _check_generation_open(generation_path, expected_generation)
        raise


def take_over_in_closed_generation(generation_path: Path, task_number: int) -> HeldCheckpoint:
    """Take over the checkpoint of the task ``task_number`` in a closed generation, for a re-split, and move the
    checkpoint to ``closing/<task>/`` unless it is there. ``generation_path`` is the generation's folder.

    :raises OSError: when the generation was removed.
    :raises WorldError: when no checkpoint was found for :data:`TAKE_OVER_TIMEOUT_MS`.
    """
    task_folder, closing_folder = (
        generation_path / str(task_number),
        generation_path / CLOSING_FOLDER / str(task_number),
    )
    for folder in (closing_folder.parent, closing_folder):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
    deadline_s = time.monotonic() + TAKE_OVER_TIMEOUT_MS / 1000
    while True:
        new_entry = try_take_over_checkpoint_unverified(closing_folder)
        if new_entry is None and (entry_to_move := try_take_over_checkpoint_unverified(task_folder)) is not None:
            new_entry = closing_folder / entry_to_move.name
            os.rename(entry_to_move, new_entry)
        if new_entry is not None and (held_checkpoint := clean_and_open_checkpoint_if_held(new_entry)) is not None:
            return held_checkpoint
        if new_entry is not None:
            continue  # Another re-split has taken the checkpoint over: take it over again.
        if time.monotonic() > deadline_s:
            raise WorldError(
                f"{task_folder} and {closing_folder} contain no checkpoint directory: check whether files were "
                "removed there"
            )
        time.sleep(0.001)


def _check_generation_open(generation_path: Path, expected_generation: GenerationId) -> None:
    """Check that the folder ``generation_path`` contains the generation ``expected_generation``, and that it is open.

    :raises GenerationClosedError, GenerationAbsentError, WorldError: as :func:`take_over_in_open_generation`.
    """
    if is_generation_closed_or_removed(generation_path):
        raise GenerationClosedError(f"The checkpoint generation {generation_path} is closed")
    try:
        found_generation = read_manifest(generation_path).generation
    except NotADirectoryError as error:
        raise GenerationClosedError(f"The checkpoint generation {generation_path} was removed") from error
    except FileNotFoundError as error:
        raise GenerationAbsentError(
            f"Checkpoint generation {expected_generation} was not found at {generation_path}: check that all workers "
            "share checkpoint.location"
        ) from error
    if found_generation != expected_generation:
        raise GenerationAbsentError(
            f"The folder {generation_path} has checkpoint generation {found_generation}, but the task's config "
            f"names {expected_generation}: check that all workers share checkpoint.location"
        )
