"""The config keys of the Kafka sink, named as in Connect's source connectors; and ``KafkaTarget``, their values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from coterie.config.definition import (
    ConfigDef,
    Importance,
    Type,
    at_least,
    blank_value_error,
    one_of,
)
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark import serializers
from coterie.spark.bad_records.dead_letters import dead_letter_record_columns_for_topic
from coterie.spark.bad_records.error_columns import BAD_ROW_COLUMN
from coterie.spark.bad_records.keys import DeadLetterTopic, read_bad_record_settings
from coterie.spark.converters import Format
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import MetadataColumn, exact_column, has_metadata_column, visible_column_names
from coterie.spark.serializers import Serializer
from coterie.spark.sinks.sink_keys import column_names_error, make_sink_config_key

PRODUCER_OVERRIDE_PREFIX = "producer.override."
"""Prefix of the keys that set properties of Kafka's producer."""
TOPIC_CREATION_PREFIX = "topic.creation.default."
"""Prefix of the keys with which a missing topic is created."""
BOOTSTRAP_SERVERS = "bootstrap.servers"
TRANSACTION_TIMEOUT = "transaction.timeout.ms"
LEDGER_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
"""Configs of a ledger topic that the sink creates. Small segments are compacted early, so that a start reads little."""
LEDGER_PARTITIONS = 16
"""Number of partitions of a ledger topic that the sink creates."""

RESERVED_PRODUCER_PROPERTIES = {
    "transactional.id": "it is made of ledger.topic, the connector's name and the task",
    "key.serializer": "key.converter determines how keys are written",
    "value.serializer": "value.converter determines how values are written",
    "interceptor.classes": "the sink runs no interceptors",
    "client.id": "each start of a task needs another client id",
}
"""Properties of a producer that the user cannot set, each with the reason."""
OVERRIDE_VALUES_REQUIRED_BY_TRANSACTIONS = {"enable.idempotence": "true", "acks": "all"}
"""The values that Kafka requires for transactions, by property of the producer: with exactly-once, a user's override
of such a property must have this value. The sink does not set these properties."""
_EQUIVALENT_VALUES = {"acks": ("all", "-1")}
"""All values that mean the same as the required value, for those properties of
:data:`OVERRIDE_VALUES_REQUIRED_BY_TRANSACTIONS` that have several."""

RECORD_FIELDS = ("topic", "key", "value", "headers", "partition")
"""The fields of a record that Spark's Kafka writer takes from columns of these names."""


class DeliveryGuarantee(Enum):
    """How often a reader with ``isolation.level=read_committed`` sees a row of a batch that is replayed."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


def _count_or_default_error(value: str) -> str | None:
    """A validator: the error message for a replication factor or a number of partitions that is neither -1 nor at least
    1; None when the value is valid."""
    return None if int(value) == -1 or int(value) >= 1 else "Value must be -1 (the broker's default) or at least 1"


DEFINITION = ConfigDef(
    (
        make_sink_config_key(
            "topic",
            Type.STRING,
            "The topic of all records; without it the column topic of a row, else the topic from which it was read.",
            "Topic",
            is_optional=True,
            importance=Importance.HIGH,
            validator=blank_value_error,
        ),
        make_sink_config_key(
            "key.fields",
            Type.LIST,
            "Columns that form the key of a record; without it the column key, else the record's key as it was read.",
            "Fields of the key",
            default="",
            validator=column_names_error,
        ),
        make_sink_config_key(
            "delivery.guarantee",
            Type.STRING,
            "exactly-once writes each batch in a transaction; at-least-once may write rows again after a failure.",
            "Delivery guarantee",
            default=DeliveryGuarantee.EXACTLY_ONCE.value,
            importance=Importance.HIGH,
            validator=one_of([one.value for one in DeliveryGuarantee]),
        ),
        make_sink_config_key(
            "ledger.topic",
            Type.STRING,
            "The compacted topic that states the last batch of each task; created when it does not exist.",
            "Ledger topic",
            default="coterie-ledger",
            validator=blank_value_error,
        ),
        make_sink_config_key(
            TOPIC_CREATION_PREFIX + "replication.factor",
            Type.SHORT,
            "Replication factor of the topic if it has to be created; -1 is the broker's default.",
            "Replication factor of a new topic",
            is_optional=True,
            validator=_count_or_default_error,
        ),
        make_sink_config_key(
            TOPIC_CREATION_PREFIX + "partitions",
            Type.INT,
            "Partitions of the topic if it has to be created; -1 is the broker's default.",
            "Partitions of a new topic",
            is_optional=True,
            validator=_count_or_default_error,
        ),
        make_sink_config_key(
            PRODUCER_OVERRIDE_PREFIX + TRANSACTION_TIMEOUT,
            Type.INT,
            "How long the transaction of one batch may take, at most the broker's transaction.max.timeout.ms.",
            "Transaction timeout (ms)",
            default="300000",
            validator=at_least(1000),
        ),
        make_sink_config_key(
            PRODUCER_OVERRIDE_PREFIX + BOOTSTRAP_SERVERS,
            Type.LIST,
            "Kafka's addresses; by default those of the worker.",
            "Bootstrap servers",
            is_optional=True,
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreationSettings:
    """The settings with which a missing topic is created. A number of partitions or a replication factor of -1 means
    the broker's default."""

    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTarget:
    """The topics to which a task writes, and how rows become records."""

    producer_properties: Mapping[str, str] = field(repr=False)
    """Properties of Kafka's producer; may contain passwords."""
    topic: str | None
    """The topic of all records; None when the rows contain the topic of each record."""
    topic_creation: TopicCreationSettings | None
    """The settings with which ``topic`` is created if it is missing; None when the config has none: then the broker's
    config determines whether it is created."""
    key_serializer: Serializer
    value_serializer: Serializer
    key_fields: tuple[str, ...]
    """The columns that form the key, from the config key ``key.fields``; empty when the key comes from a column ``key``
    or from the record that was read."""
    guarantee: DeliveryGuarantee
    ledger_topic: str
    """The name of the ledger topic, which contains the last batch of each task."""
    dead_letter_topic: DeadLetterTopic | None
    """The topic of bad records, which the sink writes in the transaction of the good records; None without such a
    topic."""
    transaction_timeout_ms: int

    @classmethod
    def of(cls, config: PrefixedConfig) -> Self:
        """The values in ``config``.

        :raises ConfigError: when a value is not valid, or values do not fit together; the error names the key.
        """
        topic = config.optional_value(DEFINITION, "topic", str)
        key = Serializer.of(config, "key")
        key_fields = config.required_value(DEFINITION, "key.fields", tuple)
        guarantee = DeliveryGuarantee(config.required_value(DEFINITION, "delivery.guarantee", str))
        timeout_ms = config.required_value(DEFINITION, PRODUCER_OVERRIDE_PREFIX + TRANSACTION_TIMEOUT, int)
        tolerance = read_bad_record_settings(config.config)
        if len(key_fields) > 1 and key.format is not Format.JSON:
            raise config.make_config_error("key.fields", "only a JsonConverter can write several columns as one key")
        return cls(
            producer_properties=_producer_properties(config, guarantee, timeout_ms),
            topic=topic,
            topic_creation=_topic_creation_settings_if_set(config, topic),
            key_serializer=key,
            value_serializer=Serializer.of(config, "value"),
            key_fields=key_fields,
            guarantee=guarantee,
            ledger_topic=config.required_value(DEFINITION, "ledger.topic", str),
            dead_letter_topic=tolerance.dead_letter_destination
            if tolerance is not None and isinstance(tolerance.dead_letter_destination, DeadLetterTopic)
            else None,
            transaction_timeout_ms=timeout_ms,
        )

    @property
    def cluster_description(self) -> str:
        """The cluster with its addresses, for messages."""
        return f"Kafka at {self.producer_properties.get(BOOTSTRAP_SERVERS, '')}"

    @property
    def required_topics(self) -> set[str]:
        """The topics that must exist: ``topic``, the topic of bad records and, with exactly-once, the ledger topic."""
        ledger_topics = {self.ledger_topic} if self.guarantee is DeliveryGuarantee.EXACTLY_ONCE else set()
        dead_letter_topics = set() if self.dead_letter_topic is None else {self.dead_letter_topic.topic}
        return ledger_topics | dead_letter_topics | ({self.topic} if self.topic else set())

    def metadata_columns_used(self, rows: DataFrame) -> tuple[MetadataColumn, ...]:
        """The metadata columns of ``rows`` (hidden columns with the key, headers, ... of the record that was read) from
        which a written record gets its key, headers or topic, or a null value. A metadata column is not used if a
        config key or a visible column determines the same field of the record."""
        names = visible_column_names(rows)
        is_used = {
            MetadataColumn.KEY: not self.key_fields and "key" not in names,
            MetadataColumn.HEADERS: not _has_kafka_headers_column(rows),
            MetadataColumn.TOPIC: self.topic is None and "topic" not in names,
            MetadataColumn.TOMBSTONE: True,
        }
        return tuple(column_ for column_ in is_used if is_used[column_] and has_metadata_column(rows, column_))

    def to_records(self, rows: DataFrame) -> DataFrame:
        """Convert ``rows`` to records: always the column ``value``, and each other column of :data:`RECORD_FIELDS` that
        these records have. ``key`` and ``value`` are bytes.

        :raises WorldError: when the columns cannot form a record; the message names the column or the key.
        """
        return rows.select(*(column.alias(name) for name, column in self._columns_of_records(rows).items()))

    def to_records_and_dead_letters(
        self, classified: DataFrame, dead_letter_topic: DeadLetterTopic, task: ConnectorTaskId
    ) -> DataFrame:
        """Convert the good rows of ``classified`` (rows with the column ``BAD_ROW_COLUMN``) to records and its bad rows
        to dead letters of ``task``, by one evaluation. The column ``topic`` contains the topic of each of them.

        :raises WorldError: when the columns cannot form a record; the message names the column or the key.
        """
        good_fields = {"topic": F.lit(self.topic), **self._columns_of_records(classified.drop(BAD_ROW_COLUMN))}
        bad_fields = {
            "topic": F.lit(dead_letter_topic.topic),
            **dead_letter_record_columns_for_topic(
                lambda name: F.col(BAD_ROW_COLUMN)[name], task, has_context=dead_letter_topic.has_context_headers
            ),
        }
        is_bad = F.col(BAD_ROW_COLUMN).isNotNull()
        names = [name for name in RECORD_FIELDS if name in good_fields or name in bad_fields]
        null = F.lit(None)
        return classified.select(
            *(
                F.when(is_bad, bad_fields.get(name, null)).otherwise(good_fields.get(name, null)).alias(name)
                for name in names
            )
        )

    def _columns_of_records(self, rows: DataFrame) -> dict[str, Column]:
        """The fields of the records that ``rows`` become: by name of the field (:data:`RECORD_FIELDS`), a column that
        is computed from ``rows``."""
        used_metadata = self.metadata_columns_used(rows)
        record_fields = self._fields_from_visible_columns(rows, used_metadata)
        value = self._value_column(rows, [name for name in visible_column_names(rows) if name not in record_fields])
        # The columns of a tombstone's value are nulls, and a JsonConverter would write an object with null fields.
        record_fields["value"] = (
            F.when(~exact_column(MetadataColumn.TOMBSTONE.value), value)
            if MetadataColumn.TOMBSTONE in used_metadata
            else value
        )
        if self.key_fields:
            record_fields["key"] = self._key_column_from_key_fields(rows)
        elif MetadataColumn.KEY in used_metadata:
            record_fields["key"] = self.key_serializer.serialize_column(rows, MetadataColumn.KEY.value)
        return record_fields | {
            metadata_column.record_field_name: exact_column(metadata_column.value)
            for metadata_column in (MetadataColumn.HEADERS, MetadataColumn.TOPIC)
            if metadata_column in used_metadata
        }

    def _fields_from_visible_columns(
        self, rows: DataFrame, used_metadata: tuple[MetadataColumn, ...]
    ) -> dict[str, Column]:
        """The fields of a record, except ``value``, that come from a visible column of the same name, by field name.
        The record's value does not contain these visible columns. ``used_metadata``: the result of
        :meth:`metadata_columns_used`.

        :raises WorldError: when the column ``topic`` is needed and missing, or a column has a wrong type.
        """
        names = visible_column_names(rows)
        record_fields: dict[str, Column] = {}
        if self.topic is None:
            if MetadataColumn.TOPIC not in used_metadata:
                record_fields["topic"] = _typed_record_column(
                    rows, "topic", StringType(), "; add it, or set the config key topic"
                )
            if "partition" in names:
                record_fields["partition"] = _typed_record_column(rows, "partition", IntegerType(), "")
        if _has_kafka_headers_column(rows):
            record_fields["headers"] = exact_column("headers")
        if "key" in names and not self.key_fields:
            record_fields["key"] = self.key_serializer.serialize_column(rows, "key")
        return record_fields

    def _key_column_from_key_fields(self, rows: DataFrame) -> Column:
        """The key, from the columns in ``key_fields``.

        :raises WorldError: when ``rows`` lack one of these columns.
        """
        names = visible_column_names(rows)
        if unknown := [name for name in self.key_fields if name not in names]:
            raise WorldError(f"key.fields: the rows have no column {', '.join(unknown)}; they have: {', '.join(names)}")
        if self.key_serializer.format is Format.JSON:
            return self.key_serializer.serialize_columns_as_json(rows, self.key_fields)
        return self.key_serializer.serialize_column(rows, self.key_fields[0])

    def _value_column(self, rows: DataFrame, value_columns: list[str]) -> Column:
        """The value of a record, from the columns in ``value_columns``.

        :raises WorldError: when they cannot form a value.
        """
        if self.value_serializer.format is not Format.JSON:
            return self._serialize_only_value_column(rows, value_columns)
        if not value_columns:
            raise WorldError(
                "The rows have no column besides those for topic, partition, headers and key, so the value of a record "
                "would be empty: add a column by a transform"
            )
        return self.value_serializer.serialize_columns_as_json(rows, value_columns)

    def _serialize_only_value_column(self, rows: DataFrame, value_columns: list[str]) -> Column:
        """The value of a record, for a converter that writes only the column ``value``.

        :raises WorldError: when there is no such column, or when a column would be lost that is in neither the value
            nor the key.
        """
        if unknown := [name for name in value_columns if name not in ("value", *self.key_fields)]:
            raise WorldError(
                f"Column {unknown[0]} is not a field of a record ({', '.join(RECORD_FIELDS)}). Drop the column by a "
                "transform, or set value.converter to a JsonConverter, which writes all columns"
            )
        if "value" not in value_columns:
            raise WorldError(
                "The rows have no column value; make one by a transform, or set value.converter to a JsonConverter, "
                "which writes all columns"
            )
        return self.value_serializer.serialize_column(rows, "value")


def definition(config: PrefixedConfig) -> ConfigDef:
    """The keys of the sink, with those of the converters that ``config`` names."""
    return (
        DEFINITION
        + serializers.serializer_definition(config, "key")
        + serializers.serializer_definition(config, "value")
    )


def config_errors(config: PrefixedConfig) -> dict[str, list[str]]:
    """Error messages, by the user's key, about properties of the producer that the user cannot set, or not to this
    value. If there are none, those about values that are valid alone and invalid together. Empty if there are none of
    either kind."""
    overrides = config.values_under_prefix(PRODUCER_OVERRIDE_PREFIX)
    errors = {
        config.user_key(PRODUCER_OVERRIDE_PREFIX + name): [
            f"{PRODUCER_OVERRIDE_PREFIX}{name} cannot be set: {RESERVED_PRODUCER_PROPERTIES[name]}"
        ]
        for name in sorted(RESERVED_PRODUCER_PROPERTIES.keys() & overrides.keys())
    }
    if config.required_value(DEFINITION, "delivery.guarantee", str) == DeliveryGuarantee.EXACTLY_ONCE.value:
        for name, value in OVERRIDE_VALUES_REQUIRED_BY_TRANSACTIONS.items():
            if name in overrides and overrides[name].strip().lower() not in _EQUIVALENT_VALUES.get(name, (value,)):
                errors |= config.error_by_key(
                    PRODUCER_OVERRIDE_PREFIX + name,
                    f"a transaction needs {name}={value}; or set delivery.guarantee=at-least-once",
                )
    if errors:
        return errors
    try:
        KafkaTarget.of(config)
    except ConfigError as error:
        return error.errors_as_new_lists
    return {}


def _producer_properties(config: PrefixedConfig, guarantee: DeliveryGuarantee, timeout_ms: int) -> dict[str, str]:
    """The properties of the producer: those of the worker, overridden by those of the connector. ``timeout_ms``: the
    transaction timeout, which is only set for exactly-once.

    The worker's password is for the worker's cluster: a connector with its own bootstrap.servers uses none of the
    worker's properties.
    """
    overrides = config.values_under_prefix(PRODUCER_OVERRIDE_PREFIX)
    overrides.pop(TRANSACTION_TIMEOUT, None)
    properties = {**({} if BOOTSTRAP_SERVERS in overrides else config.worker_kafka_properties), **overrides}
    if guarantee is DeliveryGuarantee.EXACTLY_ONCE:
        properties[TRANSACTION_TIMEOUT] = str(timeout_ms)
    return properties


def _topic_creation_settings_if_set(config: PrefixedConfig, topic: str | None) -> TopicCreationSettings | None:
    """The settings under ``topic.creation.default.``; None when none is set.

    :raises ConfigError: when one is set and ``topic`` is None, or when the number of partitions or the replication
        factor is missing.
    """
    settings = config.values_under_prefix(TOPIC_CREATION_PREFIX)
    if not settings:
        return None
    if topic is None:
        first_key = TOPIC_CREATION_PREFIX + sorted(settings)[0]
        raise config.make_config_error(
            first_key,
            "the sink creates only the topic that the config key topic names, and that key is not set",
        )
    numbers = {
        name: config.optional_value(DEFINITION, TOPIC_CREATION_PREFIX + name, int)
        for name in ("partitions", "replication.factor")
    }
    partitions, replication = numbers.values()
    if partitions is None or replication is None:
        key = config.user_key(TOPIC_CREATION_PREFIX + next(name for name, number in numbers.items() if number is None))
        raise ConfigError(
            {
                key: [
                    f"Missing required configuration {key}: if any key {TOPIC_CREATION_PREFIX}* is set, "
                    f"{TOPIC_CREATION_PREFIX}partitions and {TOPIC_CREATION_PREFIX}replication.factor must be set"
                ]
            }
        )
    configs = {name: value for name, value in settings.items() if name not in numbers}
    return TopicCreationSettings(partitions=partitions, replication_factor=replication, configs=configs)


def _typed_record_column(rows: DataFrame, name: str, type_: DataType, advice: str) -> Column:
    """The visible column ``name``, which becomes the field of a record with this name. ``advice``: the end of the
    message when the column is missing, what the user can do.

    :raises WorldError: when the column is missing, or has another type than ``type_``.
    """
    if name not in (names := visible_column_names(rows)):
        raise WorldError(f"The rows have no column {name}{advice}; they have: {', '.join(names)}")
    column_type = rows.schema[name].dataType
    if column_type != type_:
        raise WorldError(
            f"Column {name} has type {column_type.simpleString()} and must be {type_.simpleString()}: without the "
            "config key topic, the sink writes this column to the record's field of the same name"
        )
    return exact_column(name)


def _has_kafka_headers_column(rows: DataFrame) -> bool:
    """Whether the visible column ``headers`` exists and has the type of Kafka's headers, as the Kafka source reads
    them."""
    if "headers" not in rows.columns:
        return False
    type_ = rows.schema["headers"].dataType
    return (
        isinstance(type_, ArrayType)
        and isinstance(type_.elementType, StructType)
        and [field.dataType for field in type_.elementType.fields] == [StringType(), BinaryType()]
        and type_.elementType.names == ["key", "value"]
    )
