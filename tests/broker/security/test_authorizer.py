"""Rules: their syntax, and the response of each API to a user without rights."""

import logging
import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.apis.authorization import NO_AUTHORIZATION
from coterie.broker.apis.table import APIS
from coterie.broker.security.authorizer import Acls, Operation, ResourceType, read_acls
from coterie.broker.security.principals import ANONYMOUS, Principal
from coterie.broker.server import running_broker
from coterie.broker.settings import BrokerSettings, SecuritySettings
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import decode_response, encode_request, with_length
from coterie.wire.schemas import request_schema
from tests.broker.conftest import ThreadedBroker, raw_client, wait_until
from tests.broker.secured import USER, logged_in, secured_broker
from tests.wire.samples import sample

ALICE, MALLORY = Principal("alice"), Principal("mallory")
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
DENIALS = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
}
PRODUCE, FETCH, METADATA, FIND_COORDINATOR, JOIN_GROUP, DESCRIBE_GROUPS, LIST_GROUPS = 0, 1, 3, 10, 11, 15, 16
INIT_PRODUCER_ID = 22


def rules(text: str, tmp_path: Path) -> Acls:
    path = tmp_path / "rules.acl"
    path.write_text(text)
    return read_acls(path)


RULES = """
# who                       what         of what          from where
super User:admin
allow User:alice            read,write   topic:orders*            # two operations, and a prefix
allow User:*                DESCRIBE     topic:public from 10.0.0.7
allow User:mallory          all          topic:*
deny  User:mallory          all          topic:secret*
deny  User:*                write        topic:orders-frozen
deny  User:*                read         topic:orders from 192.168.0.0/16
deny  User:*                read         topic:orders from 2001:db8::/32
allow "User:CN=loader,O=Big Co" create   cluster
allow User:alice            alter_configs group:own
"""


@pytest.mark.parametrize(
    ("user", "operation", "type_", "name", "host", "expected"),
    [
        ("alice", READ, TOPIC, "orders", "1.1.1.1", True),
        ("alice", READ, TOPIC, "orders-eu", "1.1.1.1", True),
        ("alice", READ, TOPIC, "order", "1.1.1.1", False),
        ("alice", READ, TOPIC, "orders", "192.168.3.4", False),
        ("alice", READ, TOPIC, "orders", "::ffff:192.168.3.4", False),
        ("alice", READ, TOPIC, "orders", "2001:db8:1::1", False),
        ("alice", READ, TOPIC, "orders", "2001:db9::1", True),
        ("alice", READ, TOPIC, "orders", "unknown", False),
        ("other", DESCRIBE, TOPIC, "public", "unknown", False),
        ("alice", READ, GROUP, "orders", "1.1.1.1", False),
        ("alice", DESCRIBE, TOPIC, "orders", "1.1.1.1", True),
        ("alice", Operation.DELETE, TOPIC, "orders", "1.1.1.1", False),
        ("alice", WRITE, TOPIC, "orders-frozen", "1.1.1.1", False),
        ("alice", READ, TOPIC, "orders-frozen", "1.1.1.1", True),
        ("alice", Operation.DESCRIBE_CONFIGS, GROUP, "own", "1.1.1.1", True),
        ("other", DESCRIBE, TOPIC, "public", "10.0.0.7", True),
        ("other", DESCRIBE, TOPIC, "public", "10.0.0.8", False),
        ("other", READ, TOPIC, "public", "10.0.0.7", False),
        ("mallory", READ, TOPIC, "anything", "1.1.1.1", True),
        ("mallory", READ, TOPIC, "secret-plans", "1.1.1.1", False),
        ("admin", READ, TOPIC, "secret-plans", "1.1.1.1", True),
        ("CN=loader,O=Big Co", Operation.CREATE, CLUSTER, "kafka-cluster", "1.1.1.1", True),
        ("ANONYMOUS", READ, TOPIC, "orders", "1.1.1.1", False),
    ],
)
def test_rules_allow_and_deny_as_they_are_written(
    tmp_path: Path, user: str, operation: Operation, type_: ResourceType, name: str, host: str, expected: bool
) -> None:
    assert rules(RULES, tmp_path).is_allowed(Principal(user), operation, type_, name, host) is expected


def test_a_user_who_may_write_any_topic_may_have_a_producer_id(tmp_path: Path) -> None:
    read = rules(RULES, tmp_path)
    assert read.is_allowed_on_any(ALICE, WRITE, TOPIC, "h")
    assert read.is_allowed_on_any(MALLORY, WRITE, TOPIC, "h")
    assert not read.is_allowed_on_any(ANONYMOUS, WRITE, TOPIC, "h")
    assert not rules("allow User:alice write topic:a\ndeny User:alice write topic:*", tmp_path).is_allowed_on_any(
        ALICE, WRITE, TOPIC, "h"
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("permit User:a read topic:t", "begins with allow, deny or super, not permit"),
        ("allow User:a read", "a rule is: allow PRINCIPAL"),
        ("allow User:a read topic:t at home", "a rule is: allow PRINCIPAL"),
        (
            "deny User:* write topic:t from localhost",
            "after the word from, a rule needs an IP address or a range of addresses",
        ),
        ("deny User:* write topic:t from 127.0.0.1/8", "127.0.0.1/8 has host bits set"),
        (
            "deny User:* write topic:t from 10.0.0.1#",
            "after the word from, a rule needs an IP address or a range of addresses",
        ),
        ("allow alice read topic:t", "alice is not a principal"),
        ("allow User: read topic:t", "User: is not a principal"),
        ("allow User:a reed topic:t", "'reed' is not an operation; the operations are all, read"),
        ("allow User:a read, topic:t", "'' is not an operation"),
        ("allow User:a read tpic:t", "tpic:t is not a resource"),
        ("allow User:a read topic", "topic is not a resource"),
        ("allow User:a read topic:a*b", "before its end"),
        ("super", "a super rule needs exactly one principal"),
        ('allow "User:a read topic:t', "No closing quotation"),
        ('allow "User:a # read topic:t', "No closing quotation"),
        ("allow User:a read topic:t\\", "No escaped character"),
        ("super User:*", "User:* cannot be the principal of a super rule"),
    ],
)
def test_a_malformed_line_is_reported_with_file_and_line_number(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(WorldError) as refused:
        rules(f"# rules\nallow User:b read topic:t\n{line}\n", tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / 'rules.acl'}, line 3: ")
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("line", "name", "host"),
    [
        ("allow User:alice read group:pay#1 from 10.0.0.1", "pay#1", "10.0.0.1"),
        ("allow User:alice read group:pay#1 from 10.0.0.1 # group:pay", "pay#1", "10.0.0.1"),
        ("allow User:alice read group:pay# from 10.0.0.1\t#", "pay#", "10.0.0.1"),
        ('allow User:alice read "group:pay #1" from 10.0.0.1 ##', "pay #1", "10.0.0.1"),
        ("allow User:alice read 'group:pay #1'", "pay #1", "*"),
        ("allow User:alice read group:pay\\ #1", "pay #1", "*"),
        ("allow User:alice read group:pay # Bob's", "pay", "*"),
        ("allow User:alice read group:pay #", "pay", "*"),
        ("allow User:alice read group:pay #from 10.0.0.1", "pay", "*"),
    ],
)
def test_a_comment_begins_after_a_space_and_not_inside_a_word(tmp_path: Path, line: str, name: str, host: str) -> None:
    (rule,) = rules(f"# all there is\n  # {line}\n{line}\n", tmp_path).entries
    assert (rule.resource_name_or_prefix, rule.host) == (name, None if host == "*" else ip_network(host))


async def test_a_broker_does_not_start_with_invalid_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.acl"
    path.write_text("nonsense")
    settings = BrokerSettings(data_path=tmp_path / "broker", security=SecuritySettings(acl_path=path))
    with pytest.raises(WorldError, match=r"rules\.acl, line 1: "):
        async with running_broker(settings):
            pass


# -- over the wire ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedBroker]:
    """A broker that allows no operation to any user."""
    with secured_broker(tmp_path_factory.mktemp("closed"), "PLAINTEXT", rules="super User:other\n") as broker:
        yield broker


def errors_in(entity: Any) -> set[ErrorCode]:
    """Every error code in a response, at any depth."""
    if isinstance(entity, ErrorCode):
        return {entity}
    if isinstance(entity, tuple):
        return {error for one in entity for error in errors_in(one)}
    if is_dataclass(entity):
        values = {field.name: getattr(entity, field.name) for field in fields(entity)}
        # The error codes of connect groups are numbers: Kafka does not have all of them.
        own = {ErrorCode(values["error_code"])} if type(values.get("error_code")) is int else set()
        return own | {error for value in values.values() for error in errors_in(value)}
    return set()


EVERY_VERSION = [(key, version) for key in sorted(APIS) for version in APIS[key].versions]
DESCRIBE_LOG_DIRS, LIST_TRANSACTIONS = 35, 66
EMPTY_RESPONSES = (
    *((key, version) for key in (LIST_GROUPS, LIST_TRANSACTIONS) for version in APIS[key].versions),
    (DESCRIBE_LOG_DIRS, 1),
    (DESCRIBE_LOG_DIRS, 2),
)
"""Responses that are empty instead of containing an error; DescribeLogDirs has an error code since v3."""


@pytest.mark.parametrize(("api_key", "version"), EVERY_VERSION)
def test_a_user_without_rights_is_refused_by_every_api_in_every_version(
    closed_broker: ThreadedBroker, api_key: int, version: int
) -> None:
    rng = random.Random(api_key * 100 + version)
    for _ in range(5):
        entity = sample(request_schema(api_key, version), rng, nulls=0)
        if api_key == PRODUCE and entity.acks == 0:
            continue
        header, frame = encode_request(entity, correlation_id=1, client_id="t")
        with raw_client(closed_broker.port) as client:
            client.socket.sendall(with_length(frame))
            errors = errors_in(decode_response(client.receive_frame(), header))
        if APIS[api_key].authorization is NO_AUTHORIZATION:
            assert not errors & DENIALS
        elif (api_key, version) not in EMPTY_RESPONSES and not _has_topic_ids_only(entity):
            assert errors & DENIALS, entity


def _has_topic_ids_only(entity: Any) -> bool:
    """Whether the request has topic ids without names: an unknown id gets another error."""
    topics = getattr(entity, "topics", None) or getattr(entity, "topic_data", None) or ()
    return any(hasattr(one, "topic_id") and not getattr(one, "name", None) for one in topics)


@pytest.fixture(scope="module")
def open_to_alice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedBroker]:
    text = f"""
    allow User:{USER}    read,write,create  topic:hers*
    allow User:{USER}    read               group:hers*
    allow User:{USER}    describe           topic:seen
    allow User:ANONYMOUS all                topic:*
    super User:admin
    """
    with secured_broker(tmp_path_factory.mktemp("alice"), "SASL_PLAINTEXT", rules=text) as broker:
        with logged_in(broker, "admin") as admin:
            for name in ("hers", "seen", "hidden"):
                admin.ask(METADATA, 4, topics=[{"name": name}], allow_auto_topic_creation=True)
        yield broker


def test_the_authorized_operations_of_a_response_are_those_of_the_user(open_to_alice: ThreadedBroker) -> None:
    bits = {Operation.READ: 1 << 3, Operation.WRITE: 1 << 4, Operation.CREATE: 1 << 5, Operation.DESCRIBE: 1 << 8}
    with logged_in(open_to_alice, USER) as client:
        request = {
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": False,
            "allow_auto_topic_creation": False,
        }
        (topic,) = client.ask(METADATA, 9, topics=[{"name": "hers"}], **request).topics
        assert topic.topic_authorized_operations == sum(bits.values())
        (group,) = client.ask(DESCRIBE_GROUPS, 5, groups=["hers"], include_authorized_operations=True).groups
        assert group.authorized_operations == bits[Operation.READ] | bits[Operation.DESCRIBE]


def test_metadata_contains_permitted_topics_and_errors_for_the_others(open_to_alice: ThreadedBroker) -> None:
    with logged_in(open_to_alice, USER) as client:
        names = ("hers", "seen", "hidden", "hers-new", "nowhere")
        request = [{"name": name} for name in names]
        answer = client.ask(METADATA, 7, topics=request, allow_auto_topic_creation=True)
        assert {topic.name: topic.error_code for topic in answer.topics} == {
            "hers": ErrorCode.none,
            "seen": ErrorCode.none,
            "hidden": ErrorCode.topic_authorization_failed,
            "hers-new": ErrorCode.none,
            "nowhere": ErrorCode.topic_authorization_failed,
        }
        everything = client.ask(METADATA, 7, topics=None, allow_auto_topic_creation=False)
        assert {topic.name for topic in everything.topics} == {"hers", "seen", "hers-new"}
        # In version 0 an empty list requests all topics; a list that became empty by authorization must not.
        oldest = client.ask(METADATA, 0, topics=[{"name": "hidden"}])
        assert [(topic.name, topic.error_code) for topic in oldest.topics] == [
            ("hidden", ErrorCode.topic_authorization_failed)
        ]


def test_a_fetch_reads_permitted_topics_and_returns_errors_for_the_others(open_to_alice: ThreadedBroker) -> None:
    partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}]
    with logged_in(open_to_alice, USER) as client:
        answer = client.ask(
            FETCH,
            12,
            max_wait=0,
            min_bytes=0,
            max_bytes=1_000,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": name, "partitions": partitions} for name in ("hers", "hidden", "seen")],
            forgotten_topics_data=(),
        )
    assert {one.topic: one.partitions[0].error_code for one in answer.responses} == {
        "hers": ErrorCode.none,
        "hidden": ErrorCode.topic_authorization_failed,
        "seen": ErrorCode.topic_authorization_failed,
    }


def test_a_refused_produce_without_acks_closes_the_connection(open_to_alice: ThreadedBroker) -> None:
    data = [{"name": "hidden", "partition_data": [{"index": 0, "records": b""}]}]
    with logged_in(open_to_alice, USER) as client:
        client.send(PRODUCE, 9, transactional_id=None, acks=0, timeout=1000, topic_data=data)
        assert client.is_closed()


def test_rights_to_groups_and_producer_ids_are_checked_by_name(open_to_alice: ThreadedBroker) -> None:
    join = {
        "session_timeout": 6000,
        "rebalance_timeout": 6000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    with logged_in(open_to_alice, USER) as client:
        assert client.ask(JOIN_GROUP, 5, group_id="hers", **join).error_code is ErrorCode.member_id_required
        assert client.ask(JOIN_GROUP, 5, group_id="theirs", **join).error_code is ErrorCode.group_authorization_failed
        found = client.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["hers", "theirs"])
        assert {one.key: one.error_code for one in found.coordinators} == {
            "hers": ErrorCode.none,
            "theirs": ErrorCode.group_authorization_failed,
        }
        idempotent = {"transactional_id": None, "transaction_timeout": 1000}
        assert client.ask(INIT_PRODUCER_ID, 1, **idempotent).error_code is ErrorCode.none
    with logged_in(open_to_alice, "bob") as client:
        refused = client.ask(INIT_PRODUCER_ID, 1, **idempotent)
        assert refused.error_code is ErrorCode.cluster_authorization_failed


def test_a_running_broker_rereads_its_rules_and_ignores_invalid_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with secured_broker(tmp_path, "SASL_PLAINTEXT", rules=f"allow User:{USER} create,read topic:*\n") as broker:
        path = tmp_path / "rules.acl"
        with logged_in(broker, USER) as client:

            def error() -> ErrorCode:
                topics = client.ask(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True).topics
                found: ErrorCode = topics[0].error_code
                return found

            assert error() is ErrorCode.none
            with caplog.at_level(logging.ERROR, logger="coterie.broker"):
                path.write_text("allow nonsense\n")
                wait_until(lambda: bool(caplog.records))
            assert "rules.acl, line 1: " in caplog.text
            assert "the previous ones stay in use" in caplog.text
            assert error() is ErrorCode.none
            path.write_text("super User:other\n")
            wait_until(lambda: error() is ErrorCode.topic_authorization_failed)
