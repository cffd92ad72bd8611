"""The documents of a generation: its manifest, and the plan of the next generation that closes it. Versioned JSON."""

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
    """What a generation is to be, decided before the positions of the former one are gathered."""

    generation: GenerationId
    split: Split
    config: Mapping[str, str] = field(repr=False)
    """The connector's, with references unresolved."""
    inferred: Mapping[str, str]
    """Keys of the source that the config leaves out, without prefix, and the values that were found for them."""
    starts: Positions
    """Where to begin with parts that were never read before."""

    def born(self, positions: Positions) -> "Manifest":
        """The generation that goes on at ``positions``, which are those of the whole connector."""
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
    """What a generation is. The configs of its tasks in the config topic are copies of what stands here."""

    generation: GenerationId
    split: Split
    config: Mapping[str, str] = field(repr=False)
    inferred: Mapping[str, str]
    positions: Positions
    """Where the tasks begin."""
    parked: Positions
    """Where the reading of parts ended that are gone, should they come back."""


def plan_text(plan: Plan) -> str:
    return _text({**_common(plan), "starts": dict(plan.starts)})


def manifest_text(manifest: Manifest) -> str:
    return _text(
        {**_common(manifest), "positions": dict(manifest.positions), "parked": dict(manifest.parked)},
    )


def read_plan(generation: Path) -> Plan | None:
    """The plan of the next generation; None when ``generation`` is not closed.

    :raises WorldError: when a newer version of Coterie wrote it.
    """
    try:
        stated = _read(generation / CLOSED)
    except FileNotFoundError:
        return None
    return Plan(**_fields(stated), starts=stated["starts"])


def read_manifest(generation: Path) -> Manifest:
    """:raises OSError: when there is no such generation (any more).
    :raises WorldError: when a newer version of Coterie wrote it.
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
