"""What the log holds of a group, and whether an answer shows more than that."""

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
"""Key and value of one record, as the log holds it."""


class DurableGroup:
    """The group as the log tells of it, read as far as the answers that leave have come."""

    def __init__(self, group_id: GroupId, limits: Limits, lines: Sequence[EncodedRecord]) -> None:
        """``lines`` are the log's own, and grow with it."""
        self._lines = lines
        self._read = len(lines)
        self._group = folded(group_id, limits, lines)

    def check(self, request: Request, response: Response, *, needs: int) -> None:
        """``response`` leaves; when it was decided, the log was to have ``needs`` lines.

        :raises Violation: DURABLE_FIRST.
        """
        if needs > len(self._lines):
            what = f"{type(response).__name__} needs {needs} lines"
            raise Violation(Invariant.DURABLE_FIRST, f"{what}, the log has {len(self._lines)}")
        assert needs >= self._read, "answers leave in the order in which they were decided"
        for line in self._lines[self._read : needs]:
            replay(self._group, line)
        self._read = needs
        if response.error is ErrorCode.none and not holds(self._group, request, response):
            raise Violation(Invariant.DURABLE_FIRST, f"the log does not hold what {type(response).__name__} says")


def holds(group: Group, request: Request, response: Response) -> bool:
    """Whether ``group`` is what a good answer tells of it."""
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
    """The group that ``lines`` alone tell of."""
    group = Group(group_id, limits)
    for line in lines:
        replay(group, line)
    return group


def replay(group: Group, line: EncodedRecord) -> None:
    decoded = _decoded(*line)
    assert decoded is not None, "all lines are of groups"
    apply(group, decoded[1])


_decoded = lru_cache(maxsize=1_000)(decode_line)
"""Each life begins with all lines of the last one: whoever reads them anew need not take each apart anew."""
