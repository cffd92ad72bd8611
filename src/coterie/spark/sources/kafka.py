"""``KafkaSource``: a connector that reads topics of Kafka, each partition by exactly one of its tasks.

The partitions of a task's checkpoint never change: if a task read a new partition from its beginning, while another
task's checkpoint had a position in this partition, records would be read twice. Spark itself would read a partition
without position from offset 0; here such a start fails.

The initial offsets of a connector are determined once: its first start writes them into the checkpoint as numbers.
``auto.offset.reset`` applies later, too, when retention has deleted records before they were read: with ``none`` the
task fails, with ``earliest`` and ``latest`` it continues and logs the number of these records.
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

from coterie.config.definition import Definition, Importance, Key, Type, Width, as_list, at_least, one_of
from coterie.nouns.errors import ConfigError, UnreachableError, WorldError
from coterie.spark import converters
from coterie.spark.bad_records.hidden import ERROR, ORIGINAL, with_hidden
from coterie.spark.bad_records.keys import tolerance_of
from coterie.spark.checkpoint import batch_in_flight
from coterie.spark.converters import Converter
from coterie.spark.end_config import EndConfig
from coterie.spark.failures import sentence_of, throwable_of
from coterie.spark.generations.split import SplitFunction
from coterie.spark.generations.stores import PositionStore
from coterie.spark.jars import missing
from coterie.spark.paths import SOURCE_GROUP
from coterie.spark.positions import Positions
from coterie.spark.record import HEADERS_TYPE, Part
from coterie.spark.rotation import Rotation
from coterie.spark.seams import PARTITION_BYTES, SMALL_BATCH_BYTES, SMALL_BATCH_ROWS, ReadAgainError, Share
from coterie.spark.sources.kafka_batch import consumer_options, records_of
from coterie.spark.sources.kafka_client import (
    Edge,
    KafkaAdmin,
    TopicAbsentError,
    is_away,
    kafka_admin,
    unknown_properties,
)
from coterie.spark.sources.kafka_positions import (
    GroupOffsets,
    KafkaPart,
    KafkaPositions,
    committed_offsets,
    move_on,
    next_offsets,
    partitions_of,
    planned_ranges,
)
from coterie.spark.sources.kafka_sizes import mean_bytes
from coterie.spark.transforms import use_headers

log = logging.getLogger(__name__)

OVERRIDE = "consumer.override."
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
"""The columns of a record, with their types; None for a type that the converter determines."""

OURS = {
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
"""Properties of a consumer that the user cannot set, and the reasons."""


def _columns(value: str) -> str | None:
    names = as_list(value)
    if not names or len(set(names)) < len(names) or set(names) - set(COLUMNS):
        return f"Must be a list of different columns of {', '.join(COLUMNS)}"
    return None


def _offsets(value: str) -> str | None:
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


FEW_RECORDS = 20
"""A batch of at most this many records is collected without sampling their size: Kafka rejects records above 1 MB by
default."""
LOOK_EVERY_S = 600
"""How long a sampled record size is used before it is sampled again. Sampling takes a Spark job."""
SAMPLED_RECORDS = 200
SAMPLED_PARTITIONS = 20
"""The most records per partition, and the most partitions, that are read to infer columns."""

DEFINITION = Definition(
    (
        Key(
            name="topics",
            type=Type.LIST,
            documentation="Topics that are read; or topics.regex.",
            optional=True,
            importance=Importance.HIGH,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Topics",
        ),
        Key(
            name="topics.regex",
            type=Type.STRING,
            documentation="Java's regular expression of the names of the topics that are read; or topics.",
            optional=True,
            importance=Importance.HIGH,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Topics by regular expression",
        ),
        Key(
            name="columns",
            type=Type.LIST,
            documentation=(
                "Columns of the rows, of key, value, headers, topic, partition, offset and timestamp. With a "
                "JsonConverter, value means all columns of value.schema."
            ),
            default="value",
            check=_columns,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Columns of a row",
        ),
        Key(
            name="max.offsets.per.trigger",
            type=Type.LONG,
            documentation="The most records that one batch of a task reads.",
            default="100000",
            check=at_least(1),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Records per batch",
        ),
        Key(
            name="start.timestamp.ms",
            type=Type.LONG,
            documentation="A new connector starts with the records of this time (milliseconds since 1970) and later.",
            optional=True,
            check=at_least(0),
            group=SOURCE_GROUP,
            width=Width.MEDIUM,
            display_name="Start at a time",
        ),
        Key(
            name="start.offsets",
            type=Type.STRING,
            documentation=(
                'Offsets at which a new connector starts: {"topic": {"0": 42}}; partitions that are not in the value '
                "start as without this key."
            ),
            optional=True,
            check=_offsets,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Start at offsets",
        ),
        Key(
            name=OVERRIDE + RESET,
            type=Type.STRING,
            documentation=(
                "The offset at which a new connector starts, and at which a task continues if its next records were "
                "deleted before it read them; with none the task fails then."
            ),
            default="earliest",
            check=one_of(("earliest", "latest", "none")),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Without a position",
        ),
        Key(
            name=OVERRIDE + ISOLATION,
            type=Type.STRING,
            documentation="With read_committed, records of open and aborted transactions are not read.",
            default="read_uncommitted",
            check=one_of(("read_committed", "read_uncommitted")),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Isolation level",
        ),
        Key(
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
    """Reads the partitions of one task."""

    free_prefixes: ClassVar[tuple[str, ...]] = (OVERRIDE,)
    identity: ClassVar[tuple[str, ...]] = ()
    access: ClassVar[tuple[str, ...]] = (OVERRIDE + SERVERS,)
    split_function: ClassVar[SplitFunction] = SplitFunction.PARTS_V1
    has_fixed_split: ClassVar[bool] = False
    sifts_bad_records: ClassVar[bool] = True
    store: ClassVar[PositionStore] = KafkaPositions()
    can_rotate: ClassVar[bool] = True

    consumer: Mapping[str, str] = field(repr=False)
    """Properties of Kafka's consumer; may contain passwords."""
    key: Converter
    value: Converter
    columns: tuple[str, ...]
    max_offsets_per_trigger: int
    reset: str
    is_tolerant: bool
    """Whether rows have the error columns; see ``bad_records/hidden.py``."""
    config: EndConfig = field(repr=False)
    share: Share
    has_lost_in_flight: bool = False
    """Whether records of the batch in flight had been deleted at the last start of the query; :meth:`read` sets it."""
    record_bytes: int = 0
    """The mean size of the last sampled records; 0 before the first sample, or when it had no records."""
    looked_at: float = 0.0
    """The monotonic time of the last sample, in seconds; 0 before the first sample."""
    partition_rows: int = sys.maxsize
    """The most records that one Spark partition has; :meth:`read` sets it."""

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        return DEFINITION + converters.definition(config, "key") + converters.definition(config, "value")

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """Check the jars first, then properties and schemas, and send requests to the cluster only when these are
        valid."""
        if (sentence := missing(spark, "kafka")) is not None:
            return {"source.class" if "source.class" in config.config else "connector.class": [sentence]}
        found = converters.checked(config, "key") | converters.checked(config, "value")
        overrides = config.under(OVERRIDE)
        for name in sorted(OURS.keys() & overrides.keys()):
            found[config.key(OVERRIDE + name)] = [f"{OVERRIDE}{name} cannot be set: {OURS[name]}"]
        for name in unknown_properties(overrides):
            found[config.key(OVERRIDE + name)] = [f"Kafka's consumer has no property {name}"]
        if found:
            return found
        try:
            if not cls.open_keys(config):
                own = cls.of(config, Share(index=0, count=1, parts=(), function=cls.split_function))
                _check_names(own, spark)
            parts = cls.parts(config)
            if config.find(DEFINITION, "start.offsets", str) is not None:
                cls.starts(config, parts, is_first=True)
        except ConfigError as error:
            return error.listed
        except WorldError as error:
            return {config.key(OVERRIDE + SERVERS): [str(error)]}
        return {}

    @classmethod
    def open_keys(cls, config: EndConfig) -> Sequence[str]:
        """``key.schema`` and ``value.schema``, where a JsonConverter has no schema: the keys to infer."""
        return (*converters.open_keys(config, "key"), *converters.open_keys(config, "value"))

    @classmethod
    def infer(cls, spark: SparkSession, config: EndConfig) -> Mapping[str, str]:
        """The columns of the newest records of some partitions.

        :raises ConfigError: when there is no record to infer columns from, or Spark cannot read records.
        :raises WorldError: when the cluster cannot be reached.
        """
        wanted = cls.open_keys(config)
        if not wanted:
            return {}
        records = _newest_records(spark, config, cls.parts(config))
        try:
            return {key: converters.inferred_columns(config, key.partition(".")[0], records) for key in wanted}
        except (PySparkException, Py4JJavaError) as error:
            if is_away(throwable_of(error)):
                raise UnreachableError(f"Kafka did not answer: {sentence_of(error)}") from error
            key = config.key(wanted[0])
            sentence = f"No columns can be inferred: {sentence_of(error)}. Set {key}, or try again"
            raise ConfigError({key: [sentence]}) from error

    @classmethod
    def parts(cls, config: EndConfig) -> Sequence[str]:
        """The partitions of the topics that currently exist, each with its topic's id."""
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
                raise config.refused(name, f"{error}; create it first, or correct its name") from error

    @classmethod
    def split(cls, parts: Sequence[str], tasks_max: int) -> Sequence[Sequence[str]]:
        """Assign partitions round-robin, so that those of each topic are spread. No task is without a partition."""
        return [parts[task::tasks_max] for task in range(min(tasks_max, len(parts)))]

    @classmethod
    def starts(cls, config: EndConfig, parts: Sequence[str], *, is_first: bool) -> Positions:
        """The initial offsets of partitions that were never read.

        ``is_first`` is true for all partitions of a new connector. A partition that is found later is read from its
        beginning, since records were written to it before it was found.

        :raises ConfigError: when no key determines the offset, or the partition lacks an offset in ``start.offsets``.
        :raises WorldError: when the cluster cannot be reached.
        """
        asked = [KafkaPart.parse(part) for part in parts]
        with kafka_admin(_consumer(config)) as admin:
            if not is_first:
                return admin.edges(asked, Edge.BEGINNING)
            given = _given_starts(admin, config, asked)
            rest = [part for part in asked if str(part) not in given]
            if not rest:
                return given
            at_ms = config.find(DEFINITION, "start.timestamp.ms", int)
            if at_ms is not None:
                return {**given, **admin.since(rest, at_ms)}
            reset = config.read(DEFINITION, OVERRIDE + RESET, str)
            if reset == "none":
                missing = ", ".join(part.name for part in rest)
                raise config.refused(
                    OVERRIDE + RESET,
                    f"a new connector has no position in {missing}. Set {config.key('start.offsets')} or "
                    f"{config.key('start.timestamp.ms')}, or set earliest or latest",
                )
            return {**given, **admin.edges(rest, Edge(reset))}

    @classmethod
    def of(cls, config: EndConfig, share: Share) -> Self:
        return cls(
            consumer=_consumer(config),
            key=Converter.of(config, "key"),
            value=Converter.of(config, "value"),
            columns=config.read(DEFINITION, "columns", tuple),
            max_offsets_per_trigger=config.read(DEFINITION, "max.offsets.per.trigger", int),
            reset=config.read(DEFINITION, OVERRIDE + RESET, str),
            is_tolerant=tolerance_of(config.config) is not None,
            config=config,
            share=share,
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
        for part in self._hidden:
            type_ = hidden[part.word]
            assert type_ is not None
            fields.append(StructField(part.value, type_))
        return StructType(fields)

    @property
    def _hidden(self) -> tuple[Part, ...]:
        """The metadata columns of the rows."""
        return tuple(part for part in Part if part is not Part.HEADERS or use_headers(self.config.config))

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        self._prepare(checkpoint)
        assigned: dict[str, list[int]] = {}
        for part in self._parts:
            assigned.setdefault(part.topic, []).append(part.partition)
        has_headers = "headers" in self.columns or Part.HEADERS in self._hidden or self.is_tolerant
        options = {
            # No group is joined. Spark caches consumers by group and partition, regardless of their other properties,
            # so each start needs another group: Spark appends a new id.
            "groupIdPrefix": f"connect-{self.config.config['name']}",
            **consumer_options(self.consumer),
            "assign": json.dumps(assigned),
            "maxOffsetsPerTrigger": str(self.max_offsets_per_trigger),
            "includeHeaders": str(has_headers).lower(),
            "failOnDataLoss": str(not self.has_lost_in_flight).lower(),
        }
        in_flight = batch_in_flight(checkpoint)
        if in_flight is not None:
            self._look(planned_ranges(checkpoint, in_flight, self._parts))
        self.partition_rows = self._fitting_rows
        if self.partition_rows < self.max_offsets_per_trigger:
            options["maxRecordsPerPartition"] = str(self.partition_rows)
        if rotation is not None:
            most = self.max_offsets_per_trigger
            options["minOffsetsPerTrigger"] = str(min(rotation.rows or most, most))
            options["maxTriggerDelay"] = f"{rotation.interval_ms}ms"
        records = spark.readStream.format("kafka").options(**options).load()
        if self.is_tolerant:
            records = with_hidden(records)
        for converter in (self.key, self.value):
            records = converter.convert(records)
        chosen: list[Column] = []
        for name in self.columns:
            if name == "value" and isinstance(type_ := self.value.data_type(), StructType):
                chosen += [F.col("value")[field.name].alias(field.name) for field in type_.fields]
            else:
                chosen.append(F.col(name))
        for hidden in self._hidden:
            made = F.col("value").isNull() if hidden is Part.TOMBSTONE else F.col(hidden.word)
            chosen.append(made.alias(hidden.value))
        return records.select(*chosen, *((ORIGINAL, ERROR) if self.is_tolerant else ()))

    def is_small(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        ranges = planned_ranges(checkpoint, batch_id, self._parts)
        rows = self._look(ranges)
        most = min(max((len(offsets) for offsets in ranges.values()), default=0), self.partition_rows)
        if most > 2 * self._fitting_rows:
            raise ReadAgainError(
                f"Batch {batch_id} has records of about {self.record_bytes:,} bytes: the query starts again, to read "
                f"at most {self._fitting_rows} at once"
            )
        return rows <= SMALL_BATCH_ROWS and rows * self.record_bytes <= SMALL_BATCH_BYTES

    def _look(self, ranges: Mapping[KafkaPart, range]) -> int:
        """Sample the size of a batch's records, unless a recent sample exists; returns the number of offsets in it."""
        rows = sum(len(offsets) for offsets in ranges.values())
        if rows > FEW_RECORDS and (not self.looked_at or time.monotonic() - self.looked_at > LOOK_EVERY_S):
            self.record_bytes, self.looked_at = mean_bytes(self.consumer, ranges), time.monotonic()
        return rows

    @property
    def _fitting_rows(self) -> int:
        """How many records fit into one Spark partition, according to the sampled size."""
        return max(PARTITION_BYTES // self.record_bytes, 1) if self.record_bytes else sys.maxsize

    def check_plan(self, checkpoint: Path, batch_id: int) -> None:
        """Log how many records of a batch were deleted, in a run in which Spark skips these without an error."""
        if not self.has_lost_in_flight:
            return
        ranges = planned_ranges(checkpoint, batch_id, self._parts)
        with kafka_admin(self.consumer) as admin:
            gone = _gone(admin, {str(part): offsets.start for part, offsets in ranges.items()})
        if gone:
            log.warning("%s: batch %d continues: %s", self._task, batch_id, _counted(gone))

    def group_offsets(self, checkpoint: Path) -> GroupOffsets:
        """This task's offsets for group ``connect-<name>``, the group name of a sink connector in Connect."""
        offsets = committed_offsets(checkpoint, self._parts)
        return GroupOffsets(
            group=f"connect-{self.config.config['name']}",
            offsets={part: offsets[str(part)] for part in self._parts if str(part) in offsets},
            client=self.consumer,
        )

    def check_read(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> None:
        """Does nothing: Spark fails a batch of which it could not read all records."""

    @property
    def _parts(self) -> tuple[KafkaPart, ...]:
        return tuple(KafkaPart.parse(part) for part in self.share.parts)

    @property
    def _task(self) -> str:
        return f"{self.config.config['name']}-{self.share.index}"

    def _prepare(self, checkpoint: Path) -> None:
        """Check that this task can continue from the checkpoint, and skip deleted records.

        :raises WorldError: when the checkpoint is of other partitions, a topic was deleted and created again, or
            ``auto.offset.reset`` does not allow to skip deleted records.
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
            self._skip_lost(admin, checkpoint)

    def _check_topics(self, admin: KafkaAdmin) -> None:
        try:
            there = set(admin.partitions(sorted({part.topic for part in self._parts})))
        except TopicAbsentError as error:
            raise WorldError(f"Task {self._task} cannot continue: {error}") from error
        if recreated := sorted(set(self._parts) - there):
            raise WorldError(
                f"Task {self._task} cannot continue: {', '.join(part.name for part in recreated)} is not the partition "
                "that the task has read, since the topic was deleted and created again. The connector is split again "
                "within a minute"
            )

    def _skip_lost(self, admin: KafkaAdmin, checkpoint: Path) -> None:
        in_flight = batch_in_flight(checkpoint)
        positions = (next_offsets if in_flight is None else committed_offsets)(checkpoint, self._parts)
        gone = _gone(admin, positions)
        self.has_lost_in_flight = bool(gone) and in_flight is not None
        if not gone:
            return
        if self.reset == "none":
            raise WorldError(
                f"Task {self._task} cannot continue: {_counted(gone)}. With {OVERRIDE}{RESET}=earliest it continues "
                "with the oldest existing record, with latest at the end"
            )
        if in_flight is not None:
            return  # Spark reads the existing records of the batch; check_plan logs how many were deleted.
        lost = [KafkaPart.parse(name) for name in gone]
        move_on(checkpoint, {**positions, **admin.edges(lost, Edge(self.reset))})
        log.warning("%s continues at the %s offset: %s", self._task, self.reset, _counted(gone))


def _consumer(config: EndConfig) -> dict[str, str]:
    """Properties of the consumer: the worker's, overridden by the connector's.

    The worker's password is for the worker's cluster: a connector with its own bootstrap.servers uses none of the
    worker's properties.
    """
    overrides = config.under(OVERRIDE)
    overrides.pop(RESET, None)
    isolation = config.read(DEFINITION, OVERRIDE + ISOLATION, str)
    return {**({} if SERVERS in overrides else config.worker), **overrides, ISOLATION: isolation}


def _matching(admin: KafkaAdmin, config: EndConfig, pattern: str) -> tuple[str, ...]:
    try:
        topics = admin.topics(pattern)
    except ValueError as error:
        raise config.refused("topics.regex", str(error)) from error
    if not topics:
        raise config.refused("topics.regex", "no topic matches; create a topic first, or correct the expression")
    return tuple(topics)


def _given_starts(admin: KafkaAdmin, config: EndConfig, parts: Sequence[KafkaPart]) -> dict[str, int]:
    """The offsets in ``start.offsets``, by partition."""
    given: Mapping[str, Mapping[str, int]] = json.loads(config.find(DEFINITION, "start.offsets", str) or "{}")
    asked = [part for part in parts if str(part.partition) in given.get(part.topic, {})]
    if not asked:
        return {}
    beginnings, ends = admin.edges(asked, Edge.BEGINNING), admin.edges(asked, Edge.END)
    found: dict[str, int] = {}
    for part in asked:
        offset, name = given[part.topic][str(part.partition)], str(part)
        if not beginnings[name] <= offset <= ends[name]:
            raise config.refused(
                "start.offsets",
                f"{part.name} has no offset {offset}: its records are {beginnings[name]} to {ends[name]}",
            )
        found[name] = offset
    return found


def _check_names(source: KafkaSource, spark: SparkSession) -> None:
    """:raises ConfigError: when two columns of a row have the same name."""
    names = [field.name.lower() for field in source.schema(spark).fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise source.config.refused(
            "columns", f"value.schema has a column {', '.join(twice)} too; rename that column, or leave this one out"
        )


def _newest_records(spark: SparkSession, config: EndConfig, names: Sequence[str]) -> DataFrame:
    """Up to :data:`SAMPLED_RECORDS` of the newest records of each of up to :data:`SAMPLED_PARTITIONS` partitions."""
    parts = [KafkaPart.parse(name) for name in names]
    consumer = _consumer(config)
    with kafka_admin(consumer) as admin:
        ends, begins = admin.edges(parts, Edge.END), admin.edges(parts, Edge.BEGINNING)
    # Ordered by partition number first, so that the sample covers all topics.
    in_turn = sorted(parts, key=lambda part: (part.partition, part.topic))
    sampled = [part for part in in_turn if ends[str(part)] > begins[str(part)]][:SAMPLED_PARTITIONS]
    if not sampled:
        return spark.createDataFrame([], "key BINARY, value BINARY")
    ranges = {
        part: range(max(begins[str(part)], ends[str(part)] - SAMPLED_RECORDS), ends[str(part)]) for part in sampled
    }
    return records_of(spark, consumer, ranges)


def _gone(admin: KafkaAdmin, positions: Positions) -> dict[str, int]:
    """How many offsets at and after each position retention has deleted, by partition; only if more than 0."""
    beginnings: Any = admin.edges([KafkaPart.parse(name) for name in positions], Edge.BEGINNING)
    return {name: beginnings[name] - at for name, at in positions.items() if beginnings[name] > at}


def _counted(gone: Mapping[str, int]) -> str:
    each = ", ".join(f"{count} in {KafkaPart.parse(name).name}" for name, count in sorted(gone.items()))
    return f"records were deleted before they were read: {each}"


def _named(partitions: set[tuple[str, int]] | frozenset[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions)) or "none"
