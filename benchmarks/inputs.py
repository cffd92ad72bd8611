"""Rows that the benchmarks of pipelines read, and sinks, whose rows are counted without Spark."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet
import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from tests.kafka.real_kafka import ProgramUnavailableError
from tests.sink_files import values_in, visible_files
from tests.spark.sinks.postgres_server import PASSWORD, USER, PostgresServer, running_server

DEADLINE_S = 300
SCHEMA = "id BIGINT, carrier STRING, delay INT, distance INT"
QUERY = (
    "SELECT id, lower(carrier) AS carrier, delay * 60 AS delay_s, distance * 1.609D AS km FROM source WHERE delay >= 0"
)
"""The query drops a tenth of the rows; see :func:`ids_kept_by_query`."""
CARRIERS = ("AA", "DL", "UA", "WN", "B6", "AS", "NK", "F9")


def row_json(number: int) -> bytes:
    """The row with the id ``number``, as JSON."""
    return b'{"id":%d,"carrier":"%s","delay":%d,"distance":%d}' % (
        number,
        CARRIERS[number % 8].encode(),
        number % 100 - 10,
        number % 3_000,
    )


def ids_kept_by_query(rows: int) -> list[int]:
    """The ids of the rows that :data:`QUERY` keeps, of the rows 0 to ``rows`` - 1."""
    return [number for number in range(rows) if number % 100 >= 10]


# -- topics and files -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    name: str
    partitions: int


def make_topic(servers: str, name: str, partitions: int) -> Topic:
    """Create a topic; returns when it exists."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(DEADLINE_S)
    return Topic(name=name, partitions=partitions)


class RowProducer:
    """Writes rows to topics, numbered in each topic."""

    def __init__(self, servers: str, *, linger_ms: int = 5) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "linger.ms": linger_ms,
                "batch.size": 262_144,
                "queue.buffering.max.messages": 500_000,
                "on_delivery": self._on_failure,
                # Without it, the callback would run for each row, which would slow the producer down.
                "delivery.report.only.error": True,
            }
        )
        self._failures: list[str] = []
        """Why the delivery of each lost row has failed."""

    def write(self, topic: Topic, numbers: range) -> None:
        """Queue the rows ``numbers`` for sending. Row n goes to partition n modulo the number of partitions."""
        for number in numbers:
            while True:
                try:
                    self._producer.produce(topic.name, row_json(number), partition=number % topic.partitions)
                    break
                except BufferError:
                    self._producer.poll(0.05)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until no row is queued or in flight.

        :raises AssertionError: when rows are still queued after ``DEADLINE_S``, or the delivery of a row has failed
            since this producer was created.
        """
        left = self._producer.flush(DEADLINE_S)
        assert not left, f"{left} records were not acknowledged within {DEADLINE_S} s"
        assert not self._failures, f"{len(self._failures)} records were not delivered; the first: {self._failures[0]}"

    def _on_failure(self, error: KafkaError, message: Message) -> None:
        """Note that the delivery of one row has failed; the producer calls this in its ``poll`` and ``flush``."""
        self._failures.append(f"partition {message.partition()} of {message.topic()}: {error.str()}")


def make_files(folder: Path, *, files: int, rows: int, first: int = 0) -> None:
    """Write ``files`` Parquet files with ``rows // files`` rows each, numbered from ``first``, into a new folder."""
    folder.mkdir(parents=True)
    each = rows // files
    for file in range(files):
        ids = range(first + file * each, first + (file + 1) * each)
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "carrier": [CARRIERS[number % 8] for number in ids],
                "delay": pa.array([number % 100 - 10 for number in ids], pa.int32()),
                "distance": pa.array([number % 3_000 for number in ids], pa.int32()),
            }
        )
        pyarrow.parquet.write_table(table, folder / f"{file:05}.parquet")


# -- sinks ------------------------------------------------------------------------------------------------------------


class Sink(ABC):
    """A destination of rows: the keys of a connector, the options of plain Spark, and the count of rows."""

    @abstractmethod
    def connector(self) -> dict[str, str]: ...

    @abstractmethod
    def spark_sink(self, guarantee: str, query: str) -> tuple[str, dict[str, str]]:
        """The name of a sink of `benchmarks.plain_spark` with this guarantee, and its options.

        ``guarantee`` is ``stock``, ``at_least_once`` or ``foreach_batch``; ``query`` is the name of the query.
        """

    def spark_session_settings(self, guarantee: str) -> dict[str, str]:
        """The settings of plain Spark's session that this sink needs for ``guarantee``."""
        return {}

    @abstractmethod
    def count(self) -> int:
        """The number of rows that a reader finds now; must be fast, since it is polled."""

    @abstractmethod
    def ids(self) -> Counter[int]:
        """The number of times that a reader finds each row, by id."""

    def row_errors(self, expected: Sequence[int]) -> str | None:
        """An error message, or None when a reader finds exactly the ``expected`` rows, each once."""
        there = self.ids()
        wanted = set(expected)
        lost, foreign = len(wanted - there.keys()), len(there.keys() - wanted)
        doubled = there.total() - len(there)
        if lost or foreign or doubled:
            return f"{lost} rows are lost, {doubled} duplicated, {foreign} unexpected, of {len(wanted)}"
        return None


class ParquetFolder(Sink):
    """Parquet files. With the guarantee ``stock``, Spark's own file sink writes, to one folder for each query; with
    ``foreach_batch``, a function writes files and renames their folder; with ``at_least_once``, a function appends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._has_log = False
        """Whether Spark's file sink writes this folder: readers then read only the files in the sink's log."""
        self._counts: dict[Path, int] = {}

    def connector(self) -> dict[str, str]:
        return {"connector.class": "FileSink", "sink.format": "parquet", "sink.path": str(self.path)}

    def spark_sink(self, guarantee: str, query: str) -> tuple[str, dict[str, str]]:
        sink = {"stock": "file sink", "at_least_once": "append files", "foreach_batch": "rename files"}[guarantee]
        self._has_log = sink == "file sink"
        return sink, {"path": str(self.path / query)}

    def count(self) -> int:
        for path in self.visible_since_s().keys() - self._counts.keys():
            self._counts[path] = pyarrow.parquet.read_metadata(path).num_rows
        return sum(self._counts.values())

    def ids(self) -> Counter[int]:
        return Counter(id_ for path in self.visible_since_s() for id_ in values_in(path, "id"))

    def visible_since_s(self) -> dict[Path, float]:
        """The time since when readers see each file, in seconds since 1970.

        It is the file's change time (ctime), which a rename sets; with Spark's file sink, that of the sink's log.
        """
        if not self._has_log:
            return {path: path.stat().st_ctime for path in visible_files(self.path) if path.suffix == ".parquet"}
        seen: dict[Path, float] = {}
        for folder in self.path.glob("*/_spark_metadata"):
            logs = [log for log in folder.iterdir() if log.stem.isdigit() and log.suffix in ("", ".compact")]
            for log in sorted(logs, key=lambda log: (int(log.stem), log.suffix)):
                for added in log.read_text().splitlines()[1:]:
                    seen.setdefault(Path(json.loads(added)["path"].removeprefix("file://")), log.stat().st_ctime)
        return seen


class DeltaFolder(Sink):
    """A Delta table. The guarantee ``stock`` commits with txnAppId and txnVersion, ``foreach_batch`` also uses settings
    for small batches, and ``at_least_once`` appends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def connector(self) -> dict[str, str]:
        return {"connector.class": "DeltaSink", "sink.path": str(self.path), "sink.auto.create": "true"}

    def spark_sink(self, guarantee: str, query: str) -> tuple[str, dict[str, str]]:
        sink = "append delta" if guarantee == "at_least_once" else "commit delta"
        return sink, {"path": str(self.path), "application": query}

    def spark_session_settings(self, guarantee: str) -> dict[str, str]:
        if guarantee != "foreach_batch":
            return {}
        return {"spark.databricks.delta.snapshotPartitions": "1", "spark.databricks.delta.stats.collect": "false"}

    def count(self) -> int:
        return self.ids().total()

    def ids(self) -> Counter[int]:
        if not DeltaTable.is_deltatable(str(self.path)):
            return Counter()
        return Counter(DeltaTable(str(self.path)).to_pyarrow_table(columns=["id"])["id"].to_pylist())

    def visible_since_s(self) -> dict[Path, float]:
        """The time since when readers see each file, in seconds since 1970: that of the commit that adds the file."""
        return {
            self.path / unquote(action["add"]["path"]): log.stat().st_ctime
            for log in (self.path / "_delta_log").glob("*.json")
            for action in map(json.loads, log.read_text().splitlines())
            if "add" in action
        }


class PostgresTable(Sink):
    """A table. The guarantee ``stock`` writes to a staging table, then rows and batch number in one transaction; every
    other guarantee is Spark's jdbc writer (at least once)."""

    def __init__(self, server: PostgresServer, table: str, columns: str) -> None:
        self._server = server
        self._table = table
        names = f"{table}, {table}_staging, batches"
        server.run(
            f"DROP TABLE IF EXISTS {names}",
            f"CREATE TABLE {table} ({columns})",
            f"CREATE UNLOGGED TABLE {table}_staging ({columns})",
            "CREATE TABLE batches (application TEXT, batch BIGINT, PRIMARY KEY (application, batch))",
        )

    def connector(self) -> dict[str, str]:
        keys = self._server.keys | {"table.name.format": self._table}
        return {"connector.class": "PostgresSink", **{f"sink.{key}": one for key, one in keys.items()}}

    def spark_sink(self, guarantee: str, query: str) -> tuple[str, dict[str, str]]:
        dsn = f"host=127.0.0.1 port={self._server.port} dbname=postgres user={USER} password={PASSWORD}"
        to = {
            "url": self._server.keys["connection.url"],
            "dsn": dsn,
            "user": USER,
            "password": PASSWORD,
            "table": self._table,
            "staging": f"{self._table}_staging",
            "application": query,
        }
        return ("commit table" if guarantee == "stock" else "append table"), to

    def count(self) -> int:
        return int(str(self._server.rows(f"SELECT count(*) FROM {self._table}")[0][0]))

    def ids(self) -> Counter[int]:
        return Counter(int(str(one)) for (one,) in self._server.rows(f"SELECT id FROM {self._table}"))


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that is started for the benchmark and ended after it.

    :raises ProgramUnavailableError: when PostgreSQL is not installed on this machine.
    """
    try:
        server = running_server()
        with server as running:
            yield running
    except pytest.skip.Exception as reason:
        raise ProgramUnavailableError(str(reason)) from None
