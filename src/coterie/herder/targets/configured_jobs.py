"""The leader's report of the jobs that are configured, from which the coordinator's target assignment is computed.

Only the leader reports. A new leader first looks up the end offset of the config log and reads the log up to it:
another worker may have written jobs that this worker has not read yet, and a report without them would stop them
everywhere.
"""

from coterie.herder.messages import FindConfigLogEnd, LogEndLookupForAssignment, SetTimer
from coterie.herder.state import Turn
from coterie.herder.targets.state import FindingLogEnd, NotReportingJobs, ReadingToLogEnd, ReportingJobs
from coterie.nouns.ids import LeaderEpoch, LogPosition
from coterie.nouns.membership import SetConfiguredJobs

LOOKUP_RETRY_MS = 1_000
"""How long the leader waits after a failed lookup of the config log's end offset."""


def start_reporting_if_new_leader(turn: Turn, leader_epoch: LeaderEpoch) -> None:
    """This worker is the leader in ``leader_epoch``. If it was not the leader in this epoch before, it looks up the end
    of the config log. Does nothing before the runtime is open."""
    report = turn.herder.targets.jobs_report
    if not turn.herder.lifecycle.is_runtime_open:
        return
    if isinstance(report, NotReportingJobs) or report.leader_epoch != leader_epoch:
        _find_log_end(turn, leader_epoch)


def stop_reporting(turn: Turn) -> None:
    """Report no configured jobs any more, because this worker is not the leader."""
    turn.herder.targets.jobs_report = NotReportingJobs()


def on_config_log_end_lookup_ended(turn: Turn, log_end_lookup_id: int, end_offset: LogPosition | None) -> None:
    """The lookup of the config log's end has ended: report the configured jobs when the log is read to ``end_offset``.
    None: the log could not be reached, and the lookup is repeated after :data:`LOOKUP_RETRY_MS`. The result of an older
    lookup is ignored."""
    report = turn.herder.targets.jobs_report
    if not isinstance(report, FindingLogEnd) or report.log_end_lookup_id != log_end_lookup_id:
        return
    if end_offset is None:
        turn.emit(SetTimer(timer="configured end", at_ms=turn.now_ms + LOOKUP_RETRY_MS))
    else:
        turn.herder.targets.jobs_report = ReadingToLogEnd(leader_epoch=report.leader_epoch, end_offset=end_offset)
        report_if_changed(turn)


def repeat_lookup_if_needed(turn: Turn) -> None:
    """The pause after a failed lookup has ended: repeat the lookup, if it is still needed."""
    report = turn.herder.targets.jobs_report
    if isinstance(report, FindingLogEnd):
        _find_log_end(turn, report.leader_epoch)


def report_if_changed(turn: Turn) -> None:
    """Report the configured jobs, if this worker is the leader, has read the config log to the end that it had when
    this worker became the leader, and the jobs differ from its last report. Does nothing while the worker is
    leaving."""
    herder, report = turn.herder, turn.herder.targets.jobs_report
    if herder.lifecycle.is_shutting_down:
        return
    match report:
        case ReadingToLogEnd(leader_epoch=leader_epoch, end_offset=end_offset) if herder.has_read_config_to(end_offset):
            _report_configured_jobs(turn, leader_epoch)
        case ReportingJobs(compared_config_offset=compared_at) if compared_at != herder.config.offset:
            configured = herder.config.jobs()
            if configured != report.reported_jobs:
                _report_configured_jobs(turn, report.leader_epoch)
            else:
                herder.targets.jobs_report = ReportingJobs(
                    leader_epoch=report.leader_epoch,
                    reported_jobs=configured,
                    compared_config_offset=herder.config.offset,
                )
        case _:
            pass


def _report_configured_jobs(turn: Turn, leader_epoch: LeaderEpoch) -> None:
    """Order the member to send the configured jobs."""
    config = turn.herder.config
    jobs = config.jobs()
    turn.herder.targets.jobs_report = ReportingJobs(
        leader_epoch=leader_epoch, reported_jobs=jobs, compared_config_offset=config.offset
    )
    turn.emit(SetConfiguredJobs(leader_epoch=leader_epoch, config_offset=config.offset, jobs=jobs))


def _find_log_end(turn: Turn, leader_epoch: LeaderEpoch) -> None:
    targets = turn.herder.targets
    targets.last_lookup_id += 1
    targets.jobs_report = FindingLogEnd(leader_epoch=leader_epoch, log_end_lookup_id=targets.last_lookup_id)
    turn.emit(FindConfigLogEnd(purpose=LogEndLookupForAssignment(log_end_lookup_id=targets.last_lookup_id)))
