"""``FileSource``: reads the files of a folder as they arrive; each file is read by exactly one task of the connector.

Spark's file source loses or duplicates rows in some cases. In Coterie each of these cases fails the task with the names
of the files, or cannot happen:

- Spark skips a file much older than the newest without an error: ``maxFileAge`` is set beyond any age;
- a name with ``{ } [ ] * ? \\`` makes Spark read other files twice: a batch with such a name fails before it is read;
- Spark skips a file that was deleted after planning without an error: every file of the batch that this task reads must
  still exist after the rows were read, otherwise the batch is not committed;
- Spark reads a malformed line of CSV or JSON as nulls without an error: the option ``mode`` is ``FAILFAST``, unless the
  config sets it; and with the option ``header`` a CSV file's header must contain the columns of the schema.

With ``errors.tolerance=all`` a malformed line is a bad record, reported with its text. Spark keeps the text of
malformed lines only: a row that is found to be bad in a later step is reported with its columns as JSON.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self, cast

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Width, at_least, blank_value_error, one_of
from coterie.nouns.connector_offsets import ConnectorOffset, OffsetsRefusedError
from coterie.nouns.errors import ConfigError, WorldError
from coterie.spark.bad_records.error_columns import (
    ERROR_COLUMN,
    ERROR_TYPE,
    ORIGINAL_COLUMN,
    ORIGINAL_RECORD_TYPE,
    STAGE_TASK_POLL,
    error_column_value,
)
from coterie.spark.bad_records.keys import TOLERANCE_KEY, read_bad_record_settings
from coterie.spark.columns import to_ddl
from coterie.spark.failures import error_message
from coterie.spark.generations.split import SplitFunction, task_number_of_file, task_number_sql
from coterie.spark.generations.stores import FileSourcePositionStore, PositionStore
from coterie.spark.jars import missing_jars_message
from coterie.spark.paths import SOURCE_GROUP, local_path_error, path_of_config_value
from coterie.spark.positions import Positions
from coterie.spark.prefixed_config import OPTION_PREFIX, PrefixedConfig
from coterie.spark.record_columns import exact_column
from coterie.spark.rotation import Rotation
from coterie.spark.seams import SMALL_BATCH_BYTES_MAX, SMALL_BATCH_ROWS_MAX, SPARK_PARTITION_BYTES_MAX, TaskInput
from coterie.spark.sources.file_log import (
    missing_paths,
    paths_with_glob_characters,
    planned_file_uris_of_all_tasks,
    planned_files_of_all_tasks,
    to_local_path,
    to_spark_file_uri,
)
from coterie.spark.sources.folder_size import FolderSizeReporter
from coterie.spark.sources.offset_values import parse_whole_number_offset, require_exact_partition_fields
from coterie.spark.transforms import first_message_line

FORMATS = ("avro", "csv", "json", "orc", "parquet", "text")
"""The values of ``format``: Spark's names of the file formats that can be read."""
LINE_FORMATS = ("csv", "json")
"""The formats for which Spark can return the text of a line that does not fit the schema."""
SAMPLED_FILES_MAX = 100
SAMPLED_BYTES_MAX = 32 << 20
"""The most files from which columns are inferred, and about the most bytes of these files."""
DECOMPRESSION_FACTOR = 8
"""The assumed ratio of the size of a file's rows in memory to the size of the compressed file."""
_COMPRESSED_SUFFIXES = (".bz2", ".deflate", ".gz", ".lz4", ".snappy", ".xz", ".zst")
"""The ends of the names of compressed files that Spark decompresses."""

RESERVED_OPTIONS = {
    "path": "is set by source.path",
    "maxfilespertrigger": "is set by source.max.files.per.trigger",
    "maxbytespertrigger": "is set by source.max.bytes.per.trigger",
    "maxfileage": "would skip older files without an error",
    "latestfirst": "would skip older files without an error",
    "filenameonly": "would skip, without an error, a file with the name of a file that was read from another folder",
    "cleansource": "would delete or move files that the connector's other tasks have not read yet",
    "sourcearchivedir": "belongs to cleanSource, which would move files that other tasks have not read yet",
    "ignoremissingfiles": "would skip deleted files without an error",
    "ignorecorruptfiles": "would skip broken files without an error",
}
"""By name in lower case, the options of Spark's file source that the user cannot set: the reason, as the end of a
sentence that begins with ``it``."""
RESERVED_OPTIONS_WITH_TOLERANCE = dict.fromkeys(
    ("mode", "columnnameofcorruptrecord"), "would hide malformed lines, which errors.tolerance=all makes bad records"
)
"""Further options that the user cannot set with ``errors.tolerance=all`` and a format of :data:`LINE_FORMATS`, in the
form of :data:`RESERVED_OPTIONS`."""
FILE_URI_HEADER_KEY = "file"
"""The key of the header of a bad record that contains the URI of the file from which the record was read."""
MAX_FILE_AGE_DAYS = 365_000
"""The value of Spark's option ``maxFileAge``: Spark skips a file that is older than the newest file by more than this
number of days. With a thousand years, Spark skips no file. Also the greatest modification time, in days since 1970,
that a client may set as an offset."""
_PARTITION_KEY, _OFFSET_KEY = "filename", "modification_time_ms"
"""The fields of a partition and of an offset in the REST API."""
_MALFORMED_LINE_COLUMN = "__coterie_malformed"
"""The name of the column with the text of a line that does not fit the schema; null for a line that fits."""

DEFINITION = ConfigDef(
    (
        ConfigKey(
            name="format",
            type=Type.STRING,
            documentation="Format of the files that are read.",
            importance=Importance.HIGH,
            validator=one_of(FORMATS),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Source format",
        ),
        ConfigKey(
            name="path",
            type=Type.STRING,
            documentation="Folder whose files are read. Write a file elsewhere first, then rename it into the folder.",
            importance=Importance.HIGH,
            validator=local_path_error,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Source folder",
        ),
        ConfigKey(
            name="schema",
            type=Type.STRING,
            documentation=(
                "Columns of the files, as in CREATE TABLE: row BIGINT, name STRING, ... By default those of the files "
                "that exist when the connector is created. Not for format text: each line is the column value."
            ),
            is_optional=True,
            importance=Importance.HIGH,
            validator=blank_value_error,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Source columns",
        ),
        ConfigKey(
            name="max.files.per.trigger",
            type=Type.INT,
            documentation="The most files in one batch, counted over all tasks of the connector.",
            default="1000",
            validator=at_least(1),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Files per trigger",
        ),
        ConfigKey(
            name="max.bytes.per.trigger",
            type=Type.LONG,
            documentation=(
                "The most bytes of files in one batch, counted over all tasks of the connector, instead of "
                "max.files.per.trigger. A batch has at least one file."
            ),
            is_optional=True,
            validator=at_least(1),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Bytes per trigger",
        ),
    )
)
DEFINITION_WITHOUT_SCHEMA = ConfigDef(tuple(key for key in DEFINITION.keys if key.name != "schema"))
"""The keys for the format text, whose only column is ``value``."""
REQUIRED_SCHEMA = ConfigDef(tuple(replace(key, is_optional=False) for key in DEFINITION.keys if key.name == "schema"))
"""The key ``schema`` as a required key: in a task's config it is set, if necessary by inference."""
TEXT_SCHEMA = StructType([StructField("value", StringType())])
"""The columns of rows of the format text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Reads those files of a folder that the split assigns to this task by the hash of the file's path."""

    free_key_prefixes: ClassVar[tuple[str, ...]] = (OPTION_PREFIX,)
    identity_keys: ClassVar[tuple[str, ...]] = ("path",)
    connection_keys: ClassVar[tuple[str, ...]] = ("path",)
    split_function: ClassVar[SplitFunction] = SplitFunction.PATH_HASH_V1
    has_fixed_split: ClassVar[bool] = False
    reports_bad_records: ClassVar[bool] = True
    position_store: ClassVar[PositionStore] = FileSourcePositionStore()
    can_wait_for_rows: ClassVar[bool] = False

    format: str
    path: str
    """The folder: the value of ``source.path``."""
    columns_ddl: str | None
    """The value of ``schema``, column definitions as in CREATE TABLE; None for the format text."""
    batch_limit_option_by_name: Mapping[str, str]
    """The one option of Spark that limits a batch, by files or by bytes: its value by its name."""
    reader_options: Mapping[str, str]
    """The user's options of Spark's file source."""
    tolerates_bad_records: bool
    """Whether ``errors.tolerance`` is ``all``: rows then have the error columns, two hidden columns with the record as
    it was read and with its error (``bad_records/error_columns.py``)."""
    task_input: TaskInput
    _folder_size_reporter: FolderSizeReporter = field(default_factory=FolderSizeReporter, repr=False, compare=False)

    @classmethod
    def definition(cls, config: PrefixedConfig) -> ConfigDef:
        return (
            DEFINITION_WITHOUT_SCHEMA
            if config.config.get(config.user_key("format"), "").strip() == "text"
            else DEFINITION
        )

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        """Errors, by the user's key: ``path`` is an existing folder that Spark takes as a pattern of other folders,
        both limits of a batch are set, Spark lacks the jar for Avro, Spark cannot parse the columns, or an option is
        one that the user cannot set or that Spark does not have. If the jar is missing, neither columns nor options are
        checked. Columns that still have to be inferred are not checked."""
        errors: dict[str, list[str]] = {}
        folder = str(path_of_config_value(config.required_value(DEFINITION, "path", str)))
        if paths_with_glob_characters([folder]) and os.path.isdir(folder):
            message = (
                f"Spark takes {folder} as a pattern, because it contains one of {{ }} [ ] * ? \\, and reads the "
                "folders that match the pattern, but not the folder of this name: rename the folder"
            )
            errors |= config.error_by_key("path", message)
        if all(config.user_key(name) in config.config for name in ("max.files.per.trigger", "max.bytes.per.trigger")):
            message = (
                "Spark limits a batch by files or by bytes, not by both: remove "
                f"{config.user_key('max.bytes.per.trigger')} or {config.user_key('max.files.per.trigger')}"
            )
            errors |= config.error_by_key("max.bytes.per.trigger", message)
        if (
            config.required_value(DEFINITION, "format", str) == "avro"
            and (missing_jars := missing_jars_message(spark, "avro")) is not None
        ):
            return errors | config.error_by_key("format", missing_jars)
        try:
            if not cls.keys_to_infer(config):
                configured_columns(spark, config)
        except ConfigError as error:
            errors |= error.errors_as_new_lists
        format_ = config.required_value(DEFINITION, "format", str)
        is_tolerant = config.config.get(TOLERANCE_KEY, "").strip() == "all"
        reserved_options = RESERVED_OPTIONS | (
            RESERVED_OPTIONS_WITH_TOLERANCE if is_tolerant and format_ in LINE_FORMATS else {}
        )
        for option in config.values_under_prefix(OPTION_PREFIX):
            key = config.user_key(OPTION_PREFIX + option)
            if reason := reserved_options.get(option.lower()):
                errors[key] = [f"Option {option} cannot be set: it {reason}"]
            elif not _is_known_option(spark, format_, option):
                errors[key] = [f"Spark's {format_} files have no option {option}"]
        return errors

    @classmethod
    def keys_to_infer(cls, config: PrefixedConfig) -> Sequence[str]:
        """The key ``schema`` when the config does not set it; else nothing. The format text has no such key."""
        own_definition = cls.definition(config)
        is_schema_unset = (
            any(key.name == "schema" for key in own_definition.keys)
            and config.optional_value(own_definition, "schema", str) is None
        )
        return ("schema",) if is_schema_unset else ()

    @classmethod
    def infer_values(cls, spark: SparkSession, config: PrefixedConfig) -> Mapping[str, str]:
        """The value of ``schema`` that Spark infers from some of the existing files; empty when the config sets it.

        :raises ConfigError: when there is no file, or Spark cannot read a file or finds no columns.
        """
        if not cls.keys_to_infer(config):
            return {}
        return {"schema": infer_columns_ddl(spark, config)}

    @classmethod
    def list_source_partitions(cls, config: PrefixedConfig) -> Sequence[str]:
        """One source partition, the folder: every task lists the whole folder."""
        return [config.required_value(DEFINITION, "path", str)]

    @classmethod
    def divide_partitions(cls, source_partitions: Sequence[str], tasks_max: int) -> Sequence[Sequence[str]]:
        """``tasks_max`` tasks, all with the same source partition: each task reads the files whose path hashes to its
        task number."""
        return [source_partitions] * tasks_max

    @classmethod
    def initial_positions(
        cls, config: PrefixedConfig, source_partitions: Sequence[str], *, is_new_connector: bool
    ) -> Positions:
        """No positions: all files that are in the folder are read."""
        return {}

    @classmethod
    def to_offsets(cls, positions: Positions) -> Sequence[ConnectorOffset]:
        """For each file that was read: its path, and the modification time that marks it as read."""
        return [
            ConnectorOffset(partition={_PARTITION_KEY: to_local_path(uri)}, offset={_OFFSET_KEY: modified_ms})
            for uri, modified_ms in sorted(positions.items())
        ]

    @classmethod
    def parse_offsets(cls, config: PrefixedConfig, offsets: Sequence[ConnectorOffset]) -> Mapping[str, int | None]:
        folder = path_of_config_value(config.required_value(DEFINITION, "path", str))
        changes: dict[str, int | None] = {}
        for offset in offsets:
            if offset.partition is None and offset.offset is None:
                continue  # As Connect's file source: there is nothing to remove.
            path = require_exact_partition_fields(offset, _PARTITION_KEY)[_PARTITION_KEY]
            modified_ms = parse_whole_number_offset(offset, _OFFSET_KEY, maximum=MAX_FILE_AGE_DAYS * 24 * 3600 * 1000)
            if not isinstance(path, str) or not path.startswith(f"{folder}/") or os.path.normpath(path) != path:
                raise OffsetsRefusedError(
                    f"The value for the '{_PARTITION_KEY}' key in the partition should be the path of a file in "
                    f"{folder}, as {folder}/part-0.csv, and is {path!r}"
                )
            changes[to_spark_file_uri(path)] = modified_ms
        return changes

    @classmethod
    def of(cls, config: PrefixedConfig, task_input: TaskInput) -> Self:
        format_ = config.required_value(DEFINITION, "format", str)
        bytes_limit = config.optional_value(DEFINITION, "max.bytes.per.trigger", int)
        files_limit = config.required_value(DEFINITION, "max.files.per.trigger", int)
        return cls(
            format=format_,
            path=config.required_value(DEFINITION, "path", str),
            columns_ddl=None if format_ == "text" else config.required_value(REQUIRED_SCHEMA, "schema", str),
            batch_limit_option_by_name={"maxFilesPerTrigger": str(files_limit)}
            if bytes_limit is None
            else {"maxBytesPerTrigger": str(bytes_limit)},
            reader_options=config.values_under_prefix(OPTION_PREFIX),
            tolerates_bad_records=read_bad_record_settings(config.config) is not None,
            task_input=task_input,
        )

    def schema(self, spark: SparkSession) -> StructType:
        return TEXT_SCHEMA if self.columns_ddl is None else cast(StructType, StructType.fromDDL(self.columns_ddl))

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        """The stream of the files that the split assigns to this task (:meth:`Source.read`). The user's options replace
        the defaults that are set here."""
        defaults = {"maxFileAge": f"{MAX_FILE_AGE_DAYS}d", **self.batch_limit_option_by_name}
        schema = self.schema(spark)
        if is_line_format := self.format in LINE_FORMATS:
            defaults["mode"] = "FAILFAST"
        if is_line_format and self.tolerates_bad_records:
            defaults |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED_LINE_COLUMN}
            schema = StructType([*schema.fields, StructField(_MALFORMED_LINE_COLUMN, StringType())])
        if any(key.lower() == "header" and value.lower() == "true" for key, value in self.reader_options.items()):
            defaults["enforceSchema"] = "false"
        self._folder_size_reporter.warn_if_many_files(self.path)
        reader = spark.readStream.format(self.format).schema(schema)
        rows = reader.options(**defaults).options(**self.reader_options).load(self.path)
        rows = rows.where(self._is_of_this_task_sql("_metadata.file_path"))
        return self._with_error_columns(rows, is_line_format=is_line_format) if self.tolerates_bad_records else rows

    def _with_error_columns(self, rows: DataFrame, *, is_line_format: bool) -> DataFrame:
        """``rows`` with the error columns (hidden columns with the record as it was read and with its error) in place
        of the column :data:`_MALFORMED_LINE_COLUMN`. ``is_line_format``: whether ``rows`` has this column; then a
        malformed line is an error, and its original record contains the line's text. Without it no row has an error."""
        columns = [exact_column(name) for name in rows.columns if name != _MALFORMED_LINE_COLUMN]
        file_uri = F.col("_metadata.file_path")
        text = F.col("value") if self.format == "text" else F.to_json(F.struct(*columns))
        error = F.lit(None)
        if is_line_format:
            malformed = F.col(_MALFORMED_LINE_COLUMN)
            text = F.coalesce(malformed, text)
            reason = f" is not {self.format.upper()} with the columns of the schema"
            message = F.concat(F.lit("a line of "), file_uri, F.lit(reason))
            error = F.when(malformed.isNotNull(), error_column_value(STAGE_TASK_POLL, type(self).__name__, message))
        header = F.struct(F.lit(FILE_URI_HEADER_KEY).alias("key"), file_uri.cast("binary").alias("value"))
        known_fields = {
            "value": text.cast("binary"),
            "headers": F.array(header),
            "timestamp": F.col("_metadata.file_modification_time"),
        }
        null = F.lit(None)
        original = F.struct(*(known_fields.get(name, null).alias(name) for name in ORIGINAL_RECORD_TYPE.names))
        return rows.select(
            *columns,
            original.cast(ORIGINAL_RECORD_TYPE).alias(ORIGINAL_COLUMN),
            error.cast(ERROR_TYPE).alias(ERROR_COLUMN),
        )

    def is_batch_small(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Whether the batch fits into the driver's memory (:meth:`Source.is_batch_small`). Computed from the sizes of
        the batch's files that this task reads and, for Parquet and ORC, from the numbers of rows in the files' footers.
        Files that were deleted do not count. False if a file cannot be read."""
        size_bytes = rows = 0
        for path in self._planned_files_of_this_task(checkpoint, batch_id):
            try:
                size_bytes += self._estimate_decompressed_size_bytes(path)
                rows += self._footer_row_count_or_zero(path)
            except FileNotFoundError:
                continue  # check_after_read fails the batch.
            except (OSError, pa.ArrowException):
                return False  # Spark reports the error in the file.
            if size_bytes > SMALL_BATCH_BYTES_MAX or rows > SMALL_BATCH_ROWS_MAX:
                return False
        return True

    def has_bounded_spark_partitions(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Whether the Spark partitions of the batch are bounded (:meth:`Source.has_bounded_spark_partitions`). Only the
        files that this task reads count. True in two cases: no file of the batch can make a Spark partition that is
        larger in memory than :data:`SPARK_PARTITION_BYTES_MAX`; or all files together have at most twice this size
        after decompression. False if the size of a file is needed and cannot be read.

        Spark divides files into parts of at most ``spark.sql.files.maxPartitionBytes``, which is
        :data:`SPARK_PARTITION_BYTES_MAX`. Two kinds of files can exceed this in memory: Spark does not divide a file
        that is compressed as a whole or whose records may contain line breaks; and Spark divides Avro, ORC and Parquet
        files by their compressed size."""
        paths = self._planned_files_of_this_task(checkpoint, batch_id)
        if not self._has_multiline_records and not any(map(self._is_assumed_larger_in_memory, paths)):
            return True
        try:
            return sum(map(self._estimate_decompressed_size_bytes, paths)) <= 2 * SPARK_PARTITION_BYTES_MAX
        except OSError:
            return False  # check_after_read fails the batch, or Spark reports the error in the file.

    @property
    def _has_multiline_records(self) -> bool:
        """Whether an option tells Spark that a record may contain line breaks: Spark then reads a file as a whole."""
        return any(
            name.lower() in ("multiline", "wholetext") and value.lower() == "true"
            for name, value in self.reader_options.items()
        )

    def _is_assumed_larger_in_memory(self, path: str) -> bool:
        """Whether the rows of the file ``path`` are assumed to be much larger in memory than in the file: by the
        format, or by the end of the file's name."""
        return self.format in ("avro", "orc", "parquet") or path.endswith(_COMPRESSED_SUFFIXES)

    def _estimate_decompressed_size_bytes(self, path: str) -> int:
        """The approximate size of a file's rows after decompression, in bytes.

        :raises FileNotFoundError: when the file was deleted.
        :raises OSError: when the file cannot be read.
        """
        size_bytes = os.stat(path).st_size
        if not self._is_assumed_larger_in_memory(path):
            return size_bytes
        assumed_bytes = size_bytes * DECOMPRESSION_FACTOR
        return max(assumed_bytes, _size_bytes_in_gzip_trailer(path)) if path.endswith(".gz") else assumed_bytes

    def _footer_row_count_or_zero(self, path: str) -> int:
        """The number of rows of a file according to its footer; 0 for formats without a footer.

        :raises OSError, pa.ArrowException: when the footer cannot be read.
        """
        match self.format:
            case "parquet":
                return int(pyarrow.parquet.read_metadata(path).num_rows)
            case "orc":
                return int(pyarrow.orc.ORCFile(path).nrows)
            case _:
                return 0

    def check_before_read(self, checkpoint: Path, batch_id: int) -> None:
        """Check the paths of a batch's files, before the batch is read. Also logs a warning if the folder has very many
        files (:class:`FolderSizeReporter`).

        :raises WorldError: when a path contains a character of a glob pattern: Spark would read files of the batch
            twice.
        """
        self._folder_size_reporter.warn_if_many_files(self.path)
        if paths := paths_with_glob_characters(planned_files_of_all_tasks(checkpoint, batch_id)):
            raise WorldError(
                f"Batch {batch_id} was not read: the path of a file contains one of {{ }} [ ] * ? \\, with which Spark "
                "reads other files twice. Rename these files, or their folders. The plan of this batch cannot be "
                "changed, so delete the connector and the rows that it has written, and create it again. The files: "
                f"{_paths_text(paths)}"
            )

    def check_after_read(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> None:
        """Check that the files of a batch which this task reads exist, after the batch was read and before it is
        committed.

        :raises WorldError: when one of these files no longer exists: Spark may have skipped its rows.
        """
        if missing_files := missing_paths(self._planned_files_of_this_task(checkpoint, batch_id)):
            raise WorldError(
                f"Batch {batch_id} was not committed: files of the batch were deleted after the batch was planned. "
                f"Restore these files, then restart the task: {_paths_text(missing_files)}"
            )

    def _planned_files_of_this_task(self, checkpoint: Path, batch_id: int) -> list[str]:
        """The local paths of those files of the batch that the split assigns to this task, sorted."""
        task_input = self.task_input
        return sorted(
            to_local_path(uri)
            for uri in planned_file_uris_of_all_tasks(checkpoint, batch_id)
            if task_number_of_file(task_input.split_function, uri, task_input.task_count) == task_input.task_number
        )

    def _is_of_this_task_sql(self, uri_sql: str) -> str:
        """A condition in Spark SQL: whether the split assigns a file to this task. ``uri_sql`` is the SQL expression of
        the file's URI."""
        task_input = self.task_input
        return (
            f"{task_number_sql(task_input.split_function, uri_sql, task_input.task_count)} = {task_input.task_number}"
        )


def configured_columns(spark: SparkSession, config: PrefixedConfig) -> StructType:
    """The columns that the config sets in ``schema``; for the format text the column ``value``. ``spark`` is not used:
    the parameter ensures that Spark runs.

    :raises ConfigError: when Spark cannot parse ``schema``.
    """
    if config.required_value(DEFINITION, "format", str) == "text":
        return TEXT_SCHEMA
    try:
        return cast(StructType, StructType.fromDDL(config.required_value(REQUIRED_SCHEMA, "schema", str)))
    except PySparkException as error:
        raise config.make_config_error("schema", first_message_line(error)) from error


def infer_columns_ddl(spark: SparkSession, config: PrefixedConfig) -> str:
    """The columns, as in CREATE TABLE, that Spark infers with the user's options from some files of the folder
    (:func:`list_sample_files`).

    :raises ConfigError: when there is no file, or Spark cannot read a file or finds no columns.
    """
    folder, format_ = (
        str(path_of_config_value(config.required_value(DEFINITION, "path", str))),
        config.required_value(DEFINITION, "format", str),
    )
    key = config.user_key("schema")
    sample_paths = list_sample_files(folder)
    if not sample_paths:
        raise ConfigError({key: [f"There is no file in {folder} to infer the columns from: set {key}, or add a file"]})
    reader = spark.read.format(format_).option("basePath", folder)
    # inferSchema is for csv. mergeSchema is for orc and parquet: Spark reads the schema of all files, not of one.
    reader = reader.option("inferSchema", "true").option("mergeSchema", "true")
    try:
        columns = reader.options(**config.values_under_prefix(OPTION_PREFIX)).load(sample_paths).schema
    except (PySparkException, Py4JJavaError) as error:
        message = f"No columns can be inferred: {error_message(error)}. Set {key}, or try again"
        raise ConfigError({key: [message]}) from error
    valid_fields = [field for field in columns.fields if field.name != "_corrupt_record"]
    if not valid_fields:
        message = f"No columns can be inferred from {len(sample_paths)} files in {folder}: set {key}"
        raise ConfigError({key: [message]})
    return to_ddl(spark, StructType(valid_fields))


def list_sample_files(folder: str) -> list[str]:
    """The paths of the first files that Spark would read in ``folder`` and its subfolders, sorted by name within each
    folder. At most :data:`SAMPLED_FILES_MAX` files, and :data:`SAMPLED_BYTES_MAX` bytes together, but at least one file
    if there is one. Files and folders with a character of a glob pattern in their names are left out."""
    paths: list[str] = []
    size_bytes = 0
    for parent, folders, names in os.walk(folder):
        folders[:], names = _sorted_names_that_spark_reads(folders), _sorted_names_that_spark_reads(names)
        for name in names:
            path = os.path.join(parent, name)
            try:
                size_bytes += os.stat(path).st_size
            except FileNotFoundError:  # Deleted since it was listed, or a dangling link.
                continue
            if paths and (size_bytes > SAMPLED_BYTES_MAX or len(paths) == SAMPLED_FILES_MAX):
                return paths
            paths.append(path)
    return paths


def _sorted_names_that_spark_reads(names: Sequence[str]) -> list[str]:
    """Those of ``names``, of files or folders in one folder, that Spark reads, sorted: without the names that begin
    with ``.`` or ``_``, which Spark ignores, and without the names that have a character of a glob pattern."""
    hidden_names = {name for name in names if name.startswith((".", "_"))}
    return sorted(set(names) - hidden_names - set(paths_with_glob_characters(names)))


def _size_bytes_in_gzip_trailer(path: str) -> int:
    """The decompressed size, modulo 4 GiB, of the last member of a gzip file, in bytes: most files have one member. The
    file ends with this number (RFC 1952, ISIZE).

    :raises OSError: when the file cannot be read, or is too short.
    """
    with open(path, "rb") as file:
        file.seek(-4, os.SEEK_END)
        return int.from_bytes(file.read(4), "little")


def _is_known_option(spark: SparkSession, format_: str, option: str) -> bool:
    """Whether Spark has the option ``option``, in lower or upper case, for reading files of the format ``format_``: an
    option of the format, or a general option of files, for example that of a pattern for paths. The value is not
    checked.

    :raises KeyError: when ``format_`` is not avro, csv, json, orc, parquet or text.
    """
    spark_sql = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
    format_options = {
        "avro": spark_sql.avro.AvroOptions,
        "csv": spark_sql.catalyst.csv.CSVOptions,
        "json": spark_sql.catalyst.json.JSONOptions,
        "orc": spark_sql.execution.datasources.orc.OrcOptions,
        "parquet": spark_sql.execution.datasources.parquet.ParquetOptions,
        "text": spark_sql.execution.datasources.text.TextOptions,
    }[format_]
    # pathGlobFilter is the only general option of files that is in none of Spark's lists.
    general_options = spark_sql.execution.datasources.FileIndexOptions
    return bool(
        format_options.isValidOption(option)
        or general_options.isValidOption(option)
        or option.lower() == "pathglobfilter"
    )


def _paths_text(paths: Sequence[str]) -> str:
    """The first ten of ``paths`` (local paths or ``file:`` URIs), as sorted local paths for a message. If there are
    more than ten, the number of the others follows: ``and 3 more``."""
    first_paths = ", ".join(sorted(to_local_path(path) for path in paths)[:10])
    return first_paths if len(paths) <= 10 else f"{first_paths} and {len(paths) - 10} more"
