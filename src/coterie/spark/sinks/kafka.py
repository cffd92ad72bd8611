"""The Kafka sink: rows become records of a topic; exactly once by transactions, or at least once by Spark's writer.

Spark's Kafka writer has no transactions. So an exactly-once batch goes through one transactional producer on the
driver: Spark's own code turns rows into records and passes them to that producer, in the JVM, row by row.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import Definition
from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.bad_records.keys import QUEUE, DeadLetters, ToTopic
from coterie.spark.bad_records.sifted import Sifter
from coterie.spark.end_config import EndConfig
from coterie.spark.failures import raised_sentence, sentence_of, throwable_of
from coterie.spark.fence import FencedError
from coterie.spark.jars import missing
from coterie.spark.record import Part, column, hidden_names
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, Staged, TaskLineage
from coterie.spark.sinks.kafka_target import (
    CREATION,
    DEFINITION,
    OVERRIDE,
    SERVERS,
    Guarantee,
    KafkaTarget,
    definition,
    errors_of,
)
from coterie.spark.sinks.kafka_writer import (
    BYTES,
    DENIED,
    HOW_LARGER,
    TOO_LARGE,
    KafkaWriter,
    NewTopic,
    Send,
    absence,
    absent_topics,
    ledger_refusal,
    make_topics,
    new_topics,
    spark_pool,
)
from coterie.spark.sources.kafka_client import (
    causes,
    is_away,
    kafka_admin,
    kafka_jvm,
    unknown_producer_properties,
)


class KafkaSink:
    """Records of topics."""

    identity: ClassVar[tuple[str, ...]] = ("topic", "delivery.guarantee", "ledger.topic")
    access: ClassVar[tuple[str, ...]] = (OVERRIDE + SERVERS,)
    free_prefixes: ClassVar[tuple[str, ...]] = (OVERRIDE, CREATION)
    rotation: ClassVar[Rotation | None] = None
    holds: ClassVar[tuple[type[DeadLetters], ...]] = (ToTopic,)

    def __init__(self, target: KafkaTarget, config: EndConfig) -> None:
        self._target = target
        self._config = config
        self._writer: KafkaWriter | None = None

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        return definition(config)

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """Check the jars first, then the properties, and send requests to the cluster only when both are valid."""
        if (sentence := missing(spark, "kafka")) is not None:
            return {next(key for key in ("sink.class", "connector.class") if key in config.config): [sentence]}
        if found := errors_of(config):
            return found
        unknown = unknown_producer_properties(config.under(OVERRIDE))
        if unknown:
            return {config.key(OVERRIDE + name): [f"Kafka's producer has no property {name}"] for name in unknown}
        return _errors_at_cluster(config)

    @classmethod
    def is_exactly_once(cls, config: EndConfig) -> bool:
        return config.read(DEFINITION, "delivery.guarantee", str) == Guarantee.EXACTLY_ONCE.value

    @classmethod
    def of(cls, config: EndConfig) -> Self:
        return cls(KafkaTarget.of(config), config)

    def take_over(self, lineage: TaskLineage, start: int) -> None:
        """Create missing topics, and fence the producers of earlier starts, including those of this object."""
        self.close()
        if self._target.guarantee is Guarantee.AT_LEAST_ONCE:
            with kafka_admin(self._target.producer) as admin:
                make_topics(admin, self._target)
            return
        java = kafka_jvm()
        writer = KafkaWriter(self._target, lineage, java, spark_pool(java))
        self._writer = writer
        writer.take_over()

    def shape(self, rows: DataFrame) -> DataFrame:
        """The columns of the value, and the metadata columns that become key, headers or topic of a record.

        :raises ConfigError: when ``key.converter`` cannot write the key of the records that were read.
        """
        taken = self._target.hidden_parts(rows)
        if Part.KEY in taken:
            self._check_key(rows)
        names = [part.value for part in taken]
        return rows.drop(*(name for name in hidden_names(rows) if name not in names))

    def _check_key(self, rows: DataFrame) -> None:
        try:
            self._target.key.of_column(rows.select(column(Part.KEY.value).alias("key")), "key")
        except WorldError as error:
            raise self._config.refused("key.converter", f"it cannot write the records' key: {error}") from error

    @classmethod
    def retire(cls, config: EndConfig, lineages: Sequence[TaskLineage]) -> None:
        """Does nothing: the ledger has one record for each task, and later starts fence earlier ones."""

    def stage(self, batch: Batch) -> Staged:
        target, sifter, topic = self._target, batch.sifter, self._target.topic
        if sifter is None or target.letters is None:
            records = target.records(batch.rows)
        else:
            records, topic = target.sifted(sifter.observed(), target.letters, batch.lineage.task), None
        if target.guarantee is Guarantee.AT_LEAST_ONCE:
            return Unwritten(target, records, topic, sifter)
        if self._writer is None:
            raise FencedError
        staged = self._writer.stage(batch.batch_id, lambda: sender(records, topic, is_small=batch.is_small))
        if sifter is not None:
            sifter.count(records)
        return staged

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def sender(records: DataFrame, topic: str | None, *, is_small: bool) -> Send | None:
    """A function that sends ``records`` by a producer; None when there are no records.

    The driver collects all records of a small batch at once, and those of a large batch one Spark partition at a time.
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


class Unwritten:
    """The records of a batch; Spark's writer makes them visible as it writes them, so nothing is staged."""

    def __init__(self, target: KafkaTarget, records: DataFrame, topic: str | None, sifter: Sifter | None) -> None:
        """``sifter`` is given where bad records are among the ``records``."""
        self._target = target
        self._records = records
        self._topic = topic
        self._sifter = sifter

    def put_in_place(self) -> None:
        """Append the records.

        :raises UnreachableError: when the cluster cannot be reached.
        :raises WorldError: when the cluster rejects a record.
        :raises PySparkException, Py4JJavaError: when Spark cannot compute the rows.
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
            if raised_sentence(error) is not None:
                raise
            sentence = f"{self._target.where}: Spark's writer failed: {sentence_of(error)}"
            if TOO_LARGE in str(error):
                raise WorldError(f"{sentence}. {HOW_LARGER}") from error
            if is_away(throwable_of(error)):
                raise UnreachableError(sentence) from error
            if any(name in causes(throwable_of(error)) for name in DENIED):
                raise WorldError(f"{sentence}. The sink needs WRITE on the topics it writes to") from error
            raise
        if self._sifter is not None:
            self._sifter.count(self._records)

    def drop(self) -> None:
        """Does nothing: there is no staged copy."""


def _errors_at_cluster(config: EndConfig) -> dict[str, list[str]]:
    """Errors by the user's key, for a config whose keys are valid."""
    target = KafkaTarget.of(config)
    try:
        with kafka_admin(target.producer) as admin:
            absent = absent_topics(admin, target)
            if target.topic in absent and target.creation is None:
                return config.error("topic", absence(target))
            for new in new_topics(target, absent):
                try:
                    admin.create(new.name, new.partitions, new.replication, new.configs, is_trial=True)
                except UnreachableError:
                    raise
                except WorldError as error:
                    return _uncreatable(config, new, error)
            if target.guarantee is Guarantee.EXACTLY_ONCE and target.ledger not in absent:
                policy = admin.config(target.ledger, "cleanup.policy")
                if policy != "compact":
                    return config.error("ledger.topic", ledger_refusal(target, policy))
    except WorldError as error:
        return config.error(OVERRIDE + SERVERS, str(error))
    return {}


def _uncreatable(config: EndConfig, new: NewTopic, error: WorldError) -> dict[str, list[str]]:
    name = new.replication_key if "ReplicationFactor" in str(error) else new.key
    # The keys of bad records have no prefix.
    key = name if name.startswith(QUEUE) else config.key(name)
    return {key: [f"Topic {new.name} cannot be created with this {key}: {error}"]}
