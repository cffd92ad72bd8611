"""File sinks: files of Parquet, JSON, CSV or ORC in a folder that any reader of these formats can read.

:mod:`coterie.spark.sinks.file_copies` commits a batch once, :mod:`coterie.spark.sinks.file_writers` writes its rows.
Where bad records go to a folder too, one copy contains the good and the bad rows of a batch.

Spark's own file sink is not used: it keeps one log per path, outside the checkpoint, and skips, without an error, a
batch number that another task has written to the log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import Definition, Importance, Key, Type, Width, as_list, one_of
from coterie.nouns.errors import ConfigError
from coterie.spark import rotation
from coterie.spark.bad_records.hidden import bad_rows, good_rows
from coterie.spark.bad_records.keys import PATH, DeadLetters, ToFolder, tolerance_of
from coterie.spark.bad_records.letters import file_letters
from coterie.spark.end_config import OPTIONS, EndConfig
from coterie.spark.fence import FencedError
from coterie.spark.paths import SINK_GROUP, as_path, local_file_path
from coterie.spark.record import visible
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, TaskLineage
from coterie.spark.sinks.file_copies import Copy, Layout, SinkFolder
from coterie.spark.sinks.file_writers import FORMATS, write


def _path(value: str) -> str | None:
    """A check: a folder that is not the root, since the work folder is created beside it."""
    if error := local_file_path(value):
        return error
    return None if as_path(value).name else "The root of the file system cannot be a sink's folder; set a folder in it"


def _columns(value: str) -> str | None:
    """A check: no column twice, without regard to case."""
    names = [name.lower() for name in as_list(value)]
    return "A column is in the list twice" if len(set(names)) < len(names) else None


DEFINITION = Definition(
    (
        Key(
            name="format",
            type=Type.STRING,
            documentation="Format of the files that are written.",
            importance=Importance.HIGH,
            check=one_of(FORMATS),
            group=SINK_GROUP,
            width=Width.SHORT,
            display_name="Sink format",
        ),
        Key(
            name="path",
            type=Type.STRING,
            documentation="Folder that the files are written to; a folder for unfinished files is created beside it.",
            importance=Importance.HIGH,
            check=_path,
            group=SINK_GROUP,
            width=Width.LONG,
            display_name="Sink folder",
        ),
        Key(
            name="partition.field.name",
            type=Type.LIST,
            documentation="Columns by whose values the files are put into folders column=value, outermost first.",
            default="",
            check=_columns,
            group=SINK_GROUP,
            width=Width.LONG,
            display_name="Partition columns",
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSink:
    """Files in a folder."""

    identity: ClassVar[tuple[str, ...]] = ("path", "format", "partition.field.name")
    access: ClassVar[tuple[str, ...]] = ("format",)
    free_prefixes: ClassVar[tuple[str, ...]] = (OPTIONS,)
    holds: ClassVar[tuple[type[DeadLetters], ...]] = (ToFolder,)

    folder: SinkFolder
    rotation: Rotation | None
    options: Mapping[str, str]

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        return DEFINITION + rotation.DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """Check the names of the options, and whether the folders can be used."""
        sql = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
        format_ = config.read(DEFINITION, "format", str)
        known = {
            "csv": sql.catalyst.csv.CSVOptions,
            "json": sql.catalyst.json.JSONOptions,
            "orc": sql.execution.datasources.orc.OrcOptions,
            "parquet": sql.execution.datasources.parquet.ParquetOptions,
        }[format_]
        found = {
            config.key(OPTIONS + option): [f"Spark's {format_} files have no option {option}"]
            for option in config.under(OPTIONS)
            if not (known.isValidOption(option) or option.startswith(f"{format_}."))
        }
        try:
            folder = _folder(config)
        except ConfigError as error:
            return found | error.listed
        if sentence := folder.misfit():
            found |= config.error("path", sentence)
        if folder.bad is not None and (sentence := folder.bad_misfit()):
            found[folder.bad.key] = [f"{folder.bad.key}={sentence}"]
        return found

    @classmethod
    def is_exactly_once(cls, config: EndConfig) -> bool:
        return True

    @classmethod
    def of(cls, config: EndConfig) -> Self:
        return cls(folder=_folder(config), rotation=Rotation.of(config), options=config.under(OPTIONS))

    def shape(self, rows: DataFrame) -> DataFrame:
        return visible(rows)

    def take_over(self, lineage: TaskLineage, start: int) -> None:
        """Remove the staged copies of earlier owners of this task, and publish the files that they have committed."""
        self.folder.take_over(lineage)

    @classmethod
    def retire(cls, config: EndConfig, lineages: Sequence[TaskLineage]) -> None:
        """Replace the folder of commit marks of each lineage by a plain file."""
        _folder(config).retire(lineages)

    def stage(self, batch: Batch) -> Copy:
        """Write a copy of the batch to the staging folder, unless a copy is already committed."""
        copy = self.folder.copy(batch.lineage, batch.batch_id)
        if not copy.is_decided:
            copy.begin()
            try:
                self._write(batch, copy)
            except Exception as error:
                was_swept = not copy.is_whole
                copy.drop()
                if was_swept:
                    raise FencedError from error
                raise
        return copy

    def _write(self, batch: Batch, copy: Copy) -> None:
        if batch.sifter is None:
            self._write_good(batch, copy)
            return
        with batch.sifter.kept() as rows:
            self._write_good(replace(batch, rows=good_rows(rows)), copy)
            if batch.sifter.tally.count:
                bad = replace(batch, rows=file_letters(bad_rows(rows), batch.lineage.task))
                write(bad, copy.bad, format_=BAD_LAYOUT.format, columns=BAD_LAYOUT.partition_columns, options={})

    def _write_good(self, batch: Batch, copy: Copy) -> None:
        layout = self.folder.layout
        write(batch, copy.good, format_=layout.format, columns=layout.partition_columns, options=self.options)

    def close(self) -> None:
        """Does nothing: there is no connection."""


BAD_LAYOUT = Layout(format="parquet", partition_columns=())
"""The format of a folder of bad records."""


def bad_folder(path: Path) -> SinkFolder:
    """The folder of bad records at ``path``."""
    return SinkFolder(path=path, layout=BAD_LAYOUT, key=PATH)


def _folder(config: EndConfig) -> SinkFolder:
    layout = Layout(
        format=config.read(DEFINITION, "format", str),
        partition_columns=config.read(DEFINITION, "partition.field.name", tuple),
    )
    tolerance = tolerance_of(config.config)
    letters = None if tolerance is None else tolerance.letters
    return SinkFolder(
        path=as_path(config.read(DEFINITION, "path", str)),
        layout=layout,
        key=config.key("path"),
        bad=bad_folder(letters.path) if isinstance(letters, ToFolder) else None,
    )
