"""The offsets of one classic group: commit, fetch, deletion, expiry; and the removal of a group without offsets.

Behaviour, codes and the order of checks are those of Kafka's OffsetMetadataManager. Offsets belong to the group and not
to its members: a consumer that assigns its partitions itself commits without being a member, as long as the group is
empty, and a group without any generation has only offsets. `ExpiryTimer` periodically removes old offsets:

- in an empty group: the offsets expire when the group has been empty for the retention time. An offset that was
  committed later (an operator has reset it) expires when the retention time has passed since its commit. Kafka removes
  it together with the others, possibly minutes after its commit;
- in a group that never had members: each offset expires when the retention time has passed since its commit;
- in a stable group of consumers: likewise, but only offsets of topics that no member reads;
- in a group that rebalances, or that has members of another protocol type: no offset expires.

A group without members and offsets is removed in the same step, whatever its protocol type.
"""

from crc32c import crc32c

from coterie.groups.classic.guards import check_generation, check_group, check_is_known, check_member
from coterie.groups.classic.messages import ExpiryTimer, PendingMemberTimer
from coterie.groups.classic.offset_messages import (
    NO_LEADER_EPOCH,
    CommittedOffset,
    DeleteGroup,
    DeleteGroupResponse,
    GroupRemoved,
    NewOffset,
    OffsetCommit,
    OffsetCommitResponse,
    OffsetDelete,
    OffsetDeleteResponse,
    OffsetFetch,
    OffsetFetchResponse,
    OffsetRemoved,
    OffsetRequest,
    OffsetResponse,
    OffsetWritten,
    TopicPartition,
)
from coterie.groups.classic.state import Group, Phase
from coterie.groups.classic.subscriptions import CONSUMER, subscribed_topics
from coterie.groups.classic.turn import Turn
from coterie.wire.errors import ErrorCode, KafkaRefusal

_EXPIRY = ExpiryTimer()


def on_offset_request(turn: Turn, request: OffsetRequest) -> None:
    match request:
        case OffsetCommit():
            on_commit(turn, request)
        case OffsetFetch():
            on_fetch(turn, request)
        case OffsetDelete():
            on_delete_offsets(turn, request)
        case DeleteGroup():
            on_delete_group(turn, request)


def refused_offsets(request: OffsetRequest, error: ErrorCode) -> OffsetResponse:
    match request:
        case OffsetCommit():
            return OffsetCommitResponse(error=error)
        case OffsetFetch():
            return OffsetFetchResponse(error=error, offsets={})
        case OffsetDelete():
            return OffsetDeleteResponse(error=error)
        case DeleteGroup():
            return DeleteGroupResponse(error=error)


# -- requests ---------------------------------------------------------------------------------------------------------


def on_commit(turn: Turn, request: OffsetCommit) -> None:
    group = turn.group
    check_committer(group, request)
    if group.phase in (Phase.STABLE, Phase.PREPARING_REBALANCE):
        turn.arm_session(group.members[request.member_id])
    errors: list[ErrorCode] = []
    written: dict[TopicPartition, CommittedOffset] = {}
    for new in request.offsets:
        if utf16_length(new.metadata) > group.limits.offset_metadata_size_max:
            errors.append(ErrorCode.offset_metadata_too_large)
        else:
            errors.append(ErrorCode.none)
            written[new.partition] = committed(new, turn.now_ms, request.retention_ms)
    for partition, offset in written.items():
        turn.write(OffsetWritten(partition=partition, committed=offset))
    turn.reply(request.reply_to, OffsetCommitResponse(error=ErrorCode.none, errors=tuple(errors)))


def committed(new: NewOffset, now_ms: int, retention_ms: int | None) -> CommittedOffset:
    # The log's format of an offset with its own retention has no fields for topic id and leader epoch. They are dropped
    # here, too, so that the state is the same as after a restart.
    has_all = retention_ms is None
    return CommittedOffset(
        offset=new.offset,
        leader_epoch=new.leader_epoch if has_all else NO_LEADER_EPOCH,
        metadata=new.metadata,
        committed_at_ms=now_ms,
        expires_at_ms=None if retention_ms is None else now_ms + retention_ms,
        topic_id=new.topic_id if has_all else None,
    )


def on_fetch(turn: Turn, request: OffsetFetch) -> None:
    known = turn.group.offsets
    asked = sorted(known) if request.partitions is None else request.partitions
    offsets = {partition: known[partition] for partition in asked if partition in known}
    turn.reply(request.reply_to, OffsetFetchResponse(error=ErrorCode.none, offsets=offsets))


def on_delete_offsets(turn: Turn, request: OffsetDelete) -> None:
    group = turn.group
    check_group(group)
    check_is_known(group)
    if group.phase is not Phase.EMPTY and group.protocol_type != CONSUMER:
        raise KafkaRefusal(ErrorCode.non_empty_group)
    read = topics_read(group)
    errors: list[ErrorCode] = []
    for partition in request.partitions:
        if read is None or partition.topic in read:
            errors.append(ErrorCode.group_subscribed_to_topic)
            continue
        errors.append(ErrorCode.none)
        if partition in group.offsets:
            turn.write(OffsetRemoved(partition=partition))
    turn.reply(request.reply_to, OffsetDeleteResponse(error=ErrorCode.none, errors=tuple(errors)))


def on_delete_group(turn: Turn, request: DeleteGroup) -> None:
    group = turn.group
    check_is_known(group)
    if group.phase is not Phase.EMPTY:
        raise KafkaRefusal(ErrorCode.non_empty_group)
    end_group(turn)
    turn.reply(request.reply_to, DeleteGroupResponse(error=ErrorCode.none))


# -- deleted topics and expiry ----------------------------------------------------------------------------------------


def on_topic_deleted(turn: Turn, topic: str) -> None:
    for partition in sorted(partition for partition in turn.group.offsets if partition.topic == topic):
        turn.write(OffsetRemoved(partition=partition))


def on_expiry(turn: Turn) -> None:
    group = turn.group
    for partition in expired(group, turn.now_ms):
        turn.write(OffsetRemoved(partition=partition))
    if group.phase is Phase.EMPTY and not group.pending and not group.offsets:
        end_group(turn)
    keep_watching_expiry(turn)


def keep_watching_expiry(turn: Turn, *, is_loaded: bool = False) -> None:
    """Set the timer of the next check, as long as the group has any record. Groups that are loaded together get
    different times: checking all of them in a row would block the broker for that time."""
    group = turn.group
    if (group.written is not None or group.offsets) and _EXPIRY not in group.deadlines:
        check_ms = group.limits.offsets_retention_check_ms
        turn.set_timer(_EXPIRY, check_ms + (crc32c(group.group_id.encode()) % check_ms if is_loaded else 0))


def expired(group: Group, now_ms: int) -> list[TopicPartition]:
    """The partitions whose offsets have expired; sorted."""
    phase = group.phase
    read = topics_read(group)
    emptied_at_ms: int | None = None
    if phase is Phase.EMPTY:
        emptied_at_ms = group.written.written_at_ms if group.written is not None else None
    elif phase is not Phase.STABLE or group.protocol_type != CONSUMER or read is None:
        return []
    retention_ms = group.limits.offsets_retention_ms
    return sorted(
        partition
        for partition, offset in group.offsets.items()
        if (read is None or partition.topic not in read)
        and now_ms >= expires_at_ms(offset, emptied_at_ms=emptied_at_ms, retention_ms=retention_ms)
    )


def expires_at_ms(offset: CommittedOffset, *, emptied_at_ms: int | None, retention_ms: int) -> int:
    if offset.expires_at_ms is not None:
        return offset.expires_at_ms
    return max(offset.committed_at_ms, emptied_at_ms or 0) + retention_ms


def end_group(turn: Turn) -> None:
    """Write tombstones for the group and all its offsets. A later join creates a new group of the same name."""
    group = turn.group
    assert group.phase is Phase.EMPTY
    for partition in sorted(group.offsets):
        turn.write(OffsetRemoved(partition=partition))
    turn.write(GroupRemoved())
    for member_id in sorted(group.pending):
        turn.cancel_timer(PendingMemberTimer(member_id=member_id))
    group.pending.clear()
    group.protocol_type = group.protocol = group.leader = None
    turn.cancel_timer(_EXPIRY)


# -- guards and helpers -----------------------------------------------------------------------------------------------


def check_committer(group: Group, request: OffsetCommit) -> None:
    if group.is_unheard_of and request.generation >= 0:
        raise KafkaRefusal(ErrorCode.group_id_not_found)
    if request.generation < 0 and group.phase is Phase.EMPTY:
        return
    check_member(group, request.member_id, request.instance_id)
    check_generation(group, request.generation)
    if group.phase is Phase.COMPLETING_REBALANCE:
        # The member has this generation from its JoinGroup, but has not received its assignment yet.
        raise KafkaRefusal(ErrorCode.rebalance_in_progress)


def topics_read(group: Group) -> frozenset[str] | None:
    """The topics whose offsets must stay because a member reads them; None: unknown, so all offsets must stay."""
    if group.protocol_type != CONSUMER or not group.members:
        return frozenset()
    if group.protocol is None:
        return None
    return subscribed_topics([member.metadata(group.protocol) for member in group.members.values()])


def utf16_length(text: str) -> int:
    """The length in UTF-16 units, as Java and `offset.metadata.max.bytes` count."""
    return len(text) + sum(character > "\uffff" for character in text) if not text.isascii() else len(text)
