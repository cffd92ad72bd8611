"""Paths and names of a connector's checkpoint generations on the shared file system.

``LOCATION/<connector>-<incarnation>/`` contains ``gen-<k>/`` for k = 1, 2, …. A removed generation is a plain file with
the same name, so that the name of a generation never becomes free. Generation 0 is the layout of versions of Coterie
without checkpoint generations: its tasks' folders are directly in the connector's folder.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName
from coterie.spark.checkpoint import safe_name

MANIFEST = "manifest.json"
CLOSED = "closed"
"""File that closes a checkpoint generation; it contains the plan of the next one."""
RELEASED = "released"
"""Folder with one empty file for each task whose query has stopped since the generation was closed."""
CLOSING = "closing"
"""Folder into which the checkpoints of a closed generation are moved, one folder for each task."""
ALIVE = "alive"
"""Liveness file in ``closing``: the worker that performs the re-split touches it."""

_GENERATION = re.compile(r"gen-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationId:
    """Identifies a checkpoint generation in the config of a task: ``<number>-<id>``."""

    number: int
    id: str

    def __str__(self) -> str:
        return f"{self.number}-{self.id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """:raises ValueError: when ``text`` is not ``<number>-<id>``."""
        number, dash, id_ = text.partition("-")
        if not (dash and id_ and number.isascii() and number.isdigit()):
            raise ValueError(f"{text!r} is not <number>-<id>")
        return cls(number=int(number), id=id_)


def connector_folder(location: Path, connector: ConnectorName, incarnation: Incarnation) -> Path:
    return location / f"{safe_name(connector)}-{safe_name(incarnation)}"


def generation_folder(connector: Path, number: int) -> Path:
    return connector / f"gen-{number}" if number else connector


def seed_prefix(number: int) -> str:
    """Prefix of the names of unfinished folders that are to become generation ``number``."""
    return f".gen-{number}-"


def standing(connector: Path) -> int | None:
    """The number of the newest checkpoint generation; None when the connector has none."""
    while True:
        try:
            names = os.listdir(connector)
        except FileNotFoundError:
            return None
        numbers = [int(match[1]) for name in names if (match := _GENERATION.fullmatch(name))]
        if not numbers:
            return 0 if any(name.isdigit() for name in names) else None
        # If all listed generations were removed after the listing, newer ones exist: list again.
        if generation_folder(connector, max(numbers)).is_dir():
            return max(numbers)
