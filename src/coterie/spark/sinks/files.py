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

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Width, one_of, split_list
from coterie.nouns.errors import ConfigError
from coterie.spark import rotation
from coterie.spark.bad_records.dead_letters import dead_letter_rows_for_folder
from coterie.spark.bad_records.error_columns import bad_rows, good_rows
from coterie.spark.bad_records.keys import (
    DEAD_LETTER_PATH_KEY,
    DeadLetterDestination,
    DeadLetterFolder,
    read_bad_record_settings,
)
from coterie.spark.fence import FencedError
from coterie.spark.paths import SINK_GROUP, local_path_error, path_of_config_value
from coterie.spark.prefixed_config import OPTION_PREFIX, PrefixedConfig
from coterie.spark.record_columns import without_metadata_columns
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, TaskCheckpointLineage
from coterie.spark.sinks.file_copies import BatchCopy, FolderLayout, SinkFolder
from coterie.spark.sinks.file_writers import FORMATS, write_batch


def _sink_path_error(value: str) -> str | None:
    """A validator: the error message for the sink's folder; None when the value is valid. The root of the file system
    is not valid, since the work folder is created beside the sink's folder."""
    if error := local_path_error(value):
        return error
    return (
        None
        if path_of_config_value(value).name
        else "The root of the file system cannot be a sink's folder; set a folder in it"
    )


def _repeated_column_error(value: str) -> str | None:
    """A validator: the error message for a list that contains a column twice, without regard to case; else None."""
    names = [name.lower() for name in split_list(value)]
    repeated = [name for name in split_list(value) if names.count(name.lower()) > 1]
    return f"The column {repeated[0]} is in the list twice; name each column once" if repeated else None


DEFINITION = ConfigDef(
    (
        ConfigKey(
            name="format",
            type=Type.STRING,
            documentation="Format of the files that are written.",
            importance=Importance.HIGH,
            validator=one_of(FORMATS),
            group=SINK_GROUP,
            width=Width.SHORT,
            display_name="Sink format",
        ),
        ConfigKey(
            name="path",
            type=Type.STRING,
            documentation="Folder that the files are written to; a folder for unfinished files is created beside it.",
            importance=Importance.HIGH,
            validator=_sink_path_error,
            group=SINK_GROUP,
            width=Width.LONG,
            display_name="Sink folder",
        ),
        ConfigKey(
            name="partition.field.name",
            type=Type.LIST,
            documentation="Columns by whose values the files are put into folders column=value, outermost first.",
            default="",
            validator=_repeated_column_error,
            group=SINK_GROUP,
            width=Width.LONG,
            display_name="Partition columns",
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSink:
    """Writes batches as files in a folder."""

    identity_keys: ClassVar[tuple[str, ...]] = ("path", "format", "partition.field.name")
    connection_keys: ClassVar[tuple[str, ...]] = ("format",)
    free_key_prefixes: ClassVar[tuple[str, ...]] = (OPTION_PREFIX,)
    atomic_dead_letter_destinations: ClassVar[tuple[type[DeadLetterDestination], ...]] = (DeadLetterFolder,)

    folder: SinkFolder
    rotation: Rotation | None
    options: Mapping[str, str]
    """Options of Spark's writer."""

    @classmethod
    def definition(cls, config: PrefixedConfig) -> ConfigDef:
        return DEFINITION + rotation.DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        """Error messages by the user's key: about unknown options of the format, and about folders that cannot
        be used."""
        sql = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
        format_ = config.required_value(DEFINITION, "format", str)
        spark_options = {
            "csv": sql.catalyst.csv.CSVOptions,
            "json": sql.catalyst.json.JSONOptions,
            "orc": sql.execution.datasources.orc.OrcOptions,
            "parquet": sql.execution.datasources.parquet.ParquetOptions,
        }[format_]
        errors = {
            config.user_key(OPTION_PREFIX + option): [f"Spark's {format_} files have no option {option}"]
            for option in config.values_under_prefix(OPTION_PREFIX)
            if not (spark_options.isValidOption(option) or option.startswith(f"{format_}."))
        }
        try:
            folder = _sink_folder(config)
        except ConfigError as error:
            return errors | error.errors_as_new_lists
        if message := folder.incompatibility_message():
            errors |= config.error_by_key("path", message)
        if folder.bad_records_folder is not None and (message := folder.bad_records_folder_error()):
            errors[folder.bad_records_folder.config_key] = [f"{folder.bad_records_folder.config_key}={message}"]
        return errors

    @classmethod
    def is_exactly_once(cls, config: PrefixedConfig) -> bool:
        return True

    @classmethod
    def of(cls, config: PrefixedConfig) -> Self:
        return cls(
            folder=_sink_folder(config), rotation=Rotation.of(config), options=config.values_under_prefix(OPTION_PREFIX)
        )

    def to_sink_columns(self, rows: DataFrame) -> DataFrame:
        return without_metadata_columns(rows)

    def take_over(self, lineage: TaskCheckpointLineage, task_start_number: int) -> None:
        """Remove the batch copies that earlier owners of this task have staged (written and not committed), and move
        the remaining files of their last committed copy to the readers' folder.

        ``task_start_number``, the number of this start of the task, is not used: a commit is a rename, which the file
        system accepts for only one copy of each batch.

        :raises OSError, WorldError: see :meth:`SinkFolder.take_over`.
        """
        self.folder.take_over(lineage)

    @classmethod
    def remove_deduplication_data(cls, config: PrefixedConfig, lineages: Sequence[TaskCheckpointLineage]) -> None:
        """Replace the folder of committed batches of each lineage by a plain file, after its last files were moved to
        the readers' folder: see :meth:`SinkFolder.remove_deduplication_data`."""
        _sink_folder(config).remove_deduplication_data(lineages)

    def stage(self, batch: Batch) -> BatchCopy:
        """Write a copy of the batch to the staging folder, unless a copy of this batch is already committed. With a
        :attr:`Batch.bad_row_separator_for_atomic_sink` the copy also contains the bad rows.

        :raises FencedError: when another owner has removed the copy.
        :raises OSError, WorldError: see :meth:`BatchCopy.check_sink_and_create_staging_folder` and :func:`write_batch`.
        :raises PySparkException, Py4JError: when Spark cannot compute or write the rows.
        """
        copy = self.folder.new_batch_copy(batch.task_lineage, batch.batch_id)
        if not copy.is_batch_committed:
            copy.check_sink_and_create_staging_folder()
            try:
                self._write_batch_copy(batch, copy)
            except Exception as error:
                was_removed = not copy.is_still_staged
                copy.clean_up()
                if was_removed:
                    raise FencedError from error
                raise
        return copy

    def _write_batch_copy(self, batch: Batch, copy: BatchCopy) -> None:
        """Write the rows of ``batch`` to the staging folder of ``copy``: its good rows, and in separate files its bad
        rows (those that become dead letters), if there are any."""
        if batch.bad_row_separator_for_atomic_sink is None:
            self._write_good_files(batch, copy)
            return
        with batch.bad_row_separator_for_atomic_sink.rows_evaluated_once() as rows:
            self._write_good_files(replace(batch, rows=good_rows(rows)), copy)
            if batch.bad_row_separator_for_atomic_sink.bad_row_summary_so_far.count:
                bad_batch = replace(batch, rows=dead_letter_rows_for_folder(bad_rows(rows), batch.task_lineage.task))
                write_batch(
                    bad_batch,
                    copy.bad_files,
                    format_=BAD_RECORDS_LAYOUT.format,
                    partition_fields=BAD_RECORDS_LAYOUT.partition_columns,
                    options={},
                )

    def _write_good_files(self, batch: Batch, copy: BatchCopy) -> None:
        """Write the rows of ``batch``, which are all good, as files of ``copy``."""
        layout = self.folder.layout
        write_batch(
            batch,
            copy.good_files,
            format_=layout.format,
            partition_fields=layout.partition_columns,
            options=self.options,
        )

    def close(self) -> None:
        """Does nothing: there is no connection."""


BAD_RECORDS_LAYOUT = FolderLayout(format="parquet", partition_columns=())
"""The layout of every folder of bad records."""


def bad_records_folder(path: Path) -> SinkFolder:
    """The :class:`SinkFolder` for bad records at ``path``."""
    return SinkFolder(path=path, layout=BAD_RECORDS_LAYOUT, config_key=DEAD_LETTER_PATH_KEY)


def _sink_folder(config: PrefixedConfig) -> SinkFolder:
    """The sink's folder that ``config`` names, with the folder of bad records if the config names such a folder.
    Nothing is created or checked on the file system.

    :raises ConfigError: when a value is not valid; the error names the key.
    """
    layout = FolderLayout(
        format=config.required_value(DEFINITION, "format", str),
        partition_columns=config.required_value(DEFINITION, "partition.field.name", tuple),
    )
    tolerance = read_bad_record_settings(config.config)
    destination = None if tolerance is None else tolerance.dead_letter_destination
    return SinkFolder(
        path=path_of_config_value(config.required_value(DEFINITION, "path", str)),
        layout=layout,
        config_key=config.user_key("path"),
        bad_records_folder=bad_records_folder(destination.path) if isinstance(destination, DeadLetterFolder) else None,
    )
