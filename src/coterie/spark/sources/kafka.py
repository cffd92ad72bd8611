"""``KafkaSource``: reads topics of Kafka; each partition is read by exactly one task of the connector.

The partitions of a task's checkpoint never change: if a task read a new partition from its beginning, while another
task's checkpoint had a position in this partition, records would be read twice. Spark itself would read a partition
without a position from offset 0; here a start on a checkpoint with other partitions than the task's fails.

The initial offsets of a partition are determined once, when the first checkpoint generation with this partition is
created: they are written into the checkpoint as numbers. ``auto.offset.reset`` applies later, too, when retention has
deleted records before they were read: with ``none`` the task fails, with ``earliest`` and ``latest`` the task continues
and logs the number of these records.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Width, as_list, at_least, one_of
from coterie.nouns.errors import ConfigError, UnreachableError, WorldError
from coterie.spark import converters
from coterie.spark.bad_records.error_columns import ERROR, ORIGINAL, with_error_columns
from coterie.spark.bad_records.keys import error_tolerance_of
from coterie.spark.checkpoint import batch_in_flight
from coterie.spark.converters import Converter
from coterie.spark.failures import message_of, throwable_of
from coterie.spark.generations.split import SplitFunction
from coterie.spark.generations.stores import PositionStore
from coterie.spark.jars import missing_package_message
from coterie.spark.paths import SOURCE_GROUP
from coterie.spark.positions import Positions
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import HEADERS_TYPE, MetadataColumn
from coterie.spark.rotation import Rotation
from coterie.spark.seams import PARTITION_BYTES, SMALL_BATCH_BYTES, SMALL_BATCH_ROWS, BatchTooLargeError, TaskInput
from coterie.spark.sources.kafka_batch import consumer_options, records_of
from coterie.spark.sources.kafka_client import (
    KafkaAdmin,
    OffsetBoundary,
    TopicAbsentError,
    is_retriable,
    kafka_admin,
    unknown_properties,
)
from coterie.spark.sources.kafka_positions import (
    GroupOffsets,
    KafkaPositions,
    TopicIdPartition,
    committed_offsets,
    next_offsets,
    partitions_of,
    planned_ranges,
    skip_to,
)
from coterie.spark.sources.kafka_sizes import mean_bytes
from coterie.spark.transforms import use_headers

log = logging.getLogger(__name__)

OVERRIDE = "consumer.override."
"""Prefix of the connector's keys that set a property of Kafka's consumer."""
RESET = "auto.offset.reset"
ISOLATION = "isolation.level"
SERVERS = "bootstrap.servers"

COLUMNS: Mapping[str, DataType | None] = {
    "key": None,
    "value": None,
    "headers": HEADERS_TYPE,
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
}
"""The columns of a record, with their types; None for the columns whose type the converter determines."""

RESERVED_CONSUMER_PROPERTIES = {
    "group.id": "no group is joined: the positions are in the checkpoint",
    "group.instance.id": "no group is joined",
    "group.protocol": "no group is joined",
    "partition.assignment.strategy": "no group is joined: the connector is split over its tasks",
    "key.deserializer": "key.converter determines how keys are read",
    "value.deserializer": "value.converter determines how values are read",
    "enable.auto.commit": "the positions are in the checkpoint",
    "auto.commit.interval.ms": "the positions are in the checkpoint",
    "interceptor.classes": "Spark's Kafka source runs no interceptors",
    "max.poll.records": "max.offsets.per.trigger determines how many records a batch reads",
}
"""By name, the properties of Kafka's consumer that the user cannot set: the reason, as text."""


def _columns(value: str) -> str | None:
    """Validator of ``columns``: why ``value`` is not a list of different columns of :data:`COLUMNS`, or None."""
    names = as_list(value)
    if not names or len(set(names)) < len(names) or set(names) - set(COLUMNS):
        return f"Must be a list of different columns of {', '.join(COLUMNS)}"
    return None


def _offsets(value: str) -> str | None:
    """Validator of ``start.offsets``: why ``value`` is not JSON with offsets by topic and partition, or None."""
    try:
        offsets = json.loads(value)
        is_one = all(
            partition.isascii() and partition.isdigit() and type(offset) is int and offset >= 0
            for by_partition in offsets.values()
            for partition, offset in by_partition.items()
        )
    except (ValueError, AttributeError):
        is_one = False
    return None if is_one else 'Must be offsets by topic and partition: {"topic": {"0": 42}}'


ALWAYS_SMALL_RECORDS = 20
"""For a batch of at most this many records the size of its records is not sampled: the batch fits into memory, since
Kafka rejects records above 1 MB by default."""
RECORD_SIZE_MAX_AGE_S = 600
"""How long a sampled record size is used before the size is sampled again: sampling sends requests to the cluster."""
SAMPLED_RECORDS = 200
SAMPLED_PARTITIONS = 20
"""The most records of a partition, and the most partitions, from which columns are inferred."""

DEFINITION = ConfigDef(
    (
        ConfigKey(
            name="topics",
            type=Type.LIST,
            documentation="Topics that are read; or topics.regex.",
            optional=True,
            importance=Importance.HIGH,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Topics",
        ),
        ConfigKey(
            name="topics.regex",
            type=Type.STRING,
            documentation="Java's regular expression of the names of the topics that are read; or topics.",
            optional=True,
            importance=Importance.HIGH,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Topics by regular expression",
        ),
        ConfigKey(
            name="columns",
            type=Type.LIST,
            documentation=(
                "Columns of the rows, of key, value, headers, topic, partition, offset and timestamp. With a "
                "JsonConverter, value means all columns of value.schema."
            ),
            default="value",
            validator=_columns,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Columns of a row",
        ),
        ConfigKey(
            name="max.offsets.per.trigger",
            type=Type.LONG,
            documentation="The most records that one batch of a task reads.",
            default="100000",
            validator=at_least(1),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Records per batch",
        ),
        ConfigKey(
            name="start.timestamp.ms",
            type=Type.LONG,
            documentation="A new connector starts with the records of this time (milliseconds since 1970) and later.",
            optional=True,
            validator=at_least(0),
            group=SOURCE_GROUP,
            width=Width.MEDIUM,
            display_name="Start at a time",
        ),
        ConfigKey(
            name="start.offsets",
            type=Type.STRING,
            documentation=(
                'Offsets at which a new connector starts: {"topic": {"0": 42}}; partitions that are not in the value '
                "start as without this key."
            ),
            optional=True,
            validator=_offsets,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Start at offsets",
        ),
        ConfigKey(
            name=OVERRIDE + RESET,
            type=Type.STRING,
            documentation=(
                "The offset at which a new connector starts, and at which a task continues if its next records were "
                "deleted before it read them; with none the task fails then."
            ),
            default="earliest",
            validator=one_of(("earliest", "latest", "none")),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Without a position",
        ),
        ConfigKey(
            name=OVERRIDE + ISOLATION,
            type=Type.STRING,
            documentation="With read_committed, records of open and aborted transactions are not read.",
            default="read_uncommitted",
            validator=one_of(("read_committed", "read_uncommitted")),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Isolation level",
        ),
        ConfigKey(
            name=OVERRIDE + SERVERS,
            type=Type.LIST,
            documentation="Kafka's addresses; by default those of the worker.",
            optional=True,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Bootstrap servers",
        ),
    )
)


@dataclass(slots=True, kw_only=True)
class KafkaSource:
    """Reads the topic partitions that the split assigns to one task. Its source partitions are the texts of
    :class:`TopicIdPartition`."""

    free_key_prefixes: ClassVar[tuple[str, ...]] = (OVERRIDE,)
    identity_keys: ClassVar[tuple[str, ...]] = ()
    connection_keys: ClassVar[tuple[str, ...]] = (OVERRIDE + SERVERS,)
    split_function: ClassVar[SplitFunction] = SplitFunction.PARTS_V1
    has_fixed_split: ClassVar[bool] = False
    reports_bad_records: ClassVar[bool] = True
    position_store: ClassVar[PositionStore] = KafkaPositions()
    can_wait_for_rows: ClassVar[bool] = True

    consumer: Mapping[str, str] = field(repr=False)
    """Properties of Kafka's consumer; may contain passwords."""
    key: Converter
    value: Converter
    columns: tuple[str, ...]
    """The value of ``columns``: the visible columns of a row, before ``value`` is replaced by its fields."""
    max_offsets_per_trigger: int
    """The most records of one batch, counted as offsets."""
    auto_offset_reset: str
    """``earliest``, ``latest`` or ``none``."""
    is_tolerant: bool
    """Whether rows have the error columns; see ``bad_records/error_columns.py``."""
    config: PrefixedConfig = field(repr=False)
    task_input: TaskInput
    is_in_flight_data_lost: bool = False
    """Whether, at the last start of the query, retention had deleted records of the batch in flight. Spark then reads
    the other records of the batch without an error. :meth:`read` sets this."""
    mean_record_bytes: int = 0
    """The mean size in bytes of the records of the last sample; 0 before the first sample, or when the sample had no
    records."""
    record_size_sampled_s: float = 0.0
    """The monotonic time of the last sample, in seconds; 0 before the first sample."""
    partition_rows: int = sys.maxsize
    """The most records in one Spark partition of a batch, according to the sampled size. :meth:`read` sets this."""

    @classmethod
    def definition(cls, config: PrefixedConfig) -> ConfigDef:
        return DEFINITION + converters.definition(config, "key") + converters.definition(config, "value")

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        """Errors, by the user's key. Checks the jars first, then the properties and the schemas; sends requests to the
        cluster only when all of these are valid."""
        if (sentence := missing_package_message(spark, "kafka")) is not None:
            return {"source.class" if "source.class" in config.config else "connector.class": [sentence]}
        found = converters.schema_errors(config, "key") | converters.schema_errors(config, "value")
        overrides = config.values_under(OVERRIDE)
        for name in sorted(RESERVED_CONSUMER_PROPERTIES.keys() & overrides.keys()):
            found[config.key(OVERRIDE + name)] = [
                f"{OVERRIDE}{name} cannot be set: {RESERVED_CONSUMER_PROPERTIES[name]}"
            ]
        for name in unknown_properties(overrides):
            found[config.key(OVERRIDE + name)] = [f"Kafka's consumer has no property {name}"]
        if found:
            return found
        try:
            if not cls.keys_to_infer(config):
                own = cls.of(
                    config, TaskInput(task_number=0, task_count=1, parts=(), split_function=cls.split_function)
                )
                _check_names(own, spark)
            parts = cls.parts(config)
            if config.find(DEFINITION, "start.offsets", str) is not None:
                cls.initial_positions(config, parts, is_new_connector=True)
        except ConfigError as error:
            return error.listed
        except WorldError as error:
            return {config.key(OVERRIDE + SERVERS): [str(error)]}
        return {}

    @classmethod
    def keys_to_infer(cls, config: PrefixedConfig) -> Sequence[str]:
        """Of ``key.schema`` and ``value.schema`` those that a JsonConverter needs and that the config does not set."""
        return (*converters.keys_to_infer(config, "key"), *converters.keys_to_infer(config, "value"))

    @classmethod
    def infer(cls, spark: SparkSession, config: PrefixedConfig) -> Mapping[str, str]:
        """The values of :meth:`keys_to_infer`: the columns that Spark infers from the newest records of some
        partitions.

        :raises ConfigError: when there is no record to infer columns from, or Spark cannot read the records.
        :raises UnreachableError: when the cluster cannot be reached.
        :raises WorldError: when the cluster rejects a request, or the JVM lacks a jar.
        """
        wanted = cls.keys_to_infer(config)
        if not wanted:
            return {}
        records = _newest_records(spark, config, cls.parts(config))
        try:
            return {key: converters.inferred_columns(config, key.partition(".")[0], records) for key in wanted}
        except (PySparkException, Py4JJavaError) as error:
            if is_retriable(throwable_of(error)):
                raise UnreachableError(f"Kafka did not answer a read of records: {message_of(error)}") from error
            key = config.key(wanted[0])
            sentence = f"No columns can be inferred: {message_of(error)}. Set {key}, or try again"
            raise ConfigError({key: [sentence]}) from error

    @classmethod
    def parts(cls, config: PrefixedConfig) -> Sequence[str]:
        """The partitions that the topics of the config have now, each as the text of a :class:`TopicIdPartition`.

        :raises ConfigError: when not exactly one of ``topics`` and ``topics.regex`` is set, a topic does not exist, or
            no topic matches.
        :raises UnreachableError: when the cluster cannot be reached.
        :raises WorldError: when the cluster rejects a request, or the JVM lacks a jar.
        """
        topics = config.find(DEFINITION, "topics", tuple)
        pattern = config.find(DEFINITION, "topics.regex", str)
        if bool(topics) == bool(pattern):
            key = config.key("topics")
            raise ConfigError({key: [f"Exactly one of {key} and {config.key('topics.regex')} must be set"]})
        with kafka_admin(_consumer(config)) as admin:
            if pattern:
                topics = _matching(admin, config, pattern)
            assert topics is not None
            try:
                return [str(part) for part in admin.partitions(sorted(set(topics)))]
            except TopicAbsentError as error:
                name = "topics.regex" if pattern else "topics"
                raise config.config_error(name, f"{error}; create it first, or correct its name") from error

    @classmethod
    def split(cls, parts: Sequence[str], tasks_max: int) -> Sequence[Sequence[str]]:
        """Assign the partitions round-robin, so that the partitions of each topic are spread over the tasks. Every task
        has a partition: with fewer partitions than ``tasks_max`` there are fewer tasks."""
        return [parts[task::tasks_max] for task in range(min(tasks_max, len(parts)))]

    @classmethod
    def initial_positions(cls, config: PrefixedConfig, parts: Sequence[str], *, is_new_connector: bool) -> Positions:
        """The initial offsets of the source partitions ``parts``, which were never read.

        With ``is_new_connector`` the config determines the offset of a partition: ``start.offsets``, else
        ``start.timestamp.ms``, else ``auto.offset.reset``. Otherwise the partition was found later, and is read from
        its beginning, since records were written to it before it was found.

        :raises ConfigError: when ``auto.offset.reset`` is ``none`` and no other key determines an offset, or when an
            offset in ``start.offsets`` does not exist in its partition.
        :raises UnreachableError: when the cluster cannot be reached.
        :raises WorldError: when the cluster rejects a request, or the JVM lacks a jar.
        """
        asked = [TopicIdPartition.parse(part) for part in parts]
        with kafka_admin(_consumer(config)) as admin:
            if not is_new_connector:
                return admin.list_offsets(asked, OffsetBoundary.EARLIEST)
            given = _configured_start_offsets(admin, config, asked)
            rest = [part for part in asked if str(part) not in given]
            if not rest:
                return given
            at_ms = config.find(DEFINITION, "start.timestamp.ms", int)
            if at_ms is not None:
                return {**given, **admin.offsets_for_timestamp(rest, at_ms)}
            reset = config.read(DEFINITION, OVERRIDE + RESET, str)
            if reset == "none":
                missing = ", ".join(part.topic_partition for part in rest)
                raise config.config_error(
                    OVERRIDE + RESET,
                    f"a new connector has no position in {missing}. Set {config.key('start.offsets')} or "
                    f"{config.key('start.timestamp.ms')}, or set earliest or latest",
                )
            return {**given, **admin.list_offsets(rest, OffsetBoundary(reset))}

    @classmethod
    def of(cls, config: PrefixedConfig, task_input: TaskInput) -> Self:
        return cls(
            consumer=_consumer(config),
            key=Converter.of(config, "key"),
            value=Converter.of(config, "value"),
            columns=config.read(DEFINITION, "columns", tuple),
            max_offsets_per_trigger=config.read(DEFINITION, "max.offsets.per.trigger", int),
            auto_offset_reset=config.read(DEFINITION, OVERRIDE + RESET, str),
            is_tolerant=error_tolerance_of(config.config) is not None,
            config=config,
            task_input=task_input,
        )

    def schema(self, spark: SparkSession) -> StructType:
        fields: list[StructField] = []
        for name in self.columns:
            type_ = {"key": self.key, "value": self.value}[name].data_type() if COLUMNS[name] is None else COLUMNS[name]
            if name == "value" and isinstance(type_, StructType):
                fields += type_.fields
            else:
                assert type_ is not None
                fields.append(StructField(name, type_))
        hidden = {**COLUMNS, "key": self.key.data_type(), "tombstone": BooleanType()}
        for part in self._metadata_columns:
            type_ = hidden[part.field_name]
            assert type_ is not None
            fields.append(StructField(part.value, type_))
        return StructType(fields)

    @property
    def _metadata_columns(self) -> tuple[MetadataColumn, ...]:
        """The metadata columns of the rows: all, but the headers only when a transform or predicate uses them."""
        return tuple(
            part for part in MetadataColumn if part is not MetadataColumn.HEADERS or use_headers(self.config.config)
        )

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        """See :meth:`Source.read`. Checks first that this task can continue from ``checkpoint``, skips deleted records,
        and samples the size of records when a batch is in flight."""
        self._prepare(checkpoint)
        assigned: dict[str, list[int]] = {}
        for part in self._parts:
            assigned.setdefault(part.topic, []).append(part.partition)
        has_headers = "headers" in self.columns or MetadataColumn.HEADERS in self._metadata_columns or self.is_tolerant
        options = {
            # No group is joined. Spark caches consumers by group and partition, regardless of their other properties,
            # so each start needs another group: Spark appends a new id.
            "groupIdPrefix": f"connect-{self.config.config['name']}",
            **consumer_options(self.consumer),
            "assign": json.dumps(assigned),
            "maxOffsetsPerTrigger": str(self.max_offsets_per_trigger),
            "includeHeaders": str(has_headers).lower(),
            "failOnDataLoss": str(not self.is_in_flight_data_lost).lower(),
        }
        in_flight = batch_in_flight(checkpoint)
        if in_flight is not None:
            self._sample_record_size(planned_ranges(checkpoint, in_flight, self._parts))
        self.partition_rows = self._fitting_rows
        if self.partition_rows < self.max_offsets_per_trigger:
            options["maxRecordsPerPartition"] = str(self.partition_rows)
        if rotation is not None:
            most = self.max_offsets_per_trigger
            options["minOffsetsPerTrigger"] = str(min(rotation.rows or most, most))
            options["maxTriggerDelay"] = f"{rotation.interval_ms}ms"
        records = spark.readStream.format("kafka").options(**options).load()
        if self.is_tolerant:
            records = with_error_columns(records)
        for converter in (self.key, self.value):
            records = converter.convert(records)
        chosen: list[Column] = []
        for name in self.columns:
            if name == "value" and isinstance(type_ := self.value.data_type(), StructType):
                chosen += [F.col("value")[field.name].alias(field.name) for field in type_.fields]
            else:
                chosen.append(F.col(name))
        for hidden in self._metadata_columns:
            made = F.col("value").isNull() if hidden is MetadataColumn.TOMBSTONE else F.col(hidden.field_name)
            chosen.append(made.alias(hidden.value))
        return records.select(*chosen, *((ORIGINAL, ERROR) if self.is_tolerant else ()))

    def is_batch_small(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """See :meth:`Source.is_batch_small`. Computed from the batch's offsets and the sampled size of records."""
        ranges = planned_ranges(checkpoint, batch_id, self._parts)
        rows = self._sample_record_size(ranges)
        most = min(max((len(offsets) for offsets in ranges.values()), default=0), self.partition_rows)
        if most > 2 * self._fitting_rows:
            raise BatchTooLargeError(
                f"Batch {batch_id} has records of about {self.mean_record_bytes:,} bytes: the query starts again, to "
                f"read at most {self._fitting_rows} of them into one Spark partition"
            )
        return rows <= SMALL_BATCH_ROWS and rows * self.mean_record_bytes <= SMALL_BATCH_BYTES

    def _sample_record_size(self, ranges: Mapping[TopicIdPartition, range]) -> int:
        """Return the number of offsets in ``ranges``, the ranges of a batch. First sample the size of the batch's
        records, unless the batch has at most :data:`ALWAYS_SMALL_RECORDS` or the last sample is at most
        :data:`RECORD_SIZE_MAX_AGE_S` old."""
        rows = sum(len(offsets) for offsets in ranges.values())
        if rows > ALWAYS_SMALL_RECORDS and (
            not self.record_size_sampled_s or time.monotonic() - self.record_size_sampled_s > RECORD_SIZE_MAX_AGE_S
        ):
            self.mean_record_bytes, self.record_size_sampled_s = mean_bytes(self.consumer, ranges), time.monotonic()
        return rows

    @property
    def _fitting_rows(self) -> int:
        """How many records fit into :data:`PARTITION_BYTES`, the size of one Spark partition, according to the sampled
        size; :data:`sys.maxsize` without a sample."""
        return max(PARTITION_BYTES // self.mean_record_bytes, 1) if self.mean_record_bytes else sys.maxsize

    def check_before_read(self, checkpoint: Path, batch_id: int) -> None:
        """Log how many records of a batch were deleted, if ``is_in_flight_data_lost``: Spark then skips them without an
        error. Does nothing otherwise, because Spark then fails such a batch.

        :raises WorldError: when the cluster cannot be reached or rejects a request.
        """
        if not self.is_in_flight_data_lost:
            return
        ranges = planned_ranges(checkpoint, batch_id, self._parts)
        with kafka_admin(self.consumer) as admin:
            gone = _deleted_offset_counts(admin, {str(part): offsets.start for part, offsets in ranges.items()})
        if gone:
            log.warning(
                "Task %s: batch %d continues with the existing records: %s", self._task, batch_id, _counted(gone)
            )

    def group_offsets(self, checkpoint: Path) -> GroupOffsets:
        """The offsets that this task's committed batches have reached, to be committed for the consumer group
        ``connect-<connector name>``, which is the group of a sink connector in Connect."""
        offsets = committed_offsets(checkpoint, self._parts)
        return GroupOffsets(
            group=f"connect-{self.config.config['name']}",
            offsets={part: offsets[str(part)] for part in self._parts if str(part) in offsets},
            client=self.consumer,
        )

    def check_after_read(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> None:
        """Does nothing: Spark fails a batch of which it could not read all records, except with
        ``is_in_flight_data_lost``."""

    @property
    def _parts(self) -> tuple[TopicIdPartition, ...]:
        """The partitions that this task reads."""
        return tuple(TopicIdPartition.parse(part) for part in self.task_input.parts)

    @property
    def _task(self) -> str:
        """The task's id, for messages."""
        return f"{self.config.config['name']}-{self.task_input.task_number}"

    def _prepare(self, checkpoint: Path) -> None:
        """Check that this task can continue from the checkpoint, and skip records that retention has deleted.

        :raises WorldError: when the checkpoint has offsets of other partitions than the task's, a topic was deleted
            (and perhaps created again), deleted records must not be skipped because ``auto.offset.reset`` is ``none``,
            or the cluster cannot be reached or rejects a request.
        """
        with kafka_admin(self.consumer) as admin:
            self._check_topics(admin)
            own = {(part.topic, part.partition) for part in self._parts}
            if (there := partitions_of(checkpoint)) != own:
                raise WorldError(
                    f"Task {self._task}: its checkpoint is for other partitions: the checkpoint has "
                    f"{_named(there - own)}, which the task does not read, and lacks {_named(own - there)}. Delete the "
                    "connector and create it again, with start.offsets or start.timestamp.ms"
                )
            self._skip_deleted(admin, checkpoint)

    def _check_topics(self, admin: KafkaAdmin) -> None:
        """:raises WorldError: when a partition of this task does not exist any more, with the same topic id."""
        try:
            there = set(admin.partitions(sorted({part.topic for part in self._parts})))
        except TopicAbsentError as error:
            raise WorldError(f"Task {self._task} cannot continue: {error}") from error
        if recreated := sorted(set(self._parts) - there):
            raise WorldError(
                f"Task {self._task} cannot continue: {', '.join(part.topic_partition for part in recreated)} is not "
                "the partition that the task has read, since the topic was deleted and created again. The connector is "
                "split again within a minute"
            )

    def _skip_deleted(self, admin: KafkaAdmin, checkpoint: Path) -> None:
        """If records of the next batch were deleted before they were read, commit a batch without rows that skips them,
        and log their number. If a batch is in flight, set ``is_in_flight_data_lost`` instead.

        :raises WorldError: when records were deleted and ``auto.offset.reset`` is ``none``.
        """
        in_flight = batch_in_flight(checkpoint)
        positions = (next_offsets if in_flight is None else committed_offsets)(checkpoint, self._parts)
        gone = _deleted_offset_counts(admin, positions)
        self.is_in_flight_data_lost = bool(gone) and in_flight is not None
        if not gone:
            return
        if self.auto_offset_reset == "none":
            raise WorldError(
                f"Task {self._task} cannot continue: {_counted(gone)}. With {OVERRIDE}{RESET}=earliest the task "
                "continues with the oldest existing record, with latest at the end"
            )
        if in_flight is not None:
            return  # Spark reads the existing records of the batch; check_before_read logs how many were deleted.
        lost = [TopicIdPartition.parse(name) for name in gone]
        skip_to(checkpoint, {**positions, **admin.list_offsets(lost, OffsetBoundary(self.auto_offset_reset))})
        log.warning("Task %s continues at the %s offset: %s", self._task, self.auto_offset_reset, _counted(gone))


def _consumer(config: PrefixedConfig) -> dict[str, str]:
    """Properties of Kafka's consumer: the worker's, overridden by the connector's. Without ``auto.offset.reset``, which
    the source itself applies.

    The worker's password is for the worker's cluster: a connector that sets bootstrap.servers uses none of the worker's
    properties.
    """
    overrides = config.values_under(OVERRIDE)
    overrides.pop(RESET, None)
    isolation = config.read(DEFINITION, OVERRIDE + ISOLATION, str)
    return {**({} if SERVERS in overrides else config.worker_kafka_properties), **overrides, ISOLATION: isolation}


def _matching(admin: KafkaAdmin, config: PrefixedConfig, pattern: str) -> tuple[str, ...]:
    """The topics whose names match ``pattern``, the value of ``topics.regex``.

    :raises ConfigError: when ``pattern`` is not a valid expression, or no topic matches.
    """
    try:
        topics = admin.topics(pattern)
    except ValueError as error:
        raise config.config_error("topics.regex", str(error)) from error
    if not topics:
        raise config.config_error("topics.regex", "no topic matches; create a topic first, or correct the expression")
    return tuple(topics)


def _configured_start_offsets(
    admin: KafkaAdmin, config: PrefixedConfig, parts: Sequence[TopicIdPartition]
) -> dict[str, int]:
    """The offsets in ``start.offsets`` of those of ``parts`` that are in the value, by the partition's text.

    :raises ConfigError: when an offset is before the first record of its partition, or after the partition's end.
    """
    given: Mapping[str, Mapping[str, int]] = json.loads(config.find(DEFINITION, "start.offsets", str) or "{}")
    asked = [part for part in parts if str(part.partition) in given.get(part.topic, {})]
    if not asked:
        return {}
    beginnings, ends = (
        admin.list_offsets(asked, OffsetBoundary.EARLIEST),
        admin.list_offsets(asked, OffsetBoundary.LATEST),
    )
    found: dict[str, int] = {}
    for part in asked:
        offset, name = given[part.topic][str(part.partition)], str(part)
        if not beginnings[name] <= offset <= ends[name]:
            raise config.config_error(
                "start.offsets",
                f"{part.topic_partition} has no offset {offset}: a start offset must be {beginnings[name]} to "
                f"{ends[name]}",
            )
        found[name] = offset
    return found


def _check_names(source: KafkaSource, spark: SparkSession) -> None:
    """:raises ConfigError: when two columns of a row have the same name."""
    names = [field.name.lower() for field in source.schema(spark).fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise source.config.config_error(
            "columns", f"value.schema has a column {', '.join(twice)} too; rename that column, or leave this one out"
        )


def _newest_records(spark: SparkSession, config: PrefixedConfig, names: Sequence[str]) -> DataFrame:
    """The newest records, at most :data:`SAMPLED_RECORDS`, of each of at most :data:`SAMPLED_PARTITIONS` partitions of
    ``names``, the texts of partitions. Partitions without records are left out."""
    parts = [TopicIdPartition.parse(name) for name in names]
    consumer = _consumer(config)
    with kafka_admin(consumer) as admin:
        ends, begins = (
            admin.list_offsets(parts, OffsetBoundary.LATEST),
            admin.list_offsets(parts, OffsetBoundary.EARLIEST),
        )
    # Ordered by partition number first, so that the sample covers all topics.
    in_turn = sorted(parts, key=lambda part: (part.partition, part.topic))
    sampled = [part for part in in_turn if ends[str(part)] > begins[str(part)]][:SAMPLED_PARTITIONS]
    if not sampled:
        return spark.createDataFrame([], "key BINARY, value BINARY")
    ranges = {
        part: range(max(begins[str(part)], ends[str(part)] - SAMPLED_RECORDS), ends[str(part)]) for part in sampled
    }
    return records_of(spark, consumer, ranges)


def _deleted_offset_counts(admin: KafkaAdmin, positions: Positions) -> dict[str, int]:
    """By the partition's text: how many offsets there are from the position to the first record that retention has not
    deleted. Partitions without such offsets are left out."""
    beginnings: Any = admin.list_offsets([TopicIdPartition.parse(name) for name in positions], OffsetBoundary.EARLIEST)
    return {name: beginnings[name] - at for name, at in positions.items() if beginnings[name] > at}


def _counted(gone: Mapping[str, int]) -> str:
    """The result of :func:`_deleted_offset_counts` as text."""
    each = ", ".join(
        f"{count} in {TopicIdPartition.parse(name).topic_partition}" for name, count in sorted(gone.items())
    )
    return f"records were deleted before they were read: {each}"


def _named(partitions: set[tuple[str, int]] | frozenset[tuple[str, int]]) -> str:
    """Topics and partition numbers as text; ``none`` when there are none."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions)) or "none"
