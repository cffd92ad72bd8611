"""Where the generations of a connector stand on the shared file system, and how they are named.

``LOCATION/<connector>-<incarnation>/`` holds ``gen-<k>/`` for k = 1, 2, …. A generation that was retired is a plain
file under the same name, so that no name of a generation ever becomes free. Generation 0 is the layout of before
generations: its tasks' folders stand in the connector's folder itself.
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
"""The order to close a generation; it holds the plan of the next one."""
RELEASED = "released"
"""Folder with one empty file for each task whose query has stopped since the generation was closed."""
CLOSING = "closing"
"""Folder into which the checkpoints of a closed generation are moved, one folder for each task."""
ALIVE = "alive"
"""File in ``closing`` that the finisher touches while it works."""

_GENERATION = re.compile(r"gen-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationId:
    """Names one generation in the config of a task: ``<number>-<id>``."""

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
    """How the names of folders begin that are to become generation ``number``."""
    return f".gen-{number}-"


def standing(connector: Path) -> int | None:
    """The number of the newest generation; None when the connector has none."""
    while True:
        try:
            names = os.listdir(connector)
        except FileNotFoundError:
            return None
        numbers = [int(match[1]) for name in names if (match := _GENERATION.fullmatch(name))]
        if not numbers:
            return 0 if any(name.isdigit() for name in names) else None
        # All of them can be retired between the listing and the look: then there are newer ones.
        if generation_folder(connector, max(numbers)).is_dir():
            return max(numbers)
