"""The hard state of a connect group: the part of its state that its records determine. It is replayed from a log, of
which any first part may be compacted, and compared with the live group and with the responses that report it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self, TypeAlias

from coterie.groups.connect.log_records import decode_record
from coterie.groups.connect.messages import (
    ConfiguredJobsWritten,
    CurrentAssignment,
    GroupRecord,
    InstallAssignment,
    MemberDeparted,
    MemberRecord,
    Request,
    Response,
    TargetWritten,
)
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.connect.state import Group, apply_record
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    JOIN_EPOCH,
    HeartbeatResponse,
    InstallAssignmentResponse,
    PrepareAssignmentResponse,
)
from coterie.nouns.ids import GroupId, MemberId
from coterie.nouns.jobs import Job

EncodedRecord: TypeAlias = tuple[bytes, bytes | None]
"""The key and the value of one record as in the log; a record is also called a line here. The value None makes the
record a tombstone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """The hard state of a group at one time: the part that its records determine."""

    metadata: GroupRecord | None
    configured_jobs_record: ConfiguredJobsWritten | None
    members: Mapping[MemberId, MemberRecord]
    targets: Mapping[MemberId, TargetWritten]
    current_assignments: Mapping[MemberId, CurrentAssignment]
    departed_members: Mapping[MemberId, MemberDeparted]
    """By member id, the members that have left and whose jobs are deferred or may still run."""
    group_configs: Mapping[str, str]
    holder_by_job: Mapping[Job, MemberId]
    """For each job that a member holds (the job may run there), this member."""

    @classmethod
    def from_group(cls, group: Group) -> Self:
        """The present hard state of ``group``."""
        return cls(
            metadata=group.metadata,
            configured_jobs_record=group.configured,
            members=dict(group.members),
            targets=dict(group.targets),
            current_assignments=dict(group.currents),
            departed_members=dict(group.departed),
            group_configs=dict(group.configs),
            holder_by_job=dict(group.holder),
        )

    @property
    def group_epoch(self) -> int:
        """The group epoch; 0 if there is no group."""
        return self.metadata.group_epoch if self.metadata is not None else 0

    @property
    def assignment_epoch(self) -> int:
        """The assignment epoch; 0 if there is no group."""
        return self.metadata.assignment_epoch if self.metadata is not None else 0


class DurableGroup:
    """A copy of a group that is built from durable records alone: from those that were durable when this object was
    created, and from later ones up to the last record on which a sent response depended."""

    def __init__(self, group_id: GroupId, settings: ConnectGroupSettings, lines: Sequence[EncodedRecord]) -> None:
        """``lines`` is the list to which the disk adds each record when it becomes durable."""
        self._lines = lines
        self._replayed_count = len(lines)
        self._group = replay_group(group_id, settings, lines)

    def check_response_is_durable(self, request: Request, response: Response, *, lines_required: int) -> None:
        """Check that the records on which ``response`` depends, the first ``lines_required`` of the log, are durable
        and contain what it reports. Must be called when the response is sent, for the responses in the order of their
        steps.

        :raises Violation: DURABLE_FIRST.
        """
        if lines_required > len(self._lines):
            requirement = f"{type(response).__name__} depends on the first {lines_required} records"
            raise Violation(Invariant.DURABLE_FIRST, f"{requirement}, only {len(self._lines)} are durable")
        assert lines_required >= self._replayed_count, "a response is sent after that of a later step"
        for line in self._lines[self._replayed_count : lines_required]:
            apply_encoded_record(self._group, line)
        self._replayed_count = lines_required
        if not contains_reported_state(self._group, request, response):
            raise Violation(Invariant.DURABLE_FIRST, f"the log does not have what {type(response).__name__} reports")


def contains_reported_state(group: Group, request: Request, response: Response) -> bool:
    """Whether the state of ``group`` contains what ``response`` reports: the member epoch with the assigned jobs and
    the leader epoch (heartbeat), the group epoch of the snapshot (Prepare), the installed target (Install). True for a
    response with an error, and for one that reports no state."""
    match request, response:
        case _, HeartbeatResponse(error=ConnectErrorCode.NONE | ConnectErrorCode.COMPUTE_ASSIGNMENT):
            current = group.currents.get(getattr(request, "member_id", MemberId("")))
            if response.member_epoch < JOIN_EPOCH:
                return current is None or not current.held_jobs
            if response.assignment is None and response.leader is None:
                return True  # An older heartbeat, to which a newer one has ended the hold: nothing new is reported.
            is_written = current is not None and current.member_epoch == response.member_epoch
            has_jobs = response.assignment is None or (
                current is not None and response.assignment.jobs == current.assigned
            )
            has_leader = response.leader is None or response.leader.leader_epoch == group.leader_epoch
            return is_written and has_jobs and has_leader
        case _, PrepareAssignmentResponse(error=ConnectErrorCode.NONE, snapshot=snapshot):
            # A repeated request may receive an older state again.
            return snapshot is not None and group.group_epoch >= snapshot.group_epoch
        case InstallAssignment(), InstallAssignmentResponse(error=ConnectErrorCode.NONE) if not request.assignor_error:
            return group.assignment_epoch >= request.group_epoch
        case _:
            return True


def replay_group(group_id: GroupId, settings: ConnectGroupSettings, lines: Iterable[EncodedRecord]) -> Group:
    """A new group with the hard state that a replay of ``lines`` gives. It has not handled `GroupLoaded`."""
    group = Group(group_id, settings)
    for line in lines:
        apply_encoded_record(group, line)
    return group


def apply_encoded_record(group: Group, line: EncodedRecord) -> None:
    """Apply one record to the hard state of ``group``."""
    decoded = _decode_record_cached(*line)
    assert decoded is not None, "a line of the log is not a record of a group"
    apply_record(group, decoded[1])


def compact_lines(lines: Sequence[EncodedRecord]) -> list[EncodedRecord]:
    """What log compaction keeps of ``lines``: the last record of each key, unless it is a tombstone, in the order of
    ``lines``."""
    last_index = {key: index for index, (key, _) in enumerate(lines)}
    return [line for index, line in enumerate(lines) if last_index[line[0]] == index and line[1] is not None]


def check_replay(group: Group, settings: ConnectGroupSettings, lines: Sequence[EncodedRecord]) -> None:
    """Check that a replay of ``lines``, all records that ``group`` has written, gives the hard state of ``group``; and
    that a replay of the compacted ``lines`` does so, too.

    :raises Violation: REPLAY_IS_LIVE.
    """
    live = HardState.from_group(group)
    for name, some in (("the records", lines), ("the compacted records", compact_lines(lines))):
        replayed = HardState.from_group(replay_group(group.group_id, settings, some))
        for field in HardState.__slots__:
            if getattr(live, field) != getattr(replayed, field):
                description = f"{field} of the live group differs from that after a replay of {name}"
                raise Violation(Invariant.REPLAY_IS_LIVE, description)


_decode_record_cached = lru_cache(maxsize=2_000)(decode_record)
"""`decode_record` with a cache, because each record is applied to several groups."""
