"""The benchmarks run, and say only what their page explains; how fast anything is, no test asks."""

import argparse
from pathlib import Path

import pytest

from benchmarks import bench_log
from benchmarks.bench_group import LightGroup
from benchmarks.brokers import Measured, allow_files, ratios
from coterie.nouns.errors import WorldError
from tests.kafka.embedded_broker import EmbeddedBroker

pytestmark = pytest.mark.processes

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


@pytest.fixture
def measured(mortal_broker: EmbeddedBroker) -> Measured:
    return Measured(port=mortal_broker.port, pid=mortal_broker.pid)


def unexplained(figures: dict[str, float]) -> list[str]:
    page = PAGE.read_text()
    return [key for key in figures if f"`{key}`" not in page]


async def test_light_members_form_a_group_and_send_heartbeats(measured: Measured) -> None:
    group = LightGroup(measured)
    try:
        await group.connect(9)
        figures = await group.form()
        figures |= await group.one_more()
        figures |= await group.saturate(0.2)
        figures |= await group.pace(0.2)
    finally:
        group.close()
    assert figures["heartbeats_per_s"] > 0
    assert not unexplained(figures)


def test_records_are_produced_fetched_and_written_one_by_one(measured: Measured) -> None:
    options = argparse.Namespace(records=2_000, size=100, singles=5)
    figures = bench_log.measured(measured, "embedded", options)
    assert figures["fetched_records_per_s"] > 0
    assert not unexplained(figures)


def test_too_low_a_limit_of_open_files_is_told() -> None:
    with pytest.raises(WorldError, match="1000000000 open files are needed"):
        allow_files(1_000_000_000)


def test_a_ratio_is_ours_in_theirs() -> None:
    assert ratios({"a": 3.0, "b": 1.0}, {"a": 2.0, "b": 0.0}) == {"a": 1.5}
