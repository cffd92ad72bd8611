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
    ConfigKey,
    Importance,
    Type,
    Width,
    as_list,
    at_least,
    not_blank,
    one_of,
)
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark import serializers
from coterie.spark.bad_records.dead_letters import dead_letter_record_columns
from coterie.spark.bad_records.error_columns import BAD
from coterie.spark.bad_records.keys import DeadLetterTopic, error_tolerance_of
from coterie.spark.converters import Format
from coterie.spark.paths import SINK_GROUP
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import MetadataColumn, has_metadata, visible_names
from coterie.spark.serializers import Serializer, column_of

OVERRIDE = "producer.override."
"""Prefix of the keys that set properties of Kafka's producer."""
CREATION = "topic.creation.default."
"""Prefix of the keys with which a missing topic is created."""
SERVERS = "bootstrap.servers"
TIMEOUT = "transaction.timeout.ms"
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
TRANSACTION_PROPERTIES = {"enable.idempotence": "true", "acks": "all"}
"""The values that Kafka requires for transactions, by property of the producer."""
_ALL = {"acks": ("all", "-1")}
"""All values that mean the same as the required one, for those properties of :data:`TRANSACTION_PROPERTIES` that have
several."""

RECORD_FIELDS = ("topic", "key", "value", "headers", "partition")
"""The fields of a record that Spark's Kafka writer takes from columns of these names."""


class Guarantee(Enum):
    """How often a reader with ``isolation.level=read_committed`` sees a row of a batch that is replayed."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


def _names(value: str) -> str | None:
    """Error message for a list of column names; None when the list is valid or empty."""
    names = as_list(value)
    return (
        None
        if all(names) and len(set(names)) == len(names)
        else "Must be names of columns, separated by commas, each once"
    )


def _replication(value: str) -> str | None:
    """Error message for a replication factor or a number of partitions; None when the value is valid."""
    return None if int(value) == -1 or int(value) >= 1 else "Value must be -1 (the broker's default) or at least 1"


def _key(name: str, type_: Type, documentation: str, label: str, **others: object) -> ConfigKey:
    """A config key of the sink."""
    return ConfigKey(
        name=name,
        type=type_,
        documentation=documentation,
        group=SINK_GROUP,
        width=Width.MEDIUM,
        display_name=label,
        **others,  # type: ignore[arg-type]
    )


DEFINITION = ConfigDef(
    (
        _key(
            "topic",
            Type.STRING,
            "The topic of all records; without it the column topic of a row, else the topic from which it was read.",
            "Topic",
            optional=True,
            importance=Importance.HIGH,
            validator=not_blank,
        ),
        _key(
            "key.fields",
            Type.LIST,
            "Columns that form the key of a record; without it the column key, else the record's key as it was read.",
            "Fields of the key",
            default="",
            validator=_names,
        ),
        _key(
            "delivery.guarantee",
            Type.STRING,
            "exactly-once writes each batch in a transaction; at-least-once may write rows again after a failure.",
            "Delivery guarantee",
            default=Guarantee.EXACTLY_ONCE.value,
            importance=Importance.HIGH,
            validator=one_of([one.value for one in Guarantee]),
        ),
        _key(
            "ledger.topic",
            Type.STRING,
            "The compacted topic that states the last batch of each task; created when it does not exist.",
            "Ledger topic",
            default="coterie-ledger",
            validator=not_blank,
        ),
        _key(
            CREATION + "replication.factor",
            Type.SHORT,
            "Replication factor of the topic if it has to be created; -1 is the broker's default.",
            "Replication factor of a new topic",
            optional=True,
            validator=_replication,
        ),
        _key(
            CREATION + "partitions",
            Type.INT,
            "Partitions of the topic if it has to be created; -1 is the broker's default.",
            "Partitions of a new topic",
            optional=True,
            validator=_replication,
        ),
        _key(
            OVERRIDE + TIMEOUT,
            Type.INT,
            "How long the transaction of one batch may take, at most the broker's transaction.max.timeout.ms.",
            "Transaction timeout (ms)",
            default="300000",
            validator=at_least(1000),
        ),
        _key(
            OVERRIDE + SERVERS,
            Type.LIST,
            "Kafka's addresses; by default those of the worker.",
            "Bootstrap servers",
            optional=True,
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreation:
    """With what a missing topic is created. -1 means the broker's default."""

    partitions: int
    replication: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTarget:
    """The topics to which a task writes, and how rows become records."""

    producer: Mapping[str, str] = field(repr=False)
    """Properties of Kafka's producer; may contain passwords."""
    topic: str | None
    """The topic of all records; None when the rows contain the topic of each record."""
    creation: TopicCreation | None
    """The settings with which ``topic`` is created if it is missing; None when it must not be created."""
    key: Serializer
    value: Serializer
    key_fields: tuple[str, ...]
    """The columns that form the key; empty when the key comes from a column ``key`` or from the record that was
    read."""
    guarantee: Guarantee
    ledger: str
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
        topic = config.find(DEFINITION, "topic", str)
        key = Serializer.of(config, "key")
        key_fields = config.read(DEFINITION, "key.fields", tuple)
        guarantee = Guarantee(config.read(DEFINITION, "delivery.guarantee", str))
        timeout_ms = config.read(DEFINITION, OVERRIDE + TIMEOUT, int)
        tolerance = error_tolerance_of(config.config)
        if len(key_fields) > 1 and key.format is not Format.JSON:
            raise config.config_error("key.fields", "only a JsonConverter can write several columns as one key")
        return cls(
            producer=_producer(config, guarantee, timeout_ms),
            topic=topic,
            creation=_creation(config, topic),
            key=key,
            value=Serializer.of(config, "value"),
            key_fields=key_fields,
            guarantee=guarantee,
            ledger=config.read(DEFINITION, "ledger.topic", str),
            dead_letter_topic=tolerance.dead_letter_destination
            if tolerance is not None and isinstance(tolerance.dead_letter_destination, DeadLetterTopic)
            else None,
            transaction_timeout_ms=timeout_ms,
        )

    @property
    def where(self) -> str:
        """The addresses of the cluster, for messages."""
        return f"Kafka at {self.producer.get(SERVERS, '')}"

    @property
    def topics(self) -> set[str]:
        """The topics that must exist: ``topic``, the topic of bad records and, with exactly-once, the ledger topic."""
        ledger = {self.ledger} if self.guarantee is Guarantee.EXACTLY_ONCE else set()
        letters = set() if self.dead_letter_topic is None else {self.dead_letter_topic.topic}
        return ledger | letters | ({self.topic} if self.topic else set())

    def metadata_columns_used(self, rows: DataFrame) -> tuple[MetadataColumn, ...]:
        """The metadata columns of ``rows`` from which a record gets its key, headers or topic, or a null value. A
        metadata column is not used if a config key or a visible column determines the same field of the record."""
        names = visible_names(rows)
        is_taken = {
            MetadataColumn.KEY: not self.key_fields and "key" not in names,
            MetadataColumn.HEADERS: not _has_headers(rows),
            MetadataColumn.TOPIC: self.topic is None and "topic" not in names,
            MetadataColumn.TOMBSTONE: True,
        }
        return tuple(part for part in is_taken if is_taken[part] and has_metadata(rows, part))

    def records(self, rows: DataFrame) -> DataFrame:
        """``rows`` as records: always the column ``value``, and each other column of :data:`RECORD_FIELDS` that these
        records have. ``key`` and ``value`` are bytes.

        :raises WorldError: when the columns cannot form a record; the message names the column or the key.
        """
        return rows.select(*(column.alias(name) for name, column in self._record_columns(rows).items()))

    def records_and_dead_letters(
        self, classified: DataFrame, dead_letter_topic: DeadLetterTopic, task: ConnectorTaskId
    ) -> DataFrame:
        """The good rows of ``classified`` (rows with the column ``BAD``) as records and its bad rows as dead letters,
        by one evaluation. The column ``topic`` contains the topic of each of them.

        :raises WorldError: when the columns cannot form a record; the message names the column or the key.
        """
        good = {"topic": F.lit(self.topic), **self._record_columns(classified.drop(BAD))}
        bad = {
            "topic": F.lit(dead_letter_topic.topic),
            **dead_letter_record_columns(
                lambda name: F.col(BAD)[name], task, has_context=dead_letter_topic.has_context
            ),
        }
        is_bad = F.col(BAD).isNotNull()
        names = [name for name in RECORD_FIELDS if name in good or name in bad]
        nothing = F.lit(None)
        return classified.select(
            *(F.when(is_bad, bad.get(name, nothing)).otherwise(good.get(name, nothing)).alias(name) for name in names)
        )

    def _record_columns(self, rows: DataFrame) -> dict[str, Column]:
        """The fields of the records, as columns of ``rows`` by name."""
        hidden = self.metadata_columns_used(rows)
        parts = self._visible_record_columns(rows, hidden)
        value = self._value(rows, [name for name in visible_names(rows) if name not in parts])
        # The columns of a tombstone's value are nulls, and a JsonConverter would write an object with null fields.
        parts["value"] = (
            F.when(~column_of(MetadataColumn.TOMBSTONE.value), value) if MetadataColumn.TOMBSTONE in hidden else value
        )
        if self.key_fields:
            parts["key"] = self._key_of_fields(rows)
        elif MetadataColumn.KEY in hidden:
            parts["key"] = self.key.of_column(rows, MetadataColumn.KEY.value)
        return parts | {
            part.field_name: column_of(part.value)
            for part in (MetadataColumn.HEADERS, MetadataColumn.TOPIC)
            if part in hidden
        }

    def _visible_record_columns(self, rows: DataFrame, hidden: tuple[MetadataColumn, ...]) -> dict[str, Column]:
        """The fields of a record that have a visible column of the same name, except the value; these columns are not
        in the value. ``hidden``: the metadata columns that are used."""
        names = visible_names(rows)
        parts: dict[str, Column] = {}
        if self.topic is None:
            if MetadataColumn.TOPIC not in hidden:
                parts["topic"] = _record_column(rows, "topic", StringType(), "; add it, or set the config key topic")
            if "partition" in names:
                parts["partition"] = _record_column(rows, "partition", IntegerType(), "")
        if _has_headers(rows):
            parts["headers"] = column_of("headers")
        if "key" in names and not self.key_fields:
            parts["key"] = self.key.of_column(rows, "key")
        return parts

    def _key_of_fields(self, rows: DataFrame) -> Column:
        """The key, from the columns in ``key.fields``.

        :raises WorldError: when ``rows`` lack one of these columns.
        """
        names = visible_names(rows)
        if unknown := [name for name in self.key_fields if name not in names]:
            raise WorldError(f"key.fields: the rows have no column {', '.join(unknown)}; they have: {', '.join(names)}")
        if self.key.format is Format.JSON:
            return self.key.of_columns(rows, self.key_fields)
        return self.key.of_column(rows, self.key_fields[0])

    def _value(self, rows: DataFrame, rest: list[str]) -> Column:
        """The value of a record, from the columns in ``rest``.

        :raises WorldError: when they cannot form a value.
        """
        if self.value.format is not Format.JSON:
            return self._raw_value(rows, rest)
        if not rest:
            raise WorldError("The rows have no column for the value of a record; add a column by a transform")
        return self.value.of_columns(rows, rest)

    def _raw_value(self, rows: DataFrame, rest: list[str]) -> Column:
        """The value of a record, for a converter that writes only the column ``value``.

        :raises WorldError: when there is no such column, or when a column would be lost that is in neither the value
            nor the key.
        """
        if unknown := [name for name in rest if name not in ("value", *self.key_fields)]:
            raise WorldError(
                f"Column {unknown[0]} is not a field of a record ({', '.join(RECORD_FIELDS)}). Drop the "
                "column by a transform, or set "
                "value.converter to a JsonConverter, which writes all columns"
            )
        if "value" not in rest:
            raise WorldError(
                "The rows have no column value; set value.converter to a JsonConverter, which writes all columns"
            )
        return self.value.of_column(rows, "value")


def definition(config: PrefixedConfig) -> ConfigDef:
    """The keys of the sink, with those of the converters that ``config`` names."""
    return DEFINITION + serializers.definition(config, "key") + serializers.definition(config, "value")


def config_errors(config: PrefixedConfig) -> dict[str, list[str]]:
    """Error messages, by the user's key, about values that are valid alone and invalid together. Empty when there are
    none."""
    overrides = config.values_under(OVERRIDE)
    found = {
        config.key(OVERRIDE + name): [f"{OVERRIDE}{name} cannot be set: {RESERVED_PRODUCER_PROPERTIES[name]}"]
        for name in sorted(RESERVED_PRODUCER_PROPERTIES.keys() & overrides.keys())
    }
    if config.read(DEFINITION, "delivery.guarantee", str) == Guarantee.EXACTLY_ONCE.value:
        for name, value in TRANSACTION_PROPERTIES.items():
            if name in overrides and overrides[name].strip().lower() not in _ALL.get(name, (value,)):
                found |= config.error_by_key(
                    OVERRIDE + name, f"a transaction needs {name}={value}; or set delivery.guarantee=at-least-once"
                )
    if found:
        return found
    try:
        KafkaTarget.of(config)
    except ConfigError as error:
        return error.listed
    return {}


def _producer(config: PrefixedConfig, guarantee: Guarantee, timeout_ms: int) -> dict[str, str]:
    """The properties of the producer: those of the worker, overridden by those of the connector. ``timeout_ms``: the
    transaction timeout, which is only set for exactly-once.

    The worker's password is for the worker's cluster: a connector with its own bootstrap.servers uses none of the
    worker's properties.
    """
    overrides = config.values_under(OVERRIDE)
    overrides.pop(TIMEOUT, None)
    properties = {**({} if SERVERS in overrides else config.worker_kafka_properties), **overrides}
    if guarantee is Guarantee.EXACTLY_ONCE:
        properties[TIMEOUT] = str(timeout_ms)
    return properties


def _creation(config: PrefixedConfig, topic: str | None) -> TopicCreation | None:
    """The settings under ``topic.creation.default.``; None when none is set: then a missing topic is not created.

    :raises ConfigError: when they are set without ``topic``, or without both the partitions and the replication factor.
    """
    given = config.values_under(CREATION)
    if not given:
        return None
    if topic is None:
        first = CREATION + sorted(given)[0]
        raise config.config_error(first, "only the topic in the key topic is created; topics from a column must exist")
    numbers = {name: config.find(DEFINITION, CREATION + name, int) for name in ("partitions", "replication.factor")}
    partitions, replication = numbers.values()
    if partitions is None or replication is None:
        key = config.key(CREATION + next(name for name, number in numbers.items() if number is None))
        raise ConfigError({key: [f"Missing required configuration {key}: with one {CREATION}* both must be set"]})
    configs = {name: value for name, value in given.items() if name not in numbers}
    return TopicCreation(partitions=partitions, replication=replication, configs=configs)


def _record_column(rows: DataFrame, name: str, type_: DataType, otherwise: str) -> Column:
    """The visible column ``name``, which becomes the field of a record with this name. ``otherwise``: what the user can
    do when the column is missing, for the message.

    :raises WorldError: when the column is missing, or has another type than ``type_``.
    """
    if name not in (names := visible_names(rows)):
        raise WorldError(f"The rows have no column {name}{otherwise}; they have: {', '.join(names)}")
    found = rows.schema[name].dataType
    if found != type_:
        raise WorldError(
            f"Column {name} has type {found.simpleString()} and must be {type_.simpleString()}: without the config key "
            "topic, the sink writes this column to the record's field of the same name"
        )
    return column_of(name)


def _has_headers(rows: DataFrame) -> bool:
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
