"""The state of a group by its durable records, and the check that a response contains nothing else."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

from coterie.groups.classic.lines import decode_line
from coterie.groups.classic.messages import (
    JoinGroup,
    JoinGroupResponse,
    Request,
    Response,
    SyncGroup,
    SyncGroupResponse,
)
from coterie.groups.classic.offset_messages import OffsetCommit, OffsetCommitResponse, OffsetFetchResponse
from coterie.groups.classic.state import Group, Limits, apply
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode

EncodedRecord: TypeAlias = tuple[bytes, bytes | None]
"""Key and value of one record, as encoded in the log."""


class DurableGroup:
    """The group by its durable records, replayed up to those on which the last response depended."""

    def __init__(self, group_id: GroupId, limits: Limits, lines: Sequence[EncodedRecord]) -> None:
        """``lines`` is the log's own list, which grows."""
        self._lines = lines
        self._read = len(lines)
        self._group = folded(group_id, limits, lines)

    def check(self, request: Request, response: Response, *, needs: int) -> None:
        """Check that the durable records contain the content of ``response``, which leaves now and depends on the
        first ``needs`` lines of the log.

        :raises Violation: DURABLE_FIRST.
        """
        if needs > len(self._lines):
            what = f"{type(response).__name__} needs {needs} lines"
            raise Violation(Invariant.DURABLE_FIRST, f"{what}, the log has {len(self._lines)}")
        assert needs >= self._read, "responses leave in the order of their steps"
        for line in self._lines[self._read : needs]:
            replay(self._group, line)
        self._read = needs
        if response.error is ErrorCode.none and not holds(self._group, request, response):
            raise Violation(Invariant.DURABLE_FIRST, f"the log does not contain what {type(response).__name__} reports")


def holds(group: Group, request: Request, response: Response) -> bool:
    """Whether ``group`` contains what the error-free ``response`` reports."""
    written, offsets = group.written, group.offsets
    match request, response:
        case JoinGroup(), JoinGroupResponse(generation=generation, member_id=member_id):
            return written is not None and written.generation == generation and member_id in written.members
        case SyncGroup(member_id=member_id, generation=generation), SyncGroupResponse(assignment=assignment):
            member = written.members.get(member_id) if written is not None else None
            return group.generation == generation and member is not None and member.assignment == assignment
        case OffsetCommit(offsets=asked), OffsetCommitResponse(errors=errors):
            acknowledged = {
                new.partition: new.offset for new, error in zip(asked, errors, strict=True) if error is ErrorCode.none
            }
            return all(
                partition in offsets and offsets[partition].offset == offset
                for partition, offset in acknowledged.items()
            )
        case _, OffsetFetchResponse(offsets=told):
            return all(offsets.get(partition) == known for partition, known in told.items())
        case _:
            return True


def folded(group_id: GroupId, limits: Limits, lines: Iterable[EncodedRecord]) -> Group:
    """The group that results from a replay of ``lines``."""
    group = Group(group_id, limits)
    for line in lines:
        replay(group, line)
    return group


def replay(group: Group, line: EncodedRecord) -> None:
    decoded = _decoded(*line)
    assert decoded is not None, "every line is a record of a group"
    apply(group, decoded[1])


_decoded = lru_cache(maxsize=1_000)(decode_line)
"""Cached: each start of the coordinator replays all lines that earlier ones have written."""
