"""The Kafka sink: rows become records of a topic; exactly once by transactions, or at least once by Spark's writer.

Spark's Kafka writer has no transactions. So an exactly-once batch goes through one transactional producer on the
driver: Spark's own code turns rows into records and passes them to that producer, in the JVM, row by row.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import ConfigDef
from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.bad_records.keys import QUEUE, DeadLetterDestination, DeadLetterTopic
from coterie.spark.bad_records.separator import BadRowSeparator
from coterie.spark.failures import message_of, raise_error_message, throwable_of
from coterie.spark.fence import FencedError
from coterie.spark.jars import missing_package_message
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import MetadataColumn, column, metadata_names
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, StagedBatch, TaskLineage
from coterie.spark.sinks.kafka_target import (
    CREATION,
    DEFINITION,
    OVERRIDE,
    SERVERS,
    Guarantee,
    KafkaTarget,
    config_errors,
    definition,
)
from coterie.spark.sinks.kafka_writer import (
    BYTES,
    DENIED,
    HOW_LARGER,
    TOO_LARGE,
    KafkaWriter,
    NewTopic,
    Send,
    absent_topics,
    ledger_policy_error,
    make_topics,
    missing_topic_message,
    new_topics,
    spark_pool,
)
from coterie.spark.sources.kafka_client import (
    is_retriable,
    kafka_admin,
    kafka_jvm,
    message_with_causes,
    unknown_producer_properties,
)


class KafkaSink:
    """Writes rows as records of Kafka topics."""

    identity_keys: ClassVar[tuple[str, ...]] = ("topic", "delivery.guarantee", "ledger.topic")
    connection_keys: ClassVar[tuple[str, ...]] = (OVERRIDE + SERVERS,)
    free_key_prefixes: ClassVar[tuple[str, ...]] = (OVERRIDE, CREATION)
    rotation: ClassVar[Rotation | None] = None
    atomic_dead_letters: ClassVar[tuple[type[DeadLetterDestination], ...]] = (DeadLetterTopic,)

    def __init__(self, target: KafkaTarget, config: PrefixedConfig) -> None:
        self._target = target
        self._config = config
        self._writer: KafkaWriter | None = None

    @classmethod
    def definition(cls, config: PrefixedConfig) -> ConfigDef:
        return definition(config)

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        """Error messages by the user's key. Checks the jars first, then the keys; sends requests to the cluster only if
        both are valid."""
        if (sentence := missing_package_message(spark, "kafka")) is not None:
            return {next(key for key in ("sink.class", "connector.class") if key in config.config): [sentence]}
        if found := config_errors(config):
            return found
        unknown = unknown_producer_properties(config.values_under(OVERRIDE))
        if unknown:
            return {config.key(OVERRIDE + name): [f"Kafka's producer has no property {name}"] for name in unknown}
        return _errors_at_cluster(config)

    @classmethod
    def is_exactly_once(cls, config: PrefixedConfig) -> bool:
        return config.read(DEFINITION, "delivery.guarantee", str) == Guarantee.EXACTLY_ONCE.value

    @classmethod
    def of(cls, config: PrefixedConfig) -> Self:
        return cls(KafkaTarget.of(config), config)

    def take_over(self, lineage: TaskLineage, start_number: int) -> None:
        """Create missing topics. With exactly-once, also close the producer of this object's last take-over, and fence
        the producers of earlier starts. ``start_number`` is not used: Kafka fences by the transactional id.

        :raises FencedError, WorldError: see :meth:`KafkaWriter.take_over`.
        """
        self.close()
        if self._target.guarantee is Guarantee.AT_LEAST_ONCE:
            with kafka_admin(self._target.producer) as admin:
                make_topics(admin, self._target)
            return
        java = kafka_jvm()
        writer = KafkaWriter(self._target, lineage, java, spark_pool(java))
        self._writer = writer
        writer.take_over()

    def to_sink_columns(self, rows: DataFrame) -> DataFrame:
        """The visible columns, and the metadata columns that become key, headers or topic of a record or make its value
        null.

        :raises ConfigError: when ``key.converter`` cannot write the key of the records that were read.
        """
        taken = self._target.metadata_columns_used(rows)
        if MetadataColumn.KEY in taken:
            self._check_key(rows)
        names = [part.value for part in taken]
        return rows.drop(*(name for name in metadata_names(rows) if name not in names))

    def _check_key(self, rows: DataFrame) -> None:
        """:raises ConfigError: when ``key.converter`` cannot write the metadata column of the key."""
        try:
            self._target.key.of_column(rows.select(column(MetadataColumn.KEY.value).alias("key")), "key")
        except WorldError as error:
            raise self._config.config_error("key.converter", f"it cannot write the records' key: {error}") from error

    @classmethod
    def remove_commit_markers(cls, config: PrefixedConfig, lineages: Sequence[TaskLineage]) -> None:
        """Does nothing: the ledger has one record for each task, and later starts fence earlier ones."""

    def stage(self, batch: Batch) -> StagedBatch:
        """With exactly-once, send the batch in a transaction that stays open: see :meth:`KafkaWriter.stage`. With
        at-least-once nothing is sent before the commit. With a separator, the records of bad rows are sent together
        with those of good rows.

        :raises FencedError: when :meth:`take_over` was not called before.
        :raises WorldError: when the columns cannot form a record.
        """
        target, sifter, topic = self._target, batch.separator, self._target.topic
        if sifter is None or target.dead_letter_topic is None:
            records = target.records(batch.rows)
        else:
            records, topic = (
                target.records_and_dead_letters(
                    sifter.with_bad_row_metrics(), target.dead_letter_topic, batch.lineage.task
                ),
                None,
            )
        if target.guarantee is Guarantee.AT_LEAST_ONCE:
            return DirectKafkaWrite(target, records, topic, sifter)
        if self._writer is None:
            raise FencedError
        staged = self._writer.stage(batch.batch_id, lambda: sender(records, topic, is_small=batch.is_small))
        if sifter is not None:
            sifter.read_bad_row_metrics(records)
        return staged

    def close(self) -> None:
        """Close the producer. Raises nothing."""
        if self._writer is not None:
            self._writer.close()


def sender(records: DataFrame, topic: str | None, *, is_small: bool) -> Send | None:
    """A function that sends ``records`` by a producer; None when there are no records. ``topic``: the topic of all
    records; None when the column ``topic`` contains it.

    The driver collects all records of a small batch at once, and those of a large batch one Spark partition at a time.

    :raises Py4JJavaError: when Spark cannot compute the first rows.
    """
    java: Any = records.sparkSession._jvm
    plan = records._jdf.queryExecution().executedPlan()
    # As Spark's own collect and toLocalIterator: rows in Spark's internal form, which its record writer takes.
    rows = getattr(plan.executeCollectIterator(), "_2")() if is_small else plan.executeToIterator()  # noqa: B009
    if not rows.hasNext():
        return None
    task = java.org.apache.spark.sql.kafka010.KafkaWriteTask

    def send(producer: Any, properties: Any) -> None:
        writing = task(properties, plan.output(), java.scala.Option.apply(topic))
        try:
            writing.execute(rows)
        finally:
            # Waits until all records are sent, and raises the error of the first failed record.
            writing.close()

    return send


class DirectKafkaWrite:
    """The records of a batch; Spark's writer makes them visible as it writes them, so nothing is staged."""

    def __init__(
        self, target: KafkaTarget, records: DataFrame, topic: str | None, separator: BadRowSeparator | None
    ) -> None:
        """``topic``: the topic of all records; None when the column ``topic`` contains it. ``separator``: None when
        ``records`` contain no bad records; else :meth:`commit` sets its bad-row summary."""
        self._target = target
        self._records = records
        self._topic = topic
        self._separator = separator

    def commit(self) -> None:
        """Append the records.

        :raises UnreachableError: when the cluster cannot be reached.
        :raises WorldError: when a record is too large for the cluster, or the sink lacks a right.
        :raises PySparkException, Py4JJavaError: when Spark cannot compute the rows, or the writer fails for another
            reason.
        """
        java: Any = self._records.sparkSession._jvm
        properties = java.java.util.HashMap()
        for name, value in {**self._target.producer, "key.serializer": BYTES, "value.serializer": BYTES}.items():
            properties.put(name, value)
        write = java.org.apache.spark.sql.kafka010.KafkaWriter.write
        try:
            # DataFrame.write would create another plan, and the metrics of `observe` are reported for this plan only.
            write(self._records._jdf.queryExecution(), properties, java.scala.Option.apply(self._topic))
        except (PySparkException, Py4JJavaError) as error:
            if raise_error_message(error) is not None:
                raise
            sentence = f"{self._target.where}: Spark's writer failed: {message_of(error)}"
            if TOO_LARGE in str(error):
                raise WorldError(f"{sentence}. {HOW_LARGER}") from error
            if is_retriable(throwable_of(error)):
                raise UnreachableError(sentence) from error
            if any(name in message_with_causes(throwable_of(error)) for name in DENIED):
                raise WorldError(f"{sentence}. The sink needs WRITE on the topics it writes to") from error
            raise
        if self._separator is not None:
            self._separator.read_bad_row_metrics(self._records)

    def clean_up(self) -> None:
        """Does nothing: there is no staged copy."""


def _errors_at_cluster(config: PrefixedConfig) -> dict[str, list[str]]:
    """Error messages by the user's key that only the cluster can detect, for a config whose values are valid. No topic
    is created: the cluster only checks whether it could create the missing topics."""
    target = KafkaTarget.of(config)
    try:
        with kafka_admin(target.producer) as admin:
            absent = absent_topics(admin, target)
            if target.topic in absent and target.creation is None:
                return config.error_by_key("topic", missing_topic_message(target))
            for new in new_topics(target, absent):
                try:
                    admin.create_topic(new.name, new.partitions, new.replication, new.configs, validate_only=True)
                except UnreachableError:
                    raise
                except WorldError as error:
                    return _uncreatable(config, new, error)
            has_ledger = target.guarantee is Guarantee.EXACTLY_ONCE and target.ledger not in absent
            if has_ledger and (invalid := ledger_policy_error(admin, target)) is not None:
                return config.error_by_key("ledger.topic", invalid)
    except WorldError as error:
        return config.error_by_key(OVERRIDE + SERVERS, str(error))
    return {}


def _uncreatable(config: PrefixedConfig, new: NewTopic, error: WorldError) -> dict[str, list[str]]:
    """The error message for the topic ``new``, which the cluster would not create, by the key of the value that is the
    cause: the replication factor or the name."""
    name = new.replication_key if "ReplicationFactor" in str(error) else new.key
    # The keys of bad records have no prefix.
    key = name if name.startswith(QUEUE) else config.key(name)
    return {key: [f"Topic {new.name} cannot be created with this {key}: {error}"]}
