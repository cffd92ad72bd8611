"""The two documents of a checkpoint generation, in versioned JSON: its manifest, and the plan of the next generation,
which closes it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.nouns.errors import WorldError
from coterie.spark.generations.layout import CLOSED_FILE, MANIFEST, GenerationId
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.positions import Positions

VERSION = 1
"""The version of both documents' form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """The plan of a checkpoint generation: all of its manifest but the positions that the tasks of the generation
    before have reached. The plan is stored before these positions are read."""

    generation: GenerationId
    """The planned generation."""
    split: Split
    config: Mapping[str, str] = field(repr=False)
    """The connector's config, with unresolved references."""
    inferred: Mapping[str, str]
    """The inferred values of those of the source's keys that the config does not set, by key without ``source.``."""
    initial_positions: Positions
    """The initial positions of the source partitions that no earlier generation has read."""

    def to_manifest(self, positions: Positions) -> "Manifest":
        """The manifest of the planned generation. ``positions`` are those of all tasks of the generation before; they
        replace the initial positions of the same source partitions."""
        everything = {**self.initial_positions, **positions}
        if self.split.function is not SplitFunction.PARTS_V1:
            live = everything
        else:
            live = {part: everything[part] for parts in self.split.tasks for part in parts if part in everything}
        return Manifest(
            generation=self.generation,
            split=self.split,
            config=self.config,
            inferred=self.inferred,
            positions=live,
            positions_of_absent={part: at for part, at in everything.items() if part not in live},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The manifest of a checkpoint generation, which never changes. The task configs in the config topic are derived
    from it. The fields without a description are as in :class:`GenerationPlan`."""

    generation: GenerationId
    split: Split
    config: Mapping[str, str] = field(repr=False)
    inferred: Mapping[str, str]
    positions: Positions
    """The positions at which the generation's tasks begin."""
    positions_of_absent: Positions
    """The last positions of the source partitions that exist no longer: if such a partition exists again later, it is
    read from there."""


def plan_text(plan: GenerationPlan) -> str:
    """``plan`` as JSON: the content of :data:`CLOSED_FILE`."""
    return _text({**_common(plan), "starts": dict(plan.initial_positions)})


def manifest_text(manifest: Manifest) -> str:
    """``manifest`` as JSON: the content of the file :data:`MANIFEST`."""
    return _text(
        {**_common(manifest), "positions": dict(manifest.positions), "parked": dict(manifest.positions_of_absent)},
    )


def read_plan(generation: Path) -> GenerationPlan | None:
    """The plan of the next checkpoint generation, from the generation's folder ``generation``; None when the generation
    is not closed, or its folder does not exist.

    :raises OSError: when the generation was removed.
    :raises WorldError: when another version of Coterie wrote the plan in another form.
    """
    try:
        stated = _read(generation / CLOSED_FILE)
    except FileNotFoundError:
        return None
    return GenerationPlan(**_fields(stated), initial_positions=stated["starts"])


def read_manifest(generation: Path) -> Manifest:
    """The manifest of the checkpoint generation in the folder ``generation``.

    :raises OSError: when the generation does not exist, or was removed.
    :raises WorldError: when another version of Coterie wrote the manifest in another form.
    """
    stated = _read(generation / MANIFEST)
    return Manifest(**_fields(stated), positions=stated["positions"], positions_of_absent=stated["parked"])


def _common(stated: GenerationPlan | Manifest) -> dict[str, Any]:
    """The JSON of the fields that a plan and a manifest have in common."""
    return {
        "generation": str(stated.generation),
        "split": {"function": stated.split.function.value, "tasks": [list(parts) for parts in stated.split.tasks]},
        "config": dict(stated.config),
        "inferred": dict(stated.inferred),
    }


def _fields(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of :func:`_common`: the fields by name, from the JSON."""
    split = stated["split"]
    return {
        "generation": GenerationId.parse(stated["generation"]),
        "split": Split(
            function=SplitFunction(split["function"]), tasks=tuple(tuple(parts) for parts in split["tasks"])
        ),
        "config": stated["config"],
        "inferred": stated["inferred"],
    }


def _text(stated: Mapping[str, Any]) -> str:
    """The text of a document with its version."""
    return json.dumps({"version": VERSION, **stated}, indent=1, sort_keys=True)


def _read(path: Path) -> dict[str, Any]:
    """The JSON of the document at ``path``.

    :raises OSError: when the file cannot be read.
    :raises WorldError: when the document's version is not :data:`VERSION`.
    """
    stated: dict[str, Any] = json.loads(path.read_text())
    if stated["version"] != VERSION:
        raise WorldError(
            f"The file {path} has version {stated['version']}, and this worker reads version {VERSION}: run the same "
            "version of Coterie on all workers"
        )
    return stated
