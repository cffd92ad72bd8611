"""APIs of topics where the broker differs from Apache Kafka, or where Kafka cannot be compared."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from coterie.broker.settings import BrokerSettings
from coterie.wire.errors import ErrorCode
from tests.broker.conftest import Connect, RawClient, ThreadedBroker, raw_client
from tests.kafka.faults.admin import GROUP, SET, TOPIC, alter, delete, describe, grow, partitions
from tests.kafka.faults.data import BATCH, FETCH, produce
from tests.kafka.faults.row import KEYS, codes
from tests.kafka.faults.topics import create

GROUPS_TOPIC = "__consumer_offsets"
CONNECT_GROUPS_TOPIC = "__worker_offsets"


def ask(client: RawClient, api: str, version: int, values: dict[str, Any]) -> Any:
    return client.ask(KEYS[api], version, **values)


def create_topic(client: RawClient, name: str, partitions: int = 1) -> UUID:
    topic = {"name": name, "num_partitions": partitions}
    (created,) = ask(client, "CreateTopics", 7, create(topic, validate_only=False)).topics
    assert created.error_code is ErrorCode.none
    assert isinstance(created.topic_id, UUID)
    return created.topic_id


def metadata(client: RawClient, *topics: tuple[str | None, UUID | None], creating: bool = True) -> Any:
    return ask(
        client,
        "Metadata",
        13,
        {
            "topics": [{"name": name, "topic_id": topic_id} for name, topic_id in topics],
            "allow_auto_topic_creation": creating,
            "include_topic_authorized_operations": False,
        },
    ).topics


@pytest.mark.parametrize(
    ("api", "version", "values", "error"),
    [
        ("DeleteTopics", 6, delete((GROUPS_TOPIC, None)), ErrorCode.invalid_topic_exception),
        ("CreatePartitions", 3, grow(GROUPS_TOPIC, 7), ErrorCode.invalid_topic_exception),
        ("IncrementalAlterConfigs", 1, alter(TOPIC, GROUPS_TOPIC, ("cleanup.policy", SET, "delete")),
         ErrorCode.invalid_config),
        ("CreateTopics", 7, create({"name": "__transaction_state"}), ErrorCode.invalid_topic_exception),
        ("DeleteTopics", 6, delete((CONNECT_GROUPS_TOPIC, None)), ErrorCode.invalid_topic_exception),
    ],
)  # fmt: skip
def test_requests_that_would_change_an_internal_topic_are_refused(
    connect: Connect, api: str, version: int, values: dict[str, Any], error: ErrorCode
) -> None:
    client = connect()
    assert codes(ask(client, api, version, values)) == (error,)
    assert all(topic.is_internal for topic in metadata(client, (GROUPS_TOPIC, None), (CONNECT_GROUPS_TOPIC, None)))


def test_a_topic_is_found_by_its_id_whatever_name_the_request_has(connect: Connect) -> None:
    client = connect()
    topic_id = create_topic(client, "t")
    by_id, beside, again = (
        metadata(client, request)[0] for request in ((None, topic_id), ("x", topic_id), ("t", None))
    )
    assert by_id == beside == again
    assert [topic.name for topic in metadata(client, ("t", None), ("t", None))] == ["t"]
    assert metadata(client, (None, None))[0].error_code is ErrorCode.invalid_request


def test_a_metadata_request_creates_a_topic_unless_its_name_is_invalid_or_taken(connect: Connect) -> None:
    client = connect()
    names = ("new", "a.b", "a_b", "a b", "__transaction_state")
    found = [metadata(client, (name, None))[0].error_code for name in names]
    bad = ErrorCode.invalid_topic_exception
    assert found == [ErrorCode.none, ErrorCode.none, bad, bad, bad]
    (quiet,) = metadata(client, ("other", None), creating=False)
    assert quiet.error_code is ErrorCode.unknown_topic_or_partition


def test_partitions_are_described_in_pages(connect: Connect) -> None:
    client = connect()
    for name, count in (("a", 2), ("b", 3), ("c", 1)):
        create_topic(client, name, count)
    cursor: tuple[str, int] | None = None
    pages: list[list[tuple[str, list[int]]]] = []
    while True:
        request = partitions("c", "b", "a", "nope", cursor=cursor) | {"response_partition_limit": 2}
        answer = ask(client, "DescribeTopicPartitions", 0, request)
        pages.append([(topic.name, [one.partition_index for one in topic.partitions]) for topic in answer.topics])
        if answer.next_cursor is None:
            break
        cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
    assert pages == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2]), ("c", [0]), ("nope", [])]]


def test_a_page_continues_after_a_cursor_whose_topic_was_deleted(connect: Connect) -> None:
    client = connect()
    for name in ("a", "c"):
        create_topic(client, name, 2)
    answer = ask(client, "DescribeTopicPartitions", 0, partitions(cursor=("b", 1)))
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics if topic.name != GROUPS_TOPIC] == [("c", 2)]


def test_concurrent_changes_of_one_topics_configs_are_all_kept(connect: Connect) -> None:
    clients = [connect() for _ in range(8)]
    create_topic(clients[0], "t")
    keys = ["retention.ms", "segment.ms", "flush.ms", "retention.bytes", "delete.retention.ms", "segment.bytes",
            "max.message.bytes", "min.compaction.lag.ms"]  # fmt: skip
    headers = [
        client.send(KEYS["IncrementalAlterConfigs"], 1, **alter(TOPIC, "t", (key, SET, "2000000")))
        for client, key in zip(clients, keys, strict=True)
    ]
    for client, header in zip(clients, headers, strict=True):
        assert codes(client.receive(header)) == (ErrorCode.none,)
    assert own_configs(clients[0], TOPIC, "t") == dict.fromkeys(keys, "2000000")


def test_a_config_value_of_5000_digits_is_refused_as_invalid(connect: Connect) -> None:
    client = connect()
    create_topic(client, "t")
    endless = alter(TOPIC, "t", ("retention.ms", SET, "1" * 5_000))
    assert codes(ask(client, "IncrementalAlterConfigs", 1, endless)) == (ErrorCode.invalid_config,)
    assert own_configs(client, TOPIC, "t") == {}


def test_configs_survive_a_restart(broker: ThreadedBroker, connect: Connect) -> None:
    client = connect()
    create_topic(client, "t")
    ask(client, "IncrementalAlterConfigs", 1, alter(TOPIC, "t", ("retention.ms", SET, "5")))
    ask(client, "IncrementalAlterConfigs", 1, alter(GROUP, "g", ("share.delivery.count.limit", SET, "7")))
    broker.stop()
    broker.start()
    client = connect()
    assert own_configs(client, TOPIC, "t") == {"retention.ms": "5"}
    assert own_configs(client, GROUP, "g") == {"share.delivery.count.limit": "7"}
    assert [one.resource_name for one in resources(client, GROUP)] == ["g"]


@pytest.fixture
def limited_broker(settings: BrokerSettings) -> Iterator[ThreadedBroker]:
    """A broker with a low maximum of partitions; the two topics of groups have one each."""
    threaded = ThreadedBroker(replace(settings, topic_partitions_max=4, partitions_max=8))
    threaded.start()
    yield threaded
    threaded.stop()


def test_partitions_are_limited_per_topic_and_in_total(limited_broker: ThreadedBroker) -> None:
    with raw_client(limited_broker.port) as client:

        def growing(name: str, count: int) -> tuple[ErrorCode, ...]:
            return codes(ask(client, "CreatePartitions", 3, grow(name, count)))

        create_topic(client, "a", 3)
        assert growing("a", 5) == (ErrorCode.invalid_partitions,)
        create_topic(client, "b", 2)
        assert growing("a", 4) == (ErrorCode.none,)
        create_topic(client, "c")
        assert growing("a", 4) == (ErrorCode.policy_violation,)
        assert metadata(client, ("d", None))[0].error_code is ErrorCode.policy_violation
        assert codes(ask(client, "DeleteTopics", 6, delete(("c", None)))) == (ErrorCode.none,)
        assert metadata(client, ("d", None))[0].error_code is ErrorCode.none


def test_pipelined_requests_cannot_exceed_the_limit_on_partitions(limited_broker: ThreadedBroker) -> None:
    with raw_client(limited_broker.port) as client:
        create_topic(client, "a")
        request: list[tuple[str, int, dict[str, Any]]] = [
            ("CreateTopics", 5, create({"name": name, "num_partitions": 2}, validate_only=False)) for name in "bcd"
        ]
        request += [("CreatePartitions", 3, grow("a", count) | {"validate_only": False}) for count in (3, 2)]
        request += [("Metadata", 4, {"topics": [{"name": name}], "allow_auto_topic_creation": True}) for name in "ef"]
        headers = [client.send(KEYS[api], version, **values) for api, version, values in request]
        answers = [client.receive(header) for header in headers]
        none, refused = (ErrorCode.none,), (ErrorCode.policy_violation,)
        assert [codes(answer) for answer in answers] == [none, none, refused, refused, none, refused, refused]
        counted = client.ask(KEYS["Metadata"], 4, topics=None, allow_auto_topic_creation=False)
        assert sum(len(topic.partitions) for topic in counted.topics) == 8


def own_configs(client: RawClient, type_: int, name: str) -> dict[str, str]:
    """The configs that were set for the resource itself."""
    (found,) = ask(client, "DescribeConfigs", 4, describe(type_, name)).results
    assert found.error_code is ErrorCode.none
    return {entry.name: entry.value for entry in found.configs if entry.config_source in (1, 8)}


def resources(client: RawClient, type_: int) -> Any:
    return ask(client, "ListConfigResources", 1, {"resource_types": (type_,)}).config_resources


def test_a_waiting_fetch_ends_at_once_when_its_topic_is_deleted(connect: Connect) -> None:
    client, deleting = connect(), connect()
    topic_id = create_topic(deleting, "t")
    waiting = client.send(KEYS["Fetch"], 17, **fetch_by_id(topic_id, max_wait=2**31 - 1))
    assert codes(ask(deleting, "DeleteTopics", 6, delete(("t", None)))) == (ErrorCode.none,)
    assert codes(client.receive(waiting)) == (ErrorCode.unknown_topic_id,)


def test_a_recreated_topic_has_a_new_id_and_none_of_the_old_records_and_configs(connect: Connect) -> None:
    client = connect()
    before = create_topic(client, "t")
    ask(client, "IncrementalAlterConfigs", 1, alter(TOPIC, "t", ("retention.ms", SET, "5")))
    produced = produce("t")
    assert codes(ask(client, "Produce", 12, produced)) == (ErrorCode.none,)
    assert codes(ask(client, "DeleteTopics", 6, delete((None, before)))) == (ErrorCode.none,)
    assert codes(ask(client, "Produce", 12, produced)) == (ErrorCode.unknown_topic_or_partition,)
    after = create_topic(client, "t")
    assert after != before
    assert own_configs(client, TOPIC, "t") == {}
    assert codes(ask(client, "Fetch", 17, fetch_by_id(before))) == (ErrorCode.unknown_topic_id,)
    assert codes(ask(client, "Fetch", 17, fetch_by_id(after))) == (ErrorCode.none,)
    (answer,) = ask(client, "Produce", 12, produced).responses
    assert answer.partition_responses[0].base_offset == 0


def test_deleting_a_topic_deletes_its_committed_offsets(connect: Connect) -> None:
    client = connect()
    create_topic(client, "t")
    commit = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [
            {
                "name": "t",
                "partitions": [
                    {
                        "partition_index": 0,
                        "committed_offset": 7,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "",
                    }
                ],
            }
        ],
    }
    assert codes(ask(client, "OffsetCommit", 9, commit)) == (ErrorCode.none,)
    assert committed(client, "g", "t") == 7
    ask(client, "DeleteTopics", 6, delete(("t", None)))
    create_topic(client, "t")
    assert committed(client, "g", "t") == -1


def test_a_described_log_directory_contains_the_sizes_of_its_partitions(
    connect: Connect, settings: BrokerSettings
) -> None:
    client = connect()
    create_topic(client, "t", 2)
    ask(client, "Produce", 12, produce("t", partition=1))
    request = {"topics": [{"topic": "t", "partitions": (0, 1, 9)}, {"topic": "none", "partitions": (0,)}]}
    (folder,) = ask(client, "DescribeLogDirs", 4, request).results
    assert folder.log_dir == str(settings.data_path)
    assert folder.total_bytes >= folder.usable_bytes > 0
    (topic,) = folder.topics
    assert [(one.partition_index, one.partition_size) for one in topic.partitions] == [(0, 0), (1, len(BATCH))]
    (folder,) = ask(client, "DescribeLogDirs", 4, {"topics": None}).results
    assert {topic.name for topic in folder.topics} == {"t", GROUPS_TOPIC, CONNECT_GROUPS_TOPIC}


def test_a_log_directory_that_cannot_be_examined_has_the_same_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    broker = ThreadedBroker(BrokerSettings(data_path=Path("data")))
    broker.start()
    try:
        with raw_client(broker.port) as client:
            (examined,) = ask(client, "DescribeLogDirs", 4, {"topics": None}).results
            (tmp_path / "data").rename(tmp_path / "moved")
            (failed,) = ask(client, "DescribeLogDirs", 4, {"topics": None}).results
            (tmp_path / "moved").rename(tmp_path / "data")
    finally:
        broker.stop()
    assert (examined.error_code, failed.error_code) == (ErrorCode.none, ErrorCode.kafka_storage_error)
    assert examined.log_dir == failed.log_dir == str(tmp_path / "data")


def fetch_by_id(topic_id: UUID, max_wait: int = 0) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000}
    request = FETCH | {"max_wait": max_wait, "min_bytes": 1}
    return request | {"topics": [{"topic_id": topic_id, "partitions": [partition]}]}


def committed(client: RawClient, group_id: str, topic: str) -> int:
    group = {
        "group_id": group_id,
        "member_id": None,
        "member_epoch": -1,
        "topics": [{"name": topic, "partition_indexes": (0,)}],
    }
    (answer,) = ask(client, "OffsetFetch", 9, {"groups": [group], "require_stable": False}).groups
    (found,) = answer.topics[0].partitions
    return int(found.committed_offset)
