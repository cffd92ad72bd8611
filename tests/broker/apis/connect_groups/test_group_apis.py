"""Kafka's own group APIs with a connect group: list, describe, delete, removal of members, and offsets."""

from typing import Any

import pytest

from coterie.wire.errors import ErrorCode
from tests.broker.apis.connect_groups.worker import Worker
from tests.broker.conftest import Connect, RawClient
from tests.broker.groups.member import Member

METADATA, OFFSET_COMMIT, OFFSET_FETCH, LEAVE, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS = 3, 8, 9, 13, 15, 16, 42
INIT, END, TXN_COMMIT = 22, 26, 28


def listed(client: RawClient, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    answer = client.ask(LIST_GROUPS, 5, states_filter=states, types_filter=types)
    return [(one.group_id, one.group_type, one.protocol_type, one.group_state) for one in answer.groups]


def delete(client: RawClient, group_id: str = "workers") -> ErrorCode:
    (result,) = client.ask(DELETE_GROUPS, 2, groups_names=[group_id]).results
    error: ErrorCode = result.error_code
    return error


def leave(client: RawClient, *members: tuple[str, str | None]) -> list[ErrorCode]:
    named = [{"member_id": one, "group_instance_id": instance, "reason": None} for one, instance in members]
    answer = client.ask(LEAVE, 5, group_id="workers", members=named)
    assert answer.error_code is ErrorCode.none
    return [one.error_code for one in answer.members]


def commit(client: RawClient, member_id: str, epoch: int, *, version: int = 9, offset: int = 7) -> ErrorCode:
    partition = {"committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
    answer = client.ask(
        OFFSET_COMMIT, version, group_id="workers", generation_id_or_member_epoch=epoch, member_id=member_id,
        group_instance_id=None, topics=[{"name": "t", "partitions": [{"partition_index": 0, **partition}]}],
    )  # fmt: skip
    error: ErrorCode = answer.topics[0].partitions[0].error_code
    return error


def commit_in_transaction(
    client: RawClient, member_id: str, epoch: int, *, transactional_id: str, offset: int = 7, is_commit: bool = True
) -> ErrorCode:
    """Commit one offset in a new transaction, and end the transaction."""
    begun = client.ask(
        INIT, 5, transactional_id=transactional_id, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
    )
    producer = {
        "transactional_id": transactional_id,
        "producer_id": begun.producer_id,
        "producer_epoch": begun.producer_epoch,
    }
    partition = {"committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
    answer = client.ask(
        TXN_COMMIT, 5, **producer, group_id="workers", generation_id=epoch, member_id=member_id,
        group_instance_id=None, topics=[{"name": "t", "partitions": [{"partition_index": 0, **partition}]}],
    )  # fmt: skip
    assert client.ask(END, 5, **producer, committed=is_commit).error_code is ErrorCode.none
    error: ErrorCode = answer.topics[0].partitions[0].error_code
    return error


def fetch(client: RawClient, member_id: str | None = None, epoch: int = -1) -> tuple[ErrorCode, list[int]]:
    group = {"group_id": "workers", "member_id": member_id, "member_epoch": epoch, "topics": None}
    (found,) = client.ask(OFFSET_FETCH, 9, groups=[group], require_stable=False).groups
    return found.error_code, [one.committed_offset for topic in found.topics for one in topic.partitions]


def create_topic(client: RawClient) -> None:
    client.ask(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)


def test_groups_are_listed_with_their_types_and_states(connect: Connect) -> None:
    client = connect()
    create_topic(client)
    worker = Worker(client, "w0")
    worker.settle()
    assert commit(client, "w0", worker.epoch) is ErrorCode.none
    classic = Member(connect())
    classic.join()
    ours, theirs = ("workers", "connect", "connect", "Stable"), ("g", "classic", "connect", "CompletingRebalance")
    assert listed(client) == [theirs, ours]
    assert listed(client, types=("Connect",)) == [ours]
    assert listed(client, types=("classic",)) == [theirs]
    assert listed(client, states=("stable",)) == [ours]
    assert listed(client, states=("Empty",)) == []
    assert listed(client, types=("share",)) == []


@pytest.mark.parametrize(
    ("version", "error", "message"),
    [(5, ErrorCode.none, None), (6, ErrorCode.group_id_not_found, "Group workers is not a classic group.")],
)
def test_describe_groups_answers_as_kafka_for_a_group_of_another_type(
    connect: Connect, version: int, error: ErrorCode, message: str | None
) -> None:
    client = connect()
    Worker(client, "w0").settle()
    (group,) = client.ask(DESCRIBE_GROUPS, version, groups=["workers"], include_authorized_operations=False).groups
    assert (group.error_code, group.group_state, group.members) == (error, "Dead", ())
    assert getattr(group, "error_message", None) == message


def test_an_empty_group_is_deleted_with_its_offsets(connect: Connect) -> None:
    client = connect()
    create_topic(client)
    worker = Worker(client, "w0")
    worker.settle()
    assert commit(client, "w0", worker.epoch) is ErrorCode.none
    assert delete(client) is ErrorCode.non_empty_group
    assert worker.beat(member_epoch=-1).error_code == 0
    assert worker.describe().group_state == "Empty"
    assert delete(client) is ErrorCode.none
    assert listed(client) == []
    assert fetch(client) == (ErrorCode.none, [])
    assert delete(client) is ErrorCode.group_id_not_found
    member = Member(client)
    assert member.join().error_code is ErrorCode.none


def test_an_operator_removes_members_by_member_id_or_instance_id(connect: Connect) -> None:
    client = connect()
    first, second = Worker(client, "w0"), Worker(client, "w1", instance_id="i1")
    third = Worker(client, "w2", instance_id="i2")
    first.settle()
    second.beat()
    third.beat()
    assert leave(client, ("stranger", None), ("", "i9"), ("w2", "i1")) == [
        ErrorCode.unknown_member_id, ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id,
    ]  # fmt: skip
    assert leave(client, ("w0", None), ("", "i1"), ("w2", "i2")) == [ErrorCode.none] * 3
    found = first.describe()
    assert found.members == ()
    (departed,) = found.departed
    assert departed.member_id == "w0"
    assert departed.held_left_ms > 0, "its jobs may run until its session would have ended"
    assert first.beat().error_code == ErrorCode.unknown_member_id


def test_the_member_epoch_fences_commits_in_transactions(connect: Connect) -> None:
    client = connect()
    create_topic(client)
    worker = Worker(client, "w0")
    worker.settle()
    assert commit_in_transaction(client, "w0", 1, transactional_id="a") is ErrorCode.none
    # Kafka's error code: no version of the request has member epochs.
    assert commit_in_transaction(client, "w0", 0, transactional_id="a", offset=8) is ErrorCode.illegal_generation
    assert commit_in_transaction(client, "w1", 1, transactional_id="a", offset=8) is ErrorCode.unknown_member_id
    assert fetch(client) == (ErrorCode.none, [7])
    assert commit_in_transaction(client, "w0", 1, transactional_id="a", offset=9, is_commit=False) is ErrorCode.none
    assert fetch(client) == (ErrorCode.none, [7])
    assert commit_in_transaction(client, "", -1, transactional_id="a", offset=10) is ErrorCode.none
    assert fetch(client) == (ErrorCode.none, [10])


def test_the_member_epoch_fences_commits_and_fetches_of_offsets(connect: Connect) -> None:
    client = connect()
    create_topic(client)
    worker = Worker(client, "w0")
    worker.settle()
    assert worker.epoch == 1
    assert commit(client, "w0", 1) is ErrorCode.none
    assert commit(client, "w0", 0, offset=8) is ErrorCode.stale_member_epoch
    assert commit(client, "w1", 1, offset=8) is ErrorCode.unknown_member_id
    assert commit(client, "", -1, offset=8) is ErrorCode.unknown_member_id
    assert commit(client, "w0", 1, version=8, offset=8) is ErrorCode.unsupported_version
    assert fetch(client, "w0", 1) == (ErrorCode.none, [7])
    assert fetch(client) == (ErrorCode.none, [7])
    assert fetch(client, "w0", 0) == (ErrorCode.stale_member_epoch, [])
    assert fetch(client, "w1", 1) == (ErrorCode.unknown_member_id, [])
    worker.beat(member_epoch=-1)
    assert commit(client, "", -1, offset=9) is ErrorCode.none
    assert commit(client, "w0", 1, offset=10) is ErrorCode.unknown_member_id
    assert fetch(client) == (ErrorCode.none, [9])


def test_an_answer_of_the_older_offset_fetch_needs_no_member(connect: Connect) -> None:
    client = connect()
    create_topic(client)
    worker = Worker(client, "w0")
    worker.settle()
    commit(client, "w0", 1)
    asked: list[dict[str, Any]] = [{"name": "t", "partition_indexes": (0,)}]
    found = client.ask(OFFSET_FETCH, 5, group_id="workers", topics=asked)
    assert found.topics[0].partitions[0].committed_offset == 7
