"""One round of a member: JoinGroup, for the leader the computation of the assignments, and SyncGroup."""

from collections.abc import Mapping
from dataclasses import replace

from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    SyncRequest,
    SyncResponse,
)
from coterie.member.classic.presence import (
    end_lease_if_over,
    expect_a_round,
    expel,
    lose,
    on_unknown,
    renew_lease,
    retry_later,
    set_heartbeat,
)
from coterie.member.classic.refusals import refusal
from coterie.member.classic.reports import assigned_to, assignments_of, report_of
from coterie.member.classic.state import (
    NO_GENERATION,
    NO_MEMBER,
    AsksWhetherKnown,
    AwaitsAnswer,
    Computes,
    FormerLife,
    InFlight,
    InGroup,
    Joins,
    Member,
    NotSubscribed,
    Refused,
    ReleasesAll,
    Settled,
    Syncs,
    WaitsToJoin,
)
from coterie.member.classic.turn import RequestT, Turn
from coterie.member.classic.vote import announce, spoken, what_to_offer
from coterie.member.events import Say, SetTimer
from coterie.nouns.errors import WireError
from coterie.nouns.ids import MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import (
    AssignmentWanted,
    Install,
    MembershipRefused,
    MemberState,
    MemberStateChanged,
    MustReleaseAll,
    Subscribe,
)
from coterie.wire.connect import PROTOCOL_TYPE, ConnectProtocol, RoundToken, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_bytes import decode_assignment, decode_metadata, encode_assignment, encode_metadata
from coterie.wire.connect_opaque import encode_opaque
from coterie.wire.errors import ErrorCode

# -- joining ----------------------------------------------------------------------------------------------------------


def on_subscribe(member: Member, event: Subscribe) -> None:
    if member.assigned_unconfirmed <= event.owned:
        member.assigned_unconfirmed = NO_JOBS
    member.subscription = replace(event, owned=event.owned | member.assigned_unconfirmed)
    if isinstance(member.round, NotSubscribed):
        member.round = WaitsToJoin()


def join_if_due(turn: Turn) -> None:
    """Begin a round, if one is requested and nothing prevents it."""
    member = turn.member
    match member.round:
        case _ if member.ending is not None:
            pass
        case NotSubscribed() | AsksWhetherKnown() | Joins() | Computes() | Syncs():
            pass
        case WaitsToJoin(until_ms=int()) | ReleasesAll(until_ms=int()):
            pass
        case Settled() if member.rejoin_reason is None:
            pass
        case Settled(hold_join_until_ms=until_ms) if turn.now_ms < until_ms and member.revoked_unreleased:
            # Another member stopped its revoked jobs sooner and has requested this round. If this member joined now, it
            # would report its revoked jobs as running. The leader would count this worker as overloaded again and might
            # revoke more from it. Heartbeats continue meanwhile. But the jobs that the other member has released are
            # down until this member joins, so it does not wait for slow stops.
            pass
        case ReleasesAll() if member.owned:
            pass
        case WaitsToJoin() | Settled() if speaks_eager(member) and member.owned:
            member.round = ReleasesAll()
            turn.order(MustReleaseAll())
        case WaitsToJoin() | Settled() | ReleasesAll():
            is_static = member.settings.instance_id is not None
            if is_static and not member.member_id and member.former_life is FormerLife.UNASKED:
                ask_whether_known(turn)
            else:
                join(turn)


def speaks_eager(member: Member) -> bool:
    return isinstance(member.place, InGroup) and member.place.protocol is ConnectProtocol.EAGER


def join(turn: Turn) -> None:
    member, settings = turn.member, turn.member.settings
    turn.order(MemberStateChanged(state=MemberState.PREPARING_REBALANCE))
    metadata = metadata_of(member)
    request = JoinRequest(
        group_id=settings.group_id,
        member_id=member.member_id,
        instance_id=settings.instance_id,
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple((offered.wire_name, encode_metadata(offered, metadata)) for offered in what_to_offer(turn)),
        reason=member.rejoin_reason or "",
    )
    member.round = Joins(asked=ask(turn, request), reported=member.subscription, former_life=member.former_life)
    member.rejoin_reason = None
    if settings.instance_id is not None and not member.member_id:
        # The response may get lost; then this process is already a member of the group when it sends its next join.
        member.former_life = FormerLife.PRESENT


def metadata_of(member: Member) -> WorkerMetadata:
    settings, subscription = member.settings, member.subscription
    claims = settings.claims
    received = member.place.assignment if isinstance(member.place, InGroup) else None
    last = received or WorkerAssignment(
        leader=NO_MEMBER, leader_url=WorkerUrl(""), config_offset=subscription.config_offset
    )
    allocation = WorkerAssignment(
        leader=last.leader,
        leader_url=last.leader_url,
        config_offset=last.config_offset,
        assigned=subscription.owned,
        # No leader reads the delay of an allocation; it only makes this join differ from the last one. The coordinator
        # responds to an equal join with the same generation and the same assignment, which could not be decoded.
        delay_ms=member.malformed_assignments,
    )
    has_allocation = subscription.owned or received is not None or member.malformed_assignments
    return WorkerMetadata(
        url=settings.url,
        config_offset=subscription.config_offset,
        # None before the first assignment, as in Connect; empty after it. So a static member's second join differs from
        # its first, whose response contained nothing new, and the coordinator begins a round.
        allocation=allocation if has_allocation else None,
        static_connectors=None if claims is None else claims.connectors,
        static_tasks=None if claims is None else claims.tasks,
        draining=subscription.draining,
        opaque=None if settings.name is None else encode_opaque(name=settings.name),
    )


def is_reported(member: Member) -> bool:
    """Whether an outstanding join reports the current worker state, so that its round takes this state into account."""
    return isinstance(member.round, Joins) and member.round.reported == member.subscription


def ask_whether_known(turn: Turn) -> None:
    """Check whether the group has a member of this instance id from a previous process of this worker.

    If so, the response to a join contains the current generation and does not show that there was such a member
    (KIP-345). But the response to a heartbeat with the instance id and no member id is FENCED_INSTANCE_ID then, and
    otherwise UNKNOWN_MEMBER_ID.
    """
    settings = turn.member.settings
    request = HeartbeatRequest(
        group_id=settings.group_id, member_id=NO_MEMBER, instance_id=settings.instance_id, generation=NO_GENERATION
    )
    turn.member.round = AsksWhetherKnown(asked=ask(turn, request))


def on_known(turn: Turn, response: HeartbeatResponse) -> None:
    match response.error:
        case ErrorCode.unknown_member_id:
            turn.member.former_life = FormerLife.ABSENT
        case ErrorCode.fenced_instance_id | ErrorCode.none | ErrorCode.illegal_generation:
            turn.member.former_life = FormerLife.PRESENT
        case error:
            on_error(turn, error)


def ask(turn: Turn, request: RequestT) -> InFlight[RequestT]:
    asked = turn.send(request)
    turn.order(SetTimer(timer="answer", at_ms=turn.now_ms + turn.member.settings.answer_timeout_ms))
    return asked


def on_unanswered(turn: Turn, asking: AwaitsAnswer) -> None:
    member = turn.member
    if isinstance(asking, Joins) and isinstance(member.place, InGroup):
        member.place = replace(member.place, may_have_missed_vote=True)
    retry_later(turn)


def on_joined(turn: Turn, joins: Joins, response: JoinResponse) -> None:
    member, place = turn.member, turn.member.place
    withheld_eager = len(joins.asked.request.protocols) < len(member.settings.protocols)
    match response.error:
        case ErrorCode.none if is_about(joins, response.member_id) and response.generation >= 0:
            member.former_life = joins.former_life
            on_accepted(turn, joins.asked, response)
            if withheld_eager:
                member.rejoin_reason = member.rejoin_reason or "this worker offers eager again"
        case ErrorCode.member_id_required if is_about(joins, response.member_id):
            member.former_life = joins.former_life
            member.place = replace(place, member_id=response.member_id)
        case ErrorCode.unknown_member_id:
            on_unknown(turn)
        case ErrorCode.rebalance_in_progress | ErrorCode.illegal_generation:
            retry_later(turn)
        case ErrorCode.inconsistent_group_protocol if withheld_eager and isinstance(place, InGroup):
            member.place = replace(place, protocol=ConnectProtocol.EAGER, may_have_missed_vote=False)
        case error:
            on_error(turn, error)


def on_accepted(turn: Turn, asked: InFlight[JoinRequest], response: JoinResponse) -> None:
    member, former = turn.member, turn.member.place
    protocol = spoken(member, response.protocol)
    if isinstance(former, InGroup):
        place = replace(former, generation=response.generation, protocol=protocol, may_have_missed_vote=False)
        member.place = place
        renew_lease(turn, asked)
    else:
        place = InGroup(member_id=response.member_id, generation=response.generation, protocol=protocol)
        member.place = place
    turn.order(MemberStateChanged(state=MemberState.COMPLETING_REBALANCE))
    set_heartbeat(turn)
    if protocol is None:
        turn.order(Say(text=f"The group selected the protocol {response.protocol!r}, which this worker did not offer"))
        retry_later(turn)
    elif response.leader == response.member_id and not response.skip_assignment:
        member.former_life = FormerLife.ABSENT
        member.round = Computes(protocol=protocol)
        read = {other: read_metadata(turn, other, data) for other, data in (response.members or {}).items()}
        members = {
            other: report_of(metadata, response.instance_ids.get(other), protocol)
            for other, metadata in read.items()
            if metadata is not None
        }
        token = RoundToken(
            generation=response.generation, protocol=protocol, left_out=frozenset(read.keys() - members.keys())
        )
        turn.order(AssignmentWanted(token=token, member_id=response.member_id, members=members))
    else:
        if protocol is ConnectProtocol.EAGER and not response.skip_assignment:
            # An eager assignment contains all jobs of the member, so one that was computed for the previous process is
            # valid for this process, too. (But a leader that has restarted has lost the assignments that it computed.)
            member.former_life = FormerLife.ABSENT
        sync(turn, place, protocol, {})


def on_error(turn: Turn, error: ErrorCode) -> None:
    """Handle an error that does not end this member's membership: retry, unless no retry can succeed."""
    reason = refusal(turn.member, error)
    if error is ErrorCode.fenced_instance_id and reason is not None:
        expel(turn, reason)
    elif reason is not None:
        turn.member.ending = Refused(reason=reason)
        turn.order(MembershipRefused(reason=reason))
    else:
        turn.say_trouble(f"The group's coordinator responded {error.name}; joining again")
        retry_later(turn)


def is_about(joins: Joins, member_id: MemberId) -> bool:
    """Whether a response names the member that sent the join, or assigns an id to a member without one."""
    return bool(member_id) and joins.asked.request.member_id in (NO_MEMBER, member_id)


def read_metadata(turn: Turn, other: MemberId, data: bytes) -> WorkerMetadata | None:
    """The metadata of a member; None if it cannot be decoded: the leader then assigns nothing to that member."""
    try:
        return decode_metadata(data)[1]
    except WireError as error:
        text = f"The metadata of member {other} cannot be decoded, so this rebalance assigns nothing to it: {error}"
        turn.order(Say(text=text, warns=True))
        return None


# -- syncing ----------------------------------------------------------------------------------------------------------


def on_install(turn: Turn, event: Install) -> None:
    member, token = turn.member, RoundToken.of(event.token)
    match member.round, member.place:
        case Computes(protocol=protocol), InGroup() as place if token.generation == place.generation:
            assignments = assignments_of(event.computed, leader=member.member_id, leader_url=member.settings.url)
            sync(turn, place, protocol, assignments)
        case _:
            pass  # The assignments belong to another round.


def sync(
    turn: Turn, place: InGroup, protocol: ConnectProtocol, assignments: Mapping[MemberId, WorkerAssignment]
) -> None:
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
    member.round = Syncs(asked=ask(turn, request), protocol=protocol)


def on_synced(turn: Turn, syncs: Syncs, response: SyncResponse) -> None:
    match response.error:
        case ErrorCode.none:
            renew_lease(turn, syncs.asked)
            # The response may have arrived before a long pause, and the jobs may be assigned to other members by now.
            if not end_lease_if_over(turn):
                on_assignment_bytes(turn, syncs.protocol, response.assignment)
        case ErrorCode.unknown_member_id:
            on_unknown(turn)
        case ErrorCode.rebalance_in_progress | ErrorCode.illegal_generation:
            pass  # The group has begun another rebalance: join at once.
        case error:
            on_error(turn, error)


def on_assignment_bytes(turn: Turn, protocol: ConnectProtocol, data: bytes) -> None:
    if not data:
        lose(turn, "the leader assigned nothing to this worker, because it could not decode this worker's metadata")
        retry_later(turn)
        return
    try:
        _, assignment = decode_assignment(data)
    except WireError as error:
        turn.say_trouble(f"The assignment cannot be decoded, joining again: {error}")
        turn.member.malformed_assignments += 1
        retry_later(turn)
        return
    on_assignment(turn, protocol, assignment)


def on_assignment(turn: Turn, protocol: ConnectProtocol, assignment: WorkerAssignment) -> None:
    member, place = turn.member, turn.member.place
    assert isinstance(place, InGroup)
    if member.former_life is FormerLife.PRESENT:
        # The assignment was computed for the previous process. Only its newly assigned jobs are valid for this process:
        # it runs no job that it could release, and the delay was counted from another time. The other jobs of the
        # previous process are assigned in the next round, whose leader learns from this join that they do not run.
        assignment = replace(assignment, revoked=NO_JOBS, delay_ms=0)
        member.rejoin_reason = member.rejoin_reason or "this static member has restarted"
    member.former_life = FormerLife.ABSENT
    member.retries = member.malformed_assignments = 0
    member.place = replace(place, assignment=assignment)
    member.round = Settled(hold_join_until_ms=turn.now_ms + member.settings.hold_ms)
    if assignment.revoked:
        turn.order(SetTimer(timer="held", at_ms=member.round.hold_join_until_ms))
    expect_a_round(turn)
    # The jobs count as owned before the herder has handled the assignment: if the membership is lost now, all of them
    # must stop first. The herder may not have handled an earlier assignment yet either: a `Subscribe` that is older
    # than both assignments must not remove the jobs of either one from ``owned``.
    unconfirmed = member.assigned_unconfirmed - assignment.revoked
    member.assigned_unconfirmed = unconfirmed | (assignment.assigned - member.owned)
    member.subscription = replace(member.subscription, owned=member.owned | assignment.assigned)
    announce(turn, protocol)
    turn.order(assigned_to(place.member_id, assignment, generation=place.generation, protocol=protocol))
