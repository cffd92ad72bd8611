"""A broker without connect groups, the rights of clients, and group ids that a group of the other protocol has."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.settings import BrokerSettings, GroupProtocol
from coterie.wire.errors import ErrorCode
from coterie.wire.schemas import API_VERSIONS, CONNECT_GROUP_APIS
from tests.broker.apis.connect_groups.worker import DESCRIBE, HEARTBEAT, INSTALL, PREPARE, Worker, describe
from tests.broker.conftest import Connect, RawClient, ThreadedBroker, raw_client
from tests.broker.groups.member import Member
from tests.broker.secured import logged_in, secured_broker

ONLY_CLASSIC = frozenset({GroupProtocol.CLASSIC})


def advertised(client: RawClient, version: int = 4) -> set[int]:
    answer = client.ask(API_VERSIONS, version, client_software_name="t", client_software_version="1")
    return {api.api_key for api in answer.api_keys}


def requests_of(worker: Worker) -> dict[int, dict[str, Any]]:
    """A request of each API of connect groups."""
    common = {"group_id": worker.group_id, "member_id": worker.member_id, "member_epoch": 0}
    return {
        HEARTBEAT: common | {"instance_id": None, "client_assignors": None, "connectors_and_tasks": None},
        PREPARE: common,
        INSTALL: common | {"group_epoch": 1, "error": 0, "members": (), "deferred": (), "unplaceable": ()},
        DESCRIBE: {"group_ids": [worker.group_id], "include_authorized_operations": False},
    }


def test_a_broker_without_connect_groups_has_none_of_their_apis_and_topics(settings: BrokerSettings) -> None:
    broker = ThreadedBroker(replace(settings, group_protocols=ONLY_CLASSIC))
    broker.start()
    try:
        with raw_client(broker.port) as client:
            assert not advertised(client) & CONNECT_GROUP_APIS
            topics = client.ask(3, 4, topics=None, allow_auto_topic_creation=False).topics
            assert [topic.name for topic in topics] == ["__consumer_offsets"]
        for api_key, values in requests_of(Worker(client, "w0")).items():
            with raw_client(broker.port) as client:
                client.send(api_key, 0, **values)
                assert client.is_closed()
    finally:
        broker.stop()


def test_groups_are_kept_while_the_broker_runs_without_connect_groups(settings: BrokerSettings) -> None:
    broker = ThreadedBroker(settings)
    broker.start()
    with raw_client(broker.port) as client:
        assert advertised(client) >= CONNECT_GROUP_APIS
        Worker(client, "w0").settle()
    broker.stop()
    broker.settings = replace(settings, group_protocols=ONLY_CLASSIC)
    broker.start()
    broker.stop()
    broker.settings = settings
    broker.start()
    try:
        with raw_client(broker.port) as client:
            assert describe(client).group_state == "Stable"
    finally:
        broker.stop()


def test_a_connect_group_admits_no_classic_member(connect: Connect) -> None:
    Worker(connect(), "w0", "g").settle()
    member = Member(connect())
    assert member.join().error_code is ErrorCode.inconsistent_group_protocol
    member.member_id, member.generation = "w0", 1
    assert member.beat() is ErrorCode.unknown_member_id
    assert member.sync().error_code is ErrorCode.unknown_member_id


def test_a_classic_group_admits_no_connect_member(connect: Connect) -> None:
    member = Member(connect())
    member.join()
    worker = Worker(connect(), "w0", "g")
    for api_key, values in requests_of(worker).items():
        answer = worker.client.ask(api_key, 0, **values)
        refused = answer.groups[0] if api_key == DESCRIBE else answer
        assert refused.error_code == ErrorCode.group_id_not_found
        assert refused.error_message.startswith("group g is a classic group: ")
    member.sync((member.member_id, b"mine"))
    assert member.beat() is ErrorCode.none


def test_a_group_that_has_only_offsets_may_become_a_connect_group(connect: Connect) -> None:
    client = connect()
    client.ask(3, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
    partitions = [{"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}]
    client.ask(
        8, 8, group_id="workers", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        topics=[{"name": "t", "partitions": partitions}],
    )  # fmt: skip
    Worker(client, "w0").settle()


RULES = """
    allow User:alice read     group:workers
    allow User:bob   describe group:workers
"""


@pytest.mark.parametrize(
    ("user", "refused"), [("alice", set()), ("bob", {HEARTBEAT, PREPARE, INSTALL}), ("carol", CONNECT_GROUP_APIS)]
)
def test_read_on_the_group_lets_a_member_in_and_describe_lets_a_client_look(
    tmp_path: Path, user: str, refused: set[int]
) -> None:
    with secured_broker(tmp_path, "SASL_PLAINTEXT", rules=RULES) as broker, logged_in(broker, user) as client:
        found = set()
        for api_key, values in requests_of(Worker(client, "w0")).items():
            answer = client.ask(api_key, 0, **values)
            error = answer.groups[0].error_code if api_key == DESCRIBE else answer.error_code
            if error == ErrorCode.group_authorization_failed:
                found.add(api_key)
    assert found == refused
