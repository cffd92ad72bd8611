"""The state of a group that a replay of its durable records gives, and the check that a response reports only that
state."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

from coterie.groups.classic.log_records import decode_record
from coterie.groups.classic.messages import (
    JoinGroup,
    JoinGroupResponse,
    Request,
    Response,
    SyncGroup,
    SyncGroupResponse,
)
from coterie.groups.classic.offset_messages import OffsetCommit, OffsetCommitResponse, OffsetFetchResponse
from coterie.groups.classic.state import ClassicGroupSettings, Group, apply
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode

EncodedRecord: TypeAlias = tuple[bytes, bytes | None]
"""The key and the value of one record as in the log; a record is also called a line here. The value None makes the
record a tombstone."""


class DurableGroup:
    """A copy of a group that is built from durable records alone: from those that were durable when this object was
    created, and from later ones up to the last record on which a sent response depended."""

    def __init__(self, group_id: GroupId, limits: ClassicGroupSettings, lines: Sequence[EncodedRecord]) -> None:
        """``lines`` is the list to which the disk adds each record when it becomes durable."""
        self._lines = lines
        self._replayed_count = len(lines)
        self._group = replay_group(group_id, limits, lines)

    def check_response_is_durable(self, request: Request, response: Response, *, lines_required: int) -> None:
        """Check that the records on which ``response`` depends, the first ``lines_required`` of the log, are durable
        and, if ``response`` has no error, contain what it reports. Must be called when the response is sent, for the
        responses in the order of their steps.

        :raises Violation: DURABLE_FIRST.
        """
        if lines_required > len(self._lines):
            requirement = f"{type(response).__name__} depends on the first {lines_required} records"
            raise Violation(Invariant.DURABLE_FIRST, f"{requirement}, only {len(self._lines)} are durable")
        assert lines_required >= self._replayed_count, "a response is sent after that of a later step"
        for line in self._lines[self._replayed_count : lines_required]:
            apply_encoded_record(self._group, line)
        self._replayed_count = lines_required
        if response.error is ErrorCode.none and not contains_reported_state(self._group, request, response):
            raise Violation(Invariant.DURABLE_FIRST, f"the log does not have what {type(response).__name__} reports")


def contains_reported_state(group: Group, request: Request, response: Response) -> bool:
    """Whether the state of ``group`` contains what ``response``, a response without an error, reports: the generation
    with the member (JoinGroup), the member's assignment (SyncGroup), the accepted offsets (OffsetCommit), the offsets
    (OffsetFetch). True for the response to any other request."""
    generation_record, offsets = group.generation_record, group.offsets
    match request, response:
        case JoinGroup(), JoinGroupResponse(generation=generation, member_id=member_id):
            return (
                generation_record is not None
                and generation_record.generation == generation
                and member_id in generation_record.members
            )
        case SyncGroup(member_id=member_id, generation=generation), SyncGroupResponse(assignment=assignment):
            member = generation_record.members.get(member_id) if generation_record is not None else None
            return group.generation == generation and member is not None and member.assignment == assignment
        case OffsetCommit(offsets=new_offsets), OffsetCommitResponse(partition_errors=errors):
            acknowledged = {
                new_offset.partition: new_offset.offset
                for new_offset, error in zip(new_offsets, errors, strict=True)
                if error is ErrorCode.none
            }
            return all(
                partition in offsets and offsets[partition].offset == offset
                for partition, offset in acknowledged.items()
            )
        case _, OffsetFetchResponse(offsets=reported_offsets):
            return all(
                offsets.get(partition) == reported_offset for partition, reported_offset in reported_offsets.items()
            )
        case _:
            return True


def replay_group(group_id: GroupId, limits: ClassicGroupSettings, lines: Iterable[EncodedRecord]) -> Group:
    """A new group with the hard state that a replay of ``lines`` gives. It has not handled `GroupLoaded`."""
    group = Group(group_id, limits)
    for line in lines:
        apply_encoded_record(group, line)
    return group


def apply_encoded_record(group: Group, line: EncodedRecord) -> None:
    """Apply one record to the hard state of ``group``."""
    decoded = _decode_record_cached(*line)
    assert decoded is not None, "a line of the log is not a record of a group"
    apply(group, decoded[1])


_decode_record_cached = lru_cache(maxsize=1_000)(decode_record)
"""`decode_record` with a cache, because each start of the coordinator replays all records that it had written
before."""
