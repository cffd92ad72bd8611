"""The state that a herder keeps for a connect group. A comment names the module that assigns each field."""

from dataclasses import dataclass
from typing import TypeAlias

from coterie.nouns.group_description import GroupDescription
from coterie.nouns.ids import ConfigOffset, LeaderEpoch, LogPosition
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import ConnectAssignmentDetails, ConnectMembershipHandover

# -- the leader's report of the configured jobs -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReportingJobs:
    """This worker is not the leader, or its runtime is not open: it reports nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingLogEnd:
    """This worker is the leader, and looks up the config log's end offset, or repeats the lookup after a pause."""

    leader_epoch: LeaderEpoch
    """The number of this worker's appointment as the leader."""
    log_end_lookup_id: int
    """The number of the lookup; the result of an older lookup is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingToLogEnd:
    """This leader reports the configured jobs when it has read the config log to ``end_offset``. A report from a part
    of the log would make the workers stop all jobs that are missing in that part."""

    leader_epoch: LeaderEpoch
    """The number of this worker's appointment as the leader."""
    end_offset: LogPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportingJobs:
    """This leader has reported ``reported_jobs``, and reports each change of them."""

    leader_epoch: LeaderEpoch
    """The number of this worker's appointment as the leader."""
    reported_jobs: Jobs
    compared_config_offset: ConfigOffset
    """The config offset at which ``reported_jobs`` were last compared with the configured jobs."""


JobsReportState: TypeAlias = NotReportingJobs | FindingLogEnd | ReadingToLogEnd | ReportingJobs


class HerderConnectGroupState:
    """What a worker in a connect group remembers beside its present assignment: the details of that assignment, the
    jobs announced to listeners, the group's last description, and, if it is the leader, its report of the configured
    jobs."""

    def __init__(self, handover: ConnectMembershipHandover | None) -> None:
        # `following`
        self.details: ConnectAssignmentDetails | None = None
        """The details of the last assignment; None before the first, and after a loss of the membership."""
        if handover is not None:
            self.details = ConnectAssignmentDetails(
                leader_epoch=handover.leader_epoch,
                assignment_epoch=handover.assignment_epoch,
                jobs_by_assignment_epoch=handover.jobs_by_assignment_epoch,
                metadata_version=handover.version,
                metadata=handover.metadata,
            )
        # `listening`
        self.announced: Jobs = NO_JOBS
        """The jobs that were announced to the listeners of rebalances as assigned, and not yet as revoked or lost."""
        self.has_lease_ended = False
        """Whether the membership was lost because the lease had ended; False while this worker is a member."""
        # `configured_jobs`
        self.jobs_report: JobsReportState = NotReportingJobs()
        self.last_lookup_id = 0
        """The number of lookups of the config log's end offset; only the result of the last lookup is used."""
        # `description`
        self.description: GroupDescription | None = None
        """The group's last description from the coordinator; None before the first one, and after a failed request."""
        self.description_error = ""
        """Why the last request has returned no description; empty if it has returned one."""
        self.is_description_requested = False
        """Whether a request for a description has no response yet."""
