"""One round of a member: JoinGroup, the computation of the assignments if this member is the leader, and SyncGroup."""

from collections.abc import Mapping
from dataclasses import replace

from coterie.member.classic.connect_translation import to_assigned, to_member_report, to_worker_assignments
from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    SyncRequest,
    SyncResponse,
)
from coterie.member.classic.permanent_errors import permanent_error_reason
from coterie.member.classic.presence import (
    lose_membership_if_lease_over,
    lose_membership_permanently,
    lose_membership_until_rejoin,
    on_unknown_member_id,
    renew_lease_and_clear_failures,
    schedule_heartbeat_after_current_interval,
    schedule_rejoin_after_backoff,
    shorten_heartbeat_interval_for_next_round,
)
from coterie.member.classic.protocol_offer import (
    log_protocol_if_changed,
    protocol_in_settings_or_none,
    protocols_safe_to_offer,
)
from coterie.member.classic.state import (
    NO_GENERATION,
    NO_MEMBER,
    AssignmentReceived,
    AwaitingResponse,
    AwaitingWorkerState,
    CheckingPriorMember,
    ComputingAssignments,
    InGroup,
    JoinSent,
    Member,
    PriorMemberStatus,
    Refused,
    StoppingAllJobs,
    SyncSent,
    WaitingToJoin,
)
from coterie.member.classic.turn import RequestT, Turn
from coterie.member.events import SetTimer, WriteLogMessage
from coterie.member.in_flight import InFlight
from coterie.nouns.errors import WireError
from coterie.nouns.ids import MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import (
    AssignmentsRequested,
    MembershipRefused,
    MemberStateChanged,
    SendAssignments,
    SetWorkerState,
    StopAllBeforeJoin,
)
from coterie.wire.connect import PROTOCOL_TYPE, ConnectProtocol, RoundToken, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_bytes import (
    decode_version_and_assignment,
    decode_version_and_metadata,
    encode_assignment,
    encode_metadata,
)
from coterie.wire.connect_opaque import encode_worker_name
from coterie.wire.errors import ErrorCode

# -- joining ----------------------------------------------------------------------------------------------------------


def on_set_worker_state(member: Member, event: SetWorkerState) -> None:
    """Store the worker state for the next join. Assigned jobs that the herder has not handled yet are added to its
    ``owned``."""
    if member.assigned_unconfirmed <= event.owned:
        member.assigned_unconfirmed = NO_JOBS
    member.worker_state = replace(event, owned=event.owned | member.assigned_unconfirmed)
    if isinstance(member.round, AwaitingWorkerState):
        member.round = WaitingToJoin()


def join_or_prepare_join_if_due(turn: Turn) -> None:
    """Begin a round (JoinGroup, then SyncGroup) if one is requested and nothing prevents it: no back-off, no running
    round, and no job that must stop first. In an eager group, the herder is first ordered to stop all jobs. A static
    member without a member id first asks whether the group has a member of its previous process."""
    member = turn.member
    match member.round:
        case _ if member.ending is not None:
            pass
        case AwaitingWorkerState() | CheckingPriorMember() | JoinSent() | ComputingAssignments() | SyncSent():
            pass
        case WaitingToJoin(backoff_ends_ms=int()) | StoppingAllJobs(backoff_ends_ms=int()):
            pass
        case AssignmentReceived() if member.rejoin_reason is None:
            pass
        case AssignmentReceived(hold_join_until_ms=until_ms) if turn.now_ms < until_ms and member.revoked_unreleased:
            # This member or another one has released some revoked jobs and has requested this round. If this member
            # joined now, it would report its other revoked jobs as running. In a group older than static, the leader
            # would count this worker as overloaded again and might revoke more from it; in a static group, these jobs
            # would need another round. Heartbeats continue meanwhile. But the released jobs are down until this
            # member joins, so it does not wait for slow stops.
            pass
        case StoppingAllJobs() if member.owned:
            pass
        case WaitingToJoin() | AssignmentReceived() if is_group_eager(member) and member.owned:
            member.round = StoppingAllJobs()
            turn.emit(StopAllBeforeJoin())
        case WaitingToJoin() | AssignmentReceived() | StoppingAllJobs():
            is_static = member.settings.instance_id is not None
            if is_static and not member.member_id and member.prior_member is PriorMemberStatus.UNCHECKED:
                send_prior_member_check(turn)
            else:
                send_join(turn)


def is_group_eager(member: Member) -> bool:
    """Whether this member is in a group that has selected protocol eager."""
    return isinstance(member.place, InGroup) and member.place.protocol is ConnectProtocol.EAGER


def send_join(turn: Turn) -> None:
    """Send JoinGroup with the current worker state."""
    member, settings = turn.member, turn.member.settings
    turn.emit(MemberStateChanged(state=MemberState.PREPARING_REBALANCE))
    metadata = worker_metadata_for_join(member)
    request = JoinRequest(
        group_id=settings.group_id,
        member_id=member.member_id,
        instance_id=settings.instance_id,
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple(
            (offered.wire_name, encode_metadata(offered, metadata)) for offered in protocols_safe_to_offer(turn)
        ),
        reason=member.rejoin_reason or "",
    )
    member.round = JoinSent(
        in_flight=send_with_timeout(turn, request),
        sent_worker_state=member.worker_state,
        prior_member=member.prior_member,
    )
    member.rejoin_reason = None
    if settings.instance_id is not None and not member.member_id:
        # The response may get lost; then this process is already a member of the group when it sends its next join.
        member.prior_member = PriorMemberStatus.IN_GROUP


def worker_metadata_for_join(member: Member) -> WorkerMetadata:
    """The metadata of this worker that the next JoinGroup sends to the leader."""
    settings, worker_state = member.settings, member.worker_state
    claims = worker_state.claims(settings.claims)
    received = member.place.assignment if isinstance(member.place, InGroup) else None
    last = received or WorkerAssignment(
        leader=NO_MEMBER, leader_url=WorkerUrl(""), config_offset=worker_state.config_offset
    )
    allocation = WorkerAssignment(
        leader=last.leader,
        leader_url=last.leader_url,
        config_offset=last.config_offset,
        assigned=worker_state.owned,
        # No leader reads the delay of an allocation; it only makes this join differ from the last one. The coordinator
        # responds to an equal join with the same generation and the same assignment, which could not be decoded.
        delay_ms=member.malformed_assignment_count,
    )
    has_allocation = worker_state.owned or received is not None or member.malformed_assignment_count
    return WorkerMetadata(
        url=settings.url,
        config_offset=worker_state.config_offset,
        # None before the first assignment, as in Connect; empty after it. So a static member's second join differs from
        # its first, whose response contained nothing new, and the coordinator begins a round.
        allocation=allocation if has_allocation else None,
        static_connectors=None if claims is None else claims.connectors,
        static_tasks=None if claims is None else claims.tasks,
        draining=worker_state.draining,
        opaque=None if settings.worker_name is None else encode_worker_name(name=settings.worker_name),
    )


def is_worker_state_in_join(member: Member) -> bool:
    """Whether a JoinGroup without a response yet contains the current worker state: its round then takes this state
    into account, and no further round is needed."""
    return isinstance(member.round, JoinSent) and member.round.sent_worker_state == member.worker_state


def send_prior_member_check(turn: Turn) -> None:
    """Ask the coordinator whether the group has a member with this instance id, from a previous process of this worker.

    If it has, the response to a join contains the current generation and does not show that there was such a member
    (KIP-345). But the response to a heartbeat with the instance id and without a member id is FENCED_INSTANCE_ID then,
    and UNKNOWN_MEMBER_ID if there is no such member.
    """
    settings = turn.member.settings
    request = HeartbeatRequest(
        group_id=settings.group_id, member_id=NO_MEMBER, instance_id=settings.instance_id, generation=NO_GENERATION
    )
    turn.member.round = CheckingPriorMember(in_flight=send_with_timeout(turn, request))


def on_prior_member_checked(turn: Turn, response: HeartbeatResponse) -> None:
    """Store whether the group has a member from a previous process of this worker, which the error code of ``response``
    shows. Any other error is handled by :func:`rejoin_later_or_end_as_refused`."""
    match response.error:
        case ErrorCode.unknown_member_id:
            turn.member.prior_member = PriorMemberStatus.NOT_IN_GROUP
        case ErrorCode.fenced_instance_id | ErrorCode.none | ErrorCode.illegal_generation:
            turn.member.prior_member = PriorMemberStatus.IN_GROUP
        case error:
            rejoin_later_or_end_as_refused(turn, error)


def send_with_timeout(turn: Turn, request: RequestT) -> InFlight[RequestT]:
    """Send a request, and set the timer ``answer``, which fires when the response is overdue."""
    in_flight = turn.send(request)
    turn.emit(SetTimer(timer="answer", at_ms=turn.now_ms + turn.member.settings.round_response_timeout_ms))
    return in_flight


def schedule_rejoin_after_failed_request(turn: Turn, awaiting: AwaitingResponse) -> None:
    """Join again after a back-off, because a request has failed or its response is overdue. If this was a join of a
    worker in the group, store that the group may have selected another protocol
    (``may_have_missed_protocol_change``)."""
    member = turn.member
    if isinstance(awaiting, JoinSent) and isinstance(member.place, InGroup):
        member.place = replace(member.place, may_have_missed_protocol_change=True)
    schedule_rejoin_after_backoff(turn)


def on_join_response(turn: Turn, joins: JoinSent, response: JoinResponse) -> None:
    """Process the response to JoinGroup: continue the round, join again, or join no more if the error is permanent.
    After UNKNOWN_MEMBER_ID, a member in the group loses its membership first. If the join of a member in the group did
    not offer eager, INCONSISTENT_GROUP_PROTOCOL is not permanent: the group's protocol then counts as eager, and the
    next join follows when all jobs have stopped."""
    member, place = turn.member, turn.member.place
    withheld_eager = len(joins.in_flight.request.protocols) < len(member.settings.protocols)
    match response.error:
        case ErrorCode.none if is_kept_or_issued_member_id(joins, response.member_id) and response.generation >= 0:
            member.prior_member = joins.prior_member
            on_join_accepted(turn, joins.in_flight, response)
            if withheld_eager:
                member.rejoin_reason = member.rejoin_reason or "this worker offers eager again"
        case ErrorCode.member_id_required if is_kept_or_issued_member_id(joins, response.member_id):
            member.prior_member = joins.prior_member
            member.place = replace(place, member_id=response.member_id)
        case ErrorCode.unknown_member_id:
            on_unknown_member_id(turn)
        case ErrorCode.rebalance_in_progress | ErrorCode.illegal_generation:
            schedule_rejoin_after_backoff(turn)
        case ErrorCode.inconsistent_group_protocol if withheld_eager and isinstance(place, InGroup):
            member.place = replace(place, protocol=ConnectProtocol.EAGER, may_have_missed_protocol_change=False)
        case error:
            rejoin_later_or_end_as_refused(turn, error)


def on_join_accepted(turn: Turn, in_flight: InFlight[JoinRequest], response: JoinResponse) -> None:
    """Process the response of an accepted join. If this member is the leader and the generation has no assignments yet,
    order the herder to compute them; otherwise send SyncGroup. If the group has selected a protocol that this worker
    did not offer, join again after a back-off."""
    member, former = turn.member, turn.member.place
    protocol = protocol_in_settings_or_none(member, response.protocol)
    if isinstance(former, InGroup):
        place = replace(
            former, generation=response.generation, protocol=protocol, may_have_missed_protocol_change=False
        )
        member.place = place
        renew_lease_and_clear_failures(turn, in_flight)
    else:
        place = InGroup(member_id=response.member_id, generation=response.generation, protocol=protocol)
        member.place = place
    turn.emit(MemberStateChanged(state=MemberState.COMPLETING_REBALANCE))
    schedule_heartbeat_after_current_interval(turn)
    if protocol is None:
        turn.emit(
            WriteLogMessage(
                text=f"The group selected the protocol {response.protocol!r}, which this worker did not offer; this "
                "worker joins again"
            )
        )
        schedule_rejoin_after_backoff(turn)
    elif response.leader == response.member_id and not response.skip_assignment:
        member.prior_member = PriorMemberStatus.NOT_IN_GROUP
        member.round = ComputingAssignments(protocol=protocol)
        read = {
            other: decode_member_metadata(turn, other, data)
            for other, data in (response.metadata_by_member or {}).items()
        }
        members = {
            other: to_member_report(metadata, response.instance_id_by_member.get(other), protocol)
            for other, metadata in read.items()
            if metadata is not None
        }
        token = RoundToken(
            generation=response.generation,
            protocol=protocol,
            undecodable_members=frozenset(read.keys() - members.keys()),
        )
        turn.emit(AssignmentsRequested(token=token, member_id=response.member_id, members=members))
    else:
        if protocol is ConnectProtocol.EAGER and not response.skip_assignment:
            # An eager assignment contains all jobs of the member, so one that was computed for the previous process is
            # valid for this process, too. (But a leader that has restarted has lost the assignments that it computed.)
            member.prior_member = PriorMemberStatus.NOT_IN_GROUP
        send_sync(turn, place, protocol, {})


def rejoin_later_or_end_as_refused(turn: Turn, error: ErrorCode) -> None:
    """Handle an error response to a join, a sync or the check for a prior member. If a retry may succeed, join again
    after a back-off. Otherwise report `MembershipRefused`, so that the herder shuts the worker down; after
    FENCED_INSTANCE_ID, the membership is also lost."""
    reason = permanent_error_reason(turn.member, error)
    if error is ErrorCode.fenced_instance_id and reason is not None:
        lose_membership_permanently(turn, reason)
    elif reason is not None:
        turn.member.ending = Refused(reason=reason)
        turn.emit(MembershipRefused(reason=reason))
    else:
        turn.log_failure_at_info_unless_recent(
            f"The group's coordinator responded with {error.name}; this worker joins again"
        )
        schedule_rejoin_after_backoff(turn)


def is_kept_or_issued_member_id(joins: JoinSent, member_id: MemberId) -> bool:
    """Whether ``member_id``, in the response to a join, can be this member's id: it is the id in the join; or the join
    contained no id, and ``member_id`` is the new id that the coordinator has issued. An empty id cannot."""
    return bool(member_id) and joins.in_flight.request.member_id in (NO_MEMBER, member_id)


def decode_member_metadata(turn: Turn, other: MemberId, data: bytes) -> WorkerMetadata | None:
    """The metadata of a member. None if it cannot be decoded: a warning is logged, and the leader assigns nothing to
    that member."""
    try:
        return decode_version_and_metadata(data)[1]
    except WireError as error:
        text = (
            f"The metadata of member {other} cannot be decoded, so this rebalance assigns nothing to that member; "
            f"check that all workers run compatible versions: {error}"
        )
        turn.emit(WriteLogMessage(text=text, is_warning=True))
        return None


# -- syncing ----------------------------------------------------------------------------------------------------------


def on_send_assignments(turn: Turn, event: SendAssignments) -> None:
    """Send the assignments that the herder has computed; ignored if their round is over."""
    member, token = turn.member, RoundToken.checked_instance(event.token)
    match member.round, member.place:
        case ComputingAssignments(protocol=protocol), InGroup() as place if token.generation == place.generation:
            assignments = to_worker_assignments(event.computed, leader=member.member_id, leader_url=member.settings.url)
            send_sync(turn, place, protocol, assignments)
        case _:
            pass  # The assignments belong to another round.


def send_sync(
    turn: Turn, place: InGroup, protocol: ConnectProtocol, assignments: Mapping[MemberId, WorkerAssignment]
) -> None:
    """Send SyncGroup for the generation of ``place``. ``assignments``, by member id, are empty unless this member is
    the leader."""
    member = turn.member
    request = SyncRequest(
        group_id=member.settings.group_id,
        member_id=place.member_id,
        instance_id=member.settings.instance_id,
        generation=place.generation,
        protocol_type=PROTOCOL_TYPE,
        protocol=protocol.wire_name,
        assignments=tuple((other, encode_assignment(protocol, assignments[other])) for other in sorted(assignments)),
    )
    member.round = SyncSent(in_flight=send_with_timeout(turn, request), protocol=protocol)


def on_sync_response(turn: Turn, syncs: SyncSent, response: SyncResponse) -> None:
    """Process the response to SyncGroup: apply the assignment, join again, or join no more if the error is permanent.
    After UNKNOWN_MEMBER_ID the membership is lost first. If the member's lease has ended before the response is
    processed, the membership is lost until the next join, and the assignment is not used."""
    match response.error:
        case ErrorCode.none:
            renew_lease_and_clear_failures(turn, syncs.in_flight)
            # The response may have arrived before a long pause, and the jobs may be assigned to other members by now.
            if not lose_membership_if_lease_over(turn):
                decode_and_apply_assignment_or_rejoin(turn, syncs.protocol, response.assignment)
        case ErrorCode.unknown_member_id:
            on_unknown_member_id(turn)
        case ErrorCode.rebalance_in_progress | ErrorCode.illegal_generation:
            pass  # The group has begun another rebalance: join at once.
        case error:
            rejoin_later_or_end_as_refused(turn, error)


def decode_and_apply_assignment_or_rejoin(turn: Turn, protocol: ConnectProtocol, data: bytes) -> None:
    """Decode and apply the assignment ``data``. If ``data`` is empty, the leader has assigned nothing to this member:
    the membership is lost, and the member joins again after a back-off, when all jobs have stopped. An assignment that
    cannot be decoded is discarded, and the member joins again after a back-off, while its jobs keep running."""
    if not data:
        lose_membership_until_rejoin(
            turn,
            "the leader assigned nothing to this worker, probably because the leader could not decode this worker's "
            "metadata; check that all workers run compatible versions",
        )
        schedule_rejoin_after_backoff(turn)
        return
    try:
        _, assignment = decode_version_and_assignment(data)
    except WireError as error:
        turn.log_failure_at_info_unless_recent(
            f"The assignment from the group's leader cannot be decoded; this worker joins again: {error}"
        )
        turn.member.malformed_assignment_count += 1
        schedule_rejoin_after_backoff(turn)
        return
    on_assignment(turn, protocol, assignment)


def on_assignment(turn: Turn, protocol: ConnectProtocol, assignment: WorkerAssignment) -> None:
    """Store the assignment, and report it to the herder. If it was computed for the previous process of this static
    member, only its newly assigned jobs are used, and another round is requested."""
    member, place = turn.member, turn.member.place
    assert isinstance(place, InGroup)
    if member.prior_member is PriorMemberStatus.IN_GROUP:
        # The assignment was computed for the previous process. Only its newly assigned jobs are valid for this process:
        # it runs no job that it could release, and the delay was counted from another time. The other jobs of the
        # previous process are assigned in the next round, whose leader learns from this join that they do not run.
        assignment = replace(assignment, revoked=NO_JOBS, delay_ms=0)
        member.rejoin_reason = member.rejoin_reason or "this static member has restarted"
    member.prior_member = PriorMemberStatus.NOT_IN_GROUP
    member.retries = member.malformed_assignment_count = 0
    member.place = replace(place, assignment=assignment)
    member.round = AssignmentReceived(hold_join_until_ms=turn.now_ms + member.settings.join_hold_max_ms(protocol))
    if assignment.revoked:
        turn.emit(SetTimer(timer="held", at_ms=member.round.hold_join_until_ms))
    shorten_heartbeat_interval_for_next_round(turn)
    # The jobs count as owned before the herder has handled the assignment: if the membership is lost now, all of them
    # must stop first. The herder may not have handled an earlier assignment yet either: a `SetWorkerState` that is
    # older than both assignments must not remove the jobs of either one from ``owned``.
    unconfirmed = member.assigned_unconfirmed - assignment.revoked
    member.assigned_unconfirmed = unconfirmed | (assignment.assigned - member.owned)
    member.worker_state = replace(member.worker_state, owned=member.owned | assignment.assigned)
    log_protocol_if_changed(turn, protocol)
    turn.emit(to_assigned(place.member_id, assignment, generation=place.generation, protocol=protocol))
