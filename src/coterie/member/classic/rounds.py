"""One round of a member: it joins, computes if it leads, syncs."""

from collections.abc import Mapping
from dataclasses import replace

from coterie.member.classic.events import Installed, Say, SetTimer, Subscribed
from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    Request,
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
from coterie.member.classic.state import NO_GENERATION, NO_MEMBER, InFlight, InGroup, Member, Refused
from coterie.member.classic.turn import Turn
from coterie.member.classic.vote import announce, spoken, what_to_offer
from coterie.nouns.errors import WireError
from coterie.nouns.ids import MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import (
    AssignmentWanted,
    MembershipRefused,
    MemberState,
    MemberStateChanged,
    MustReleaseAll,
)
from coterie.wire.connect import PROTOCOL_TYPE, ConnectProtocol, RoundToken, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_bytes import decode_assignment, decode_metadata, encode_assignment, encode_metadata
from coterie.wire.connect_opaque import encode_opaque
from coterie.wire.errors import ErrorCode

# -- joining ----------------------------------------------------------------------------------------------------------


def on_subscribed(member: Member, said: Subscribed) -> None:
    member.config_offset, member.draining = said.config_offset, said.draining
    if member.handed <= said.owned:
        member.handed = NO_JOBS
    member.owned = said.owned | member.handed


def join_if_due(turn: Turn) -> None:
    """Begin a round, if one is needed and nothing stands in its way."""
    member = turn.member
    if member.owned is None or member.ending is not None or member.asking or member.computing:
        return
    if member.stopping and member.owned:
        return
    if member.retry_at_ms is not None or (member.completed and member.rejoin_reason is None):
        return
    if turn.now_ms < member.held_until_ms and member.giving_back & member.owned:
        # Another one has been quicker with its stops. A join that said that these still run would have the leader find
        # this worker overloaded once more, and perhaps take other jobs from it, too. Heartbeats go on. But what the
        # other has given back is down meanwhile, so a stop that takes long is not waited for.
        return
    place = member.place
    if isinstance(place, InGroup) and place.protocol is ConnectProtocol.EAGER and member.owned:
        if not member.releasing:
            member.releasing = True
            turn.order(MustReleaseAll())
        return
    member.stopping = member.releasing = False
    settings, owned = member.settings, member.owned
    if settings.instance_id is not None and not member.member_id:
        if member.known is None:
            ask_whether_known(turn)
            return
        member.returning = member.known
        # The answer to this join may get lost; then the next one comes to a group that knows this life.
        member.known = True
    received = place.assignment if isinstance(place, InGroup) else None
    told = received or WorkerAssignment(leader=NO_MEMBER, leader_url=WorkerUrl(""), config_offset=member.config_offset)
    allocation = WorkerAssignment(
        leader=told.leader,
        leader_url=told.leader_url,
        config_offset=told.config_offset,
        assigned=owned,
        # Nobody reads it here. A join that says what the last one said makes no round: it is answered with the same
        # assignment again, which cannot be read any better.
        delay_ms=member.misread,
    )
    claims = settings.claims
    metadata = WorkerMetadata(
        url=settings.url,
        config_offset=member.config_offset,
        # None before the first assignment, as in Connect. By an empty one after it the coordinator tells a static
        # member's second join from its first, which it has answered with nothing new, and makes a round of it.
        allocation=allocation if owned or received is not None or member.misread else None,
        static_connectors=None if claims is None else claims.connectors,
        static_tasks=None if claims is None else claims.tasks,
        draining=member.draining,
        opaque=None if settings.name is None else encode_opaque(name=settings.name),
    )
    turn.order(MemberStateChanged(state=MemberState.PREPARING_REBALANCE))
    offers = what_to_offer(turn)
    member.withholds = offers != settings.protocols
    request = JoinRequest(
        group_id=settings.group_id,
        member_id=member.member_id,
        instance_id=settings.instance_id,
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple((offered.wire_name, encode_metadata(offered, metadata)) for offered in offers),
        reason=member.rejoin_reason or "",
    )
    member.rejoin_reason = None
    member.completed = False
    member.said = (member.config_offset, owned, member.draining)
    ask(turn, request)


def is_being_said(member: Member) -> bool:
    """Whether a join is out that says all that this worker has to say; then the round that it belongs to is to come."""
    asking = member.asking
    is_joining = asking is not None and isinstance(asking.request, JoinRequest)
    return is_joining and member.said == (member.config_offset, member.owned, member.draining)


def ask_whether_known(turn: Turn) -> None:
    """A static member that has no id yet: does the group know it from a former life?

    If it does, it answers the join with the running generation and says nothing of that (KIP-345). But a heartbeat in
    the name of the instance it answers with FENCED_INSTANCE_ID then, and else with UNKNOWN_MEMBER_ID.
    """
    settings = turn.member.settings
    ask(
        turn,
        HeartbeatRequest(
            group_id=settings.group_id,
            member_id=NO_MEMBER,
            instance_id=settings.instance_id,
            generation=NO_GENERATION,
        ),
    )


def on_known(turn: Turn, response: HeartbeatResponse) -> None:
    match response.error:
        case ErrorCode.unknown_member_id:
            turn.member.known = False
        case ErrorCode.fenced_instance_id | ErrorCode.none | ErrorCode.illegal_generation:
            turn.member.known = True
        case error:
            on_error(turn, error)


def ask(turn: Turn, request: HeartbeatRequest | JoinRequest | SyncRequest) -> None:
    turn.member.asking = turn.send(request)
    turn.order(SetTimer(timer="answer", at_ms=turn.now_ms + turn.member.settings.answer_timeout_ms))


def on_unanswered(member: Member, request: Request) -> None:
    if isinstance(request, JoinRequest) and isinstance(member.place, InGroup):
        member.place = replace(member.place, may_have_missed_vote=True)


def on_joined(turn: Turn, asked: InFlight[Request], response: JoinResponse) -> None:
    member = turn.member
    match response.error:
        case ErrorCode.none if is_about(asked, response.member_id) and response.generation >= 0:
            protocol, former = spoken(member, response.protocol), member.place
            if isinstance(former, InGroup):
                member.place = replace(
                    former, generation=response.generation, protocol=protocol, may_have_missed_vote=False
                )
            else:
                member.place = InGroup(member_id=response.member_id, generation=response.generation, protocol=protocol)
            if member.withholds:
                member.rejoin_reason = member.rejoin_reason or "this worker offers eager again"
            if isinstance(former, InGroup):
                renew_lease(turn, asked)
            turn.order(MemberStateChanged(state=MemberState.COMPLETING_REBALANCE))
            set_heartbeat(turn)
            if protocol is None:
                turn.order(Say(text=f"The group has chosen {response.protocol!r}, which this worker never offered"))
                retry_later(turn)
            elif response.leader == response.member_id and not response.skip_assignment:
                member.returning = False
                member.computing = True
                read = {other: read_metadata(turn, other, data) for other, data in (response.members or {}).items()}
                members = {
                    other: report_of(metadata, response.instance_ids.get(other), protocol)
                    for other, metadata in read.items()
                    if metadata is not None
                }
                token = RoundToken(
                    generation=response.generation,
                    protocol=protocol,
                    left_out=frozenset(read.keys() - members.keys()),
                )
                turn.order(AssignmentWanted(token=token, member_id=member.member_id, members=members))
            else:
                if protocol is ConnectProtocol.EAGER and not response.skip_assignment:
                    # There an assignment is the whole, so what a former life was told is good for this one, too. (But a
                    # leader that is back does not know any more what it dealt out.)
                    member.returning = False
                sync(turn, {})
        case ErrorCode.member_id_required if is_about(asked, response.member_id):
            member.place = replace(member.place, member_id=response.member_id)
        case ErrorCode.unknown_member_id:
            on_unknown(turn)
        case ErrorCode.rebalance_in_progress | ErrorCode.illegal_generation:
            retry_later(turn)
        case ErrorCode.inconsistent_group_protocol if member.withholds:
            assert isinstance(member.place, InGroup)
            member.place = replace(member.place, protocol=ConnectProtocol.EAGER, may_have_missed_vote=False)
        case error:
            on_error(turn, error)


def on_error(turn: Turn, error: ErrorCode) -> None:
    """An answer that says nothing of this member's place: to be asked again, unless that can never work."""
    reason = refusal(turn.member, error)
    if error is ErrorCode.fenced_instance_id and reason is not None:
        expel(turn, reason)
    elif reason is not None:
        turn.member.ending = Refused(reason=reason)
        turn.order(MembershipRefused(reason=reason))
    else:
        turn.say_trouble(f"The group's coordinator answers {error.name}; joining again")
        retry_later(turn)


def is_about(asked: InFlight[Request], member_id: MemberId) -> bool:
    """Whether an answer speaks of the member that asked, or gives one without an id its id."""
    assert isinstance(asked.request, JoinRequest)
    return bool(member_id) and asked.request.member_id in (NO_MEMBER, member_id)


def read_metadata(turn: Turn, other: MemberId, data: bytes) -> WorkerMetadata | None:
    """One member's nonsense is not the group's: whoever cannot be understood is left out of the round."""
    try:
        return decode_metadata(data)[1]
    except WireError as error:
        text = f"What member {other} says of itself is malformed, so it is given no assignment: {error}"
        turn.order(Say(text=text, warns=True))
        return None


# -- syncing ----------------------------------------------------------------------------------------------------------


def on_installed(turn: Turn, event: Installed) -> None:
    member = turn.member
    place = member.place
    generation = RoundToken.of(event.token).generation
    if member.computing and isinstance(place, InGroup) and generation == place.generation:
        member.computing = False
        sync(turn, assignments_of(event.computed, leader=member.member_id, leader_url=member.settings.url))


def sync(turn: Turn, assignments: Mapping[MemberId, WorkerAssignment]) -> None:
    member, place = turn.member, turn.member.place
    assert isinstance(place, InGroup)
    protocol = place.protocol
    assert protocol is not None
    ask(
        turn,
        SyncRequest(
            group_id=member.settings.group_id,
            member_id=place.member_id,
            instance_id=member.settings.instance_id,
            generation=place.generation,
            protocol_type=PROTOCOL_TYPE,
            protocol=protocol.wire_name,
            assignments=tuple(
                (other, encode_assignment(protocol, assignments[other])) for other in sorted(assignments)
            ),
        ),
    )


def on_synced(turn: Turn, asked: InFlight[Request], response: SyncResponse) -> None:
    member = turn.member
    match response.error:
        case ErrorCode.none:
            renew_lease(turn, asked)
            if end_lease_if_over(turn):
                return  # it lay in the socket while this process was paused: others have the work by now
            if not response.assignment:
                lose(turn, "its leader has left this worker out, as one does with whom one cannot understand")
                retry_later(turn)
                return
            try:
                _, assignment = decode_assignment(response.assignment)
            except WireError as error:
                turn.say_trouble(f"The assignment is malformed, joining again: {error}")
                member.misread += 1
                retry_later(turn)
                return
            if member.returning:
                # Of what a former life was told, only what was new to it then says something about this one: it runs
                # nothing that it could give back, and the delay was counted from another moment. All else that the
                # former life had comes with the next round, whose leader learns that nothing of it runs any more.
                assignment = replace(assignment, revoked=NO_JOBS, delay_ms=0)
                member.returning = False
                member.rejoin_reason = member.rejoin_reason or "this static member has begun a new life"
            assert isinstance(member.place, InGroup)
            member.place = place = replace(member.place, assignment=assignment)
            member.completed, member.retries, member.misread = True, 0, 0
            member.giving_back = assignment.revoked
            if assignment.revoked:
                member.held_until_ms = turn.now_ms + member.settings.hold_ms
                turn.order(SetTimer(timer="held", at_ms=member.held_until_ms))
            expect_a_round(turn)
            # Until the herder has taken it up: should the place be lost now, all of this has to stop first.
            owned = member.owned or NO_JOBS
            member.handed = assignment.assigned - owned
            member.owned = owned | assignment.assigned
            assert place.protocol is not None
            announce(turn, place.protocol)
            turn.order(assigned_to(place.member_id, assignment, generation=place.generation, protocol=place.protocol))
        case ErrorCode.unknown_member_id:
            on_unknown(turn)
        case ErrorCode.rebalance_in_progress | ErrorCode.illegal_generation:
            pass  # the group has moved on: join at once
        case error:
            on_error(turn, error)
