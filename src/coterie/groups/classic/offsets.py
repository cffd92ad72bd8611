"""The offsets of one classic group: commit, also in a transaction, fetch, deletion, expiry; and the removal of a group
without offsets.

Behaviour, codes and the order of checks are those of Kafka's OffsetMetadataManager. Offsets belong to the group and not
to its members: a consumer that assigns its partitions itself commits without being a member, as long as the group is
empty, and a group without any generation has only offsets. At `OffsetExpiryTimer` the group's expired offsets are
removed:

- in an empty group: the offsets expire when the group has been empty for the retention time. An offset that was
  committed while the group was empty (an operator has reset it) expires when the retention time has passed since its
  commit. Kafka removes such an offset together with the others, possibly minutes after its commit;
- in a group that never had members: each offset expires when the retention time has passed since its commit;
- in a stable group of consumers: each offset likewise, but only if no member reads its topic;
- in a group that rebalances, or that has members of another protocol type: no offset expires.

An offset for which the client requested a retention time expires, in the first three cases, when that time has passed
since its commit. The same step removes a group that then has no members, no issued member ids and no offsets, whatever
its protocol type.

Offsets may be committed as a part of a transaction (TxnOffsetCommit): they are pending until the transaction's marker
(`TransactionEnded`). A partition with a pending offset keeps its committed offset and does not expire; a deletion of
its offset, of its topic or of the group drops the pending offset, too. One thing differs from Kafka: after a
non-transactional commit of a partition, the earlier pending offsets of the partition are dropped at once, because they
can never count. In Kafka they make the partition unstable until the end of their transaction.
"""

from crc32c import crc32c

from coterie.groups.classic.messages import OffsetExpiryTimer, PendingMemberTimer
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
    PendingOffsetWritten,
    TopicPartition,
    TransactionEnded,
    TxnOffsetCommit,
)
from coterie.groups.classic.request_checks import check_generation, check_group_exists, check_group_id, check_member
from coterie.groups.classic.state import Group, GroupPhase, apply
from coterie.groups.classic.subscriptions import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from coterie.groups.classic.turn import Turn
from coterie.wire.errors import ErrorCode, KafkaRefusal

_EXPIRY_TIMER = OffsetExpiryTimer()


def on_offset_request(turn: Turn, request: OffsetRequest) -> None:
    """Pass ``request`` to the function for its kind.

    :raises KafkaRefusal: when the request is refused; no record was written then.
    """
    match request:
        case OffsetCommit():
            on_offset_commit(turn, request)
        case TxnOffsetCommit():
            on_txn_offset_commit(turn, request)
        case OffsetFetch():
            on_offset_fetch(turn, request)
        case OffsetDelete():
            on_offset_delete(turn, request)
        case DeleteGroup():
            on_delete_group(turn, request)


def offset_refusal_response(request: OffsetRequest, error: ErrorCode) -> OffsetResponse:
    """The response of the request's kind with ``error``, and without other content."""
    match request:
        case OffsetCommit() | TxnOffsetCommit():
            return OffsetCommitResponse(error=error)
        case OffsetFetch():
            return OffsetFetchResponse(error=error, offsets={})
        case OffsetDelete():
            return OffsetDeleteResponse(error=error)
        case DeleteGroup():
            return DeleteGroupResponse(error=error)


# -- requests ---------------------------------------------------------------------------------------------------------


def on_offset_commit(turn: Turn, request: OffsetCommit) -> None:
    """Write the offsets of the request. An offset with too long metadata is left out and has its own error code in the
    response. A commit by a member renews its session.

    :raises KafkaRefusal: see `check_committer`.
    """
    group = turn.group
    check_committer(group, request)
    if group.phase in (GroupPhase.STABLE, GroupPhase.PREPARING_REBALANCE):
        turn.renew_session(group.members[request.member_id])
    committed_offsets, errors = valid_offsets_and_errors(turn, request.offsets, request.retention_ms)
    for partition, offset in committed_offsets.items():
        turn.write(OffsetWritten(partition=partition, committed_offset=offset))
    turn.reply(request.reply_to, OffsetCommitResponse(error=ErrorCode.none, partition_errors=errors))


def on_txn_offset_commit(turn: Turn, request: TxnOffsetCommit) -> None:
    """Write the offsets of the request as pending offsets of the transaction. An offset with too long metadata is left
    out, as in `on_offset_commit`. The commit renews no session, as in Kafka.

    :raises KafkaRefusal: see `check_transactional_committer`.
    """
    check_transactional_committer(turn.group, request)
    pending_offsets, errors = valid_offsets_and_errors(turn, request.offsets, None)
    for partition, offset in pending_offsets.items():
        turn.write(PendingOffsetWritten(producer=request.producer, partition=partition, committed_offset=offset))
    turn.reply(request.reply_to, OffsetCommitResponse(error=ErrorCode.none, partition_errors=errors))


def valid_offsets_and_errors(
    turn: Turn, offsets: tuple[NewOffset, ...], retention_ms: int | None
) -> tuple[dict[TopicPartition, CommittedOffset], tuple[ErrorCode, ...]]:
    """The last valid offset of each partition in ``offsets``, and the error code of each of ``offsets``: an offset with
    too long metadata is invalid (OFFSET_METADATA_TOO_LARGE), every other one is valid (NONE)."""
    errors: list[ErrorCode] = []
    valid: dict[TopicPartition, CommittedOffset] = {}
    for new_offset in offsets:
        if utf16_length(new_offset.metadata) > turn.group.limits.offset_metadata_utf16_length_max:
            errors.append(ErrorCode.offset_metadata_too_large)
        else:
            errors.append(ErrorCode.none)
            valid[new_offset.partition] = to_committed_offset(new_offset, turn.now_ms, retention_ms)
    return valid, tuple(errors)


def to_committed_offset(new_offset: NewOffset, now_ms: int, retention_ms: int | None) -> CommittedOffset:
    """The committed offset for ``new_offset`` at ``now_ms``; with a ``retention_ms`` it has no topic id and no leader
    epoch."""
    # The log's format of an offset with its own retention has no fields for topic id and leader epoch. They are dropped
    # here, too, so that the state is the same as after a restart.
    has_all_fields = retention_ms is None
    return CommittedOffset(
        offset=new_offset.offset,
        leader_epoch=new_offset.leader_epoch if has_all_fields else NO_LEADER_EPOCH,
        metadata=new_offset.metadata,
        committed_at_ms=now_ms,
        expires_at_ms=None if retention_ms is None else now_ms + retention_ms,
        topic_id=new_offset.topic_id if has_all_fields else None,
    )


def on_offset_fetch(turn: Turn, request: OffsetFetch) -> None:
    """Reply with the committed offsets of the requested partitions; if the request requires stable offsets, also with
    the requested partitions that have a pending offset. Neither group nor member is checked."""
    committed_offsets = turn.group.offsets
    requested_partitions = sorted(committed_offsets) if request.partitions is None else request.partitions
    offsets = {
        partition: committed_offsets[partition] for partition in requested_partitions if partition in committed_offsets
    }
    unstable = frozenset(turn.group.pending_offsets).intersection(requested_partitions)
    turn.reply(
        request.reply_to,
        OffsetFetchResponse(
            error=ErrorCode.none,
            offsets=offsets,
            unstable_partitions=unstable if request.requires_stable else frozenset(),
        ),
    )


def on_offset_delete(turn: Turn, request: OffsetDelete) -> None:
    """Delete the offsets of the requested partitions. A partition whose topic a member reads, or may read, is left out,
    with GROUP_SUBSCRIBED_TO_TOPIC.

    :raises KafkaRefusal: for an empty group id, a group that does not exist, or a group that has members and is not of
        type `consumer`.
    """
    group = turn.group
    check_group_id(group)
    check_group_exists(group)
    if group.phase is not GroupPhase.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise KafkaRefusal(ErrorCode.non_empty_group)
    topics_read = topics_in_use(group)
    errors: list[ErrorCode] = []
    for partition in request.partitions:
        if topics_read is None or partition.topic in topics_read:
            errors.append(ErrorCode.group_subscribed_to_topic)
            continue
        errors.append(ErrorCode.none)
        if partition in group.offsets or partition in group.pending_offsets:
            turn.write(OffsetRemoved(partition=partition))
    turn.reply(request.reply_to, OffsetDeleteResponse(error=ErrorCode.none, partition_errors=tuple(errors)))


def on_delete_group(turn: Turn, request: DeleteGroup) -> None:
    """Delete the group and all its offsets.

    :raises KafkaRefusal: when the group does not exist or is not EMPTY.
    """
    group = turn.group
    check_group_exists(group)
    if group.phase is not GroupPhase.EMPTY:
        raise KafkaRefusal(ErrorCode.non_empty_group)
    remove_empty_group(turn)
    turn.reply(request.reply_to, DeleteGroupResponse(error=ErrorCode.none))


# -- deleted topics and expiry ----------------------------------------------------------------------------------------


def on_topic_deleted(turn: Turn, topic: str) -> None:
    """Remove the group's committed and pending offsets of ``topic``."""
    for partition in partitions_with_committed_or_pending_offsets(turn.group):
        if partition.topic == topic:
            turn.write(OffsetRemoved(partition=partition))


def on_transaction_ended(turn: Turn, event: TransactionEnded) -> None:
    """Commit or drop the pending offsets of the transaction. No record is written: the marker is in the log. If the
    group has no state left then, its `OffsetExpiryTimer` is cancelled."""
    apply(turn.group, event)
    if turn.group.is_nonexistent:
        turn.cancel_timer(_EXPIRY_TIMER)


def on_expiry_timer(turn: Turn) -> None:
    """Remove expired offsets, then the group if it has no members, no issued member ids, and no committed or pending
    offset left. If the group still exists, set the timer of the next check."""
    group = turn.group
    for partition in partitions_with_expired_offsets(group, turn.now_ms):
        turn.write(OffsetRemoved(partition=partition))
    if group.phase is GroupPhase.EMPTY and not (group.pending_join_members or group.offsets or group.pending_offsets):
        remove_empty_group(turn)
    schedule_expiry_check_if_needed(turn)


def schedule_expiry_check_if_needed(turn: Turn, *, is_just_loaded: bool = False) -> None:
    """Set the timer of the next removal of expired offsets, unless it is set, or the group has neither a generation nor
    offsets. Directly after a load (``is_just_loaded``) the time also depends on the group's id: if many groups that
    were loaded together were checked together, the broker would be blocked for that long."""
    group = turn.group
    has_record = group.generation_record is not None or group.offsets or group.pending_offsets
    if has_record and _EXPIRY_TIMER not in group.deadlines:
        check_ms = group.limits.offsets_retention_check_interval_ms
        turn.set_timer(_EXPIRY_TIMER, check_ms + (crc32c(group.group_id.encode()) % check_ms if is_just_loaded else 0))


def partitions_with_expired_offsets(group: Group, now_ms: int) -> list[TopicPartition]:
    """The partitions whose offsets have expired at ``now_ms`` (`expires_at_ms`), sorted. In an EMPTY group all
    partitions can expire; in a STABLE group of type `consumer` those of topics that no member reads; in any other group
    none. A partition with a pending offset does not expire."""
    phase = group.phase
    topics_read = topics_in_use(group)
    retention_start_min_ms: int | None = None
    if phase is GroupPhase.EMPTY:
        retention_start_min_ms = group.generation_record.written_at_ms if group.generation_record is not None else None
    elif phase is not GroupPhase.STABLE or group.protocol_type != CONSUMER_PROTOCOL_TYPE or topics_read is None:
        return []
    retention_ms = group.limits.offsets_retention_ms
    return sorted(
        partition
        for partition, offset in group.offsets.items()
        if (topics_read is None or partition.topic not in topics_read)
        and partition not in group.pending_offsets
        and now_ms >= expires_at_ms(offset, retention_start_min_ms=retention_start_min_ms, retention_ms=retention_ms)
    )


def expires_at_ms(offset: CommittedOffset, *, retention_start_min_ms: int | None, retention_ms: int) -> int:
    """When ``offset`` expires: at the time that the client requested with the commit; if the client requested none,
    ``retention_ms`` after the commit or, if later, after ``retention_start_min_ms`` (None: this time does not
    count)."""
    if offset.expires_at_ms is not None:
        return offset.expires_at_ms
    return max(offset.committed_at_ms, retention_start_min_ms or 0) + retention_ms


def remove_empty_group(turn: Turn) -> None:
    """Write tombstones for the group and all its offsets, and forget its issued member ids. A later join creates a new
    group of the same name. The group must be empty."""
    group = turn.group
    assert group.phase is GroupPhase.EMPTY
    for partition in partitions_with_committed_or_pending_offsets(group):
        turn.write(OffsetRemoved(partition=partition))
    turn.write(GroupRemoved())
    for member_id in sorted(group.pending_join_members):
        turn.cancel_timer(PendingMemberTimer(member_id=member_id))
    group.pending_join_members.clear()
    group.protocol_type = group.protocol = group.leader = None
    turn.cancel_timer(_EXPIRY_TIMER)


# -- guards and helpers -----------------------------------------------------------------------------------------------


def check_committer(group: Group, request: OffsetCommit) -> None:
    """Check that the sender of ``request`` may commit offsets. It may in two cases: it is a member of the current
    generation, and the group is not in the sync phase; or it sends a negative generation (it is no member), and the
    group is empty or does not exist.

    :raises KafkaRefusal: GROUP_ID_NOT_FOUND, when the group does not exist and the generation is not negative;
        UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID, see `check_member`; ILLEGAL_GENERATION, for another generation;
        REBALANCE_IN_PROGRESS, in the sync phase.
    """
    if group.is_nonexistent and request.generation >= 0:
        raise KafkaRefusal(ErrorCode.group_id_not_found)
    if request.generation < 0 and group.phase is GroupPhase.EMPTY:
        return
    check_member(group, request.member_id, request.instance_id)
    check_generation(group, request.generation)
    if group.phase is GroupPhase.COMPLETING_REBALANCE:
        # The member has this generation from its JoinGroup, but has not received its assignment yet.
        raise KafkaRefusal(ErrorCode.rebalance_in_progress)


def check_transactional_committer(group: Group, request: TxnOffsetCommit) -> None:
    """Check that the sender of ``request`` may commit offsets in a transaction. It may in three cases:

    - It is a member of the current generation; the group may be in any phase.
    - It sends a negative generation, and the group is empty or does not exist.
    - It sends a negative generation, no member id and no instance id, because its version lacks these fields; the group
      may be in any phase.

    :raises KafkaRefusal: INVALID_GROUP_ID, when the group id is empty; ILLEGAL_GENERATION, for another generation, or
        for a generation of a group that does not exist; UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID, see `check_member`.
    """
    check_group_id(group)
    if request.generation < 0 and group.phase is GroupPhase.EMPTY:
        return
    if group.is_nonexistent:
        raise KafkaRefusal(ErrorCode.illegal_generation)
    if request.generation >= 0 or request.member_id or request.instance_id is not None:
        check_member(group, request.member_id, request.instance_id)
        check_generation(group, request.generation)


def partitions_with_committed_or_pending_offsets(group: Group) -> list[TopicPartition]:
    """The partitions with a committed or a pending offset, sorted."""
    return sorted({*group.offsets, *group.pending_offsets})


def topics_in_use(group: Group) -> frozenset[str] | None:
    """The topics that members read, whose offsets must stay; empty for a group without members or of another type than
    `consumer`. None when the topics are unknown, because no protocol is selected or a member's metadata cannot be
    decoded: then all offsets must stay."""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE or not group.members:
        return frozenset()
    if group.protocol is None:
        return None
    return subscribed_topics([member.metadata(group.protocol) for member in group.members.values()])


def utf16_length(text: str) -> int:
    """The length of ``text`` in UTF-16 units, as Java and `offset.metadata.max.bytes` count."""
    return len(text) + sum(character > "\uffff" for character in text) if not text.isascii() else len(text)
