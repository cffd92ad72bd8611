"""Responses to a user with few rights, for each request: those of our broker are those of Apache Kafka."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from coterie.broker.security.users import BrokerUsersFile
from coterie.config.security import KafkaSecurity
from coterie.engine.log import NewTopicRecord
from coterie.kafka.broker_access import check_broker_access_if_reachable
from coterie.kafka.connection import Address, ApiVersionRange, BrokerAccessError, BrokerConnection
from coterie.kafka.leader_log import transactional_id
from coterie.kafka.topics import TopicsClient
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GroupId
from coterie.wire.batches import NewRecord, encode_batch, encode_transaction_marker
from coterie.wire.errors import ErrorCode
from tests.broker.secured import PASSWORD, USER, secured_broker
from tests.kafka.real_kafka import RealKafka

pytestmark = pytest.mark.kafka

DEADLINE_S = 60
BOB = "bob"
REAL_PASSWORD = "a-password"
TOPICS = ("hers", "seen", "hidden")

RULES = f"""
super User:{USER}
allow User:{BOB} read,write,create  topic:hers*
allow User:{BOB} describe           topic:seen
allow User:{BOB} read               group:hers*
allow User:{BOB} describe_configs   topic:hers-told
allow User:{BOB} describe_configs   topic:hers-configs
allow User:{BOB} describe           transactional_id:shown
allow User:{BOB} write              transactional_id:connect-cluster-hers
allow User:{BOB} write              transactional_id:connect-cluster-opened
deny  User:{BOB} read               topic:hers-secret
"""
ACLS = [
    (ResourceType.TOPIC, "hers", ResourcePatternType.PREFIXED, AclOperation.READ, AclPermissionType.ALLOW),
    (ResourceType.TOPIC, "hers", ResourcePatternType.PREFIXED, AclOperation.WRITE, AclPermissionType.ALLOW),
    (ResourceType.TOPIC, "hers", ResourcePatternType.PREFIXED, AclOperation.CREATE, AclPermissionType.ALLOW),
    (ResourceType.TOPIC, "seen", ResourcePatternType.LITERAL, AclOperation.DESCRIBE, AclPermissionType.ALLOW),
    (ResourceType.GROUP, "hers", ResourcePatternType.PREFIXED, AclOperation.READ, AclPermissionType.ALLOW),
    *(
        (
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            AclOperation.DESCRIBE_CONFIGS,
            AclPermissionType.ALLOW,
        )
        for topic in ("hers-told", "hers-configs")
    ),
    (
        ResourceType.TRANSACTIONAL_ID,
        "shown",
        ResourcePatternType.LITERAL,
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    ),
    *(
        (
            ResourceType.TRANSACTIONAL_ID,
            id_,
            ResourcePatternType.LITERAL,
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        for id_ in ("connect-cluster-hers", "connect-cluster-opened")
    ),
    (ResourceType.TOPIC, "hers-secret", ResourcePatternType.LITERAL, AclOperation.READ, AclPermissionType.DENY),
]
"""The same rules, as Kafka's tools would set them."""

REAL_PROPERTIES = f"""
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller_port}},SASL_PLAINTEXT://127.0.0.1:{{further_port}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_PLAINTEXT://localhost:{{further_port}}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{BOB}="{REAL_PASSWORD}" user_{USER}="{REAL_PASSWORD}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:{USER}
"""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with secured_broker(tmp_path_factory.mktemp("ours"), "SASL_PLAINTEXT", rules=RULES) as broker:
        BrokerUsersFile(broker.settings.users_path).add(BOB, PASSWORD)
        yield broker.port


@pytest.fixture(scope="module")
def theirs(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    kafka = RealKafka(kafka_jars, tmp_path_factory.mktemp("theirs"), properties=REAL_PROPERTIES)
    kafka.start()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    bindings = [
        AclBinding(type_, name, pattern, f"User:{BOB}", "*", operation, permission)
        for type_, name, pattern, operation, permission in ACLS
    ]
    for done in admin.create_acls(bindings).values():
        done.result(DEADLINE_S)
    yield kafka.further_port
    kafka.stop()


def security(user: str, password: str) -> KafkaSecurity:
    return KafkaSecurity(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username=user, password=password)


class BrokerClient:
    """One user at one broker; opens a new connection if the old one was closed."""

    def __init__(self, port: int, user: str, password: str) -> None:
        self._address = Address("localhost", port)
        self._security = security(user, password)

    async def ask(self, api_key: int, version: int, values: dict[str, Any]) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            connection = await BrokerConnection.open(self._address, client_id="tests", security=self._security)
            try:
                return await connection.ask(ApiVersionRange(f"API {api_key}", api_key, version, version), values)
            finally:
                connection.close()

    async def ask_until_ready(self, api_key: int, version: int, values: dict[str, Any]) -> Any:
        """Repeat the request until Kafka has created its topics of groups and transactions, which it does on demand."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                answer = await self.ask(api_key, version, values)
                if not {error for _, error in error_codes(answer)} & _NOT_YET:
                    return answer
                await asyncio.sleep(0.05)


_NOT_YET = {"coordinator_load_in_progress", "coordinator_not_available", "not_coordinator"}


@pytest.fixture
async def clients_of_bob(ours: int, theirs: int) -> list[BrokerClient]:
    """Bob as a user of our broker and of the real one, on which the resources of the requests exist."""
    for port, password in ((ours, PASSWORD), (theirs, REAL_PASSWORD)):
        alice = BrokerClient(port, USER, password)
        topics = [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
            for name in TOPICS
        ]
        await alice.ask(19, 4, {"topics": topics, "timeout": 10_000, "validate_only": False})
        # Kafka creates its topic of transactions at the first request for a transaction's coordinator.
        await alice.ask_until_ready(10, 3, {"key": "hers", "key_type": 1})
        while True:
            found = await alice.ask(10, 3, {"key": "hers", "key_type": 0})
            beat = await alice.ask(12, 3, _member("hers"))
            if found.error_code is ErrorCode.none and beat.error_code is ErrorCode.unknown_member_id:
                break
            await asyncio.sleep(0.05)
    return [BrokerClient(ours, BOB, PASSWORD), BrokerClient(theirs, BOB, REAL_PASSWORD)]


def _member(group: str) -> dict[str, Any]:
    return {"group_id": group, "generation_id": 1, "member_id": "m", "group_instance_id": None}


def error_codes(entity: Any, about: str = "") -> set[tuple[str, str]]:
    """Every error code of a response, with the name of its resource."""
    found: set[tuple[str, str]] = set()
    if isinstance(entity, tuple):
        for one in entity:
            found |= error_codes(one, about)
    elif is_dataclass(entity):
        names = ("name", "topic", "group_id", "key", "resource_name", "transactional_id")
        about = next((name for field in names if isinstance(name := getattr(entity, field, None), str)), about)
        for field in fields(entity):
            value = getattr(entity, field.name)
            if isinstance(value, ErrorCode):
                found.add((about, value.name))
            else:
                found |= error_codes(value, about)
    return found


NOW_MS = time.time_ns() // 1_000_000
"""A timestamp of records that retention keeps."""
BATCH = encode_batch([NewRecord(key=None, value=b"v")], timestamp_ms=NOW_MS)
TRANSACTED = encode_transaction_marker(producer_id=1, producer_epoch=0, is_commit=True, timestamp_ms=NOW_MS)
ASKED = [*TOPICS, "hers-none", "none"]


def topics(partition: dict[str, Any], *, name: str = "name", partitions: str = "partitions") -> list[dict[str, Any]]:
    return [{name: topic, partitions: [partition]} for topic in ASKED]


NAMES = [{"name": name} for name in ASKED]
ALL_TOPICS = {"topics": None, "allow_auto_topic_creation": False}
GROUPS = ["hers", "theirs"]
RESOURCES = [
    *({"resource_type": 2, "resource_name": name, "configuration_keys": None, "configs": ()} for name in ASKED),
    {"resource_type": 4, "resource_name": "1", "configuration_keys": None, "configs": ()},
    {"resource_type": 32, "resource_name": "hers", "configuration_keys": None, "configs": ()},
]
JOIN = {
    "session_timeout": 6_000, "rebalance_timeout": 6_000, "member_id": "", "group_instance_id": None,
    "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}], "reason": None,
}  # fmt: skip
COMMIT = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
TRANSACTION = {"transactional_id": "tx", "producer_id": 1, "producer_epoch": 0}
OWN_TRANSACTION = TRANSACTION | {"transactional_id": "connect-cluster-hers"}
FETCHED = {
    "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1, "log_start_offset": -1,
    "partition_max_bytes": 1_000,
}  # fmt: skip

REQUESTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "produce": (0, 9, {
        "transactional_id": None, "acks": -1, "timeout": 1_000,
        "topic_data": topics({"index": 0, "records": BATCH}, partitions="partition_data"),
    }),
    "produce in a transaction": (0, 9, {
        "transactional_id": "tx", "acks": -1, "timeout": 1_000,
        "topic_data": topics({"index": 0, "records": TRANSACTED}, partitions="partition_data"),
    }),
    "produce with an id that no batch needs": (0, 9, {
        "transactional_id": "tx", "acks": -1, "timeout": 1_000,
        "topic_data": topics({"index": 0, "records": BATCH}, partitions="partition_data"),
    }),
    "fetch": (1, 12, {
        "max_wait": 0, "min_bytes": 0, "max_bytes": 1_000, "isolation_level": 0, "session_id": 0, "session_epoch": -1,
        "topics": topics(FETCHED, name="topic"), "forgotten_topics_data": (), "rack_id": "", "replica_id": -1,
    }),
    "list offsets": (2, 5, {
        "replica_id": -1, "isolation_level": 0,
        "topics": topics({"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}),
    }),
    "metadata": (3, 7, {"topics": NAMES, "allow_auto_topic_creation": False}),
    "metadata of all": (3, 7, ALL_TOPICS),
    "metadata by an unknown id": (3, 12, {
        "topics": [{"topic_id": UUID(int=7), "name": None}], "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }),
    "offset commit": (8, 8, {**_member("hers"), "generation_id_or_member_epoch": -1, "member_id": "",
                             "topics": topics(COMMIT)}),
    "offset commit elsewhere": (8, 8, {**_member("theirs"), "generation_id_or_member_epoch": -1, "member_id": "",
                                       "topics": topics(COMMIT)}),
    "offset fetch": (9, 7, {
        "group_id": "hers", "topics": [{"name": name, "partition_indexes": (0,)} for name in ASKED],
        "require_stable": False,
    }),
    "offset fetch elsewhere": (9, 7, {"group_id": "theirs", "topics": None, "require_stable": False}),
    "offset fetch, the oldest": (9, 1, {"group_id": "theirs",
                                        "topics": [{"name": name, "partition_indexes": (0,)} for name in TOPICS]}),
    "offset fetch of groups": (9, 8, {
        "groups": [
            {"group_id": group, "topics": [{"name": name, "partition_indexes": (0,)} for name in ASKED]}
            for group in GROUPS
        ],
        "require_stable": False,
    }),
    "find one coordinator": (10, 3, {"key": "theirs", "key_type": 0}),
    "find coordinators": (10, 4, {"key_type": 0, "coordinator_keys": GROUPS}),
    "find coordinators of transactions": (10, 4, {"key_type": 1, "coordinator_keys": ["tx"]}),
    "join": (11, 7, {**JOIN, "group_id": "theirs"}),
    "heartbeat": (12, 3, _member("theirs")),
    "leave": (13, 3, {"group_id": "theirs", "members": [{"member_id": "m", "group_instance_id": None}]}),
    "sync": (14, 5, {**_member("theirs"), "protocol_type": "consumer", "protocol_name": "range", "assignments": ()}),
    "describe groups": (15, 4, {"groups": GROUPS, "include_authorized_operations": False}),
    "create topics": (19, 4, {
        "topics": [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
            for name in ("hers-new", "theirs-new")
        ],
        "timeout": 1_000, "validate_only": True,
    }),
    "delete topics": (20, 5, {"topic_names": ASKED, "timeout": 1_000}),
    "delete records": (21, 2, {"topics": topics({"partition_index": 0, "offset": 0}), "timeout": 1_000}),
    "a producer id": (22, 1, {"transactional_id": None, "transaction_timeout": 1_000}),
    "a transactional producer id": (22, 1, {"transactional_id": "tx", "transaction_timeout": 1_000}),
    "end of an epoch": (23, 4, {
        "replica_id": -1,
        "topics": topics({"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}, name="topic"),
    }),
    "add partitions": (24, 3, {
        "v3_and_below_transactional_id": "tx", "v3_and_below_producer_id": 1, "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [{"name": name, "partitions": (0,)} for name in TOPICS],
    }),
    "add offsets of a group": (25, 3, {**OWN_TRANSACTION, "group_id": "hers"}),
    "add offsets of another's group": (25, 3, {**OWN_TRANSACTION, "group_id": "theirs"}),
    "add offsets to another's transaction": (25, 3, {**TRANSACTION, "group_id": "hers"}),
    "commit in a transaction": (28, 3, {**_member("hers"), **OWN_TRANSACTION, "topics": topics(COMMIT)}),
    "commit in a transaction for another's group": (28, 3, {
        **_member("theirs"), **OWN_TRANSACTION, "topics": topics(COMMIT),
    }),
    "commit in another's transaction": (28, 3, {**_member("hers"), **TRANSACTION, "topics": topics(COMMIT)}),
    "end a transaction": (26, 3, {**TRANSACTION, "committed": True}),
    "describe configs": (32, 4, {
        "resources": RESOURCES, "include_synonyms": False, "include_documentation": False,
    }),
    "create partitions": (37, 3, {
        "topics": [{"name": name, "count": 2, "assignments": None} for name in ASKED],
        "timeout": 1_000, "validate_only": True,
    }),
    "delete groups": (42, 2, {"groups_names": GROUPS}),
    "alter configs": (44, 1, {"resources": RESOURCES, "validate_only": True}),
    "delete offsets": (47, 0, {**_member("hers"), "topics": topics({"partition_index": 0})}),
    "describe log folders": (35, 3, {"topics": None}),
    "describe producers": (61, 0, {"topics": [{"name": name, "partition_indexes": (0,)} for name in ASKED]}),
    "describe transactions": (65, 0, {"transactional_ids": ["tx"]}),
    "list transactions": (66, 0, {"state_filters": (), "producer_id_filters": ()}),
    "list resources with configs": (74, 1, {"resource_types": ()}),
    "alter configs, the old way": (33, 2, {"resources": RESOURCES, "validate_only": True}),
    "describe topic partitions": (75, 0, {"topics": NAMES, "response_partition_limit": 100, "cursor": None}),
    "list groups": (16, 4, {"states_filter": ()}),
    "describe cluster": (60, 0, {"include_cluster_authorized_operations": False}),
}  # fmt: skip


@pytest.mark.parametrize("request_name", sorted(REQUESTS))
async def test_a_user_with_few_rights_gets_the_responses_that_kafka_gives(
    clients_of_bob: list[BrokerClient], request_name: str
) -> None:
    api_key, version, values = REQUESTS[request_name]
    ours, theirs = [error_codes(await asker.ask_until_ready(api_key, version, values)) for asker in clients_of_bob]
    assert ours == theirs


async def test_a_transaction_is_described_without_the_topics_that_the_user_may_not_describe(
    clients_of_bob: list[BrokerClient], ours: int, theirs: int
) -> None:
    for bob, alice in zip(
        clients_of_bob, (BrokerClient(ours, USER, PASSWORD), BrokerClient(theirs, USER, REAL_PASSWORD)), strict=True
    ):
        await alice.ask_until_ready(10, 3, {"key": "shown", "key_type": 1})
        begun = await alice.ask_until_ready(22, 1, {"transactional_id": "shown", "transaction_timeout": 60_000})
        producer = {
            "transactional_id": "shown",
            "producer_id": begun.producer_id,
            "producer_epoch": begun.producer_epoch,
        }
        added = await alice.ask_until_ready(24, 3, {
            **{f"v3_and_below_{name}": value for name, value in producer.items()},
            "v3_and_below_topics": [{"name": name, "partitions": (0,)} for name in TOPICS],
        })  # fmt: skip
        assert {error for _, error in error_codes(added)} == {"none"}
        seen = [await client.ask(65, 0, {"transactional_ids": ["shown"]}) for client in (alice, bob)]
        assert [{topic.topic for topic in one.transaction_states[0].topics} for one in seen] == [
            set(TOPICS),
            {"hers", "seen"},
        ]
        await alice.ask(26, 3, {**producer, "committed": False})


async def test_configs_of_a_new_topic_are_returned_to_users_who_may_describe_them(
    clients_of_bob: list[BrokerClient],
) -> None:
    values = {
        "topics": [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
            for name in ("hers-told", "hers-new", "hers", "theirs-new")
        ],
        "timeout": 10_000, "validate_only": True,
    }  # fmt: skip
    answers = [await asker.ask(19, 7, values) for asker in clients_of_bob]
    ours, theirs = [
        {
            topic.name: (
                topic.error_code.name,
                topic.topic_config_error_code,
                topic.num_partitions,
                topic.replication_factor,
                {config.name for config in topic.configs},
            )
            for topic in answer.topics
        }
        for answer in answers
    ]
    assert ours == theirs
    assert ours["hers-new"] == ("none", ErrorCode.topic_authorization_failed, -1, -1, set())


MISSING_RIGHT = (
    "the brokers do not allow this worker to write with the transactional id {}, .*the operations Write and Describe"
)


@pytest.mark.parametrize(("broker", "password"), [("ours", PASSWORD), ("theirs", REAL_PASSWORD)])
async def test_a_worker_needs_the_right_to_write_with_its_groups_transactional_id(
    request: pytest.FixtureRequest, broker: str, password: str
) -> None:
    """A worker without the right ends at its start. No right to the cluster is needed, not even IdempotentWrite.

    Only this test opens its transactional id: the other tests compare how two brokers respond for one that is not open.
    """
    server = f"localhost:{request.getfixturevalue(broker)}"
    bob = security(BOB, password)

    async def check(group: str) -> None:
        id_ = transactional_id(GroupId(group))
        await check_broker_access_if_reachable([server], client_id="tests", security=bob, transactional_id=id_)

    await check("opened")
    with pytest.raises(BrokerAccessError, match=MISSING_RIGHT.format("connect-cluster-theirs")):
        await check("theirs")
    topics = TopicsClient([server], client_id="tests", security=bob)
    try:
        async with asyncio.timeout(DEADLINE_S):
            log = await topics.open_or_create_log(
                "hers-configs", partitions=1, replication_factor=1, setting_key="config.storage.topic"
            )
            leader_log = topics.new_leader_log(log, transactional_id=transactional_id(GroupId("opened")))
            await leader_log.open(transaction_timeout_ms=60_000)
            assert await leader_log.append([NewTopicRecord(key=b"k", value=b"v")]) == 1
            only_described = topics.new_leader_log(log, transactional_id="shown")
            with pytest.raises(WorldError, match=MISSING_RIGHT.format("shown")):
                await only_described.open(transaction_timeout_ms=60_000)
    finally:
        await topics.close()
        # Other tests compare the topics that exist on the two brokers.
        alice = BrokerClient(request.getfixturevalue(broker), USER, password)
        await alice.ask(20, 5, {"topic_names": ("hers-configs",), "timeout": 10_000})
        while True:
            if "hers-configs" not in {name for name, _ in error_codes(await alice.ask(3, 7, ALL_TOPICS))}:
                break
            await asyncio.sleep(0.05)
