"""Offsets that Kafka shows for connectors, if one of their clusters does not respond."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark import offset_committer
from coterie.spark.offset_committer import OffsetCommitter
from coterie.spark.plugin_calls import PluginCalls
from coterie.spark.plugins import configured_source
from coterie.spark.query import TaskQuery
from coterie.spark.seams import TaskInput
from coterie.spark.sources.kafka import KafkaSource
from coterie.spark.sources.kafka_client import KafkaAdmin, kafka_admin
from coterie.spark.sources.kafka_positions import GroupOffsets
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.ports import free_port
from tests.spark.conftest import Rig
from tests.spark.sources.kafka_topics import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]


@pytest.fixture
def kafka(spark_jars: Path, rig: Rig, embedded_broker: EmbeddedBroker, tmp_path: Path) -> Kafka:
    return Kafka(embedded_broker.bootstrap_servers, tmp_path)


async def test_each_lag_report_uses_one_client_per_cluster_and_skips_a_cluster_that_does_not_respond(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create("shown", 1)
    parts = tuple(KafkaSource.list_source_partitions(configured_source(kafka.config("shown"), {}).config))
    share = TaskInput(task_number=0, task_count=1, source_partitions=parts, split_function=KafkaSource.split_function)

    def query(name: str, **keys: str) -> TaskQuery:
        """A query that has read three records, as far as a report uses it."""
        own = configured_source({**kafka.config("shown", **keys), "name": name}, {}).config
        KafkaSource.position_store.write_to_new_checkpoint(tmp_path / name, dict.fromkeys(parts, 3))
        task, held = ConnectorTaskId(ConnectorName(name), 0), SimpleNamespace(path=tmp_path / name)
        source = KafkaSource.of(own, share)
        query = SimpleNamespace(task=task, source=source, held_checkpoint=held, was_checkpoint_taken_over=False)
        return cast(TaskQuery, query)

    opened: list[str] = []

    @contextmanager
    def seen(properties: Mapping[str, str]) -> Iterator[KafkaAdmin]:
        opened.append(properties["bootstrap.servers"])
        with kafka_admin(properties) as admin:
            yield admin

    monkeypatch.setattr("coterie.spark.offset_committer.kafka_admin", seen)
    monkeypatch.setattr("coterie.spark.sources.kafka_client.RESPONSE_TIMEOUT_MS", 3000)
    unreachable_server = f"127.0.0.1:{free_port()}"
    unreachable = {"consumer__override__bootstrap__servers": unreachable_server}
    queries = [
        query("dead-1", **unreachable),
        query("dead-2", **unreachable),
        query("dead-3", **unreachable, consumer__override__fetch__min__bytes="2"),
        query("live-1"),
        query("live-2"),
    ]
    calls, closing = PluginCalls(60_000), threading.Event()
    reports = OffsetCommitter(lambda: queries, 1000, calls)
    closing.set()
    reports.commit_changed_offsets(closing)
    assert opened == []
    closing.clear()
    reports.commit_changed_offsets(closing)
    assert opened == [unreachable_server, kafka.servers]
    for name in ("live-1", "live-2"):
        assert kafka.group_offsets(f"connect-{name}") == {("shown", 0): 3}
    # Other connectors of the cluster come before a connector that has failed.
    reports.commit_changed_offsets(closing)
    assert opened == [unreachable_server, kafka.servers, unreachable_server]
    messages = [record.getMessage() for record in caplog.records if record.name == "coterie.spark.offset_committer"]
    assert [line.partition(": committing")[0].rpartition(" ")[2] for line in messages] == ["dead-1", "dead-2"]


class Sources:
    """Sources whose ``group_offsets`` calls a function of the test."""

    def __init__(self, group_offsets: Mapping[str, Callable[[], GroupOffsets]], calls: PluginCalls) -> None:
        self.asked: list[str] = []
        self.queries = [self._query(name, function) for name, function in group_offsets.items()]
        self.reports = OffsetCommitter(lambda: self.queries, 1000, calls)

    def _query(self, name: str, function: Callable[[], GroupOffsets]) -> TaskQuery:
        def group_offsets(_: Path) -> GroupOffsets:
            self.asked.append(name)
            return function()

        task, held = ConnectorTaskId(ConnectorName(name), 0), SimpleNamespace(path=Path("/nowhere"))
        source = SimpleNamespace(group_offsets=group_offsets)
        return cast(
            TaskQuery, SimpleNamespace(task=task, source=source, held_checkpoint=held, was_checkpoint_taken_over=False)
        )

    def read(self) -> list[str]:
        """The connectors whose offsets one more report has received."""
        tasks = {query.task: query for query in self.queries}
        return sorted(
            task.connector for task in self.reports._request_and_take_arrived_offsets(tasks, threading.Event())
        )


def offsets() -> GroupOffsets:
    return GroupOffsets(group_id="g", next_offsets={}, client_properties={})


async def test_a_source_that_does_not_return_its_offsets_delays_no_other_source_and_is_not_asked_again_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    def hang() -> GroupOffsets:
        go_on.wait()
        return offsets()

    monkeypatch.setattr(offset_committer, "READ_TIMEOUT_S", 30)
    calls = PluginCalls(1_000)  # long enough for the good source, also on a busy machine
    sources = Sources({"hangs": hang, "good": offsets}, calls)
    try:
        for _ in range(3):
            sources.reports.commit_changed_offsets(threading.Event())
        assert sorted(sources.asked) == ["good", "good", "good", "hangs"]
        assert calls.lost_thread_count == 1
        assert "The plug-in of task hangs-0 has not returned from group_offsets" in caplog.text
    finally:
        go_on.set()
        calls.close()
        calls.wait_or_abandon_running_calls(30)


async def test_a_source_that_fails_is_logged_once_and_lets_the_calls_of_other_sources_be_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    def fail() -> GroupOffsets:
        raise ValueError("no offsets today")

    def hang() -> GroupOffsets:
        go_on.wait()
        return offsets()

    monkeypatch.setattr(offset_committer, "READ_TIMEOUT_S", 1)
    calls = PluginCalls(60_000)
    sources = Sources({"fails": fail, "hangs": hang}, calls)
    try:
        assert [sources.read() for _ in range(3)] == [[], [], []]
        assert (sources.asked.count("hangs"), sources.asked.count("fails")) == (1, 3)
        (line,) = [record.getMessage() for record in caplog.records if "does not return the offsets" in record.message]
        assert line.startswith("Task fails-0: ")
        assert "no offsets today" in line
    finally:
        go_on.set()
        calls.close()
        calls.wait_or_abandon_running_calls(30)


async def test_the_offsets_of_a_slow_source_are_taken_by_a_later_report(monkeypatch: pytest.MonkeyPatch) -> None:
    returns = threading.Event()

    def slow() -> GroupOffsets:
        returns.wait()
        return offsets()

    monkeypatch.setattr(offset_committer, "READ_TIMEOUT_S", 1)
    calls = PluginCalls(60_000)
    sources = Sources({"slow": slow, "good": offsets}, calls)
    try:
        assert sources.read() == ["good"]
        returns.set()
        monkeypatch.setattr(offset_committer, "READ_TIMEOUT_S", 30)
        assert sources.read() == ["good", "slow"]
        assert sources.asked.count("slow") == 1
    finally:
        returns.set()
        calls.close()
        calls.wait_or_abandon_running_calls(30)
