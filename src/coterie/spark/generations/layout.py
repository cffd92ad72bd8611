"""Paths and names of a connector's checkpoint generations on the shared file system.

The connector's folder, ``LOCATION/<connector>-<incarnation>/``, contains the folder ``gen-<k>/`` of each checkpoint
generation, for k = 1, 2, …. A removed generation is a plain file with the same name, so that no folder can get this
name again. Generation 0 is the layout of versions of Coterie without checkpoint generations: its tasks' folders are
directly in the connector's folder.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName
from coterie.spark.checkpoint import safe_file_name

MANIFEST_FILE = "manifest.json"
"""File with the manifest (``manifest.Manifest``) of a checkpoint generation."""
CLOSED_FILE = "closed"
"""File whose existence means that the checkpoint generation is closed; it contains the plan of the next generation."""
STOPPED_FOLDER = "released"
"""Folder with one empty file for each task whose query was stopped and has not been started again."""
CLOSING_FOLDER = "closing"
"""Folder into which the checkpoints of a closed generation are moved, one folder for each task."""
LIVENESS_FILE = "alive"
"""File in ``closing``, whose modification time the worker that performs the re-split sets repeatedly. When the time no
longer changes, another worker continues the re-split."""

_GENERATION_FOLDER_NAME = re.compile(r"gen-(\d+)")
"""The name of a checkpoint generation's folder, with its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationId:
    """Identifies a checkpoint generation in the config of a task: ``<number>-<id>``."""

    number: int
    """The number in the name of the generation's folder."""
    id: str
    """A random id: two workers that create a generation with the same number give it different ids."""

    def __str__(self) -> str:
        return f"{self.number}-{self.id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The generation id with the text ``text``, which has the form ``<number>-<id>``.

        :raises ValueError: when ``text`` is not ``<number>-<id>``.
        """
        number, dash, id_ = text.partition("-")
        if not (dash and id_ and number.isascii() and number.isdigit()):
            raise ValueError(f"{text!r} is not a checkpoint generation, which has the form <number>-<id>")
        return cls(number=int(number), id=id_)


def connector_folder(location: Path, connector: ConnectorName, incarnation: Incarnation) -> Path:
    """The folder of a connector's checkpoint generations; ``location`` is the value of ``checkpoint.location``."""
    return location / f"{safe_file_name(connector)}-{safe_file_name(incarnation)}"


def generation_folder(connector_path: Path, number: int) -> Path:
    """The folder of generation ``number``; ``connector_path`` is the connector's folder, and also the folder of
    generation 0."""
    return connector_path / f"gen-{number}" if number else connector_path


def unfinished_folder_prefix(number: int) -> str:
    """Prefix of the names of temporary folders in which workers write generation ``number`` before they publish it by a
    rename."""
    return f".gen-{number}-"


def newest_generation_number(connector_path: Path) -> int | None:
    """The number of the newest checkpoint generation that was not removed, in the connector's folder
    ``connector_path``; None when there is none. 0 when there are only the tasks' folders of generation 0."""
    while True:
        try:
            names = os.listdir(connector_path)
        except FileNotFoundError:
            return None
        numbers = [int(match[1]) for name in names if (match := _GENERATION_FOLDER_NAME.fullmatch(name))]
        if not numbers:
            return 0 if any(name.isdigit() for name in names) else None
        # If all listed generations were removed after the listing, newer ones exist: list again.
        if generation_folder(connector_path, max(numbers)).is_dir():
            return max(numbers)
