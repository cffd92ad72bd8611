"""Builds the heartbeats of a member, each with the member's next request number, and decides when a heartbeat must be
sent before the response to the previous one. A heartbeat that ``resumes`` announces that the next process of this
worker continues the membership. `response_timeout_ms` does not include the time for which the coordinator may hold a
response."""

from coterie.member.connect.messages import HeartbeatRequest
from coterie.member.connect.state import (
    SESSION_TIMEOUT_HOLD_DIVISOR,
    ConfiguredJobsReport,
    HeartbeatSent,
    InGroup,
    Member,
    NotInGroup,
    ReportedData,
)
from coterie.nouns.connect_groups import JOIN_EPOCH, Claims, ConfiguredJobs, SupportedAssignor
from coterie.nouns.ids import ConfigOffset, MemberEpoch
from coterie.nouns.jobs import NO_JOBS

_RESPONSE_TIMEOUT_MIN_MS = 500
"""The minimum time that a member waits for a response, however short the session timeout is."""


def data_to_report(member: Member) -> ReportedData:
    """The data that the next heartbeat would report."""
    state = member.worker_state
    return ReportedData(
        owned=member.owned,
        config_offset=ConfigOffset(-1) if state is None else state.config_offset,
        draining=state is not None and state.draining,
        claims=member.settings.claims if state is None else state.claims(member.settings.claims),
        assignors=member.assignors,
    )


def must_report_at_once(
    member: Member, last: ReportedData | None, configured_report: ConfiguredJobsReport | None
) -> bool:
    """Whether the next heartbeat must be sent at once because something has changed since the heartbeat that reported
    ``last`` and ``configured_report``: a job has stopped, the worker begins or ends a drain or changes its claims, an
    assignor has new metadata or requests a new target assignment, or, on the leader, the configured jobs have changed.
    ``last`` is None if it is not certain that the coordinator has received the last report: then only the configured
    jobs are compared."""
    now = data_to_report(member)
    if last is not None and (
        not last.owned <= now.owned
        or (last.draining, last.claims, last.assignors) != (now.draining, now.claims, now.assignors)
    ):
        return True
    report = configured_jobs_to_report(member)
    return report is not None and report != configured_report


def configured_jobs_to_report(member: Member) -> ConfiguredJobsReport | None:
    """The configured jobs that this member has to report as the leader. None if the coordinator has accepted them
    already, if the herder has sent none for the present leader epoch, or if this member is not the leader."""
    place = member.place
    if not isinstance(place, InGroup) or member.configured is None or not member.is_leader:
        return None
    if member.configured.leader_epoch != place.leader.leader_epoch:
        return None  # The herder reads the config log to its end first.
    report = ConfiguredJobsReport(leader_epoch=place.leader.leader_epoch, configured_jobs=member.configured)
    return None if report == place.configured_report else report


def must_send_leadership_check(member: Member) -> bool:
    """Whether a heartbeat must be sent at once to confirm that this worker is the leader: the herder has ordered the
    check, and the newest heartbeat was sent before the order or has its response already."""
    check = member.leadership_check
    if check is None or not member.is_leader:
        return False
    return not (isinstance(member.heartbeat, HeartbeatSent) and check.precedes_request(member.heartbeat.in_flight.id))


def must_send_all_fields(member: Member) -> bool:
    """Whether the next heartbeat must contain all fields. These heartbeats must: a join, the first one on a connection,
    one after an error, and one that is sent while another one is unanswered."""
    match member.place:
        case NotInGroup() | InGroup(member_epoch=0) | InGroup(accepted_data=None):
            return True
        case InGroup():
            return bool(member.older_heartbeats) or isinstance(member.heartbeat, HeartbeatSent)


def make_next_heartbeat(member: Member, *, resumes: bool = False) -> HeartbeatRequest:
    """The next heartbeat, with a new request number. With ``resumes`` it announces that this process is about to end
    and that the next process of this worker continues the membership."""
    settings, now = member.settings, data_to_report(member)
    member.request_number += 1
    report = configured_jobs_to_report(member)
    configured = (
        None
        if report is None
        else ConfiguredJobs(config_offset=report.configured_jobs.config_offset, jobs=report.configured_jobs.jobs)
    )
    epoch = member.place.member_epoch if isinstance(member.place, InGroup) else JOIN_EPOCH
    if resumes or must_send_all_fields(member):
        may_response_be_held = (
            not resumes and may_full_heartbeat_response_be_held(member) and not must_send_leadership_check(member)
        )
        wait_ms = response_hold_max_ms(member) if may_response_be_held else 0
        return HeartbeatRequest(
            group_id=settings.group_id,
            member_id=settings.member_id,
            member_epoch=epoch,
            request_number=member.request_number,
            instance_id=settings.instance_id,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            server_assignor=settings.server_assignor,
            client_assignors=_client_assignors(member),
            owned=now.owned,
            url=settings.url,
            name=settings.worker_name or "",
            config_offset=now.config_offset,
            config_topic_id=settings.config_topic_id,
            configured=configured,
            claims=Claims(jobs=now.claims),
            draining=now.draining,
            connection_grace_ms=settings.connection_grace_ms,
            resumes=resumes,
            max_wait_ms=wait_ms,
            response_timeout_ms=wait_ms + response_timeout_ms(member),
        )
    assert isinstance(member.place, InGroup)
    last = member.place.accepted_data
    assert last is not None
    wait_ms = 0 if must_send_leadership_check(member) else response_hold_max_ms(member)
    return HeartbeatRequest(
        group_id=settings.group_id,
        member_id=settings.member_id,
        member_epoch=epoch,
        request_number=member.request_number,
        owned=None if now.owned == last.owned else now.owned,
        config_offset=None if now.config_offset == last.config_offset else now.config_offset,
        configured=configured,
        claims=None if now.claims == last.claims else Claims(jobs=now.claims),
        draining=None if now.draining == last.draining else now.draining,
        client_assignors=None if now.assignors == last.assignors else _client_assignors(member),
        max_wait_ms=wait_ms,
        response_timeout_ms=wait_ms + response_timeout_ms(member),
    )


def may_full_heartbeat_response_be_held(member: Member) -> bool:
    """Whether the coordinator may hold the response to the next heartbeat although the heartbeat has all fields: no
    response was lost on the connection, and the heartbeat repeats a join, or another heartbeat is unanswered. The
    coordinator may still respond at once."""
    place = member.place
    return (
        isinstance(place, InGroup)
        and place.accepted_data is not None
        and (place.member_epoch == JOIN_EPOCH or isinstance(member.heartbeat, HeartbeatSent))
    )


def response_hold_max_ms(member: Member) -> int:
    """How long the coordinator may at most hold back the response to this member's next heartbeat, while it has nothing
    new for the member. The member must be in the group."""
    assert isinstance(member.place, InGroup)
    return min(member.settings.coordinator_hold_max_ms, member.place.session_timeout_ms // SESSION_TIMEOUT_HOLD_DIVISOR)


def make_leave_request(member: Member, epoch: MemberEpoch) -> HeartbeatRequest:
    """The heartbeat that leaves the group, with a new request number; it acknowledges that all jobs have stopped.
    ``epoch`` is LEAVE_EPOCH or LEAVE_BRIEFLY_EPOCH."""
    member.request_number += 1
    return HeartbeatRequest(
        group_id=member.settings.group_id,
        member_id=member.settings.member_id,
        member_epoch=epoch,
        request_number=member.request_number,
        instance_id=member.settings.instance_id,
        owned=NO_JOBS,
        response_timeout_ms=response_timeout_ms(member),
    )


def response_timeout_ms(member: Member) -> int:
    """How long the member waits for a response that the coordinator does not hold: a sixth of the session timeout, but
    not below `_RESPONSE_TIMEOUT_MIN_MS`; outside of the group, where no session timeout is known, the setting."""
    if not isinstance(member.place, InGroup):
        return member.settings.response_timeout_ms
    return max(_RESPONSE_TIMEOUT_MIN_MS, member.place.session_timeout_ms // SESSION_TIMEOUT_HOLD_DIVISOR)


def _client_assignors(member: Member) -> tuple[SupportedAssignor, ...] | None:
    """The client-side assignors as requests contain them; None if this worker names one of the coordinator."""
    if member.settings.server_assignor is not None:
        return None
    return tuple(
        SupportedAssignor(
            name=one.name,
            minimum_version=one.minimum_version,
            maximum_version=one.maximum_version,
            reason=one.reason,
            version=one.metadata_version,
            metadata=one.metadata,
        )
        for one in member.assignors
    )
