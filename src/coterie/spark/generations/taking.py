"""Take-over of a checkpoint: by starts while its checkpoint generation is open, by re-splits once it is closed.

Both use the exchange of :mod:`coterie.spark.checkpoint`. A start searches only the task's folder. A re-split takes over
the checkpoint there, moves it to ``closing/<task>/`` and checks the moved entry: a plain file means that a start has
taken over the checkpoint between the exchange and the move, and the re-split takes it over again. In
``closing/<task>/`` the re-splits of several workers take over the checkpoints from each other.
"""

import contextlib
import os
import time
from pathlib import Path

from coterie.nouns.errors import CoterieError, WorldError
from coterie.spark.checkpoint import PATIENCE_MS, HeldCheckpoint, look, take_once, take_over
from coterie.spark.generations.layout import CLOSED, CLOSING, RELEASED, GenerationId
from coterie.spark.generations.manifest import read_manifest


class GenerationClosedError(CoterieError):
    """The checkpoint generation is closed: its tasks wait for a config that names another one."""


class GenerationAbsentError(WorldError):
    """The checkpoint generation that a config names does not exist on the shared file system."""


def is_closed(generation: Path) -> bool:
    """Whether the checkpoint generation is closed or was removed."""
    return (generation / CLOSED).exists() or generation.is_file()


def take_open(generation: Path, named: GenerationId, task: int) -> HeldCheckpoint:
    """Take over a task's checkpoint from its holder, in the generation ``named`` by the task's config. Creates nothing.

    :raises GenerationClosedError: when the generation is closed or was removed.
    :raises GenerationAbsentError: when the generation does not exist.
    :raises WorldError: when the folder cannot be used, or the checkpoint is not found.
    """
    _check_open(generation, named)
    # The file records that an earlier run of the task was stopped. If that run writes the file again after this line, a
    # re-split does not wait until this run ends its batch, and replays the batch.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (generation / RELEASED / str(task)).unlink()
    try:
        return take_over(generation / str(task), check=lambda: _check_open(generation, named))
    except WorldError:
        _check_open(generation, named)
        raise


def take_closed(generation: Path, task: int) -> HeldCheckpoint:
    """Take over a task's checkpoint in a closed generation and move it to ``closing/<task>/``.

    :raises OSError: when the generation was removed.
    :raises WorldError: when the checkpoint is not found.
    """
    opened, closing = generation / str(task), generation / CLOSING / str(task)
    for folder in (closing.parent, closing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while True:
        mine = take_once(closing)
        if mine is None and (moved := take_once(opened)) is not None:
            mine = closing / moved.name
            os.rename(moved, mine)
        if mine is not None and (held := look(mine)) is not None:
            return held
        if mine is None and time.monotonic() > deadline:
            raise WorldError(
                f"{opened} and {closing} contain no checkpoint directory: check whether files were removed there"
            )


def _check_open(generation: Path, named: GenerationId) -> None:
    if is_closed(generation):
        raise GenerationClosedError(f"The checkpoint generation {generation} is closed")
    try:
        stands = read_manifest(generation).generation
    except NotADirectoryError as error:
        raise GenerationClosedError(f"The checkpoint generation {generation} was removed") from error
    except FileNotFoundError as error:
        raise GenerationAbsentError(
            f"Checkpoint generation {named} was not found at {generation}: check that all workers share "
            "checkpoint.location"
        ) from error
    if stands != named:
        raise GenerationAbsentError(f"{generation} is checkpoint generation {stands}, but the config names {named}")
