"""Bad records of a topic are written to the dead letter queue; real Spark, PostgreSQL and broker."""

import asyncio
import base64
import json
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from coterie.herder.seams import TaskProgressed
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.bad_records.separator import BadRowSeparator, SeparatedRows
from coterie.spark.checkpoint import last_batch_id_in_log
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.sinks.file_copies import BatchCopy
from coterie.spark.sinks.files import FileSink
from coterie.spark.sinks.kafka_writer import StagedTransaction as KafkaTransaction
from coterie.spark.sinks.postgres_writer import StagedTransaction
from tests.ports import free_port
from tests.spark.bad_records.sifting import (
    RANDOMLY_BAD,
    allow_calls_of_java,
    dead_letters_in,
    good_and_bad,
    numbers,
    postgres_config,
)
from tests.spark.conftest import Rig, rows_of
from tests.spark.sinks.file_owners import other_device
from tests.spark.sinks.kafka_rows import records
from tests.spark.sinks.postgres_server import PostgresServer
from tests.spark.sources.kafka_topics import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

BAD = [b"", b'{"row": 1} trailing', b'{"row": "x"}', b"[1]", b'{"row": 1']
BATCHES = 2
ROWS = 80
PER_BATCH = str(ROWS // BATCHES)


@pytest.fixture(autouse=True)
def random_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_calls_of_java(monkeypatch)


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    """The server without tables."""
    postgres.run("DROP TABLE IF EXISTS good, bad, coterie_ledger")
    return postgres


async def test_bad_records_are_written_to_a_table_with_bytes_offset_and_error(
    rig: Rig, kafka: Kafka, server: PostgresServer
) -> None:
    kafka.create("to-table", 1)
    good = [b'{"row": %d}' % row for row in range(20)]
    kafka.produce("to-table", 0, [*BAD, None, *good], timestamp_ms=1_700_000_000_000)
    config = postgres_config(kafka, server, "to-table")
    assert await rig.config_errors(config, ()) == {}
    start = await rig.start(config, "to-table")
    await rig.wait_until(lambda: len(good_rows(server)) >= 21)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    # The tombstone is a row of nulls, as without errors.tolerance.
    assert good_rows(server) == [*range(20), None]
    found = server.rows('SELECT * FROM bad ORDER BY "offset"')
    assert [row[7] for row in found] == BAD
    assert [row[4] for row in found] == list(range(len(BAD)))
    dead_letter = dict(zip([name for (name,) in server.rows(COLUMNS_OF_BAD)], found[0], strict=True))
    headers = dead_letter.pop("headers")
    assert isinstance(headers, str)
    assert json.loads(headers) == [{"key": "h", "value": base64.b64encode(b"1").decode()}]
    assert dead_letter.pop("timestamp").timestamp() == 1_700_000_000  # type: ignore[attr-defined]
    assert dead_letter == {
        "connector": "to-table",
        "task": 0,
        "topic": "to-table",
        "partition": 0,
        "offset": 0,
        "key": b"k",
        "value": b"",
        "stage": "VALUE_CONVERTER",
        "class_name": "org.apache.kafka.connect.json.JsonConverter",
        "exception_class_name": "org.apache.kafka.connect.errors.DataException",
        "exception_message": "the record's value is not JSON with the columns of value.schema",
    }


COLUMNS_OF_BAD = "SELECT attname FROM pg_attribute WHERE attrelid = 'bad'::regclass AND attnum > 0 ORDER BY attnum"


def good_rows(server: PostgresServer) -> list[object]:
    if not server.rows("SELECT 1 WHERE to_regclass('good') IS NOT NULL"):
        return []
    return [row for (row,) in server.rows("SELECT row FROM good ORDER BY row")]


class CrashesAtCommit:
    """Each batch is tried three times: it fails before the commit, then after it, and then succeeds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before = self.after = self.batches = 0
        commit = StagedTransaction.commit

        def put_in_place(staged: StagedTransaction) -> None:
            self.batches += 1
            if self.batches % 3 == 1:
                self.before += 1
                raise ConnectionError("fails before the commit")
            commit(staged)
            if self.batches % 3 == 2:
                self.after += 1
                raise ConnectionError("fails after the commit")

        monkeypatch.setattr(StagedTransaction, "commit", put_in_place)


async def run_with_bad_rows(
    rig: Rig, kafka: Kafka, server: PostgresServer, topic: str, deaths: CrashesAtCommit
) -> tuple[list[int], list[int]]:
    """The rows of both tables after all randomly bad records were read, with crashes in each batch."""
    config = postgres_config(kafka, server, topic, max__offsets__per__trigger=PER_BATCH, **RANDOMLY_BAD)
    await run_with_crashes(rig, kafka, topic, config)
    return good_and_bad(server)


async def run_with_crashes(rig: Rig, kafka: Kafka, topic: str, config: dict[str, str]) -> None:
    """Read the batches of a topic; each batch fails twice."""
    kafka.create(topic, 1)
    kafka.produce_rows(topic, 1, each=ROWS)
    assert await rig.config_errors(config, ()) == {}
    start = await rig.start(config, topic)
    held = rig.spark_runtime.held_checkpoint(start.task)
    assert held is not None
    for _ in range(2 * BATCHES):
        died = await rig.end_of(start.task)
        assert died.can_restart, died.trace
        await rig.runtime.restart(start.task)
    await rig.wait_until(lambda: last_batch_id_in_log(held.path / "commits") == BATCHES - 1)
    await rig.runtime.stop(start.task, grace_ms=10_000)


async def test_a_randomly_bad_record_is_in_one_table_once_whenever_its_owner_is_killed(
    rig: Rig, kafka: Kafka, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = CrashesAtCommit(monkeypatch)
    good, bad = await run_with_bad_rows(rig, kafka, server, "by-chance", deaths)
    assert deaths.before == deaths.after == BATCHES
    assert len(good) > 10
    assert len(bad) > 10
    assert sorted(good + bad) == list(range(ROWS))


async def test_a_randomly_bad_record_is_lost_or_doubled_if_good_and_bad_rows_are_evaluated_separately(
    rig: Rig, kafka: Kafka, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: the bad rows come from a second evaluation."""
    divide = BadRowSeparator.separate

    def twice(separator: BadRowSeparator) -> SeparatedRows:
        second = divide(
            BadRowSeparator(
                separator._classified_rows, is_small=separator._is_small, has_bounded_spark_partitions=lambda: True
            )
        )
        with closing(second):
            list(second.read_good_rows())
            bad = list(second.read_bad_rows())
        first = divide(separator)
        monkeypatch.setattr(first, "read_bad_rows", lambda: iter(bad))
        return first

    monkeypatch.setattr(BadRowSeparator, "separate", twice)
    good, bad = await run_with_bad_rows(rig, kafka, server, "apart", CrashesAtCommit(monkeypatch))
    counts = Counter(good + bad)
    assert set(range(ROWS)) - set(counts), "nothing was lost"
    assert max(counts.values()) > 1, "nothing was doubled"


class CrashesAtFileCommit:
    """In each batch the first owner fails before the decisive step, the second one between that step and the moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tries: Counter[str] = Counter()
        put = BatchCopy.commit

        def put_in_place(copy: BatchCopy) -> None:
            batch = copy._committed_batch_folder.name
            self.tries[batch] += 1
            if self.tries[batch] == 1:
                raise ConnectionError("fails before the decisive step")
            if self.tries[batch] == 2:
                copy._commit_by_rename()
                raise ConnectionError("fails before the files are moved")
            put(copy)

        monkeypatch.setattr(BatchCopy, "commit", put_in_place)


async def run_files_with_bad_rows(
    rig: Rig, kafka: Kafka, topic: str, bad: Path, **keys: str
) -> tuple[list[int], list[int]]:
    """The rows of both folders after all randomly bad records were read, with crashes in each batch."""
    config = kafka.config(topic, errors__tolerance="all", errors__deadletterqueue__path=str(bad), **keys)
    await run_with_crashes(rig, kafka, topic, config | RANDOMLY_BAD | {"max.offsets.per.trigger": PER_BATCH})
    return rows_of(kafka.out / topic), numbers([dead_letter["value"] for dead_letter in dead_letters_in(bad)])


async def test_a_randomly_bad_record_is_in_one_folder_once_whenever_its_owner_is_killed(
    rig: Rig, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = CrashesAtFileCommit(monkeypatch)
    good, bad = await run_files_with_bad_rows(
        rig, kafka, "folders", tmp_path / "bad", **{"exactly.once.support": "required"}
    )
    assert deaths.tries == {str(batch): 3 for batch in range(BATCHES)}
    assert len(good) > 10
    assert len(bad) > 10
    assert sorted(good + bad) == list(range(ROWS))


async def test_a_randomly_bad_record_is_lost_or_doubled_if_folders_are_written_in_two_steps(
    rig: Rig, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: the folder of bad records has its own copies."""
    monkeypatch.setattr(FileSink, "atomic_dead_letter_destinations", ())
    whole = FileSink.of

    def without_bad_rows(config: PrefixedConfig) -> FileSink:
        sink = whole(config)
        return replace(sink, folder=replace(sink.folder, bad_records_folder=None))

    monkeypatch.setattr(FileSink, "of", without_bad_rows)
    CrashesAtFileCommit(monkeypatch)
    good, bad = await run_files_with_bad_rows(rig, kafka, "two-folders", tmp_path / "bad")
    counts = Counter(good + bad)
    assert set(range(ROWS)) - set(counts), "nothing was lost"
    assert max(counts.values()) > 1, "nothing was doubled"


async def test_bad_records_are_written_to_a_folder_with_bytes_and_error(rig: Rig, kafka: Kafka, tmp_path: Path) -> None:
    kafka.create("to-folder", 1)
    kafka.produce_rows("to-folder", 1, each=10)
    kafka.produce("to-folder", 0, BAD)
    config = kafka.config("to-folder", errors__tolerance="all", errors__deadletterqueue__path=str(tmp_path / "bad"))
    assert await rig.config_errors(config, ()) == {}
    start = await rig.start(config, "to-folder")
    held = rig.spark_runtime.held_checkpoint(start.task)
    assert held is not None
    await rig.wait_until(lambda: last_batch_id_in_log(held.path / "commits") is not None)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    dead_letters = dead_letters_in(tmp_path / "bad")
    assert sorted(dead_letter["value"] for dead_letter in dead_letters) == sorted(BAD)
    assert {dead_letter["stage"] for dead_letter in dead_letters} == {"VALUE_CONVERTER"}
    assert dead_letters[0]["headers"] == [{"key": "h", "value": b"1"}]
    assert rows_of(kafka.out / "to-folder") == list(range(10))


async def test_bad_records_are_written_to_a_topic_with_connects_headers_once_over_a_replay(
    rig: Rig, kafka: Kafka
) -> None:
    kafka.create("to-topic", 1)
    kafka.produce("to-topic", 0, [*BAD, b'{"row": 7}'])
    queue = "errors.deadletterqueue."
    config = kafka.config("to-topic", errors__tolerance="all") | {
        f"{queue}topic.name": "letters",
        f"{queue}topic.replication.factor": "1",
        f"{queue}context.headers.enable": "true",
        "producer.override.bootstrap.servers": kafka.servers,
    }
    assert await rig.config_errors(config, ()) == {}
    for _ in range(2):
        start = await rig.start(config, "to-topic")
        held = rig.spark_runtime.held_checkpoint(start.task)
        assert held is not None
        await rig.wait_until(lambda: last_batch_id_in_log(held.path / "commits") == 0)  # noqa: B023
        await rig.runtime.stop(start.task, grace_ms=10_000)
        (held.path / "commits" / "0").unlink()
    assert rows_of(kafka.out / "to-topic") == [7]
    found = records(kafka.servers, "letters")
    assert [(key, value) for key, value, _ in found] == [(b"k", value) for value in BAD]
    message = b"the record's value is not JSON with the columns of value.schema"
    exception = b"org.apache.kafka.connect.errors.DataException"
    assert found[1][2] == [
        ("h", b"1"),
        ("__connect.errors.topic", b"to-topic"),
        ("__connect.errors.partition", b"0"),
        ("__connect.errors.offset", b"1"),
        ("__connect.errors.connector.name", b"to-topic"),
        ("__connect.errors.task.id", b"0"),
        ("__connect.errors.stage", b"VALUE_CONVERTER"),
        ("__connect.errors.class.name", b"org.apache.kafka.connect.json.JsonConverter"),
        ("__connect.errors.exception.class.name", exception),
        ("__connect.errors.exception.message", message),
        ("__connect.errors.exception.stacktrace", exception + b": " + message + b"\n"),
    ]


async def test_bad_lines_of_files_are_written_to_a_table_and_a_topic_like_bad_records_of_topics(
    rig: Rig, kafka: Kafka, server: PostgresServer, tmp_path: Path
) -> None:
    files = rig.config(tmp_path, source__schema="row BIGINT", errors__tolerance="all")
    (tmp_path / "in" / "a.csv").write_text("row\n1\nx\n2\n")
    source = {key: value for key, value in files.items() if not key.startswith("sink.")}
    to_table = source | {f"sink.{key}": value for key, value in server.keys.items()}
    to_table |= {"sink.class": "PostgresSink", "sink.table.name.format": "good", "sink.auto.create": "true"}
    to_table |= {"errors.deadletterqueue.table": "bad", "exactly.once.support": "required"}
    queue = "errors.deadletterqueue."
    to_topic = files | {f"{queue}topic.name": "lines", f"{queue}topic.replication.factor": "1"}
    to_topic |= {f"{queue}context.headers.enable": "true", "producer.override.bootstrap.servers": kafka.servers}
    for name, config in (("lines-to-table", to_table), ("lines-to-topic", to_topic)):
        assert await rig.config_errors(config, ()) == {}
        start = await rig.start(config, name)
        held = rig.spark_runtime.held_checkpoint(start.task)
        assert held is not None
        await rig.wait_until(lambda: last_batch_id_in_log(held.path / "commits") == 0)  # noqa: B023
        await rig.runtime.stop(start.task, grace_ms=10_000)
    assert good_rows(server) == rows_of(tmp_path / "out") == [1, 2]
    uri = f"file:{tmp_path}/in/a.csv"
    ((*_, value, headers, stage), *others) = server.rows("SELECT topic, value, headers, stage FROM bad")
    assert (value, stage, others) == (b"x", "TASK_POLL", [])
    assert isinstance(headers, str)
    assert json.loads(headers) == [{"key": "file", "value": base64.b64encode(uri.encode()).decode()}]
    ((key, text, context),) = records(kafka.servers, "lines")
    assert (key, text, context[0]) == (None, b"x", ("file", uri.encode()))
    message = f"a line of {uri} is not CSV with the columns of the schema".encode()
    assert {"__connect.errors.topic": None, "__connect.errors.exception.message": message}.items() <= dict(
        context
    ).items()


def kafka_to_kafka(kafka: Kafka, topic: str, to: str) -> dict[str, str]:
    """Good records to another topic, bad ones to a topic that ends in ``-bad``."""
    of_source = ("topics", "value.", "consumer.override.")
    source = {f"source.{key}": value for key, value in kafka.config(topic).items() if key.startswith(of_source)}
    return source | {
        "connector.class": "KafkaSink",
        "source.class": "KafkaSource",
        "tasks.max": "1",
        "trigger.interval.ms": "0",
        "topic": to,
        "value.converter.schemas.enable": "false",
        "producer.override.bootstrap.servers": kafka.servers,
        "exactly.once.support": "required",
        "errors.tolerance": "all",
        "errors.log.enable": "true",
        "errors.deadletterqueue.topic.name": f"{topic}-bad",
        "errors.deadletterqueue.topic.replication.factor": "1",
    }


def create_with(kafka: Kafka, topic: str, configs: dict[str, str]) -> None:
    for future in kafka.admin.create_topics([NewTopic(topic, 1, 1, config=configs)]).values():
        future.result(30)


async def test_good_and_bad_records_between_topics_are_in_one_transaction_whenever_its_owner_is_killed(
    rig: Rig, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create("between", 1)
    kafka.create("between-good", 1)
    kafka.produce_rows("between", 1, each=ROWS)
    kafka.produce("between", 0, [b"no JSON"])
    config = kafka_to_kafka(kafka, "between", "between-good") | RANDOMLY_BAD
    assert await rig.config_errors(config, ()) == {}
    commit, tries = KafkaTransaction.commit, list[int]()

    def put_in_place(staged: KafkaTransaction) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("fails before the commit")
        commit(staged)
        if len(tries) == 2:
            raise ConnectionError("fails after the commit")

    monkeypatch.setattr(KafkaTransaction, "commit", put_in_place)
    start = await rig.start(config, "between")
    held = rig.spark_runtime.held_checkpoint(start.task)
    assert held is not None
    for _ in range(2):
        died = await rig.end_of(start.task)
        assert died.can_restart, died.trace
        await rig.runtime.restart(start.task)
    await rig.wait_until(lambda: last_batch_id_in_log(held.path / "commits") == 0)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    good = [json.loads(value or b"")["row"] for _, value, _ in records(kafka.servers, "between-good")]
    bad = [value or b"" for _, value, _ in records(kafka.servers, "between-bad")]
    assert bad.pop() == b"no JSON"
    assert len(good) > 10
    assert len(bad) > 10
    assert sorted(good + numbers(bad)) == list(range(ROWS))


async def first_bad_record_count(rig: Rig, task: ConnectorTaskId) -> int:
    """The number of bad records in the first progress event of a task that contains any."""
    while True:
        event = await asyncio.wait_for(rig.runtime.next_event(), 60)
        if isinstance(event, TaskProgressed) and event.task == task and event.bad_records:
            return event.bad_records


async def test_bad_records_between_topics_are_counted_and_logged_without_transactions_too(
    rig: Rig, kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create("weakly", 1)
    kafka.create("weakly-good", 1)
    kafka.produce("weakly", 0, [b'{"row": 1}', *BAD, b'{"row": 2}'])
    weaker = {"delivery.guarantee": "at-least-once", "exactly.once.support": "requested"}
    config = kafka_to_kafka(kafka, "weakly", "weakly-good") | weaker
    assert await rig.config_errors(config, ()) == {}
    start = await rig.start(config, "weakly")
    assert await first_bad_record_count(rig, start.task) == len(BAD)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert [value for _, value, _ in records(kafka.servers, "weakly-bad")] == BAD
    assert len(records(kafka.servers, "weakly-good")) == 2
    (line,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert line.startswith("Task weakly-0: 5 bad records were left out")
    assert "the first: the record's value is not JSON" in line


async def test_bad_records_are_dropped_if_no_dead_letter_queue_is_configured(
    rig: Rig, kafka: Kafka, caplog: Any
) -> None:
    kafka.create("dropped", 1)
    kafka.produce_rows("dropped", 1, each=10)
    kafka.produce("dropped", 0, BAD)
    kafka.produce_rows("dropped", 1, each=10)
    for name, logs in (("quiet", "false"), ("loud", "true")):
        config = kafka.config(
            "dropped",
            path=str(kafka.out / name),
            errors__tolerance="all",
            errors__log__enable=logs,
            errors__log__include__messages="true",
        )
        assert await rig.config_errors(config, ()) == {}
        start = await rig.start(config, name)
        await rig.wait_until(lambda: rows_of(kafka.out / name) == list(range(20)))  # noqa: B023
        if logs == "true":
            assert await first_bad_record_count(rig, start.task) == len(BAD)
        await rig.runtime.stop(start.task, grace_ms=10_000)
    lines = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    (line,) = lines
    assert line.startswith("Task loud-0: 5 bad records were left out")
    assert "topic dropped, partition 0, offset 10" in line


async def test_each_wrong_key_is_named(
    rig: Rig, kafka: Kafka, server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.create("wrong-errors", 1)
    kafka.create("wrong-good", 1)
    queue = "errors.deadletterqueue."
    files = kafka.config("wrong-errors", errors__tolerance="all")
    table = postgres_config(kafka, server, "wrong-errors")
    rate = {"connector.class": "RateSource", "rows.per.second": "1", "sink.format": "noop"}
    wrong: list[tuple[dict[str, str], dict[str, str], str, str]] = [
        (files, {"errors.tolerance": "some"}, "errors.tolerance", "none, all"),
        (files, {f"{queue}path": "bad"}, f"{queue}path", "relative path"),
        (files, {f"{queue}table": "a.b.c"}, f"{queue}table", "table or schema.table"),
        (files, {f"{queue}table": "bad"}, f"{queue}table", "use PostgresSink"),
        (files, {f"{queue}path": "/bad", f"{queue}table": "bad"}, f"{queue}table", "set only one of"),
        (files, {f"{queue}topic.name": "wrong errors"}, f"{queue}topic.name", "Must be the name of a topic"),
        (files, {f"{queue}topic.replication.factor": "0"}, f"{queue}topic.replication.factor", "at least 1"),
        (
            table,
            {"exactly.once.support": "required", f"{queue}table": "", f"{queue}path": "/bad"},
            "exactly.once.support",
            "bad records",
        ),
        (files, {f"{queue}path": f"{other_device(tmp_path)}/bad"}, f"{queue}path", "is on another device than"),
        (files, {f"{queue}path": files["path"]}, f"{queue}path", "Readers of the sink's folder"),
        (files, {f"{queue}path": files["path"] + "/bad"}, f"{queue}path", "Readers of the sink's folder"),
        (table, {f"{queue}table": "nowhere.bad"}, f"{queue}table", "has no schema nowhere"),
        (
            rate,
            {"errors.tolerance": "all"},
            "errors.tolerance",
            "RateSource does not report bad records",
        ),
        (
            rig.config(tmp_path),
            {"errors.tolerance": "all", "source.option.Mode": "PERMISSIVE"},
            "source.option.Mode",
            "would hide malformed lines",
        ),
    ]
    to_topic = files | {
        f"{queue}topic.name": "letters-of-wrong",
        f"{queue}topic.replication.factor": "1",
        "producer.override.bootstrap.servers": kafka.servers,
    }
    create_with(kafka, "no-ledger-dead-letters", {"cleanup.policy": "delete"})
    wrong += [
        (to_topic, {f"{queue}topic.name": "wrong-errors"}, "topics", "may not be included in the list of topics"),
        (to_topic, {f"{queue}topic.replication.factor": "3"}, f"{queue}topic.replication.factor", "cannot be created"),
        (to_topic, {"producer.override.acks": "1"}, "producer.override.acks", "a transaction needs acks=all"),
        (to_topic, {"producer.override.linger": "1"}, "producer.override.linger", "has no property linger"),
        (
            to_topic,
            {"producer.override.transaction.timeout.ms": "soon"},
            "producer.override.transaction.timeout.ms",
            "Invalid value soon",
        ),
        (to_topic, {"ledger.topic": "no-ledger"}, "ledger.topic", "cleanup.policy=delete and must have compact"),
        (
            to_topic,
            {"producer.override.bootstrap.servers": f"127.0.0.1:{free_port()}"},
            "producer.override.bootstrap.servers",
            "did not answer",
        ),
        (
            kafka_to_kafka(kafka, "wrong-errors", "wrong-good"),
            {f"{queue}topic.replication.factor": "3"},
            f"{queue}topic.replication.factor",
            "cannot be created",
        ),
    ]
    monkeypatch.setattr("coterie.spark.sources.kafka_client.RESPONSE_TIMEOUT_MS", 3000)
    assert await rig.config_errors(to_topic, ()) == {}
    # The addresses are those of another cluster, which may have a topic of any name.
    elsewhere = {"producer.override.bootstrap.servers": kafka.servers.replace("127.0.0.1", "localhost")}
    assert elsewhere["producer.override.bootstrap.servers"] != kafka.servers
    assert await rig.config_errors(to_topic | {f"{queue}topic.name": "wrong-errors"} | elsewhere, ()) == {}
    for config, changes, key, sentence in wrong:
        errors = await rig.config_errors(config | changes, ())
        assert set(errors) == {key}, (changes, errors)
        assert sentence in errors[key][0], (changes, errors)
