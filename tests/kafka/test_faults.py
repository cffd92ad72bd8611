"""The request × fault table: every row is sent to the embedded broker and to a real Apache Kafka broker, over raw TCP.

The rows are in `tests/kafka/faults/`, by area; see `row.py` there.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.conftest import raw_client
from tests.kafka.faults.row import Row, Scene


def rows() -> Iterator[Row]:
    for area in sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent / "faults")])):
        yield from getattr(importlib.import_module(f"tests.kafka.faults.{area}"), "ROWS", ())


@pytest.mark.parametrize(
    "kind", [pytest.param("embedded", marks=pytest.mark.processes), pytest.param("kafka", marks=pytest.mark.kafka)]
)
@pytest.mark.parametrize("row", list(rows()), ids=str)
def test_each_fault_gets_its_error_code(row: Row, kind: str, ready_ports: Callable[[str], int]) -> None:
    with raw_client(ready_ports(kind)) as client:
        assert row.play(Scene(client)) == row.expected_of(kind)
