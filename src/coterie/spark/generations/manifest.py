"""The documents of a checkpoint generation: its manifest, and the plan of the next one, which closes it. Versioned
JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.nouns.errors import WorldError
from coterie.spark.generations.layout import CLOSED, MANIFEST, GenerationId
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.positions import Positions

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a checkpoint generation, written before the positions of the former one are read."""

    generation: GenerationId
    split: Split
    config: Mapping[str, str] = field(repr=False)
    """The connector's config, with unresolved references."""
    inferred: Mapping[str, str]
    """Inferred values of the source keys that the config omits, by name without prefix."""
    starts: Positions
    """Initial positions of source partitions that were never read."""

    def born(self, positions: Positions) -> "Manifest":
        """The manifest of the planned generation, which resumes at ``positions``, the positions of all tasks."""
        everything = {**self.starts, **positions}
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
            parked={part: at for part, at in everything.items() if part not in live},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The manifest of a checkpoint generation. The task configs in the config topic are derived from it."""

    generation: GenerationId
    split: Split
    config: Mapping[str, str] = field(repr=False)
    inferred: Mapping[str, str]
    positions: Positions
    """The positions at which the tasks start."""
    parked: Positions
    """Last positions of source partitions that no longer exist, for the case that they exist again later."""


def plan_text(plan: Plan) -> str:
    return _text({**_common(plan), "starts": dict(plan.starts)})


def manifest_text(manifest: Manifest) -> str:
    return _text(
        {**_common(manifest), "positions": dict(manifest.positions), "parked": dict(manifest.parked)},
    )


def read_plan(generation: Path) -> Plan | None:
    """The plan of the next checkpoint generation; None when ``generation`` is not closed.

    :raises WorldError: when a newer version of Coterie wrote the plan.
    """
    try:
        stated = _read(generation / CLOSED)
    except FileNotFoundError:
        return None
    return Plan(**_fields(stated), starts=stated["starts"])


def read_manifest(generation: Path) -> Manifest:
    """:raises OSError: when the checkpoint generation does not exist (any more).
    :raises WorldError: when a newer version of Coterie wrote the manifest.
    """
    stated = _read(generation / MANIFEST)
    return Manifest(**_fields(stated), positions=stated["positions"], parked=stated["parked"])


def _common(stated: Plan | Manifest) -> dict[str, Any]:
    return {
        "generation": str(stated.generation),
        "split": {"function": stated.split.function.value, "tasks": [list(parts) for parts in stated.split.tasks]},
        "config": dict(stated.config),
        "inferred": dict(stated.inferred),
    }


def _fields(stated: Mapping[str, Any]) -> dict[str, Any]:
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
    return json.dumps({"version": VERSION, **stated}, indent=1, sort_keys=True)


def _read(path: Path) -> dict[str, Any]:
    stated: dict[str, Any] = json.loads(path.read_text())
    if stated["version"] != VERSION:
        raise WorldError(
            f"{path} has version {stated['version']}, and this worker reads version {VERSION}: run the same version "
            "of Coterie on all workers"
        )
    return stated
