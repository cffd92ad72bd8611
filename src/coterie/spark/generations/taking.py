"""Who holds a checkpoint of a generation: taken by starts while the generation is open, by finishers once it is closed.

Both take by the exchange of :mod:`coterie.spark.checkpoint`. A start looks only in the task's folder. A finisher takes
the checkpoint there, moves it to ``closing/<task>/`` and looks at what it has moved: a plain file means that a start
has taken the checkpoint between the exchange and the move, and the finisher takes it again. From ``closing/<task>/``
finishers take checkpoints from each other.
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
    """The generation is closed: its tasks wait for a config that names another one."""


class GenerationAbsentError(WorldError):
    """The generation that a config names does not stand on the shared file system."""


def is_closed(generation: Path) -> bool:
    """Whether the generation is closed or was retired."""
    return (generation / CLOSED).exists() or generation.is_file()


def take_open(generation: Path, named: GenerationId, task: int) -> HeldCheckpoint:
    """Take a task's checkpoint from its holder, in the generation that the task's config names. Nothing is made.

    :raises GenerationClosedError: when the generation is closed or was retired.
    :raises GenerationAbsentError: when no such generation stands.
    :raises WorldError: when the folder cannot be used, or the checkpoint is not found.
    """
    _check_open(generation, named)
    # The file says that an earlier run of the task was stopped. If that run writes the file once more after this line,
    # a finisher does not wait for this run to end its batch, and replays the batch.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (generation / RELEASED / str(task)).unlink()
    try:
        return take_over(generation / str(task), check=lambda: _check_open(generation, named))
    except WorldError:
        _check_open(generation, named)
        raise


def take_closed(generation: Path, task: int) -> HeldCheckpoint:
    """Take a task's checkpoint in a closed generation and hold it in ``closing/<task>/``.

    :raises OSError: when the generation was retired.
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
            raise WorldError(f"{opened} and {closing} hold no checkpoint directory: see whether files were removed")


def _check_open(generation: Path, named: GenerationId) -> None:
    if is_closed(generation):
        raise GenerationClosedError(f"{generation} is closed")
    try:
        stands = read_manifest(generation).generation
    except NotADirectoryError as error:
        raise GenerationClosedError(f"{generation} is retired") from error
    except FileNotFoundError as error:
        raise GenerationAbsentError(
            f"Generation {named} does not stand at {generation}: do all workers share checkpoint.location?"
        ) from error
    if stands != named:
        raise GenerationAbsentError(f"{generation} is generation {stands}, and the config names {named}")
