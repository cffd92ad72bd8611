"""OffsetCommit, OffsetFetch and OffsetDelete over TCP, against both brokers: stored offsets and refusals."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from coterie.wire.errors import ErrorCode
from coterie.wire.primitives import Writer
from tests.broker.conftest import RawClient, raw_client

METADATA, COMMIT, FETCH, FIND, JOIN, LEAVE, SYNC, CREATE, DELETE = 3, 8, 9, 10, 11, 13, 14, 19, 47
DEADLINE_S = 60
NOT_YET = (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available, ErrorCode.not_coordinator)
NONE = ErrorCode.none


class Peer:
    """A client with its own topic and group."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.group = f"group-{uuid4().hex}"
        self.topic = f"topic-{uuid4().hex}"
        self.topic_id = self.create(self.topic)
        self.until_found()

    def create(self, topic: str) -> UUID:
        new_topic = {"name": topic, "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}
        (created,) = self.client.ask(CREATE, 7, topics=[new_topic], timeout=30_000, validate_only=False).topics
        assert created.error_code is NONE
        topic_id: UUID = created.topic_id
        self.until_known(topic)
        return topic_id

    def until_known(self, topic: str) -> None:
        """Wait for the topic: a Kafka broker confirms its creation before it can be used."""
        values = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        deadline = time.monotonic() + DEADLINE_S
        while self.client.ask(METADATA, 4, **values).topics[0].error_code is not NONE:
            assert time.monotonic() < deadline, "no topic"
            time.sleep(0.05)

    def until_found(self) -> None:
        """Wait for the coordinator: a Kafka broker creates it at the first request for it."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            (found,) = self.client.ask(FIND, 4, key_type=0, coordinator_keys=[self.group]).coordinators
            if found.error_code is NONE and self.fetch(topics=[])[0] not in NOT_YET:
                return
            assert time.monotonic() < deadline, "no coordinator"
            time.sleep(0.05)

    def offset(self, partition: int, offset: int = 5, *, metadata: str | None = "m", epoch: int = -1) -> dict[str, Any]:
        return {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_metadata": metadata,
            "committed_leader_epoch": epoch,
        }

    def commit(
        self,
        *offsets: Mapping[str, Any],
        version: int = 9,
        topics: Sequence[Mapping[str, Any]] | None = None,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        group: str | None = None,
    ) -> list[tuple[int, ErrorCode]]:
        own_topic = {"name": self.topic, "topic_id": self.topic_id, "partitions": offsets}
        answer = self.client.ask(
            COMMIT,
            version,
            group_id=self.group if group is None else group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            retention_time=-1,
            topics=[own_topic] if topics is None else topics,
        )
        return [(one.partition_index, one.error_code) for topic in answer.topics for one in topic.partitions]

    def fetch(
        self, version: int = 9, *, topics: Sequence[Mapping[str, Any]] | None = None, group: str | None = None
    ) -> tuple[ErrorCode, dict[Any, tuple[int, str, ErrorCode]]]:
        """The group's code, and ``{(topic, partition): (offset, metadata, code)}``; a topic by name or id."""
        values = {"group_id": self.group if group is None else group, "topics": topics}
        answer = self.client.ask(FETCH, version, **values, groups=[values | {"member_id": None}], require_stable=True)
        group_response = answer.groups[0] if version >= 8 else answer
        return getattr(group_response, "error_code", NONE), {
            (getattr(topic, "name", None) or topic.topic_id, one.partition_index): (
                one.committed_offset,
                one.metadata,
                one.error_code,
            )
            for topic in group_response.topics
            for one in topic.partitions
        }

    def own_partitions(self, *partitions: int) -> list[dict[str, Any]]:
        return [{"name": self.topic, "topic_id": self.topic_id, "partition_indexes": partitions}]

    def delete(self, *partitions: tuple[str, int]) -> tuple[ErrorCode, list[ErrorCode]]:
        answer = self.client.ask(
            DELETE,
            0,
            group_id=self.group,
            topics=[{"name": topic, "partitions": [{"partition_index": number}]} for topic, number in partitions],
        )
        return answer.error_code, [one.error_code for topic in answer.topics for one in topic.partitions]

    # -- members ------------------------------------------------------------------------------------------------------

    def join(self, member: str = "", *, protocol_type: str = "consumer", instance: str | None = None) -> Any:
        values = {
            "group_id": self.group,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "group_instance_id": instance,
            "protocol_type": protocol_type,
            "protocols": [{"name": "range", "metadata": subscription(self.topic)}],
            "reason": None,
        }
        joined = self.client.ask(JOIN, 9, member_id=member, **values)
        if joined.error_code is ErrorCode.member_id_required:
            joined = self.client.ask(JOIN, 9, member_id=joined.member_id, **values)
        assert joined.error_code is NONE
        return joined

    def sync(self, joined: Any, *, protocol_type: str = "consumer") -> None:
        answer = self.client.ask(
            SYNC,
            5,
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=None,
            protocol_type=protocol_type,
            protocol_name="range",
            assignments=[{"member_id": joined.member_id, "assignment": b"all"}],
        )
        assert answer.error_code is NONE

    def leave(self, joined: Any) -> None:
        members = [{"member_id": joined.member_id, "group_instance_id": None, "reason": None}]
        assert self.client.ask(LEAVE, 5, group_id=self.group, members=members).error_code is NONE


def subscription(topic: str) -> bytes:
    writer = Writer()
    writer.int16(0)
    writer.array_count(1)
    writer.string(topic)
    writer.nullable_bytes(None)
    return writer.getvalue()


@pytest.fixture
def peer(bootstrap: str) -> Iterator[Peer]:
    with raw_client(int(bootstrap.rpartition(":")[2])) as client:
        yield Peer(client)


@pytest.mark.parametrize("version", range(2, 11))
def test_offsets_committed_in_any_version_are_fetched_in_any_version(peer: Peer, version: int) -> None:
    assert peer.commit(peer.offset(0, 7), peer.offset(1, 2**62, metadata=None), version=version) == [
        (0, NONE),
        (1, NONE),
    ]
    for fetch_version in range(1, 11):
        topic = peer.topic_id if fetch_version >= 10 else peer.topic
        error, offsets = peer.fetch(fetch_version, topics=peer.own_partitions(0, 1))
        assert error is NONE
        assert offsets == {(topic, 0): (7, "m", NONE), (topic, 1): (2**62, "", NONE)}


@pytest.mark.parametrize("version", range(2, 11))
def test_all_offsets_of_a_group_can_be_fetched_without_naming_topics(peer: Peer, version: int) -> None:
    peer.commit(peer.offset(1, 3))
    topic = peer.topic_id if version >= 10 else peer.topic
    assert peer.fetch(version) == (NONE, {(topic, 1): (3, "m", NONE)})


@pytest.mark.parametrize("version", range(1, 10))
def test_fetching_an_offset_that_was_never_committed_is_no_error(peer: Peer, version: int) -> None:
    nowhere = {"name": "nowhere", "partition_indexes": [4]}
    assert peer.fetch(version, topics=[*peer.own_partitions(1), nowhere]) == (
        NONE,
        {(peer.topic, 1): (-1, "", NONE), ("nowhere", 4): (-1, "", NONE)},
    )


def test_offsets_of_several_groups_are_fetched_in_one_request(peer: Peer) -> None:
    other = f"group-{uuid4().hex}"
    peer.commit(peer.offset(0, 1))
    peer.commit(peer.offset(0, 2), group=other)
    groups = [
        {"group_id": name, "member_id": None, "topics": peer.own_partitions(0)}
        for name in (other, peer.group, "stranger")
    ]
    answer = peer.client.ask(FETCH, 9, groups=groups, require_stable=False)
    assert [(one.group_id, one.topics[0].partitions[0].committed_offset) for one in answer.groups] == [
        (other, 2),
        (peer.group, 1),
        ("stranger", -1),
    ]


def test_a_commit_to_an_unknown_topic_is_refused_and_the_others_are_kept(peer: Peer) -> None:
    topics = [
        {"name": "nowhere", "partitions": [peer.offset(0)]},
        {"name": peer.topic, "partitions": [peer.offset(0), peer.offset(7)]},
    ]
    unknown = ErrorCode.unknown_topic_or_partition
    assert sorted(peer.commit(topics=topics)) == sorted([(0, unknown), (0, NONE), (7, unknown)])
    assert peer.fetch()[1] == {(peer.topic, 0): (5, "m", NONE)}


def test_an_unknown_topic_id_is_refused(peer: Peer) -> None:
    stranger = UUID(int=9)
    assert peer.commit(version=10, topics=[{"topic_id": stranger, "partitions": [peer.offset(0)]}]) == [
        (0, ErrorCode.unknown_topic_id)
    ]
    values = [{"topic_id": stranger, "partition_indexes": [0]}]
    assert peer.fetch(10, topics=values)[1] == {(stranger, 0): (-1, "", ErrorCode.unknown_topic_id)}


def test_metadata_of_an_offset_has_a_maximum_length(peer: Peer) -> None:
    short, long = peer.offset(0, metadata="\U0001f600" * 2048), peer.offset(1, metadata="x" * 4097)
    assert peer.commit(short, long) == [(0, NONE), (1, ErrorCode.offset_metadata_too_large)]


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.illegal_generation), (9, ErrorCode.group_id_not_found)])
def test_a_commit_in_a_generation_of_an_unknown_group_is_refused(peer: Peer, version: int, code: ErrorCode) -> None:
    assert peer.commit(peer.offset(0), version=version, generation=1, member="m") == [(0, code)]


def test_members_commit_in_their_generation_only(peer: Peer) -> None:
    joined = peer.join()
    member = {"member": joined.member_id, "generation": joined.generation_id}
    assert peer.commit(peer.offset(0), **member) == [(0, ErrorCode.rebalance_in_progress)]
    peer.sync(joined)
    assert peer.commit(peer.offset(0), **member) == [(0, NONE)]
    assert peer.commit(peer.offset(0)) == [(0, ErrorCode.unknown_member_id)]
    assert peer.commit(peer.offset(0), member="ghost", generation=1) == [(0, ErrorCode.unknown_member_id)]
    assert peer.commit(peer.offset(0), member=joined.member_id, generation=9) == [(0, ErrorCode.illegal_generation)]
    peer.leave(joined)
    assert peer.commit(peer.offset(0), **member) == [(0, ErrorCode.unknown_member_id)]
    assert peer.commit(peer.offset(0, 6)) == [(0, NONE)]


def test_a_static_member_that_was_replaced_is_fenced(peer: Peer) -> None:
    former = peer.join(instance="i")
    peer.sync(former)
    latter = peer.join(instance="i")
    fenced = {"member": former.member_id, "generation": former.generation_id, "instance": "i"}
    assert peer.commit(peer.offset(0), **fenced) == [(0, ErrorCode.fenced_instance_id)]
    member = {"member": latter.member_id, "generation": latter.generation_id}
    assert peer.commit(peer.offset(0), **member, instance="other") == [(0, ErrorCode.unknown_member_id)]
    assert peer.commit(peer.offset(0), **member, instance="i") == [(0, NONE)]


def test_offsets_of_a_subscribed_topic_cannot_be_deleted(peer: Peer) -> None:
    assert peer.delete((peer.topic, 0)) == (ErrorCode.group_id_not_found, [])
    joined = peer.join()
    peer.sync(joined)
    other = f"topic-{uuid4().hex}"
    peer.create(other)
    topics = [{"name": name, "partitions": [peer.offset(0)]} for name in (peer.topic, other)]
    assert peer.commit(topics=topics, member=joined.member_id, generation=1) == [(0, NONE), (0, NONE)]
    code, codes = peer.delete((peer.topic, 0), (other, 0), ("nowhere", 0))
    assert code is NONE
    unknown = ErrorCode.unknown_topic_or_partition
    assert sorted(codes) == sorted([ErrorCode.group_subscribed_to_topic, NONE, unknown])
    assert peer.fetch()[1] == {(peer.topic, 0): (5, "m", NONE)}
    peer.leave(joined)
    assert peer.delete((peer.topic, 0)) == (NONE, [NONE])
    assert peer.fetch()[1] == {}


def test_offsets_of_a_group_of_another_protocol_type_cannot_be_deleted_while_it_has_members(peer: Peer) -> None:
    joined = peer.join(protocol_type="sheep")
    peer.sync(joined, protocol_type="sheep")
    assert peer.commit(peer.offset(0), member=joined.member_id, generation=1) == [(0, NONE)]
    assert peer.delete((peer.topic, 0)) == (ErrorCode.non_empty_group, [])
    peer.leave(joined)
    assert peer.delete((peer.topic, 0)) == (NONE, [NONE])
