"""The config keys of the Kafka sink, named as in Connect's source connectors; and ``KafkaTarget``, their values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from coterie.config.definition import Definition, Importance, Key, Type, Width, as_list, at_least, not_blank, one_of
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark import serializers
from coterie.spark.bad_records.hidden import BAD
from coterie.spark.bad_records.keys import ToTopic, tolerance_of
from coterie.spark.bad_records.letters import record_parts
from coterie.spark.converters import Format
from coterie.spark.end_config import EndConfig
from coterie.spark.paths import SINK_GROUP
from coterie.spark.record import Part, has, visible_names
from coterie.spark.serializers import Serializer, column_of

OVERRIDE = "producer.override."
CREATION = "topic.creation.default."
SERVERS = "bootstrap.servers"
TIMEOUT = "transaction.timeout.ms"
LEDGER_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
"""Configs of a ledger topic that the sink creates. Small segments are compacted early, so that a start reads little."""
LEDGER_PARTITIONS = 16

OURS = {
    "transactional.id": "it is made of ledger.topic, the connector's name and the task",
    "key.serializer": "key.converter determines how keys are written",
    "value.serializer": "value.converter determines how values are written",
    "interceptor.classes": "the sink runs no interceptors",
    "client.id": "each start of a task needs another client id",
}
"""Properties of a producer that the user cannot set, and the reasons."""
OF_TRANSACTIONS = {"enable.idempotence": "true", "acks": "all"}
"""The values that Kafka requires for transactions."""
_ALL = {"acks": ("all", "-1")}

RECORD = ("topic", "key", "value", "headers", "partition")
"""The fields of a record that Spark's Kafka writer takes from columns of these names."""


class Guarantee(Enum):
    """How often a reader with ``isolation.level=read_committed`` sees a row of a batch that is replayed."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


def _names(value: str) -> str | None:
    names = as_list(value)
    return (
        None
        if all(names) and len(set(names)) == len(names)
        else "Must be names of columns, separated by commas, each once"
    )


def _replication(value: str) -> str | None:
    return None if int(value) == -1 or int(value) >= 1 else "Value must be -1 (the broker's default) or at least 1"


def _key(name: str, type_: Type, documentation: str, label: str, **others: object) -> Key:
    return Key(
        name=name,
        type=type_,
        documentation=documentation,
        group=SINK_GROUP,
        width=Width.MEDIUM,
        display_name=label,
        **others,  # type: ignore[arg-type]
    )


DEFINITION = Definition(
    (
        _key(
            "topic",
            Type.STRING,
            "The topic of all records; without it the column topic of a row, else the topic from which it was read.",
            "Topic",
            optional=True,
            importance=Importance.HIGH,
            check=not_blank,
        ),
        _key(
            "key.fields",
            Type.LIST,
            "Columns that form the key of a record; without it the column key, else the record's key as it was read.",
            "Fields of the key",
            default="",
            check=_names,
        ),
        _key(
            "delivery.guarantee",
            Type.STRING,
            "exactly-once writes each batch in a transaction; at-least-once may write rows again after a failure.",
            "Delivery guarantee",
            default=Guarantee.EXACTLY_ONCE.value,
            importance=Importance.HIGH,
            check=one_of([one.value for one in Guarantee]),
        ),
        _key(
            "ledger.topic",
            Type.STRING,
            "The compacted topic that states the last batch of each task; created when it does not exist.",
            "Ledger topic",
            default="coterie-ledger",
            check=not_blank,
        ),
        _key(
            CREATION + "replication.factor",
            Type.SHORT,
            "Replication factor of the topic if it has to be created; -1 is the broker's default.",
            "Replication factor of a new topic",
            optional=True,
            check=_replication,
        ),
        _key(
            CREATION + "partitions",
            Type.INT,
            "Partitions of the topic if it has to be created; -1 is the broker's default.",
            "Partitions of a new topic",
            optional=True,
            check=_replication,
        ),
        _key(
            OVERRIDE + TIMEOUT,
            Type.INT,
            "How long the transaction of one batch may take, at most the broker's transaction.max.timeout.ms.",
            "Transaction timeout (ms)",
            default="300000",
            check=at_least(1000),
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
class Creation:
    """Settings with which a missing topic is created; -1 means the broker's default."""

    partitions: int
    replication: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTarget:
    """The topics that a task writes to, and how rows become records."""

    producer: Mapping[str, str] = field(repr=False)
    """Properties of Kafka's producer; may contain passwords."""
    topic: str | None
    creation: Creation | None
    key: Serializer
    value: Serializer
    key_fields: tuple[str, ...]
    guarantee: Guarantee
    ledger: str
    letters: ToTopic | None
    """The topic of bad records, which the sink writes in the transaction of the good records."""
    transaction_timeout_ms: int

    @classmethod
    def of(cls, config: EndConfig) -> Self:
        """:raises ConfigError: when a value is not valid; the error contains the key."""
        topic = config.find(DEFINITION, "topic", str)
        key = Serializer.of(config, "key")
        key_fields = config.read(DEFINITION, "key.fields", tuple)
        guarantee = Guarantee(config.read(DEFINITION, "delivery.guarantee", str))
        timeout_ms = config.read(DEFINITION, OVERRIDE + TIMEOUT, int)
        tolerance = tolerance_of(config.config)
        if len(key_fields) > 1 and key.format is not Format.JSON:
            raise config.refused("key.fields", "only a JsonConverter can write several columns as one key")
        return cls(
            producer=_producer(config, guarantee, timeout_ms),
            topic=topic,
            creation=_creation(config, topic),
            key=key,
            value=Serializer.of(config, "value"),
            key_fields=key_fields,
            guarantee=guarantee,
            ledger=config.read(DEFINITION, "ledger.topic", str),
            letters=tolerance.letters if tolerance is not None and isinstance(tolerance.letters, ToTopic) else None,
            transaction_timeout_ms=timeout_ms,
        )

    @property
    def where(self) -> str:
        """The cluster, for messages."""
        return f"Kafka at {self.producer.get(SERVERS, '')}"

    @property
    def topics(self) -> set[str]:
        """The topics that have to exist, including the ledger."""
        ledger = {self.ledger} if self.guarantee is Guarantee.EXACTLY_ONCE else set()
        letters = set() if self.letters is None else {self.letters.topic}
        return ledger | letters | ({self.topic} if self.topic else set())

    def hidden_parts(self, rows: DataFrame) -> tuple[Part, ...]:
        """The metadata columns of ``rows`` that become fields of a record: those for which neither a config key nor a
        visible column is used instead."""
        names = visible_names(rows)
        is_taken = {
            Part.KEY: not self.key_fields and "key" not in names,
            Part.HEADERS: not _has_headers(rows),
            Part.TOPIC: self.topic is None and "topic" not in names,
            Part.TOMBSTONE: True,
        }
        return tuple(part for part in is_taken if is_taken[part] and has(rows, part))

    def records(self, rows: DataFrame) -> DataFrame:
        """``rows`` as records: columns ``key`` and ``value`` of bytes, and the other columns of :data:`RECORD` if any.

        :raises WorldError: when the columns cannot form a record; the message contains the column.
        """
        return rows.select(*(column.alias(name) for name, column in self._parts(rows).items()))

    def sifted(self, classified: DataFrame, letters: ToTopic, task: ConnectorTaskId) -> DataFrame:
        """Good rows as records and bad rows as dead letters, by one evaluation; the column ``topic`` has their topic.

        :raises WorldError: when the columns cannot form a record; the message contains the column.
        """
        good = {"topic": F.lit(self.topic), **self._parts(classified.drop(BAD))}
        bad = {
            "topic": F.lit(letters.topic),
            **record_parts(lambda name: F.col(BAD)[name], task, has_context=letters.has_context),
        }
        is_bad = F.col(BAD).isNotNull()
        names = [name for name in RECORD if name in good or name in bad]
        nothing = F.lit(None)
        return classified.select(
            *(F.when(is_bad, bad.get(name, nothing)).otherwise(good.get(name, nothing)).alias(name) for name in names)
        )

    def _parts(self, rows: DataFrame) -> dict[str, Column]:
        hidden = self.hidden_parts(rows)
        parts = self._visible_parts(rows, hidden)
        value = self._value(rows, [name for name in visible_names(rows) if name not in parts])
        # The columns of a tombstone's value are nulls, and a JsonConverter would write an object with null fields.
        parts["value"] = F.when(~column_of(Part.TOMBSTONE.value), value) if Part.TOMBSTONE in hidden else value
        if self.key_fields:
            parts["key"] = self._key_of_fields(rows)
        elif Part.KEY in hidden:
            parts["key"] = self.key.of_column(rows, Part.KEY.value)
        return parts | {part.word: column_of(part.value) for part in (Part.HEADERS, Part.TOPIC) if part in hidden}

    def _visible_parts(self, rows: DataFrame, hidden: tuple[Part, ...]) -> dict[str, Column]:
        """The fields of a record that have a visible column of the same name; these columns are not in the value."""
        names = visible_names(rows)
        parts: dict[str, Column] = {}
        if self.topic is None:
            if Part.TOPIC not in hidden:
                parts["topic"] = _part(rows, "topic", StringType(), "; without it, set the config key topic")
            if "partition" in names:
                parts["partition"] = _part(rows, "partition", IntegerType(), "")
        if _has_headers(rows):
            parts["headers"] = column_of("headers")
        if "key" in names and not self.key_fields:
            parts["key"] = self.key.of_column(rows, "key")
        return parts

    def _key_of_fields(self, rows: DataFrame) -> Column:
        names = visible_names(rows)
        if unknown := [name for name in self.key_fields if name not in names]:
            raise WorldError(f"key.fields: there is no column {', '.join(unknown)}; there are: {', '.join(names)}")
        if self.key.format is Format.JSON:
            return self.key.of_columns(rows, self.key_fields)
        return self.key.of_column(rows, self.key_fields[0])

    def _value(self, rows: DataFrame, rest: list[str]) -> Column:
        """The value of a record, from the columns in ``rest``."""
        if self.value.format is not Format.JSON:
            return self._raw_value(rows, rest)
        if not rest:
            raise WorldError("There is no column for the value of a record")
        return self.value.of_columns(rows, rest)

    def _raw_value(self, rows: DataFrame, rest: list[str]) -> Column:
        """The value from the column ``value``; an error if another column would be lost."""
        if unknown := [name for name in rest if name not in ("value", *self.key_fields)]:
            raise WorldError(
                f"Column {unknown[0]} is not a field of a record ({', '.join(RECORD)}). Drop it by a transform, or set "
                "value.converter to a JsonConverter, which writes all columns"
            )
        if "value" not in rest:
            raise WorldError(
                "There is no column value; set value.converter to a JsonConverter, which writes all columns"
            )
        return self.value.of_column(rows, "value")


def definition(config: EndConfig) -> Definition:
    """All keys of the sink."""
    return DEFINITION + serializers.definition(config, "key") + serializers.definition(config, "value")


def errors_of(config: EndConfig) -> dict[str, list[str]]:
    """Errors of keys whose values are valid alone and invalid together, by the user's key."""
    overrides = config.under(OVERRIDE)
    found = {
        config.key(OVERRIDE + name): [f"{OVERRIDE}{name} cannot be set: {OURS[name]}"]
        for name in sorted(OURS.keys() & overrides.keys())
    }
    if config.read(DEFINITION, "delivery.guarantee", str) == Guarantee.EXACTLY_ONCE.value:
        for name, value in OF_TRANSACTIONS.items():
            if name in overrides and overrides[name].strip().lower() not in _ALL.get(name, (value,)):
                found |= config.error(
                    OVERRIDE + name, f"a transaction needs {name}={value}; or set delivery.guarantee=at-least-once"
                )
    if found:
        return found
    try:
        KafkaTarget.of(config)
    except ConfigError as error:
        return error.listed
    return {}


def _producer(config: EndConfig, guarantee: Guarantee, timeout_ms: int) -> dict[str, str]:
    """Properties of the producer: the worker's, overridden by the connector's.

    The worker's password is for the worker's cluster: a connector with its own bootstrap.servers uses none of the
    worker's properties.
    """
    overrides = config.under(OVERRIDE)
    overrides.pop(TIMEOUT, None)
    properties = {**({} if SERVERS in overrides else config.worker), **overrides}
    if guarantee is Guarantee.EXACTLY_ONCE:
        properties[TIMEOUT] = str(timeout_ms)
    return properties


def _creation(config: EndConfig, topic: str | None) -> Creation | None:
    given = config.under(CREATION)
    if not given:
        return None
    if topic is None:
        first = CREATION + sorted(given)[0]
        raise config.refused(first, "only the topic in the key topic is created; topics from a column must exist")
    numbers = {name: config.find(DEFINITION, CREATION + name, int) for name in ("partitions", "replication.factor")}
    partitions, replication = numbers.values()
    if partitions is None or replication is None:
        key = config.key(CREATION + next(name for name, number in numbers.items() if number is None))
        raise ConfigError({key: [f"Missing required configuration {key}: with one {CREATION}* both must be set"]})
    configs = {name: value for name, value in given.items() if name not in numbers}
    return Creation(partitions=partitions, replication=replication, configs=configs)


def _part(rows: DataFrame, name: str, type_: DataType, otherwise: str) -> Column:
    if name not in (names := visible_names(rows)):
        raise WorldError(f"The rows have no column {name}{otherwise}; there are: {', '.join(names)}")
    found = rows.schema[name].dataType
    if found != type_:
        raise WorldError(
            f"Column {name} has type {found.simpleString()} and must be {type_.simpleString()}: without the config key "
            "topic, the sink writes this column to the record's field of the same name"
        )
    return column_of(name)


def _has_headers(rows: DataFrame) -> bool:
    """Whether the visible column ``headers`` has the type of Kafka's headers, as the Kafka source reads them."""
    if "headers" not in rows.columns:
        return False
    type_ = rows.schema["headers"].dataType
    return (
        isinstance(type_, ArrayType)
        and isinstance(type_.elementType, StructType)
        and [field.dataType for field in type_.elementType.fields] == [StringType(), BinaryType()]
        and type_.elementType.names == ["key", "value"]
    )
