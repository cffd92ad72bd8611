"""One row of the request × fault table, and the scene in which its request is sent.

A row is one call: the API, its version, the fault of the request, the error codes in the response, and the request's
fields by kio's names. Fields that depend on the broker's state are a function of the :class:`Scene`::

    Row("Heartbeat", 4, "of a former generation", E.illegal_generation, lambda scene: scene.member() | {...})

Rows are in the other modules of this folder, each in a tuple ``ROWS``; a new module needs no registration.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from coterie.wire.errors import ErrorCode
from tests.broker.conftest import RawClient

KEYS: Mapping[str, int] = {
    "Produce": 0,
    "Fetch": 1,
    "ListOffsets": 2,
    "Metadata": 3,
    "OffsetCommit": 8,
    "OffsetFetch": 9,
    "FindCoordinator": 10,
    "JoinGroup": 11,
    "Heartbeat": 12,
    "LeaveGroup": 13,
    "SyncGroup": 14,
    "DescribeGroups": 15,
    "ListGroups": 16,
    "SaslHandshake": 17,
    "ApiVersions": 18,
    "CreateTopics": 19,
    "DeleteTopics": 20,
    "DeleteRecords": 21,
    "InitProducerId": 22,
    "OffsetForLeaderEpoch": 23,
    "AddPartitionsToTxn": 24,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26,
    "TxnOffsetCommit": 28,
    "DescribeConfigs": 32,
    "AlterConfigs": 33,
    "DescribeLogDirs": 35,
    "SaslAuthenticate": 36,
    "CreatePartitions": 37,
    "DeleteGroups": 42,
    "IncrementalAlterConfigs": 44,
    "OffsetDelete": 47,
    "DescribeCluster": 60,
    "DescribeProducers": 61,
    "DescribeTransactions": 65,
    "ListTransactions": 66,
    "ListConfigResources": 74,
    "DescribeTopicPartitions": 75,
}

DEADLINE_S = 60
_YOUNG = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
)
"""Errors that a broker returns shortly after its start, and for a topic that was just created."""

Codes = tuple[ErrorCode, ...]

CLOSED: Codes = ()
"""No response: the broker closes the connection."""

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One request and the error codes of its response, in any order and without `none`."""

    api: str
    version: int
    fault: str
    expected: ErrorCode | Codes
    fields: "Fields | Callable[[Scene], Fields]" = field(default_factory=dict)
    kafka: ErrorCode | Codes | None = None
    """Apache Kafka's error codes, if we differ on purpose."""
    why: str = ""
    """The reason for the difference."""

    def __post_init__(self) -> None:
        assert (self.kafka is None) == (not self.why), f"{self}: a difference needs a reason, and only a difference"

    def __str__(self) -> str:
        return f"{self.api} v{self.version} {self.fault}"

    def expected_of(self, broker: str) -> Codes:
        """:param broker: "embedded" or "kafka"."""
        expected = self.kafka if broker == "kafka" and self.kafka is not None else self.expected
        return tuple(sorted(expected)) if isinstance(expected, tuple) else (expected,)

    def play(self, scene: "Scene") -> Codes:
        """Send the request to the scene's broker; returns the error codes of the response."""
        values = self.fields(scene) if callable(self.fields) else self.fields
        try:
            answer = scene.ask(self.api, self.version, values)
        except ConnectionError:
            return CLOSED
        return codes(answer)


def codes(answer: Any) -> Codes:
    """All error codes of a response except `none`, by number; `none` alone if there is no other."""
    return tuple(sorted(code for code in _codes(answer) if code is not ErrorCode.none)) or (ErrorCode.none,)


class Scene:
    """One connection to a broker, and the topics, groups and members that are created for one row."""

    _numbers = count()

    def __init__(self, client: RawClient) -> None:
        self._client = client

    def ask(self, api: str, version: int, values: Fields) -> Any:
        """Send a request; returns kio's entity of the response."""
        return self._client.ask(KEYS[api], version, **values)

    def ask_until_ready(self, api: str, version: int, values: Fields) -> Any:
        """Likewise, repeated as long as the broker or the topic is not ready."""
        deadline_s = time.monotonic() + DEADLINE_S
        while (answer := self.ask(api, version, values)) and any(code in _YOUNG for code in codes(answer)):
            assert time.monotonic() < deadline_s, answer
            time.sleep(0.05)
        return answer

    def ask_until_success(self, api: str, version: int, values: Fields) -> Any:
        """Likewise, repeated until it succeeds, for requests before the row's own one."""
        deadline_s = time.monotonic() + DEADLINE_S
        while codes(answer := self.ask(api, version, values)) != (ErrorCode.none,):
            assert codes(answer)[0] in (*_YOUNG, ErrorCode.concurrent_transactions), answer
            assert time.monotonic() < deadline_s, answer
            time.sleep(0.05)
        return answer

    def wait_ready(self) -> None:
        """Wait until the broker's coordinators have read their logs."""
        self.member()
        self.ask_until_ready("FindCoordinator", 6, {"key_type": 1, "coordinator_keys": ("any-id",)})
        init = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        self.ask_until_ready("InitProducerId", 4, init)

    def name(self) -> str:
        """A unique name for a topic, group or client."""
        return f"fault-{next(self._numbers)}-{uuid4().hex[:6]}"

    def topic(self, partitions: int = 1, **configs: str) -> str:
        """Create a topic and wait until it can be written to; `segment_ms` stands for ``segment.ms``."""
        name = self.name()
        created = self.ask(
            "CreateTopics",
            7,
            {
                "topics": [
                    {
                        "name": name,
                        "num_partitions": partitions,
                        "replication_factor": 1,
                        "assignments": (),
                        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
                    }
                ],
                "timeout": 30_000,
                "validate_only": False,
            },
        )
        assert codes(created) == (ErrorCode.none,), created
        self._described(name)
        ends = [
            {"partition_index": number, "current_leader_epoch": -1, "timestamp": -1} for number in range(partitions)
        ]
        self.ask_until_ready(
            "ListOffsets", 5, {"replica_id": -1, "isolation_level": 0, "topics": [{"name": name, "partitions": ends}]}
        )
        return name

    def topic_id(self, name: str) -> UUID:
        topic_id = self._described(name).topics[0].topic_id
        assert isinstance(topic_id, UUID)
        return topic_id

    def member(self, group_id: str | None = None) -> dict[str, Any]:
        """The only member of a stable group (type ``consumer``, protocol ``range``): ``group_id``, ``member_id`` and
        ``generation_id``."""
        group_id = group_id or self.name()
        join: dict[str, Any] = {
            "group_id": group_id,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"m"}],
            "reason": None,
        }
        self.ask_until_ready("FindCoordinator", 6, {"key_type": 0, "coordinator_keys": (group_id,)})
        first = self.ask_until_ready("JoinGroup", 9, join)
        assert first.error_code is ErrorCode.member_id_required, first
        joined = self.ask("JoinGroup", 9, join | {"member_id": first.member_id})
        assert joined.error_code is ErrorCode.none, joined
        member = {
            "group_id": group_id,
            "member_id": joined.member_id,
            "generation_id": joined.generation_id,
        }
        synced = self.ask(
            "SyncGroup",
            5,
            member
            | {
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": [{"member_id": joined.member_id, "assignment": b"a"}],
            },
        )
        assert synced.error_code is ErrorCode.none, synced
        return member

    def _described(self, name: str) -> Any:
        return self.ask_until_ready(
            "Metadata",
            12,
            {
                "topics": [{"topic_id": None, "name": name}],
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": False,
            },
        )


# -- helpers ----------------------------------------------------------------------------------------------------------


def _codes(entity: Any) -> Iterator[ErrorCode]:
    if isinstance(entity, ErrorCode):
        yield entity
    elif isinstance(entity, tuple):
        for one in entity:
            yield from _codes(one)
    elif is_dataclass(entity):
        for each in fields(entity):
            yield from _codes(getattr(entity, each.name))
