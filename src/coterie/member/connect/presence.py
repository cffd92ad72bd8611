"""The lease of a member, and how its membership ends: loss, refusal, leaving, and the hand-over to the next process."""

from dataclasses import replace

from coterie.engine.backoff import doubled_delay_ms
from coterie.engine.lease import LeaseDurations
from coterie.member.connect.messages import Event, Timer
from coterie.member.connect.requests import make_leave_request, make_next_heartbeat
from coterie.member.connect.state import (
    HasLeft,
    HeartbeatDue,
    InGroup,
    Leaving,
    Member,
    NoHeartbeat,
    NotComputing,
    NotInGroup,
    PreviousMembershipEnd,
    Refused,
    Suspended,
    Suspending,
)
from coterie.member.connect.turn import Turn
from coterie.member.events import CancelTimer, MemberEnded, RequestFailed, ResponseReceived, SetTimer, TimerFired
from coterie.nouns.connect_groups import LEAVE_BRIEFLY_EPOCH, LEAVE_EPOCH
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import (
    ConnectMembershipHandover,
    LeaseRenewed,
    Leave,
    MembershipLost,
    MembershipRefused,
    MembershipSuspended,
)

ENDING_TIMEOUT_MS = 1_000
"""How long the member waits for the response to a request that leaves the group, or that announces the next process. If
the request is lost, the coordinator removes the member at the end of its session."""

_ALL_TIMERS: tuple[Timer, ...] = ("heartbeat", "lease", "ending")

# -- the lease --------------------------------------------------------------------------------------------------------


def renew_lease(turn: Turn, sent_at_ms: int) -> None:
    """Extend the lease, the time in which this worker may run its jobs: it ends ``LeaseDurations.duration_ms`` after
    the accepted heartbeat was sent."""
    place = turn.member.place
    assert isinstance(place, InGroup)
    lease_ends_ms = sent_at_ms + place.lease_durations.duration_ms
    if lease_ends_ms > place.lease_ends_ms or not place.is_lease_confirmed:
        set_and_report_lease_end(turn, lease_ends_ms)


def set_session_timeout_and_shorten_lease(turn: Turn, session_timeout_ms: int) -> None:
    """Store the group's session timeout from a response. The coordinator applies a shorter timeout from the next
    request on, so the lease ends no later than the lease of a request that is sent now."""
    place = turn.member.place
    assert isinstance(place, InGroup)
    turn.member.place = replace(place, session_timeout_ms=session_timeout_ms)
    latest_ms = turn.now_ms + LeaseDurations(session_timeout_ms).duration_ms
    if latest_ms < place.lease_ends_ms:
        set_and_report_lease_end(turn, latest_ms)


def set_and_report_lease_end(turn: Turn, lease_ends_ms: int) -> None:
    """Set the end of the lease to ``lease_ends_ms``, and report it to the herder (`LeaseRenewed`)."""
    place = turn.member.place
    assert isinstance(place, InGroup)
    turn.member.place = replace(place, lease_ends_ms=lease_ends_ms, is_lease_confirmed=True)
    turn.emit(SetTimer(timer="lease", at_ms=lease_ends_ms))
    turn.emit(LeaseRenewed(lease_ends_ms=lease_ends_ms, session_timeout_ms=place.session_timeout_ms))


def lose_membership_if_lease_over(turn: Turn) -> bool:
    """End the membership until the next join if the lease has ended. Returns whether it has; False
    outside of the group."""
    place = turn.member.place
    if not isinstance(place, InGroup) or turn.now_ms < place.lease_ends_ms:
        return False
    waited_ms = turn.now_ms - place.lease_ends_ms + place.lease_durations.duration_ms
    reason = f"the coordinator has not accepted any heartbeat sent in the last {waited_ms} ms"
    lose_membership_until_rejoin(turn, reason, has_lease_ended=True)
    return True


def begin_unconfirmed_lease_if_handed_over(turn: Turn) -> None:
    """Called at the first event of a member. If the member continues the membership of the previous process, the
    membership is lost unless a heartbeat is accepted within one lease duration from now: it is not known when the
    previous process sent its last accepted heartbeat. The herder receives no lease before a heartbeat is accepted."""
    place = turn.member.place
    if isinstance(place, InGroup):
        lease_ends_ms = turn.now_ms + place.lease_durations.duration_ms
        turn.member.place = replace(place, lease_ends_ms=lease_ends_ms)
        turn.emit(SetTimer(timer="lease", at_ms=lease_ends_ms))


# -- endings of the membership ----------------------------------------------------------------------------------------


def lose_membership_until_rejoin(
    turn: Turn, reason: str, *, end: PreviousMembershipEnd = PreviousMembershipEnd.LOST, has_lease_ended: bool = False
) -> None:
    """End the membership: the herder stops all jobs, and the member joins again, with the same member id, when no job
    is owned. A later response to a request that was sent before has no effect."""
    member = turn.member
    clear_membership_state(member)
    member.place = NotInGroup(previous_membership_end=end)
    for timer in _ALL_TIMERS:
        turn.emit(CancelTimer(timer=timer))
    turn.emit(MembershipLost(reason=reason, has_lease_ended=has_lease_ended))


def clear_membership_state(member: Member) -> None:
    """Drop the state that belongs to the membership: the member is not in the group, no heartbeat is due, and it
    computes no target."""
    member.place = NotInGroup()
    member.heartbeat = NoHeartbeat()
    member.older_heartbeats.clear()
    member.computation = NotComputing()
    member.reported_state = MemberState.UNJOINED


def end_membership_as_refused(turn: Turn, reason: str) -> None:
    """End the membership, and send no further heartbeat, because no retry can succeed. The herder shuts the worker
    down."""
    if isinstance(turn.member.place, InGroup):
        lose_membership_until_rejoin(turn, reason)
    turn.member.heartbeat = NoHeartbeat()
    turn.member.ending = Refused(reason=reason)
    turn.emit(MembershipRefused(reason=reason))


def on_leave_and_rejoin(turn: Turn, reason: str) -> None:
    """End the membership, and join again when all jobs have stopped; immediately before the join, send the request that
    leaves the group, which acknowledges that all jobs have stopped. Does nothing outside of the group."""
    if isinstance(turn.member.place, InGroup):
        lose_membership_until_rejoin(turn, reason, end=PreviousMembershipEnd.LEAVES)


def on_leave(turn: Turn, event: Leave) -> None:
    """Leave the group and end. The request that leaves the group acknowledges that all jobs have stopped: it is not
    sent if a job may still run, nor by a worker that has sent no heartbeat or was refused."""
    member = turn.member
    is_refused = isinstance(member.ending, Refused)
    clear_membership_state(member)
    for timer in _ALL_TIMERS:
        turn.emit(CancelTimer(timer=timer))
    running = NO_JOBS if member.worker_state is None else member.worker_state.owned
    if running:
        turn.log(
            f"This worker leaves its group without a request, because {len(running)} jobs have not stopped; the "
            "group assigns them to other workers when this worker's connection or session has ended"
        )
    if running or is_refused or member.request_number == 0:
        complete_leave(turn)
        return
    epoch = LEAVE_EPOCH if event.is_permanent else LEAVE_BRIEFLY_EPOCH
    member.ending = Leaving(in_flight=turn.send(make_leave_request(member, epoch)))
    turn.emit(SetTimer(timer="ending", at_ms=turn.now_ms + ENDING_TIMEOUT_MS))


def on_event_while_leaving(turn: Turn, leaving: Leaving, event: Event) -> None:
    """End when the response arrives, the request fails, or `ENDING_TIMEOUT_MS` has passed. All other events are
    ignored."""
    in_flight = leaving.in_flight
    match event:
        case ResponseReceived(id=id_) | RequestFailed(id=id_) if id_ == in_flight.id:
            complete_leave(turn)
        case TimerFired(timer="ending") if turn.now_ms >= in_flight.sent_at_ms + ENDING_TIMEOUT_MS:
            complete_leave(turn)
        case _:
            pass


def complete_leave(turn: Turn) -> None:
    """End the member now, and emit `MemberEnded`: no response is awaited any more."""
    turn.member.ending = HasLeft()
    turn.emit(CancelTimer(timer="ending"))
    turn.emit(MemberEnded())


# -- the next process -------------------------------------------------------------------------------------------------


def on_suspend(turn: Turn) -> None:
    """Announce to the coordinator that this process is about to replace itself, and suspend the membership when the
    response arrives; outside of the group, suspend it at once."""
    member = turn.member
    for timer in _ALL_TIMERS:
        turn.emit(CancelTimer(timer=timer))
    if not isinstance(member.place, InGroup):
        member.heartbeat = NoHeartbeat()
        complete_suspension(turn)
        return
    in_flight = turn.send(make_next_heartbeat(member, resumes=True))
    member.heartbeat = NoHeartbeat()
    member.older_heartbeats.clear()
    member.computation = NotComputing()
    member.ending = Suspending(in_flight=in_flight)
    turn.emit(SetTimer(timer="ending", at_ms=turn.now_ms + ENDING_TIMEOUT_MS))


def complete_suspension(turn: Turn) -> None:
    """Send nothing from now on, and emit `MembershipSuspended` with the membership for the next process; None if this
    worker is not in the group. The announcement may have no response: the coordinator may still have received it, so
    the next process continues with the request number after that of the announcement."""
    turn.member.ending = Suspended()
    turn.emit(CancelTimer(timer="ending"))
    turn.emit(MembershipSuspended(handover=membership_handover(turn.member)))


def membership_handover(member: Member) -> ConnectMembershipHandover | None:
    """The membership for the next process; None outside of the group."""
    place = member.place
    if not isinstance(place, InGroup):
        return None
    return ConnectMembershipHandover(
        member_id=member.settings.member_id,
        member_epoch=place.member_epoch,
        request_number=member.request_number,
        session_timeout_ms=place.session_timeout_ms,
        leader=place.leader.member_id,
        leader_url=place.leader.url,
        leader_epoch=place.leader.leader_epoch,
        assignment_epoch=place.assignment.assignment_epoch,
        config_offset=place.assignment.config_offset,
        jobs=place.assignment.jobs,
        jobs_by_assignment_epoch=place.assignment.jobs_by_assignment_epoch,
        version=place.assignment.version,
        metadata=place.assignment.metadata,
    )


# -- retries ----------------------------------------------------------------------------------------------------------


def schedule_full_heartbeat_retry(turn: Turn, *, first_at_once: bool) -> None:
    """Send the next heartbeat after a back-off, which doubles with each retry since the last accepted heartbeat. With
    ``first_at_once`` the first retry has no back-off: the coordinator has refused a stale heartbeat; or the connection
    has ended, and a coordinator that detects this removes the worker unless the worker sends a request on another
    connection within ``connection_grace_ms``. The next heartbeat contains all fields."""
    member = turn.member
    settings = member.settings
    if isinstance(member.place, InGroup):
        member.place = replace(member.place, accepted_data=None)
    doublings = member.retries - (1 if first_at_once else 0)
    backoff_ms = 0
    if doublings >= 0:
        backoff_ms = doubled_delay_ms(settings.retry_backoff_ms, doublings, settings.retry_backoff_max_ms)
    member.retries += 1
    at_ms = turn.now_ms + backoff_ms
    member.heartbeat = HeartbeatDue(at_ms=at_ms, is_backoff=True)
    turn.emit(SetTimer(timer="heartbeat", at_ms=at_ms))
