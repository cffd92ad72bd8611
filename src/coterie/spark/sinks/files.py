"""File sinks: files of Parquet, JSON, CSV or ORC in a folder that any reader can read as it is.

:mod:`coterie.spark.sinks.file_copies` says how a batch comes to count once, :mod:`coterie.spark.sinks.file_writers` how
its rows are written.

Spark's own file sink is not used: it keeps one log a path, outside the checkpoint, and skips in silence a batch number
that another task has written to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import Definition, Importance, Key, Type, Width, as_list, one_of
from coterie.spark import rotation
from coterie.spark.bad_records.keys import DeadLetters
from coterie.spark.end_config import OPTIONS, EndConfig
from coterie.spark.fence import FencedError
from coterie.spark.paths import SINK_GROUP, as_path, local_file_path
from coterie.spark.record import visible
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, TaskLineage
from coterie.spark.sinks.file_copies import Copy, Layout, SinkFolder
from coterie.spark.sinks.file_writers import FORMATS, write


def _path(value: str) -> str | None:
    """A check: a folder that can have another one beside it."""
    if error := local_file_path(value):
        return error
    return None if as_path(value).name else "The root of the file system cannot be a sink's folder; name one in it"


def _columns(value: str) -> str | None:
    """A check."""
    names = [name.lower() for name in as_list(value)]
    return "A column is named twice" if len(set(names)) < len(names) else None


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
            documentation="Folder that the files are written to; a folder for unfinished work is made beside it.",
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

    free_prefixes: ClassVar[tuple[str, ...]] = (OPTIONS,)
    holds: ClassVar[tuple[type[DeadLetters], ...]] = ()

    folder: SinkFolder
    rotation: Rotation | None
    options: Mapping[str, str]

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        return DEFINITION + rotation.DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """The names of the options, and whether the folder can be used."""
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
        if sentence := _folder(config).misfit():
            found |= config.error("path", sentence)
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
        """Remove what earlier owners of this task have staged, and move out what they have committed."""
        self.folder.take_over(lineage)

    @classmethod
    def retire(cls, config: EndConfig, lineages: Sequence[TaskLineage]) -> None:
        """Put a plain file in the place of the marks of each lineage."""
        _folder(config).retire(lineages)

    def stage(self, batch: Batch) -> Copy:
        """Write the batch aside, unless a copy of it counts already."""
        copy = self.folder.copy(batch.lineage, batch.batch_id)
        if not copy.is_decided:
            copy.begin()
            try:
                layout = self.folder.layout
                write(batch, copy, format_=layout.format, columns=layout.partition_columns, options=self.options)
            except Exception as error:
                was_swept = not copy.is_whole
                copy.drop()
                if was_swept:
                    raise FencedError from error
                raise
        return copy

    def close(self) -> None:
        """There is no connection."""


def _folder(config: EndConfig) -> SinkFolder:
    layout = Layout(
        format=config.read(DEFINITION, "format", str),
        partition_columns=config.read(DEFINITION, "partition.field.name", tuple),
    )
    return SinkFolder(path=as_path(config.read(DEFINITION, "path", str)), layout=layout)
