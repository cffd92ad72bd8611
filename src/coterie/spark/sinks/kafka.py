"""The Kafka sink: rows become records of a topic; exactly once by transactions, or at least once by Spark's writer.

Spark's Kafka writer has no transactions. So an exactly-once batch goes through one transactional producer on the
driver: Spark's own code turns rows into records and passes them to that producer, in the JVM, row by row.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import chain
from typing import Any, ClassVar, Self

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import ConfigDef
from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.arrow import arrow_batches_to_internal_rows, store_and_yield_arrow_partitions
from coterie.spark.bad_records.keys import DEAD_LETTER_KEY_PREFIX, DeadLetterDestination, DeadLetterTopic
from coterie.spark.bad_records.separator import BadRowSeparator
from coterie.spark.failures import error_message, java_exception_of, message_passed_to_raise_error
from coterie.spark.fence import FencedError
from coterie.spark.jars import missing_jars_message
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import MetadataColumn, exact_column, metadata_column_names
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, StagedBatch, TaskCheckpointLineage
from coterie.spark.sinks.kafka_target import (
    BOOTSTRAP_SERVERS,
    DEFINITION,
    PRODUCER_OVERRIDE_PREFIX,
    TOPIC_CREATION_PREFIX,
    DeliveryGuarantee,
    KafkaTarget,
    config_errors,
    definition,
)
from coterie.spark.sinks.kafka_writer import (
    AUTHORIZATION_EXCEPTIONS,
    BYTES_SERIALIZER,
    LARGER_RECORDS_ADVICE,
    RECORD_TOO_LARGE_EXCEPTION,
    KafkaWriter,
    NewTopic,
    SendFunction,
    UncreatableTopicError,
    creatable_topics,
    create_missing_topics_or_raise,
    find_absent_topics,
    ledger_policy_error,
    spark_producer_pool,
)
from coterie.spark.sources.kafka_client import (
    kafka_admin,
    kafka_jvm,
    may_kafka_retry_succeed,
    message_with_causes,
    unknown_producer_properties,
)


class KafkaSink:
    """Writes rows as records of Kafka topics. Its ledger topic keeps one record for each task: there is no
    deduplication data to remove."""

    identity_keys: ClassVar[tuple[str, ...]] = ("topic", "delivery.guarantee", "ledger.topic")
    connection_keys: ClassVar[tuple[str, ...]] = (PRODUCER_OVERRIDE_PREFIX + BOOTSTRAP_SERVERS,)
    free_key_prefixes: ClassVar[tuple[str, ...]] = (PRODUCER_OVERRIDE_PREFIX, TOPIC_CREATION_PREFIX)
    rotation: ClassVar[Rotation | None] = None
    atomic_dead_letter_destinations: ClassVar[tuple[type[DeadLetterDestination], ...]] = (DeadLetterTopic,)

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
        if (missing_jars := missing_jars_message(spark, "kafka")) is not None:
            return {next(key for key in ("sink.class", "connector.class") if key in config.config): [missing_jars]}
        if errors := config_errors(config):
            return errors
        unknown = unknown_producer_properties(config.values_under_prefix(PRODUCER_OVERRIDE_PREFIX))
        if unknown:
            return {
                config.user_key(PRODUCER_OVERRIDE_PREFIX + name): [f"Kafka's producer has no property {name}"]
                for name in unknown
            }
        return _find_first_cluster_error(config)

    @classmethod
    def is_exactly_once(cls, config: PrefixedConfig) -> bool:
        return config.required_value(DEFINITION, "delivery.guarantee", str) == DeliveryGuarantee.EXACTLY_ONCE.value

    @classmethod
    def of(cls, config: PrefixedConfig) -> Self:
        return cls(KafkaTarget.of(config), config)

    @property
    def used_topics(self) -> frozenset[str]:
        """The topic of the config; empty when a column contains the topics of the rows."""
        return frozenset({self._target.topic} if self._target.topic else ())

    def take_over(self, lineage: TaskCheckpointLineage, task_start_number: int) -> None:
        """Create the missing topics that may be created. With exactly-once, also close the producer of this object's
        last take-over, fence the producers of earlier starts, and read the task's last batch from the ledger topic.
        ``task_start_number`` is not used: Kafka fences by the transactional id.

        :raises FencedError, WorldError: see :meth:`KafkaWriter.take_over`.
        """
        self.close()
        if self._target.guarantee is DeliveryGuarantee.AT_LEAST_ONCE:
            with kafka_admin(self._target.producer_properties) as admin:
                create_missing_topics_or_raise(admin, self._target)
            return
        java = kafka_jvm()
        writer = KafkaWriter(self._target, lineage, java, spark_producer_pool(java))
        self._writer = writer
        writer.take_over()

    def to_sink_columns(self, rows: DataFrame) -> DataFrame:
        """The visible columns (those of the record's value), and those metadata columns (hidden columns with the key,
        headers, topic, ... of the record that was read) that become key, headers or topic of the written record, or
        make its value null.

        :raises ConfigError: when ``key.converter`` cannot write the key of the records that were read.
        """
        used_columns = self._target.metadata_columns_used(rows)
        if MetadataColumn.KEY in used_columns:
            self._check_key_converter(rows)
        names = [metadata_column.value for metadata_column in used_columns]
        return rows.drop(*(name for name in metadata_column_names(rows) if name not in names))

    def _check_key_converter(self, rows: DataFrame) -> None:
        """Check that ``key.converter`` can write the metadata column of the key of ``rows``.

        :raises ConfigError: when it cannot; the error names the key ``key.converter``.
        """
        try:
            self._target.key_serializer.serialize_column(
                rows.select(exact_column(MetadataColumn.KEY.value).alias("key")), "key"
            )
        except WorldError as error:
            raise self._config.make_config_error(
                "key.converter", f"the converter cannot write the key of the records that were read: {error}"
            ) from error

    @classmethod
    def remove_deduplication_data(cls, config: PrefixedConfig, lineages: Sequence[TaskCheckpointLineage]) -> None:
        """Does nothing: the ledger has one record for each task, and later starts fence earlier ones."""

    def stage(self, batch: Batch) -> StagedBatch:
        """With exactly-once, send the batch in a transaction that stays open: see :meth:`KafkaWriter.stage`. With
        at-least-once nothing is sent before the commit. If the batch has a separator, the dead letters of its bad rows
        are sent together with the records of its good rows.

        :raises FencedError: with exactly-once, when :meth:`take_over` was not called before, or as
            :meth:`KafkaWriter.stage`.
        :raises WorldError: when the columns cannot form a record, or as :meth:`KafkaWriter.stage`.
        """
        target, separator = self._target, batch.bad_row_separator_for_atomic_sink

        def make_records() -> tuple[DataFrame, str | None]:
            """The records, and the topic of all of them; None when the column ``topic`` contains it."""
            if separator is None or target.dead_letter_topic is None:
                return target.to_records(batch.rows), target.topic
            rows = separator.with_bad_row_metrics()
            return target.to_records_and_dead_letters(rows, target.dead_letter_topic, batch.task_lineage.task), None

        if target.guarantee is DeliveryGuarantee.AT_LEAST_ONCE:
            return DirectKafkaWrite(target, *make_records(), separator)
        if self._writer is None:
            raise FencedError
        writer = self._writer
        evaluated_records: list[DataFrame] = []
        with ExitStack() as stored_rows:

            def make_send() -> SendFunction | None:
                # A plan that runs a second time would add to the metrics of its first run.
                records, topic = make_records()
                evaluated_records.append(records)
                if batch.has_bounded_spark_partitions:
                    return start_evaluation_and_make_send_function(records, topic, is_small=batch.is_small)
                return make_send_function_of_stored_rows(
                    records, topic, stored_rows.enter_context(closing(store_and_yield_arrow_partitions(records)))
                )

            staged = writer.stage(batch.batch_id, make_send)
        if separator is not None and evaluated_records:
            separator.set_summary_from_metrics(evaluated_records[-1])
        return staged

    def close(self) -> None:
        """Close the producer. Raises nothing."""
        if self._writer is not None:
            self._writer.close()


def start_evaluation_and_make_send_function(
    records: DataFrame, topic: str | None, *, is_small: bool
) -> SendFunction | None:
    """Start the evaluation of ``records``, and return a function that sends them by a producer; None when there are no
    records. ``topic``: the topic of all records; None when the column ``topic`` contains it.

    With ``is_small`` the driver collects all records at once, otherwise those of one Spark partition at a time.

    :raises Py4JJavaError: when Spark cannot compute the rows: with ``is_small`` any row, otherwise the first rows. The
        returned function raises it for a later row.
    """
    executed_plan = records._jdf.queryExecution().executedPlan()
    # As Spark's own collect and toLocalIterator: rows in Spark's internal form, which its record writer takes.
    rows = getattr(executed_plan.executeCollectIterator(), "_2")() if is_small else executed_plan.executeToIterator()  # noqa: B009
    if not rows.hasNext():
        return None

    def send(producer: Any, properties: Any) -> None:
        write_task = _make_write_task(records, topic, properties)
        try:
            write_task.execute(rows)
        finally:
            # Waits until all records are sent, and raises the error of the first failed record.
            write_task.close()

    return send


def make_send_function_of_stored_rows(
    records: DataFrame, topic: str | None, stored_partitions: Iterator[Any]
) -> SendFunction | None:
    """A function that sends by a producer the rows of ``records`` that Spark has stored on disk; None when there are
    none. ``stored_partitions``: the result of :func:`store_and_yield_arrow_partitions` for ``records``; the driver
    holds one of their Arrow record batches at a time. ``topic``: the topic of all records; None when the column
    ``topic`` contains it.

    :raises PySparkException, Py4JError: when Spark cannot compute or store the rows.
    :raises UnreachableError: as :func:`store_and_yield_arrow_partitions`.
    """
    first_partition = next((partition for partition in stored_partitions if partition.hasNext()), None)
    if first_partition is None:
        return None

    def send(producer: Any, properties: Any) -> None:
        write_task = _make_write_task(records, topic, properties)
        pool = spark_producer_pool(records.sparkSession._jvm)
        pooled_producer, executions = pool.acquire(properties), 0
        try:
            for partition in chain((first_partition,), stored_partitions):
                with closing(arrow_batches_to_internal_rows(records, partition)) as pieces:
                    for rows in pieces:
                        # `execute` acquires the producer first. This cannot fail: the pool has the producer already.
                        executions += 1
                        write_task.execute(rows)
                        # After a failed record `execute` sends nothing more and raises nothing.
                        write_task.checkForErrors()
        finally:
            try:
                write_task.close()
            finally:
                # The producer was acquired above and by each execution, and `close` has released it once.
                for _ in range(executions or 1):
                    pool.release(pooled_producer)

    return send


def _make_write_task(records: DataFrame, topic: str | None, properties: Any) -> Any:
    """Spark's writer of rows of ``records`` in Spark's internal form, by the producer with ``properties``. ``topic``:
    the topic of all records; None when the column ``topic`` contains it."""
    java: Any = records.sparkSession._jvm
    columns = records._jdf.queryExecution().executedPlan().output()
    return java.org.apache.spark.sql.kafka010.KafkaWriteTask(properties, columns, java.scala.Option.apply(topic))


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
        """Append the records, also if they were appended before by another copy of the batch. Then set the bad-row
        summary of the separator, if there is one.

        :raises UnreachableError: when the cluster cannot be reached.
        :raises WorldError: when a record is too large for the cluster, or the sink lacks a right.
        :raises PySparkException, Py4JJavaError: when Spark cannot compute the rows, or the writer fails for another
            reason.
        """
        java: Any = self._records.sparkSession._jvm
        properties = java.java.util.HashMap()
        for name, value in {
            **self._target.producer_properties,
            "key.serializer": BYTES_SERIALIZER,
            "value.serializer": BYTES_SERIALIZER,
        }.items():
            properties.put(name, value)
        spark_write = java.org.apache.spark.sql.kafka010.KafkaWriter.write
        try:
            # DataFrame.write would create another plan, and the metrics of `observe` are reported for this plan only.
            spark_write(self._records._jdf.queryExecution(), properties, java.scala.Option.apply(self._topic))
        except (PySparkException, Py4JJavaError) as error:
            if message_passed_to_raise_error(error) is not None:
                raise
            message = f"{self._target.cluster_description}: Spark's writer failed: {error_message(error)}"
            if RECORD_TOO_LARGE_EXCEPTION in str(error):
                raise WorldError(f"{message}. {LARGER_RECORDS_ADVICE}") from error
            if may_kafka_retry_succeed(java_exception_of(error)):
                raise UnreachableError(message) from error
            if any(name in message_with_causes(java_exception_of(error)) for name in AUTHORIZATION_EXCEPTIONS):
                raise WorldError(
                    f"{message}. Check the sink's login; its user needs WRITE on the topics to which it writes"
                ) from error
            raise
        if self._separator is not None:
            self._separator.set_summary_from_metrics(self._records)

    def clean_up(self) -> None:
        """Does nothing: there is no staged copy."""


def _find_first_cluster_error(config: PrefixedConfig) -> dict[str, list[str]]:
    """Error messages by the user's key that only the cluster can detect, for a config whose values are valid. No topic
    is created: the cluster only checks whether it could create the missing topics."""
    target = KafkaTarget.of(config)
    try:
        with kafka_admin(target.producer_properties) as admin:
            absent_names = find_absent_topics(admin, target)
            for new_topic in creatable_topics(admin, target, absent_names):
                try:
                    admin.create_topic_if_absent(
                        new_topic.name,
                        new_topic.partitions,
                        new_topic.replication_factor,
                        new_topic.configs,
                        validate_only=True,
                    )
                except UnreachableError:
                    raise
                except WorldError as error:
                    return _topic_creation_errors(config, new_topic, error)
            has_ledger = target.guarantee is DeliveryGuarantee.EXACTLY_ONCE and target.ledger_topic not in absent_names
            if has_ledger and (policy_error := ledger_policy_error(admin, target)) is not None:
                return config.error_by_key("ledger.topic", policy_error)
    except UncreatableTopicError as error:
        return config.error_by_key("topic", str(error))
    except WorldError as error:
        return config.error_by_key(PRODUCER_OVERRIDE_PREFIX + BOOTSTRAP_SERVERS, str(error))
    return {}


def _topic_creation_errors(config: PrefixedConfig, new_topic: NewTopic, error: WorldError) -> dict[str, list[str]]:
    """The error message about ``new_topic``, whose creation the cluster rejects with ``error``, by the config key whose
    value is the cause: that of the replication factor or that of the topic's name."""
    key_name = new_topic.replication_config_key if "ReplicationFactor" in str(error) else new_topic.name_config_key
    # The keys of bad records have no prefix.
    key = key_name if key_name.startswith(DEAD_LETTER_KEY_PREFIX) else config.user_key(key_name)
    return {key: [f"Topic {new_topic.name} cannot be created with this {key}: {error}"]}
