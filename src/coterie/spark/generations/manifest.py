"""The two documents of a checkpoint generation, in versioned JSON: its manifest, and the plan of the next generation,
which closes it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.nouns.errors import WorldError
from coterie.spark.generations.layout import CLOSED_FILE, MANIFEST_FILE, GenerationId
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.positions import Positions

DOCUMENT_VERSION = 1
"""The version of the form of documents (manifests and plans) without changed positions."""
CHANGE_DOCUMENT_VERSION = 2
"""The version of the form of documents (manifests and plans) with a change of positions. Workers of older versions must
not read such a document: they would ignore the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionChange:
    """A change of a connector's positions that a user has ordered."""

    positions: Mapping[str, int | None]
    """The new position by the key of the position; None removes the position, and the input is then read as a new
    connector reads it."""
    removes_others: bool = False
    """Whether all positions are removed that :attr:`positions` does not contain."""

    @property
    def removed_position_keys(self) -> frozenset[str]:
        """The keys of the positions that the change names and removes."""
        return frozenset(key for key, position in self.positions.items() if position is None)

    def apply(self, positions: Positions) -> dict[str, int]:
        """``positions`` after the change."""
        changed = {**({} if self.removes_others else positions), **self.positions}
        return {key: position for key, position in changed.items() if position is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """The plan of a checkpoint generation: everything in its manifest, except the positions that the tasks of the
    previous generation have reached. The plan is stored before these positions are read."""

    generation: GenerationId
    """The planned generation."""
    split: Split
    """The division of the input between the tasks of the planned generation."""
    config: Mapping[str, str] = field(repr=False)
    """The connector's config, with unresolved references."""
    inferred_values: Mapping[str, str]
    """The inferred values of those of the source's keys that the config does not set, by key without ``source.``."""
    initial_positions: Positions
    """The initial positions of the source partitions that no earlier generation has read, or whose positions a user has
    removed."""
    position_change: PositionChange | None = None
    """The change of positions for which the generation is created; None when it is created for another reason."""

    def to_manifest(self, reached_positions: Positions) -> "Manifest":
        """The manifest of the planned generation. ``reached_positions``: the positions that all tasks of the generation
        before have reached. They take precedence over the initial positions of the same source partitions;
        :attr:`position_change` takes precedence over both."""
        all_positions = {**self.initial_positions, **reached_positions}
        reset_partitions_without_position: tuple[str, ...] = ()
        if self.position_change is not None:
            all_positions = self.position_change.apply(all_positions)
            reset_partitions_without_position = self.split.partitions_without_position(
                all_positions, self.position_change.removed_position_keys
            )
        if self.split.function is not SplitFunction.PARTS_V1 and self.split.partitions_by_task:
            existing_positions = all_positions
        else:
            existing_positions = {
                partition: all_positions[partition]
                for partitions in self.split.partitions_by_task
                for partition in partitions
                if partition in all_positions
            }
        return Manifest(
            generation=self.generation,
            split=self.split,
            config=self.config,
            inferred_values=self.inferred_values,
            positions=existing_positions,
            absent_partition_positions={
                partition: position
                for partition, position in all_positions.items()
                if partition not in existing_positions
            },
            reset_partitions_without_position=reset_partitions_without_position,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The manifest of a checkpoint generation. A manifest never changes. The task configs in the config topic are
    derived from it."""

    generation: GenerationId
    """The generation that the manifest describes."""
    split: Split
    """The division of the input between the generation's tasks."""
    config: Mapping[str, str] = field(repr=False)
    """The connector's config, with unresolved references, for which the generation was created."""
    inferred_values: Mapping[str, str]
    """The inferred values of those of the source's keys that the config does not set, by key without ``source.``."""
    positions: Positions
    """The positions at which the generation's tasks begin."""
    absent_partition_positions: Positions
    """The last positions of the source partitions that no longer exist: if such a partition exists again later, it is
    read from there."""
    reset_partitions_without_position: tuple[str, ...] = ()
    """The source partitions whose positions a user has removed. The connector's next split creates another generation,
    in which it reads them as a new connector does. No task starts in a generation that has such source partitions."""


def plan_to_json(plan: GenerationPlan) -> str:
    """``plan`` as JSON: the content of :data:`CLOSED_FILE`."""
    change = plan.position_change
    return _versioned_document_text(
        {**_common_fields_to_json(plan), "starts": dict(plan.initial_positions)},
        {}
        if change is None
        else {"change": {"positions": dict(change.positions), "removes_others": change.removes_others}},
    )


def manifest_to_json(manifest: Manifest) -> str:
    """``manifest`` as JSON: the content of the file :data:`MANIFEST_FILE`."""
    return _versioned_document_text(
        {
            **_common_fields_to_json(manifest),
            "positions": dict(manifest.positions),
            "parked": dict(manifest.absent_partition_positions),
        },
        {"reset": list(manifest.reset_partitions_without_position)}
        if manifest.reset_partitions_without_position
        else {},
    )


def read_plan_of_next_generation(generation_path: Path) -> GenerationPlan | None:
    """The plan of the next checkpoint generation, from the generation's folder ``generation_path``; None when the
    generation is not closed, or nothing is at ``generation_path``.

    :raises OSError: when a plain file is at ``generation_path``, which a removed generation leaves there, or the plan
        cannot be read.
    :raises WorldError: when another version of Coterie wrote the plan in another form.
    """
    try:
        document = _read_document_of_known_version(generation_path / CLOSED_FILE)
    except FileNotFoundError:
        return None
    change = document.get("change")
    return GenerationPlan(
        **_common_fields_from_json(document),
        initial_positions=document["starts"],
        position_change=None if change is None else PositionChange(**change),
    )


def read_manifest(generation_path: Path) -> Manifest:
    """The manifest of the checkpoint generation in the folder ``generation_path``.

    :raises OSError: when the generation does not exist, or was removed.
    :raises WorldError: when another version of Coterie wrote the manifest in another form.
    """
    document = _read_document_of_known_version(generation_path / MANIFEST_FILE)
    return Manifest(
        **_common_fields_from_json(document),
        positions=document["positions"],
        absent_partition_positions=document["parked"],
        reset_partitions_without_position=tuple(document.get("reset", ())),
    )


def _common_fields_to_json(plan_or_manifest: GenerationPlan | Manifest) -> dict[str, Any]:
    """The JSON of the fields that a plan and a manifest have in common."""
    return {
        "generation": str(plan_or_manifest.generation),
        "split": {
            "function": plan_or_manifest.split.function.value,
            "tasks": [list(partitions) for partitions in plan_or_manifest.split.partitions_by_task],
        },
        "config": dict(plan_or_manifest.config),
        "inferred": dict(plan_or_manifest.inferred_values),
    }


def _common_fields_from_json(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a plan and a manifest have in common, by field name, from ``document``, which contains the result
    of :func:`_common_fields_to_json`."""
    split = document["split"]
    return {
        "generation": GenerationId.parse(document["generation"]),
        "split": Split(
            function=SplitFunction(split["function"]),
            partitions_by_task=tuple(tuple(partitions) for partitions in split["tasks"]),
        ),
        "config": document["config"],
        "inferred_values": document["inferred"],
    }


def _versioned_document_text(fields: Mapping[str, Any], change_fields: Mapping[str, Any]) -> str:
    """The content of a file with a plan or a manifest: JSON with ``fields``, ``change_fields`` and the version of the
    file's form. ``change_fields``: the fields about a user's change of positions; empty when there is no such
    change."""
    version = CHANGE_DOCUMENT_VERSION if change_fields else DOCUMENT_VERSION
    return json.dumps({"version": version, **fields, **change_fields}, indent=1, sort_keys=True)


def _read_document_of_known_version(path: Path) -> dict[str, Any]:
    """The JSON of a plan or a manifest, from the file ``path``.

    :raises OSError: when the file cannot be read.
    :raises WorldError: when the version of the file's form is neither :data:`DOCUMENT_VERSION` nor
        :data:`CHANGE_DOCUMENT_VERSION`.
    """
    document: dict[str, Any] = json.loads(path.read_text())
    if document["version"] not in (DOCUMENT_VERSION, CHANGE_DOCUMENT_VERSION):
        raise WorldError(
            f"The file {path} has version {document['version']}, and this worker reads the versions "
            f"{DOCUMENT_VERSION} and {CHANGE_DOCUMENT_VERSION}: run the same version of Coterie on all workers"
        )
    return document
