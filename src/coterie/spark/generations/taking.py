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
from coterie.spark.checkpoint import (
    LINEAGE,
    PATIENCE_MS,
    HeldCheckpoint,
    NoExchangeError,
    _claim,
    _find_directory,
    _make_first,
    _rename_instead,
    batch_in_flight,
    exchange,
    is_taken,
    starts_of,
    sweep,
)
from coterie.spark.generations.layout import CLOSED, CLOSING, GenerationId
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
    try:
        _check_open(generation, named)
        folder = generation / str(task)
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while True:
            if (mine := _take(folder)) is not None and (held := _held(mine)) is not None:
                return held
            _check_open(generation, named)
            if mine is None:
                if time.monotonic() > deadline:
                    raise WorldError(f"{folder} holds no checkpoint directory: see whether files were removed there")
                time.sleep(0.001)
    except OSError as error:
        _check_open(generation, named)
        raise WorldError(f"The checkpoint in {folder} cannot be taken over: {error}") from error


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
        mine = _take(closing)
        if mine is None and (moved := _take(opened)) is not None:
            mine = closing / moved.name
            os.rename(moved, mine)
        if mine is not None and not is_taken(mine) and (held := _held(mine)) is not None:
            return held
        if mine is None and time.monotonic() > deadline:
            raise WorldError(f"{opened} and {closing} hold no checkpoint directory: see whether files were removed")


def make_absent(generation: Path, task: int) -> None:
    """Make the checkpoint of a task of generation 0 that never started, so that it can be taken like others.

    :raises OSError: when the generation was retired.
    """
    folder = generation / str(task)
    folder.mkdir(exist_ok=True)
    _make_first(folder)


def _take(folder: Path) -> Path | None:
    """One exchange with the directory in ``folder``: the name that got it or missed it; None when there is none."""
    holder = _find_directory(folder)
    if holder is None:
        return None
    mine = _claim(folder)
    try:
        exchange(mine, holder)
    except NoExchangeError:
        _rename_instead(folder, mine)
    except FileNotFoundError:
        return None
    return mine


def _held(mine: Path) -> HeldCheckpoint | None:
    """What was taken under the name ``mine``; None when it was missed, or is taken already."""
    if is_taken(mine):
        return None
    try:
        sweep(mine)
        return HeldCheckpoint(
            path=mine,
            starts=starts_of(mine),
            lineage=(mine / LINEAGE).read_text(),
            batch_in_flight=batch_in_flight(mine),
        )
    except OSError:
        if not is_taken(mine):
            raise
        return None


def _check_open(generation: Path, named: GenerationId) -> None:
    if is_closed(generation):
        raise GenerationClosedError(f"{generation} is closed")
    try:
        stands = read_manifest(generation).generation
    except FileNotFoundError as error:
        raise GenerationAbsentError(
            f"Generation {named} does not stand at {generation}: do all workers share checkpoint.location?"
        ) from error
    if stands != named:
        raise GenerationAbsentError(f"{generation} is generation {stands}, and the config names {named}")
