"""The values that a connect group's coordinator and its members exchange, the same on both sides. K848C, which the
docstrings cite, is the draft of KIP-848 for Connect (docs/design.md).

`groups` and `member` have separate requests, since a coordinator's event also says where a request comes from; their
responses are the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.ids import ConfigOffset, GroupEpoch, LeaderEpoch, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import Jobs
from coterie.nouns.target_assignments import GroupSnapshot

# -- values of requests ------------------------------------------------------------------------------------------------


class AssignorChangeReason(IntEnum):
    """Why a member changed the metadata of an assignor. Every value but NONE requests a new target assignment."""

    NONE = 0
    DELAY_OVER = 1
    METADATA_CHANGED = 2
    OPERATOR = 3


JOIN_EPOCH = MemberEpoch(0)
"""The member epoch of a request that joins the group."""
LEAVE_EPOCH = MemberEpoch(-1)
"""The member epoch of a request that leaves the group permanently: the member's jobs are assigned to others at once."""
LEAVE_BRIEFLY_EPOCH = MemberEpoch(-2)
"""The member epoch of a request that leaves the group for a short time: the member's jobs wait for its return. A static
member stays in the group, and has this member epoch until it returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedAssignor:
    """One assignor that a member supports, with the member's ``metadata`` for it, whose version is ``version`` (K848C,
    "Assignor")."""

    name: str
    minimum_version: int
    """The lowest metadata version that the assignor can read."""
    maximum_version: int
    """The highest metadata version that the assignor can read."""
    reason: int = AssignorChangeReason.NONE
    """Why the member asks for a new target assignment; a value of `AssignorChangeReason`, or one of the assignor."""
    version: int
    """The version of ``metadata``."""
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredJobs:
    """All jobs that are configured, as the group's leader has read them from the config topic."""

    config_offset: ConfigOffset
    """How far the leader had read the config topic."""
    jobs: Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The only jobs that a worker may run (KIP-987); ``jobs`` None: any job."""

    jobs: Jobs | None = None


# -- responses ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentToMember:
    """The assignment in the response to a heartbeat: all jobs that the member may run now, as soon as its worker has
    read the config topic to ``config_offset``. A job that the member owns and that is not in ``jobs`` is revoked.
    ``version`` is that of the assignor's ``metadata``."""

    jobs: Jobs
    jobs_by_assignment_epoch: Mapping[GroupEpoch, Jobs]
    """``jobs``, by the assignment epoch in which each was assigned to the member."""
    assignment_epoch: GroupEpoch
    """The group's assignment epoch."""
    config_offset: ConfigOffset
    """How far the worker must have read the config topic before it starts these jobs."""
    version: int = 0
    """The version of ``metadata``."""
    metadata: bytes = b""
    """The assignor's message to the member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderOfGroup:
    """The leader, as responses to heartbeats contain it; ``member_id`` is empty if there is none."""

    member_id: MemberId
    leader_epoch: LeaderEpoch
    url: WorkerUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """The coordinator's response to a heartbeat. If ``assignment``, ``leader`` or ``session_timeout_ms`` is None, the
    value has not changed since the last response to the member."""

    error: ConnectErrorCode = ConnectErrorCode.NONE
    message: str | None = None
    member_epoch: MemberEpoch = JOIN_EPOCH
    """The member's epoch after this heartbeat, if the heartbeat was accepted."""
    heartbeat_interval_ms: int = 0
    """The time until the next heartbeat of a member whose responses are not held."""
    assignment: AssignmentToMember | None = None
    leader: LeaderOfGroup | None = None
    session_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareAssignmentResponse:
    error: ConnectErrorCode = ConnectErrorCode.NONE
    message: str | None = None
    snapshot: GroupSnapshot | None = None
    """None if there is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallAssignmentResponse:
    error: ConnectErrorCode = ConnectErrorCode.NONE
    message: str | None = None
