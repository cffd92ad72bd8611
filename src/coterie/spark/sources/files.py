"""``FileSource``: a connector that reads the files of a folder as they arrive, each by exactly one of its tasks.

Spark's file source loses and doubles rows by itself in some cases; here each of them fails the task by name or cannot
happen:

- a file much older than the newest is skipped in silence: ``maxFileAge`` is set beyond any age;
- a name with ``{ } [ ] * ? \\`` doubles other files: a batch with such a name is refused before it has an effect;
- a file that vanished after planning is skipped in silence: every file of the batch must still be there when its rows
  are written, else they are not put in place;
- a malformed line of CSV or JSON becomes nulls in silence: ``FAILFAST`` unless the config says otherwise; and the
  header of a CSV file has to name the columns of the schema.

With ``errors.tolerance=all`` a malformed line is a bad record. Spark keeps the text of such a line only; what is known
of another row that turns out to be bad are its columns.
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

from coterie.config.definition import Definition, Importance, Key, Type, Width, at_least, not_blank, one_of
from coterie.nouns.errors import ConfigError, WorldError
from coterie.spark.bad_records.hidden import ERROR, FAULT, ORIGINAL, POLL, RECORD, fault
from coterie.spark.bad_records.keys import TOLERANCE, tolerance_of
from coterie.spark.columns import ddl_of
from coterie.spark.end_config import OPTIONS, EndConfig
from coterie.spark.failures import sentence_of
from coterie.spark.generations.split import SplitFunction, sql_task
from coterie.spark.generations.stores import FilePositions, PositionStore
from coterie.spark.jars import missing
from coterie.spark.paths import SOURCE_GROUP, as_path, local_file_path
from coterie.spark.positions import Positions
from coterie.spark.record import column
from coterie.spark.rotation import Rotation
from coterie.spark.seams import SMALL_BATCH_BYTES, SMALL_BATCH_ROWS, Share
from coterie.spark.sources.file_log import (
    local_path,
    names_with_glob_characters,
    planned_files,
    vanished,
)
from coterie.spark.sources.folder_size import FolderSize
from coterie.spark.transforms import first_sentence

FORMATS = ("avro", "csv", "json", "orc", "parquet", "text")
LINES = ("csv", "json")
"""The formats of which Spark can tell the text of a record that does not fit the schema."""
SAMPLED_FILES = 100
SAMPLED_BYTES = 32 << 20
"""How much is read to infer columns."""
UNPACKED_TIMES = 8
"""How many times larger the rows of a compressed file are taken to be."""
_PACKED = (".bz2", ".deflate", ".gz", ".lz4", ".snappy", ".xz", ".zst")

OURS = {
    "path": "is said by source.path",
    "maxfilespertrigger": "is said by source.max.files.per.trigger",
    "maxbytespertrigger": "is said by source.max.bytes.per.trigger",
    "maxfileage": "would skip older files in silence",
    "latestfirst": "would skip older files in silence",
    "filenameonly": "would skip a file whose name was seen in another folder in silence",
    "cleansource": "would take files away from the connector's other tasks",
    "sourcearchivedir": "belongs to cleanSource, which would take files away from the connector's other tasks",
    "ignoremissingfiles": "would skip vanished files in silence",
    "ignorecorruptfiles": "would skip broken files in silence",
}
"""Options of Spark's file source, in lower case, that would break what is promised here, and how."""
OURS_WITH_TOLERANCE = dict.fromkeys(
    ("mode", "columnnameofcorruptrecord"), "would hide malformed lines, which errors.tolerance=all makes bad records"
)
FILE_HEADER = "file"
"""The key of the header with which a bad record of a file tells the file."""
_MALFORMED = "__coterie_malformed"
"""The text of a line that does not fit the schema."""

DEFINITION = Definition(
    (
        Key(
            name="format",
            type=Type.STRING,
            documentation="Format of the files that are read.",
            importance=Importance.HIGH,
            check=one_of(FORMATS),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Source format",
        ),
        Key(
            name="path",
            type=Type.STRING,
            documentation="Folder whose files are read. Files are to be written aside and renamed in.",
            importance=Importance.HIGH,
            check=local_file_path,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Source folder",
        ),
        Key(
            name="schema",
            type=Type.STRING,
            documentation=(
                "Columns of the files, as in CREATE TABLE: row BIGINT, name STRING, ... By default those of the files "
                "that are there when the connector is created. Files of text have none: each line is the column value."
            ),
            optional=True,
            importance=Importance.HIGH,
            check=not_blank,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Source columns",
        ),
        Key(
            name="max.files.per.trigger",
            type=Type.INT,
            documentation="Most files that one batch looks at, counted over all tasks of the connector.",
            default="1000",
            check=at_least(1),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Files per trigger",
        ),
        Key(
            name="max.bytes.per.trigger",
            type=Type.LONG,
            documentation=(
                "Most bytes of files that one batch looks at, counted over all tasks of the connector, instead of "
                "max.files.per.trigger. A batch has one file at least."
            ),
            optional=True,
            check=at_least(1),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Bytes per trigger",
        ),
    )
)
WITHOUT_SCHEMA = Definition(tuple(key for key in DEFINITION.keys if key.name != "schema"))
STATED = Definition(tuple(replace(key, optional=False) for key in DEFINITION.keys if key.name == "schema"))
"""``schema``, once it was inferred where the config leaves it out."""
TEXT = StructType([StructField("value", StringType())])


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Reads files from a folder: those whose path hashes to the task's share."""

    free_prefixes: ClassVar[tuple[str, ...]] = (OPTIONS,)
    identity: ClassVar[tuple[str, ...]] = ("path",)
    access: ClassVar[tuple[str, ...]] = ("path",)
    split_function: ClassVar[SplitFunction] = SplitFunction.PATH_HASH_V1
    has_fixed_split: ClassVar[bool] = False
    sifts_bad_records: ClassVar[bool] = True
    store: ClassVar[PositionStore] = FilePositions()
    can_rotate: ClassVar[bool] = False

    format: str
    path: str
    columns: str | None
    """The schema, as in CREATE TABLE; None for text."""
    bound: Mapping[str, str]
    """Spark's option that bounds a batch."""
    options: Mapping[str, str]
    is_tolerant: bool
    """Whether rows have the hidden columns of bad records."""
    share: Share
    _folder_size: FolderSize = field(default_factory=FolderSize, repr=False, compare=False)

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        return WITHOUT_SCHEMA if config.config.get(config.key("format"), "").strip() == "text" else DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """What only Spark can tell: the columns, unless they are still to be inferred, the names of the options,
        whether it has the jar of Avro."""
        found: dict[str, list[str]] = {}
        if all(config.key(name) in config.config for name in ("max.files.per.trigger", "max.bytes.per.trigger")):
            sentence = f"Spark bounds a batch by files or by bytes: remove it, or {config.key('max.files.per.trigger')}"
            found |= config.error("max.bytes.per.trigger", sentence)
        if config.read(DEFINITION, "format", str) == "avro" and (lacking := missing(spark, "avro")) is not None:
            return found | config.error("format", lacking)
        try:
            if not cls.open_keys(config):
                columns_of(spark, config)
        except ConfigError as error:
            found |= error.listed
        format_ = config.read(DEFINITION, "format", str)
        is_tolerant = config.config.get(TOLERANCE, "").strip() == "all"
        refused = OURS | (OURS_WITH_TOLERANCE if is_tolerant and format_ in LINES else {})
        for option in config.under(OPTIONS):
            key = config.key(OPTIONS + option)
            if why := refused.get(option.lower()):
                found[key] = [f"Option {option} cannot be set: it {why}"]
            elif not _knows(spark, format_, option):
                found[key] = [f"Spark's {format_} files have no option {option}"]
        return found

    @classmethod
    def open_keys(cls, config: EndConfig) -> Sequence[str]:
        """``schema``, where the config does not name the columns."""
        own = cls.definition(config)
        is_open = any(key.name == "schema" for key in own.keys) and config.find(own, "schema", str) is None
        return ("schema",) if is_open else ()

    @classmethod
    def infer(cls, spark: SparkSession, config: EndConfig) -> Mapping[str, str]:
        """The columns of some of the files that are there now, as Spark infers them.

        :raises ConfigError: when there is no file, or Spark finds no columns.
        """
        if not cls.open_keys(config):
            return {}
        return {"schema": inferred_columns(spark, config)}

    @classmethod
    def parts(cls, config: EndConfig) -> Sequence[str]:
        """The folder: every task looks at the whole of it."""
        return [config.read(DEFINITION, "path", str)]

    @classmethod
    def split(cls, parts: Sequence[str], tasks_max: int) -> Sequence[Sequence[str]]:
        """As many tasks as may be: each reads the files whose path hashes to it."""
        return [parts] * tasks_max

    @classmethod
    def starts(cls, config: EndConfig, parts: Sequence[str], *, is_first: bool) -> Positions:
        """None: all files of a folder are read."""
        return {}

    @classmethod
    def of(cls, config: EndConfig, share: Share) -> Self:
        format_ = config.read(DEFINITION, "format", str)
        size = config.find(DEFINITION, "max.bytes.per.trigger", int)
        files = config.read(DEFINITION, "max.files.per.trigger", int)
        return cls(
            format=format_,
            path=config.read(DEFINITION, "path", str),
            columns=None if format_ == "text" else config.read(STATED, "schema", str),
            bound={"maxFilesPerTrigger": str(files)} if size is None else {"maxBytesPerTrigger": str(size)},
            options=config.under(OPTIONS),
            is_tolerant=tolerance_of(config.config) is not None,
            share=share,
        )

    def schema(self, spark: SparkSession) -> StructType:
        return TEXT if self.columns is None else cast(StructType, StructType.fromDDL(self.columns))

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        defaults = {"maxFileAge": "365000d", **self.bound}
        schema = self.schema(spark)
        if has_lines := self.format in LINES:
            defaults["mode"] = "FAILFAST"
        if has_lines and self.is_tolerant:
            defaults |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED}
            schema = StructType([*schema.fields, StructField(_MALFORMED, StringType())])
        if any(key.lower() == "header" and value.lower() == "true" for key, value in self.options.items()):
            defaults["enforceSchema"] = "false"
        self._folder_size.look(self.path)
        reader = spark.readStream.format(self.format).schema(schema)
        rows = reader.options(**defaults).options(**self.options).load(self.path)
        rows = rows.where(self._is_own("_metadata.file_path"))
        return self._with_hidden(rows, has_lines=has_lines) if self.is_tolerant else rows

    def _with_hidden(self, rows: DataFrame, *, has_lines: bool) -> DataFrame:
        """``rows`` with the hidden columns of bad records; ``has_lines``: those that are malformed have their text."""
        columns = [column(name) for name in rows.columns if name != _MALFORMED]
        file = F.col("_metadata.file_path")
        text = F.col("value") if self.format == "text" else F.to_json(F.struct(*columns))
        error = F.lit(None)
        if has_lines:
            malformed = F.col(_MALFORMED)
            text = F.coalesce(malformed, text)
            what = f" is not {self.format.upper()} with the columns of the schema"
            message = F.concat(F.lit("a line of "), file, F.lit(what))
            error = F.when(malformed.isNotNull(), fault(POLL, type(self).__name__, message))
        header = F.struct(F.lit(FILE_HEADER).alias("key"), file.cast("binary").alias("value"))
        known = {
            "value": text.cast("binary"),
            "headers": F.array(header),
            "timestamp": F.col("_metadata.file_modification_time"),
        }
        nothing = F.lit(None)
        original = F.struct(*(known.get(name, nothing).alias(name) for name in RECORD.names))
        return rows.select(*columns, original.cast(RECORD).alias(ORIGINAL), error.cast(FAULT).alias(ERROR))

    def is_small(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """By the files' sizes and, where they have footers, their rows, those of other tasks' files among them."""
        size_bytes = rows = 0
        for path in planned_files(checkpoint, batch_id):
            try:
                size_bytes += self._unpacked_bytes(path)
                rows += self._counted_rows(path)
            except FileNotFoundError:
                continue  # check_read refuses the batch.
            except (OSError, pa.ArrowException):
                return False  # Spark says what is wrong with the file.
            if size_bytes > SMALL_BATCH_BYTES or rows > SMALL_BATCH_ROWS:
                return False
        return True

    def _unpacked_bytes(self, path: str) -> int:
        """How many bytes a file has once it is unpacked, about."""
        is_packed = self.format in ("avro", "orc", "parquet") or path.endswith(_PACKED)
        return os.stat(path).st_size * (UNPACKED_TIMES if is_packed else 1)

    def _counted_rows(self, path: str) -> int:
        """How many rows the footer of a file counts; 0 without a footer."""
        match self.format:
            case "parquet":
                return int(pyarrow.parquet.read_metadata(path).num_rows)
            case "orc":
                return int(pyarrow.orc.ORCFile(path).nrows)
            case _:
                return 0

    def check_plan(self, checkpoint: Path, batch_id: int) -> None:
        """Before a batch is read.

        :raises WorldError: when reading it would double rows.
        """
        self._folder_size.look(self.path)
        if odd := names_with_glob_characters(planned_files(checkpoint, batch_id)):
            raise WorldError(
                f"Batch {batch_id} is refused: a file's name holds one of {{ }} [ ] * ? \\, and Spark reads "
                "other files twice then. Rename these; the plan of this batch cannot be changed, so delete the "
                f"connector and what it has written, and create it again: {_listed(odd)}"
            )

    def check_read(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> None:
        """After a batch was read, before its rows can be seen.

        :raises WorldError: when a file of this task was not there to be read.
        """
        gone = vanished(planned_files(checkpoint, batch_id))
        if mine := self._own(spark, gone):
            raise WorldError(
                f"Batch {batch_id} is refused: files that it was to read have vanished since it was planned. "
                f"Put them back and restart the task: {_listed(mine)}"
            )

    def _own(self, spark: SparkSession, paths: Sequence[str]) -> list[str]:
        """Those of ``paths`` that the split gives to this task; Spark itself says so, since its hash decides."""
        if not paths:
            return []
        path_of = spark._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
        uris = [(path, path_of(f"file:{path}").toUri().toString()) for path in paths]
        rows = spark.createDataFrame(uris, "path STRING, uri STRING")
        return [row["path"] for row in rows.where(self._is_own("uri")).select("path").collect()]

    def _is_own(self, uri: str) -> str:
        """As SQL: whether the split gives the file with the URI of a column to this task."""
        return f"{sql_task(self.share.function, uri, self.share.count)} = {self.share.index}"


def columns_of(spark: SparkSession, config: EndConfig) -> StructType:
    """The columns that ``schema`` names; needs a running Spark.

    :raises ConfigError: when Spark does not understand them.
    """
    if config.read(DEFINITION, "format", str) == "text":
        return TEXT
    try:
        return cast(StructType, StructType.fromDDL(config.read(STATED, "schema", str)))
    except PySparkException as error:
        raise config.refused("schema", first_sentence(error)) from error


def inferred_columns(spark: SparkSession, config: EndConfig) -> str:
    """The columns, as in CREATE TABLE, that Spark infers from some files of the folder.

    :raises ConfigError: when there is no file, or Spark finds no columns.
    """
    folder, format_ = str(as_path(config.read(DEFINITION, "path", str))), config.read(DEFINITION, "format", str)
    key = config.key("schema")
    sample = sampled_files(folder)
    if not sample:
        raise ConfigError(
            {key: [f"There is no file in {folder} to infer the columns from: set {key}, or put one there"]}
        )
    reader = spark.read.format(format_).option("basePath", folder)
    # Of csv; and of orc and parquet: all files are looked at, and not only the first one.
    reader = reader.option("inferSchema", "true").option("mergeSchema", "true")
    try:
        columns = reader.options(**config.under(OPTIONS)).load(sample).schema
    except (PySparkException, Py4JJavaError) as error:
        sentence = f"No columns can be inferred: {sentence_of(error)}. Set {key}, or try again"
        raise ConfigError({key: [sentence]}) from error
    kept = [field for field in columns.fields if field.name != "_corrupt_record"]
    if not kept:
        raise ConfigError({key: [f"No columns can be inferred from {sample[0]}: set {key}"]})
    return ddl_of(spark, StructType(kept))


def sampled_files(folder: str) -> list[str]:
    """The first files of ``folder`` that Spark would read, up to :data:`SAMPLED_FILES` and about
    :data:`SAMPLED_BYTES`; one at least, if there is any."""
    found: list[str] = []
    size_bytes = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        hidden_or_odd = {name for name in names if name.startswith((".", "_"))} | set(names_with_glob_characters(names))
        for name in sorted(set(names) - hidden_or_odd):
            path = os.path.join(parent, name)
            try:
                size_bytes += os.stat(path).st_size
            except FileNotFoundError:  # Gone meanwhile, or a link to nothing.
                continue
            if found and (size_bytes > SAMPLED_BYTES or len(found) == SAMPLED_FILES):
                return found
            found.append(path)
    return found


def _knows(spark: SparkSession, format_: str, option: str) -> bool:
    catalyst = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
    known = {
        "avro": catalyst.avro.AvroOptions,
        "csv": catalyst.catalyst.csv.CSVOptions,
        "json": catalyst.catalyst.json.JSONOptions,
        "orc": catalyst.execution.datasources.orc.OrcOptions,
        "parquet": catalyst.execution.datasources.parquet.ParquetOptions,
        "text": catalyst.execution.datasources.text.TextOptions,
    }[format_]
    # pathGlobFilter is the one option of files in general that Spark keeps in no list.
    general = catalyst.execution.datasources.FileIndexOptions
    return bool(known.isValidOption(option) or general.isValidOption(option) or option.lower() == "pathglobfilter")


def _listed(paths: Sequence[str]) -> str:
    shown = ", ".join(sorted(local_path(path) for path in paths)[:10])
    return shown if len(paths) <= 10 else f"{shown} and {len(paths) - 10} more"
