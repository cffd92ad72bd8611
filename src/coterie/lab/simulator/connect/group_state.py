"""The hard state of a connect group as its records give it: replayed from a log, compacted anywhere or not, and
compared with the live group and with the responses that report it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self, TypeAlias

from coterie.groups.connect.log_records import decode_record
from coterie.groups.connect.messages import (
    ConfiguredWritten,
    CurrentAssignment,
    GroupMetadata,
    InstallAssignment,
    MemberDeparted,
    MemberMetadata,
    Request,
    Response,
    TargetWritten,
)
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.connect.state import Group, apply_record
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    JOIN,
    HeartbeatResponse,
    InstallAssignmentResponse,
    PrepareAssignmentResponse,
)
from coterie.nouns.ids import GroupId, MemberId
from coterie.nouns.jobs import Job

EncodedRecord: TypeAlias = tuple[bytes, bytes | None]
"""The key and the value of one record as in the log. The value None is a tombstone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """The hard state of a group at one time."""

    metadata: GroupMetadata | None
    configured_jobs_record: ConfiguredWritten | None
    members: Mapping[MemberId, MemberMetadata]
    targets: Mapping[MemberId, TargetWritten]
    current_assignments: Mapping[MemberId, CurrentAssignment]
    departed_members: Mapping[MemberId, MemberDeparted]
    group_configs: Mapping[str, str]
    holder_by_job: Mapping[Job, MemberId]
    """The member on which each job may run."""

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
    """A group that is rebuilt from its records in the log: from those on which the responses sent so far depended."""

    def __init__(self, group_id: GroupId, settings: ConnectGroupSettings, lines: Sequence[EncodedRecord]) -> None:
        """``lines`` is the list to which the disk adds each record when it becomes durable."""
        self._lines = lines
        self._replayed_count = len(lines)
        self._group = replay_group(group_id, settings, lines)

    def check_response(self, request: Request, response: Response, *, lines_required: int) -> None:
        """Check that the durable records contain what ``response`` reports. The response is sent now, and depends on
        the first ``lines_required`` records of the log.

        :raises Violation: DURABLE_FIRST.
        """
        if lines_required > len(self._lines):
            requirement = f"{type(response).__name__} needs {lines_required} lines"
            raise Violation(Invariant.DURABLE_FIRST, f"{requirement}, the log has {len(self._lines)}")
        assert lines_required >= self._replayed_count, "responses leave in the order of their steps"
        for line in self._lines[self._replayed_count : lines_required]:
            apply_encoded_record(self._group, line)
        self._replayed_count = lines_required
        if not contains_reported_state(self._group, request, response):
            raise Violation(Invariant.DURABLE_FIRST, f"the log does not contain what {type(response).__name__} reports")


def contains_reported_state(group: Group, request: Request, response: Response) -> bool:
    """Whether the state of ``group`` contains what ``response``, a response without error, reports. True for a response
    that reports nothing."""
    match request, response:
        case _, HeartbeatResponse(error=ConnectErrorCode.NONE | ConnectErrorCode.COMPUTE_ASSIGNMENT):
            current = group.currents.get(getattr(request, "member_id", MemberId("")))
            if response.member_epoch < JOIN:
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
    """The group whose hard state is the result of a replay of ``lines``."""
    group = Group(group_id, settings)
    for line in lines:
        apply_encoded_record(group, line)
    return group


def apply_encoded_record(group: Group, line: EncodedRecord) -> None:
    """Apply one record to the hard state of ``group``."""
    decoded = _decode_record_cached(*line)
    assert decoded is not None, "every line is a record of a group"
    apply_record(group, decoded[1])


def compact_lines(lines: Sequence[EncodedRecord]) -> list[EncodedRecord]:
    """The last record of each key, without tombstones, in the order of ``lines``."""
    last_index = {key: index for index, (key, _) in enumerate(lines)}
    return [line for index, line in enumerate(lines) if last_index[line[0]] == index and line[1] is not None]


def check_replay(group: Group, settings: ConnectGroupSettings, lines: Sequence[EncodedRecord]) -> None:
    """Check that a replay of ``lines``, all records that ``group`` has written, gives its hard state; and that a replay
    of the compacted lines does.

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
