"""Connectors that read good and bad records, and the written records; counted without Spark."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from coterie.spark import sessions
from tests.spark.sinks.postgres_server import PostgresServer
from tests.spark.sources.kafka_topics import Kafka

RANDOMLY_BAD = {
    "transforms": "random",
    "transforms.random.type": "Filter",
    "transforms.random.condition": (
        "CAST(reflect('java.lang.Math', 'random') AS DOUBLE) < 0.5 OR raise_error('bad by chance') IS NULL"
    ),
}
"""A transform for which a record may be bad in one evaluation and good in another; Spark's rand() is deterministic. It
needs :func:`allow_calls_of_java`."""


def allow_calls_of_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let conditions call Java, as those of connectors cannot: SQL has no other function that is random in each
    evaluation."""
    monkeypatch.setattr(sessions, "FUNCTIONS_THAT_CALL_JAVA", ())


def postgres_config(kafka: Kafka, server: PostgresServer, topic: str, **keys: str) -> dict[str, str]:
    """A connector that writes a topic to the table ``good`` and its bad records to the table ``bad``."""
    source = {key: value for key, value in kafka.config(topic).items() if key not in ("format", "path")}
    return (
        source
        | server.keys
        | {
            "connector.class": "PostgresSink",
            "table.name.format": "good",
            "auto.create": "true",
            "exactly.once.support": "required",
            "errors.tolerance": "all",
            "errors.deadletterqueue.table": "bad",
        }
        | {key.replace("__", "."): value for key, value in keys.items()}
    )


def numbers(values: Sequence[object]) -> list[int]:
    """The row numbers in the original bytes of dead letters."""
    found: list[int] = []
    for value in values:
        assert isinstance(value, bytes | memoryview)
        found.append(json.loads(bytes(value))["row"])
    return sorted(found)


def good_and_bad(server: PostgresServer) -> tuple[list[int], list[int]]:
    """The row numbers in both tables; empty for a table that does not exist yet."""
    if not server.rows("SELECT 1 WHERE to_regclass('good') IS NOT NULL AND to_regclass('bad') IS NOT NULL"):
        return [], []
    good = sorted(row for (row,) in server.rows("SELECT row FROM good") if isinstance(row, int))
    return good, numbers([value for (value,) in server.rows("SELECT value FROM bad")])


def dead_letters_in(folder: Path) -> list[dict[str, Any]]:
    """The dead letters in the Parquet files of ``folder``."""
    found: list[dict[str, Any]] = pyarrow.dataset.dataset(folder, format="parquet").to_table().to_pylist()
    return found
