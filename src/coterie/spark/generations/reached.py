"""Reads the positions that a connector has reached from its checkpoints, while its tasks may be running: nothing is
taken over, and no file is changed.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from coterie.nouns.errors import WorldError
from coterie.spark.generations.layout import generation_folder, newest_generation_number
from coterie.spark.generations.manifest import read_manifest, read_plan_of_next_generation
from coterie.spark.generations.resplit import find_checkpoint_of_task
from coterie.spark.generations.split import merge_positions
from coterie.spark.generations.stores import PositionStore
from coterie.spark.positions import Positions

ATTEMPTS_MAX = 40
"""How often the positions are read at most: if a file is still missing or changed at the last attempt, the error is
raised."""
RETRY_INTERVAL_MS = 50


def read_reached_positions(
    connector_path: Path, position_store: PositionStore, is_of_source_class: Callable[[Mapping[str, str]], bool]
) -> Positions:
    """The positions that the committed batches of the connector with the folder ``connector_path`` have reached, with
    those of source partitions that no longer exist. Empty when the connector has no checkpoint generation. If a user's
    change of the positions is stored and not yet finished, the positions after the change.

    ``position_store`` is the one of the connector's class of source, and ``is_of_source_class`` returns whether a
    config of a checkpoint generation names this class: positions and changes of another class are left out.

    :raises WorldError: when another version of Coterie wrote the checkpoints, or the source is one whose positions
        cannot be moved.
    :raises OSError: when a checkpoint is still missing, or a file cannot be read, after :data:`ATTEMPTS_MAX` attempts.
    """
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return _read_positions_once(connector_path, position_store, is_of_source_class)
        except OSError:
            # A task was started, a re-split has moved the checkpoint, or Spark has compacted a log meanwhile.
            time.sleep(RETRY_INTERVAL_MS / 1000)
    return _read_positions_once(connector_path, position_store, is_of_source_class)


def _read_positions_once(
    connector_path: Path, position_store: PositionStore, is_of_source_class: Callable[[Mapping[str, str]], bool]
) -> Positions:
    """The positions as :func:`read_reached_positions` returns them, by one attempt.

    :raises OSError: when a file or a checkpoint is missing, for example because another worker moves the checkpoint.
    :raises WorldError: as :func:`read_reached_positions`.
    """
    number = newest_generation_number(connector_path)
    if number is None:
        return {}
    if number == 0:
        raise WorldError(
            f"The checkpoints in {connector_path} are those of an older version of Coterie: resume the connector once "
            "with this version"
        )
    generation_path = generation_folder(connector_path, number)
    manifest, plan = read_manifest(generation_path), read_plan_of_next_generation(generation_path)
    positions: Positions = {}
    if is_of_source_class(manifest.config):
        positions_by_task: dict[int, Positions] = {}
        for task, partitions in enumerate(manifest.split.partitions_by_task):
            if (checkpoint := find_checkpoint_of_task(generation_path, task)) is None:
                raise FileNotFoundError(
                    f"{generation_path} contains no checkpoint of task {task}: another worker is moving it, or files "
                    "were removed there"
                )
            positions_by_task[task] = position_store.read(checkpoint, partitions)
        positions = merge_positions(manifest.absent_partition_positions, positions_by_task, manifest.split)
    if plan is None or plan.position_change is None or not is_of_source_class(plan.config):
        return positions
    return plan.position_change.apply(positions)
