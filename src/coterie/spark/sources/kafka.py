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
from collections.abc import Callable, Iterable, Mapping, Sequence
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

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Width, at_least, one_of, split_list
from coterie.nouns.connector_offsets import ConnectorOffset, OffsetsRefusedError
from coterie.nouns.errors import ConfigError, UnreachableError, WorldError
from coterie.spark import converters
from coterie.spark.bad_records.error_columns import ERROR_COLUMN, ORIGINAL_COLUMN, with_original_and_null_error_columns
from coterie.spark.bad_records.keys import read_bad_record_settings
from coterie.spark.checkpoint import find_batch_id_in_flight
from coterie.spark.converters import Converter
from coterie.spark.failures import error_message, java_exception_of
from coterie.spark.generations.split import SplitFunction
from coterie.spark.generations.stores import PositionStore
from coterie.spark.jars import missing_jars_message
from coterie.spark.paths import SOURCE_GROUP
from coterie.spark.positions import Positions
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import HEADERS_TYPE, MetadataColumn
from coterie.spark.rotation import Rotation
from coterie.spark.seams import (
    SMALL_BATCH_BYTES_MAX,
    SMALL_BATCH_ROWS_MAX,
    SPARK_PARTITION_BYTES_MAX,
    BatchTooLargeError,
    TaskInput,
)
from coterie.spark.sources.kafka_batch import read_offset_ranges, spark_consumer_options
from coterie.spark.sources.kafka_client import (
    KafkaAdmin,
    OffsetBoundary,
    TopicAbsentError,
    kafka_admin,
    may_kafka_retry_succeed,
    unknown_consumer_properties,
)
from coterie.spark.sources.kafka_positions import (
    KAFKA_OFFSET,
    KAFKA_PARTITION,
    KAFKA_TOPIC,
    GroupOffsets,
    KafkaPositionStore,
    TopicIdPartition,
    commit_empty_batch_to_positions,
    first_unplanned_offsets,
    offsets_of_committed_batches,
    parse_kafka_offset,
    parse_topic_partition,
    partitions_in_checkpoint,
    planned_offset_ranges,
)
from coterie.spark.sources.kafka_sizes import sampled_mean_record_bytes
from coterie.spark.transforms import uses_headers

log = logging.getLogger(__name__)

CONSUMER_OVERRIDE_PREFIX = "consumer.override."
"""Prefix of the connector's keys that set a property of Kafka's consumer."""
AUTO_OFFSET_RESET = "auto.offset.reset"
ISOLATION_LEVEL = "isolation.level"
BOOTSTRAP_SERVERS = "bootstrap.servers"

RECORD_COLUMN_TYPES: Mapping[str, DataType | None] = {
    "key": None,
    "value": None,
    "headers": HEADERS_TYPE,
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
}
"""By name, the types of the columns of a record; None for the columns whose type the converter determines."""

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
"""The properties of Kafka's consumer that the user cannot set: by name, the reason as text."""


def _column_names_error(value: str) -> str | None:
    """A validator of ``columns``: the error message for a value that is not a list of different names of
    :data:`RECORD_COLUMN_TYPES`; else None."""
    names = split_list(value)
    if not names or len(set(names)) < len(names) or set(names) - set(RECORD_COLUMN_TYPES):
        return f"Must be a list of different columns of {', '.join(RECORD_COLUMN_TYPES)}"
    return None


def _start_offsets_error(value: str) -> str | None:
    """A validator of ``start.offsets``: the error message for a value that is not JSON with an offset (0 or more) for
    each topic and partition number; else None."""
    try:
        offsets = json.loads(value)
        is_valid = all(
            partition.isascii() and partition.isdigit() and type(offset) is int and offset >= 0
            for offset_by_partition in offsets.values()
            for partition, offset in offset_by_partition.items()
        )
    except (ValueError, AttributeError):
        is_valid = False
    return None if is_valid else 'Must be offsets by topic and partition: {"topic": {"0": 42}}'


ALWAYS_SMALL_BATCH_RECORDS_MAX = 20
"""For a batch of at most this many records the size of its records is not sampled: the batch fits into memory, since
Kafka rejects records above 1 MB by default."""
SAMPLED_SIZE_MAX_AGE_S = 600
"""How long a sampled record size is used before the size is sampled again, in seconds: sampling sends requests to the
cluster."""
SAMPLED_RECORDS_PER_PARTITION_MAX = 200
SAMPLED_PARTITIONS_MAX = 20
"""The most records of a partition, and the most partitions, from which columns are inferred."""

DEFINITION = ConfigDef(
    (
        ConfigKey(
            name="topics",
            type=Type.LIST,
            documentation="Topics that are read; or topics.regex.",
            is_optional=True,
            importance=Importance.HIGH,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Topics",
        ),
        ConfigKey(
            name="topics.regex",
            type=Type.STRING,
            documentation="Java's regular expression of the names of the topics that are read; or topics.",
            is_optional=True,
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
            validator=_column_names_error,
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
            is_optional=True,
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
            is_optional=True,
            validator=_start_offsets_error,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Start at offsets",
        ),
        ConfigKey(
            name=CONSUMER_OVERRIDE_PREFIX + AUTO_OFFSET_RESET,
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
            name=CONSUMER_OVERRIDE_PREFIX + ISOLATION_LEVEL,
            type=Type.STRING,
            documentation="With read_committed, records of open and aborted transactions are not read.",
            default="read_uncommitted",
            validator=one_of(("read_committed", "read_uncommitted")),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Isolation level",
        ),
        ConfigKey(
            name=CONSUMER_OVERRIDE_PREFIX + BOOTSTRAP_SERVERS,
            type=Type.LIST,
            documentation="Kafka's addresses; by default those of the worker.",
            is_optional=True,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Bootstrap servers",
        ),
    )
)


def _errors_raised_by_check(config: PrefixedConfig, check: Callable[[], object]) -> dict[str, list[str]]:
    """The errors by the user's key: those of a ConfigError that ``check`` raises; for a WorldError its message, by the
    key of the cluster's address (``bootstrap.servers``). Empty if ``check`` raises neither."""
    try:
        check()
    except ConfigError as error:
        return error.errors_as_new_lists
    except WorldError as error:
        return {config.user_key(CONSUMER_OVERRIDE_PREFIX + BOOTSTRAP_SERVERS): [str(error)]}
    return {}


@dataclass(slots=True, kw_only=True)
class KafkaSource:
    """Reads the topic partitions that the split assigns to one task. Its source partitions are the texts of
    :class:`TopicIdPartition`."""

    free_key_prefixes: ClassVar[tuple[str, ...]] = (CONSUMER_OVERRIDE_PREFIX,)
    identity_keys: ClassVar[tuple[str, ...]] = ()
    connection_keys: ClassVar[tuple[str, ...]] = (CONSUMER_OVERRIDE_PREFIX + BOOTSTRAP_SERVERS,)
    split_function: ClassVar[SplitFunction] = SplitFunction.PARTS_V1
    has_fixed_split: ClassVar[bool] = False
    reports_bad_records: ClassVar[bool] = True
    position_store: ClassVar[PositionStore] = KafkaPositionStore()
    can_wait_for_rows: ClassVar[bool] = True

    consumer_properties: Mapping[str, str] = field(repr=False)
    """Properties of Kafka's consumer; may contain passwords."""
    key_converter: Converter
    value_converter: Converter
    configured_column_names: tuple[str, ...]
    """The value of the key ``columns``: the columns of a row without the hidden ones, before ``value`` is replaced by
    its fields."""
    max_offsets_per_trigger: int
    """The most records of one batch, counted as offsets."""
    auto_offset_reset: str
    """``earliest``, ``latest`` or ``none``."""
    tolerates_bad_records: bool
    """Whether ``errors.tolerance`` is ``all``: rows then have the error columns, two hidden columns with the record as
    it was read and with its error (``bad_records/error_columns.py``)."""
    prefixed_config: PrefixedConfig = field(repr=False)
    task_input: TaskInput
    has_deleted_records_in_flight: bool = False
    """Whether, at the last start of the query, retention had deleted records of the batch in flight (planned and not
    committed). Spark then reads the other records of the batch without an error. :meth:`read` sets this."""
    sampled_mean_record_bytes: int = 0
    """The mean size in bytes of the records of the last sample; 0 before the first sample, or when the sample had no
    records."""
    record_size_sampled_at_s: float = 0.0
    """The monotonic time, in seconds, of the last sample; 0 before the first sample."""
    spark_partition_rows_max: int = sys.maxsize
    """The most records in one Spark partition of a batch, according to the sampled size. :meth:`read` sets this."""

    @classmethod
    def definition(cls, config: PrefixedConfig) -> ConfigDef:
        return (
            DEFINITION
            + converters.converter_definition(config, "key")
            + converters.converter_definition(config, "value")
        )

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        """Errors, by the user's key. Checks the jars first, then the properties and the schemas; sends requests to the
        cluster only when all of these are valid."""
        if (missing_jars := missing_jars_message(spark, "kafka")) is not None:
            return {"source.class" if "source.class" in config.config else "connector.class": [missing_jars]}
        errors = converters.find_schema_errors(config, "key") | converters.find_schema_errors(config, "value")
        overrides = config.values_under_prefix(CONSUMER_OVERRIDE_PREFIX)
        for name in sorted(RESERVED_CONSUMER_PROPERTIES.keys() & overrides.keys()):
            errors[config.user_key(CONSUMER_OVERRIDE_PREFIX + name)] = [
                f"{CONSUMER_OVERRIDE_PREFIX}{name} cannot be set: {RESERVED_CONSUMER_PROPERTIES[name]}"
            ]
        for name in unknown_consumer_properties(overrides):
            errors[config.user_key(CONSUMER_OVERRIDE_PREFIX + name)] = [f"Kafka's consumer has no property {name}"]
        if errors:
            return errors

        def check_columns_and_topics() -> None:
            if not cls.keys_to_infer(config):
                source = cls.of(
                    config,
                    TaskInput(task_number=0, task_count=1, source_partitions=(), split_function=cls.split_function),
                )
                _check_distinct_column_names(source, spark)
            cls.list_source_partitions(config)

        return _errors_raised_by_check(config, check_columns_and_topics)

    @classmethod
    def start_position_errors(cls, config: PrefixedConfig) -> dict[str, list[str]]:
        if config.optional_value(DEFINITION, "start.offsets", str) is None:
            return {}
        return _errors_raised_by_check(
            config,
            lambda: cls.initial_positions(config, cls.list_source_partitions(config), is_new_connector=True),
        )

    @classmethod
    def keys_to_infer(cls, config: PrefixedConfig) -> Sequence[str]:
        """Of ``key.schema`` and ``value.schema`` those that a JsonConverter needs and that the config does not set."""
        return (*converters.keys_to_infer(config, "key"), *converters.keys_to_infer(config, "value"))

    @classmethod
    def infer_values(cls, spark: SparkSession, config: PrefixedConfig) -> Mapping[str, str]:
        """The values of :meth:`keys_to_infer`: the columns that Spark infers from the newest records of some
        partitions.

        :raises ConfigError: when there is no record to infer columns from, or Spark cannot read the records.
        :raises UnreachableError: when the cluster cannot be reached.
        :raises WorldError: when the cluster rejects a request, or the JVM lacks a jar.
        """
        keys = cls.keys_to_infer(config)
        if not keys:
            return {}
        records = _read_newest_records(spark, config, cls.list_source_partitions(config))
        try:
            return {key: converters.infer_columns_ddl(config, key.partition(".")[0], records) for key in keys}
        except (PySparkException, Py4JJavaError) as error:
            if may_kafka_retry_succeed(java_exception_of(error)):
                raise UnreachableError(
                    f"Kafka did not return the records from which columns are inferred: {error_message(error)}"
                ) from error
            key = config.user_key(keys[0])
            message = f"No columns can be inferred: {error_message(error)}. Set {key}, or try again"
            raise ConfigError({key: [message]}) from error

    @classmethod
    def list_source_partitions(cls, config: PrefixedConfig) -> Sequence[str]:
        """The partitions that the topics of the config have now, each as the text of a :class:`TopicIdPartition`.

        :raises ConfigError: when not exactly one of ``topics`` and ``topics.regex`` is set, a topic of ``topics`` does
            not exist, or ``topics.regex`` is not a valid expression or matches no topic.
        :raises UnreachableError: when the cluster cannot be reached.
        :raises WorldError: when the cluster rejects a request, or the JVM lacks a jar.
        """
        topics = config.optional_value(DEFINITION, "topics", tuple)
        pattern = config.optional_value(DEFINITION, "topics.regex", str)
        if bool(topics) == bool(pattern):
            topics_key, pattern_key = config.user_key("topics"), config.user_key("topics.regex")
            message = (
                f"{topics_key} and {pattern_key} are mutually exclusive options, but both are set."
                if topics
                else f"Must configure one of {topics_key} or {pattern_key}"
            )
            raise ConfigError({topics_key: [message], pattern_key: [message]})
        with kafka_admin(_consumer_properties_without_offset_reset(config)) as admin:
            if pattern:
                topics = _find_matching_topics_or_raise(admin, config, pattern)
            assert topics is not None
            try:
                return [str(partition) for partition in admin.list_partitions(sorted(set(topics)))]
            except TopicAbsentError as error:
                name = "topics.regex" if pattern else "topics"
                raise config.make_config_error(
                    name, f"{error}; create the topic first, or correct {config.user_key(name)}"
                ) from error

    @classmethod
    def divide_partitions(cls, source_partitions: Sequence[str], tasks_max: int) -> Sequence[Sequence[str]]:
        """Assign the partitions round-robin, so that the partitions of each topic are spread over the tasks. Every task
        has a partition: with fewer partitions than ``tasks_max`` there are fewer tasks."""
        return [source_partitions[task::tasks_max] for task in range(min(tasks_max, len(source_partitions)))]

    @classmethod
    def initial_positions(
        cls, config: PrefixedConfig, source_partitions: Sequence[str], *, is_new_connector: bool
    ) -> Positions:
        """The initial offsets of ``source_partitions``, which were never read, or whose positions a user has removed.

        With ``is_new_connector`` the config determines the offset of a partition: ``start.offsets``, else
        ``start.timestamp.ms``, else ``auto.offset.reset``. Otherwise the partition was found later, and is read from
        its beginning, since records were written to it before it was found.

        :raises ConfigError: with ``is_new_connector``, when ``auto.offset.reset`` is ``none`` and no other key
            determines the offset of a partition, or when an offset in ``start.offsets`` does not exist in its
            partition.
        :raises UnreachableError: when the cluster cannot be reached.
        :raises WorldError: when the cluster rejects a request, or the JVM lacks a jar.
        """
        partitions = [TopicIdPartition.parse(partition) for partition in source_partitions]
        with kafka_admin(_consumer_properties_without_offset_reset(config)) as admin:
            if not is_new_connector:
                return admin.list_offsets(partitions, OffsetBoundary.EARLIEST)
            configured_offsets = _checked_configured_start_offsets(admin, config, partitions)
            other_partitions = [partition for partition in partitions if str(partition) not in configured_offsets]
            if not other_partitions:
                return configured_offsets
            start_timestamp_ms = config.optional_value(DEFINITION, "start.timestamp.ms", int)
            if start_timestamp_ms is not None:
                return {
                    **configured_offsets,
                    **admin.offsets_for_timestamp_or_latest(other_partitions, start_timestamp_ms),
                }
            reset = config.required_value(DEFINITION, CONSUMER_OVERRIDE_PREFIX + AUTO_OFFSET_RESET, str)
            if reset == "none":
                missing_text = ", ".join(partition.topic_partition_text for partition in other_partitions)
                raise config.make_config_error(
                    CONSUMER_OVERRIDE_PREFIX + AUTO_OFFSET_RESET,
                    f"a new connector has no position in {missing_text}. Set {config.user_key('start.offsets')} or "
                    f"{config.user_key('start.timestamp.ms')}, or set earliest or latest",
                )
            return {**configured_offsets, **admin.list_offsets(other_partitions, OffsetBoundary(reset))}

    @classmethod
    def to_offsets(cls, positions: Positions) -> Sequence[ConnectorOffset]:
        """For each partition the offset of the next record to read, in the form of Connect's sink connectors, sorted by
        topic and partition number. If a topic was created again, ``positions`` may contain a partition under several
        topic ids: the last of these entries counts."""
        offsets: dict[tuple[str, int], int] = {}
        for name, offset in positions.items():
            partition = TopicIdPartition.parse(name)
            offsets[partition.topic, partition.partition] = offset
        return [
            ConnectorOffset(partition={KAFKA_PARTITION: partition, KAFKA_TOPIC: topic}, offset={KAFKA_OFFSET: offset})
            for (topic, partition), offset in sorted(offsets.items())
        ]

    @classmethod
    def parse_offsets(cls, config: PrefixedConfig, offsets: Sequence[ConnectorOffset]) -> Mapping[str, int | None]:
        """The requested positions, by the text of the :class:`TopicIdPartition`: the offset of the next record to read;
        None where the client removes the position. ``offsets`` have the form of Connect's sink connectors.

        :raises OffsetsRefusedError: when an offset has another form or is beyond the end of its partition, the
            connector does not read the partition, or the topics of the config cannot be listed
            (:meth:`list_source_partitions`). The message is Connect's where Connect has such a message.
        :raises WorldError: when the cluster cannot be reached or rejects a request, or the JVM lacks a jar.
        """
        requested = {parse_topic_partition(offset): parse_kafka_offset(offset) for offset in offsets}
        try:
            existing = {
                (partition.topic, partition.partition): partition
                for partition in map(TopicIdPartition.parse, cls.list_source_partitions(config))
            }
        except ConfigError as error:
            raise OffsetsRefusedError(str(error)) from error
        if absent := sorted(requested.keys() - existing.keys()):
            raise OffsetsRefusedError(f"The connector does not read the partition {absent[0][0]}-{absent[0][1]}")
        changes = {str(existing[key]): offset for key, offset in requested.items()}
        moved = [existing[key] for key, offset in requested.items() if offset is not None]
        if moved:
            with kafka_admin(_consumer_properties_without_offset_reset(config)) as admin:
                ends = admin.list_offsets(moved, OffsetBoundary.LATEST)
            for partition in moved:
                offset = changes[str(partition)]
                assert offset is not None
                if offset > ends[str(partition)]:
                    raise OffsetsRefusedError(
                        f"{partition.topic_partition_text} has no offset {offset}: its end is {ends[str(partition)]}"
                    )
        return changes

    @classmethod
    def former_partitions(cls, source_partitions: Iterable[str], known_partitions: Iterable[str]) -> frozenset[str]:
        """Those of ``known_partitions`` whose topic was deleted and created again: ``source_partitions``, the present
        ones, contain the same topic and number with another topic id."""
        current_names = frozenset(source_partitions)
        changed = {(part.topic, part.partition) for part in map(TopicIdPartition.parse, current_names)}
        return frozenset(
            name
            for name in known_partitions
            if name not in current_names
            and ((partition := TopicIdPartition.parse(name)).topic, partition.partition) in changed
        )

    @classmethod
    def replace_group_offsets(cls, config: PrefixedConfig, positions: Positions) -> None:
        """Make ``positions`` the only offsets of the group ``connect-<connector name>``.

        :raises WorldError: when the group has members, the cluster cannot be reached or rejects a request, or the JVM
            lacks a jar.
        """
        offset_by_partition = {TopicIdPartition.parse(name): offset for name, offset in positions.items()}
        with kafka_admin(_consumer_properties_without_offset_reset(config)) as admin:
            admin.replace_group_offsets(f"connect-{config.config['name']}", offset_by_partition)

    @classmethod
    def of(cls, config: PrefixedConfig, task_input: TaskInput) -> Self:
        return cls(
            consumer_properties=_consumer_properties_without_offset_reset(config),
            key_converter=Converter.of(config, "key"),
            value_converter=Converter.of(config, "value"),
            configured_column_names=config.required_value(DEFINITION, "columns", tuple),
            max_offsets_per_trigger=config.required_value(DEFINITION, "max.offsets.per.trigger", int),
            auto_offset_reset=config.required_value(DEFINITION, CONSUMER_OVERRIDE_PREFIX + AUTO_OFFSET_RESET, str),
            tolerates_bad_records=read_bad_record_settings(config.config) is not None,
            prefixed_config=config,
            task_input=task_input,
        )

    def schema(self, spark: SparkSession) -> StructType:
        fields: list[StructField] = []
        for name in self.configured_column_names:
            type_ = (
                {"key": self.key_converter, "value": self.value_converter}[name].data_type()
                if RECORD_COLUMN_TYPES[name] is None
                else RECORD_COLUMN_TYPES[name]
            )
            if name == "value" and isinstance(type_, StructType):
                fields += type_.fields
            else:
                assert type_ is not None
                fields.append(StructField(name, type_))
        metadata_types = {**RECORD_COLUMN_TYPES, "key": self.key_converter.data_type(), "tombstone": BooleanType()}
        for metadata_column in self._metadata_columns_without_unused_headers:
            type_ = metadata_types[metadata_column.record_field_name]
            assert type_ is not None
            fields.append(StructField(metadata_column.value, type_))
        return StructType(fields)

    @property
    def _metadata_columns_without_unused_headers(self) -> tuple[MetadataColumn, ...]:
        """The metadata columns of the rows (hidden columns with a record's key, topic, offset, ...): all of them, but
        the headers only when a transform or predicate uses headers."""
        return tuple(
            metadata_column
            for metadata_column in MetadataColumn
            if metadata_column is not MetadataColumn.HEADERS or uses_headers(self.prefixed_config.config)
        )

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        """The stream of the records of this task's partitions (:meth:`Source.read`). Checks first that this task can
        continue from ``checkpoint``, and skips records that retention has deleted, by a batch without rows in
        ``checkpoint``. When a batch is in flight, samples the size of its records, from which the size of the Spark
        partitions follows."""
        self._check_checkpoint_and_skip_deleted(checkpoint)
        partitions_by_topic: dict[str, list[int]] = {}
        for partition in self._partitions:
            partitions_by_topic.setdefault(partition.topic, []).append(partition.partition)
        has_headers = (
            "headers" in self.configured_column_names
            or MetadataColumn.HEADERS in self._metadata_columns_without_unused_headers
            or self.tolerates_bad_records
        )
        options = {
            # No group is joined. Spark caches consumers by group and partition, regardless of their other properties,
            # so each start needs another group: Spark appends a new id.
            "groupIdPrefix": f"connect-{self.prefixed_config.config['name']}",
            **spark_consumer_options(self.consumer_properties),
            "assign": json.dumps(partitions_by_topic),
            "maxOffsetsPerTrigger": str(self.max_offsets_per_trigger),
            "includeHeaders": str(has_headers).lower(),
            "failOnDataLoss": str(not self.has_deleted_records_in_flight).lower(),
        }
        in_flight = find_batch_id_in_flight(checkpoint)
        if in_flight is not None:
            self._count_offsets_and_maybe_sample_size(planned_offset_ranges(checkpoint, in_flight, self._partitions))
        self.spark_partition_rows_max = self._rows_that_fit_spark_partition
        if self.spark_partition_rows_max < self.max_offsets_per_trigger:
            options["maxRecordsPerPartition"] = str(self.spark_partition_rows_max)
        if rotation is not None:
            batch_records_max = self.max_offsets_per_trigger
            options["minOffsetsPerTrigger"] = str(
                min(rotation.waiting_rows_min or batch_records_max, batch_records_max)
            )
            options["maxTriggerDelay"] = f"{rotation.rotate_interval_ms}ms"
        records = spark.readStream.format("kafka").options(**options).load()
        if self.tolerates_bad_records:
            records = with_original_and_null_error_columns(records)
        for converter in (self.key_converter, self.value_converter):
            records = converter.convert(records)
        selected: list[Column] = []
        for name in self.configured_column_names:
            if name == "value" and isinstance(type_ := self.value_converter.data_type(), StructType):
                selected += [F.col("value")[field.name].alias(field.name) for field in type_.fields]
            else:
                selected.append(F.col(name))
        for metadata_column in self._metadata_columns_without_unused_headers:
            source_column = (
                F.col("value").isNull()
                if metadata_column is MetadataColumn.TOMBSTONE
                else F.col(metadata_column.record_field_name)
            )
            selected.append(source_column.alias(metadata_column.value))
        return records.select(*selected, *((ORIGINAL_COLUMN, ERROR_COLUMN) if self.tolerates_bad_records else ()))

    def is_batch_small(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Whether the batch fits into the driver's memory (:meth:`Source.is_batch_small`). Computed from the batch's
        offsets and the sampled size of records.

        :raises BatchTooLargeError: when, according to a new sample, one Spark partition of the batch has more than
            twice the records that fit into memory: the query must start again, and then reads smaller Spark partitions.
        :raises UnreachableError, WorldError: when the size cannot be sampled: see :func:`sampled_mean_record_bytes`.
        """
        ranges = planned_offset_ranges(checkpoint, batch_id, self._partitions)
        rows = self._count_offsets_and_maybe_sample_size(ranges)
        largest_spark_partition_rows = min(
            max((len(offsets) for offsets in ranges.values()), default=0), self.spark_partition_rows_max
        )
        if largest_spark_partition_rows > 2 * self._rows_that_fit_spark_partition:
            raise BatchTooLargeError(
                f"Batch {batch_id} has records of about {self.sampled_mean_record_bytes:,} bytes: the query starts "
                f"again, to read at most {self._rows_that_fit_spark_partition} of them into one Spark partition"
            )
        return rows <= SMALL_BATCH_ROWS_MAX and rows * self.sampled_mean_record_bytes <= SMALL_BATCH_BYTES_MAX

    def has_bounded_spark_partitions(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Always True: :meth:`read` bounds the records of a Spark partition by their sampled size, and
        :meth:`is_batch_small` refuses a batch that was planned for smaller records."""
        return True

    def _count_offsets_and_maybe_sample_size(self, ranges: Mapping[TopicIdPartition, range]) -> int:
        """Return the number of offsets in ``ranges``, the offsets that a batch reads by partition. First sample the
        size of the batch's records, unless the batch has at most :data:`ALWAYS_SMALL_BATCH_RECORDS_MAX` offsets or the
        last sample was taken at most :data:`SAMPLED_SIZE_MAX_AGE_S` ago.

        :raises UnreachableError, WorldError: when the size cannot be sampled: see :func:`sampled_mean_record_bytes`.
        """
        rows = sum(len(offsets) for offsets in ranges.values())
        if rows > ALWAYS_SMALL_BATCH_RECORDS_MAX and (
            not self.record_size_sampled_at_s
            or time.monotonic() - self.record_size_sampled_at_s > SAMPLED_SIZE_MAX_AGE_S
        ):
            self.sampled_mean_record_bytes, self.record_size_sampled_at_s = (
                sampled_mean_record_bytes(self.consumer_properties, ranges),
                time.monotonic(),
            )
        return rows

    @property
    def _rows_that_fit_spark_partition(self) -> int:
        """How many records fit into one Spark partition (:data:`SPARK_PARTITION_BYTES_MAX`) according to the sampled
        size; :data:`sys.maxsize` without a sample."""
        return (
            max(SPARK_PARTITION_BYTES_MAX // self.sampled_mean_record_bytes, 1)
            if self.sampled_mean_record_bytes
            else sys.maxsize
        )

    def check_before_read(self, checkpoint: Path, batch_id: int) -> None:
        """If retention had deleted records of the batch in flight when the query started
        (``has_deleted_records_in_flight``), log how many: Spark skips these records without an error. Otherwise do
        nothing: Spark fails a batch with deleted records.

        :raises WorldError: when the cluster cannot be reached or rejects a request.
        """
        if not self.has_deleted_records_in_flight:
            return
        ranges = planned_offset_ranges(checkpoint, batch_id, self._partitions)
        with kafka_admin(self.consumer_properties) as admin:
            deleted_counts = _deleted_offset_counts(
                admin, {str(partition): offsets.start for partition, offsets in ranges.items()}
            )
        if deleted_counts:
            log.warning(
                "Task %s: batch %d is run without some of its records, because %s",
                self._task_name,
                batch_id,
                _deleted_records_text(deleted_counts),
            )

    def group_offsets(self, checkpoint: Path) -> GroupOffsets:
        """The offsets that this task's committed batches have reached, to be committed for the consumer group
        ``connect-<connector name>``, which is the group of a sink connector in Connect."""
        offsets = offsets_of_committed_batches(checkpoint, self._partitions)
        return GroupOffsets(
            group_id=f"connect-{self.prefixed_config.config['name']}",
            next_offsets={
                partition: offsets[str(partition)] for partition in self._partitions if str(partition) in offsets
            },
            client_properties=self.consumer_properties,
        )

    def check_after_read(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> None:
        """Does nothing: Spark itself fails a batch of which it could not read all records. With
        ``has_deleted_records_in_flight`` Spark does not fail the batch: :meth:`check_before_read` has logged this."""

    @property
    def used_topics(self) -> frozenset[str]:
        """The topics of the task's partitions."""
        return frozenset(partition.topic for partition in self._partitions)

    @property
    def _partitions(self) -> tuple[TopicIdPartition, ...]:
        """The partitions that this task reads."""
        return tuple(TopicIdPartition.parse(partition_text) for partition_text in self.task_input.source_partitions)

    @property
    def _task_name(self) -> str:
        """The task's id, for messages."""
        return f"{self.prefixed_config.config['name']}-{self.task_input.task_number}"

    def _check_checkpoint_and_skip_deleted(self, checkpoint: Path) -> None:
        """Check that this task can continue from the checkpoint, and skip records that retention has deleted.

        :raises WorldError: when the checkpoint has offsets of other partitions than the task's, a topic was deleted
            (and perhaps created again), deleted records must not be skipped because ``auto.offset.reset`` is ``none``,
            or the cluster cannot be reached or rejects a request.
        """
        with kafka_admin(self.consumer_properties) as admin:
            self._check_partitions_exist(admin)
            own_partitions = {(partition.topic, partition.partition) for partition in self._partitions}
            if (checkpoint_partitions := partitions_in_checkpoint(checkpoint)) != own_partitions:
                raise WorldError(
                    f"Task {self._task_name}: its checkpoint is for other partitions: the checkpoint has "
                    f"{_partitions_text(checkpoint_partitions - own_partitions)}, which the task does not read, "
                    f"and lacks {_partitions_text(own_partitions - checkpoint_partitions)}. Delete the "
                    "connector and create it again, with start.offsets or start.timestamp.ms"
                )
            self._skip_or_mark_deleted_records(admin, checkpoint)

    def _check_partitions_exist(self, admin: KafkaAdmin) -> None:
        """Check that the partitions of this task exist, with the topic ids with which the task has read them.

        :raises WorldError: when a partition of this task no longer exists, or its topic was deleted and created again.
        """
        try:
            existing = set(admin.list_partitions(sorted({partition.topic for partition in self._partitions})))
        except TopicAbsentError as error:
            raise WorldError(
                f"Task {self._task_name} cannot continue: {error}. If the connector's config names a topic that was "
                "deleted, create the topic again or remove its name from the config"
            ) from error
        if recreated := sorted(set(self._partitions) - existing):
            raise WorldError(
                f"Task {self._task_name} cannot continue: "
                f"{', '.join(partition.topic_partition_text for partition in recreated)} is not the partition that the "
                "task has read, since the topic was deleted and created again. The connector is split again within a "
                "minute"
            )

    def _skip_or_mark_deleted_records(self, admin: KafkaAdmin, checkpoint: Path) -> None:
        """Skip the records that retention has deleted before they were read, if there are any.

        If no batch is in flight, commit a batch without rows that skips the deleted records, and log their number. With
        ``auto.offset.reset`` ``latest`` this batch also skips the existing records of the partitions with deleted
        records, and their number is logged too. If a batch is in flight, commit nothing: Spark reads the records of
        this batch that still exist. Sets ``has_deleted_records_in_flight``: True if a batch is in flight and records
        were deleted, else False.

        :raises WorldError: when records were deleted and ``auto.offset.reset`` is ``none``.
        """
        in_flight = find_batch_id_in_flight(checkpoint)
        positions = (first_unplanned_offsets if in_flight is None else offsets_of_committed_batches)(
            checkpoint, self._partitions
        )
        deleted_counts = _deleted_offset_counts(admin, positions)
        self.has_deleted_records_in_flight = bool(deleted_counts) and in_flight is not None
        if not deleted_counts:
            return
        reset_key = CONSUMER_OVERRIDE_PREFIX + AUTO_OFFSET_RESET
        if in_flight is not None:
            if self.auto_offset_reset != "none":
                return  # Spark reads the existing records of the batch; check_before_read logs how many were deleted.
            raise WorldError(
                f"Task {self._task_name} cannot continue: {_deleted_records_text(deleted_counts)}. With "
                f"{reset_key}=earliest or latest the task reads the other records of batch {in_flight}, and continues"
            )
        first_offsets = {name: positions[name] + count for name, count in deleted_counts.items()}
        end_offsets = admin.list_offsets(
            [TopicIdPartition.parse(name) for name in deleted_counts], OffsetBoundary.LATEST
        )
        existing_counts = {
            name: end_offsets[name] - offset for name, offset in first_offsets.items() if end_offsets[name] > offset
        }
        existing_text = (
            f", and the records that still exist are skipped too: {_counts_text(existing_counts)}"
            if existing_counts
            else ""
        )
        if self.auto_offset_reset == "none":
            raise WorldError(
                f"Task {self._task_name} cannot continue: {_deleted_records_text(deleted_counts)}. With "
                f"{reset_key}=earliest the task continues with the oldest existing record, with latest at the "
                f"end{existing_text}"
            )
        if self.auto_offset_reset == "earliest":
            next_offsets, skipped_text = first_offsets, ""
        else:
            next_offsets = {name: offset + existing_counts.get(name, 0) for name, offset in first_offsets.items()}
            skipped_text = f". {reset_key} is latest{existing_text}" if existing_text else ""
        commit_empty_batch_to_positions(checkpoint, {**positions, **next_offsets})
        log.warning(
            "Task %s continues at the %s offset of the partitions in which records are missing, because %s%s",
            self._task_name,
            self.auto_offset_reset,
            _deleted_records_text(deleted_counts),
            skipped_text,
        )


def _consumer_properties_without_offset_reset(config: PrefixedConfig) -> dict[str, str]:
    """Properties of Kafka's consumer: the worker's, overridden by the connector's. Without ``auto.offset.reset``, which
    the source itself applies.

    The worker's password is for the worker's cluster: a connector that sets bootstrap.servers uses none of the worker's
    properties.
    """
    overrides = config.values_under_prefix(CONSUMER_OVERRIDE_PREFIX)
    overrides.pop(AUTO_OFFSET_RESET, None)
    isolation = config.required_value(DEFINITION, CONSUMER_OVERRIDE_PREFIX + ISOLATION_LEVEL, str)
    return {
        **({} if BOOTSTRAP_SERVERS in overrides else config.worker_kafka_properties),
        **overrides,
        ISOLATION_LEVEL: isolation,
    }


def _find_matching_topics_or_raise(admin: KafkaAdmin, config: PrefixedConfig, pattern: str) -> tuple[str, ...]:
    """The names of the topics that ``pattern``, the value of ``topics.regex``, matches.

    :raises ConfigError: when ``pattern`` is not a valid expression, or no topic matches.
    """
    try:
        topics = admin.find_topics(pattern)
    except ValueError as error:
        raise config.make_config_error("topics.regex", str(error)) from error
    if not topics:
        raise config.make_config_error(
            "topics.regex", "no topic matches; create a topic first, or correct the expression"
        )
    return tuple(topics)


def _checked_configured_start_offsets(
    admin: KafkaAdmin, config: PrefixedConfig, partitions: Sequence[TopicIdPartition]
) -> dict[str, int]:
    """The offsets in ``start.offsets`` of those of ``partitions`` that are in the value, by the partition's text.

    :raises ConfigError: when an offset is before the first record of its partition, or after the partition's end.
    """
    offsets_by_topic: Mapping[str, Mapping[str, int]] = json.loads(
        config.optional_value(DEFINITION, "start.offsets", str) or "{}"
    )
    configured_partitions = [
        partition for partition in partitions if str(partition.partition) in offsets_by_topic.get(partition.topic, {})
    ]
    if not configured_partitions:
        return {}
    beginnings, ends = (
        admin.list_offsets(configured_partitions, OffsetBoundary.EARLIEST),
        admin.list_offsets(configured_partitions, OffsetBoundary.LATEST),
    )
    checked_offsets: dict[str, int] = {}
    for partition in configured_partitions:
        offset, name = offsets_by_topic[partition.topic][str(partition.partition)], str(partition)
        if not beginnings[name] <= offset <= ends[name]:
            raise config.make_config_error(
                "start.offsets",
                f"{partition.topic_partition_text} has no offset {offset}: a start offset must be "
                f"{beginnings[name]} to {ends[name]}",
            )
        checked_offsets[name] = offset
    return checked_offsets


def _check_distinct_column_names(source: KafkaSource, spark: SparkSession) -> None:
    """Check that no two columns of a row have the same name, without regard to case.

    :raises ConfigError: when two have the same name; the error names the key ``columns``.
    """
    names = [field.name.lower() for field in source.schema(spark).fields]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise source.prefixed_config.make_config_error(
            "columns",
            f"two columns of a row would have the name {', '.join(repeated)}: value.schema has a column "
            f"{', '.join(repeated)} too; rename it there, or remove the name from this key",
        )


def _read_newest_records(spark: SparkSession, config: PrefixedConfig, partition_texts: Sequence[str]) -> DataFrame:
    """The newest records, at most :data:`SAMPLED_RECORDS_PER_PARTITION_MAX` of each partition, of at most
    :data:`SAMPLED_PARTITIONS_MAX` of the partitions with the texts ``partition_texts``. Partitions without records are
    left out."""
    partitions = [TopicIdPartition.parse(name) for name in partition_texts]
    consumer_properties = _consumer_properties_without_offset_reset(config)
    with kafka_admin(consumer_properties) as admin:
        end_offsets, first_offsets = (
            admin.list_offsets(partitions, OffsetBoundary.LATEST),
            admin.list_offsets(partitions, OffsetBoundary.EARLIEST),
        )
    # Ordered by partition number first, so that the sample covers all topics.
    ordered = sorted(partitions, key=lambda partition: (partition.partition, partition.topic))
    sampled = [partition for partition in ordered if end_offsets[str(partition)] > first_offsets[str(partition)]][
        :SAMPLED_PARTITIONS_MAX
    ]
    if not sampled:
        return spark.createDataFrame([], "key BINARY, value BINARY")
    ranges = {
        partition: range(
            max(first_offsets[str(partition)], end_offsets[str(partition)] - SAMPLED_RECORDS_PER_PARTITION_MAX),
            end_offsets[str(partition)],
        )
        for partition in sampled
    }
    return read_offset_ranges(spark, consumer_properties, ranges)


def _deleted_offset_counts(admin: KafkaAdmin, positions: Positions) -> dict[str, int]:
    """By the text of each partition in ``positions``: how many offsets there are from its position to the first record
    that retention has not deleted. Partitions without such offsets are left out."""
    first_offsets: Any = admin.list_offsets(
        [TopicIdPartition.parse(name) for name in positions], OffsetBoundary.EARLIEST
    )
    return {
        name: first_offsets[name] - position for name, position in positions.items() if first_offsets[name] > position
    }


def _deleted_records_text(deleted_counts: Mapping[str, int]) -> str:
    """A text for messages: the number of deleted records in each partition. ``deleted_counts`` is a result of
    :func:`_deleted_offset_counts`."""
    return f"records were deleted before they were read: {_counts_text(deleted_counts)}"


def _counts_text(counts: Mapping[str, int]) -> str:
    """``counts``, numbers of records by the partition's text, as text for a message, sorted by partition."""
    return ", ".join(
        f"{count} in {TopicIdPartition.parse(name).topic_partition_text}" for name, count in sorted(counts.items())
    )


def _partitions_text(partitions: set[tuple[str, int]] | frozenset[tuple[str, int]]) -> str:
    """Topics and partition numbers as text for a message: ``<topic>-<number>``, sorted; ``none`` when there are
    none."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions)) or "none"
