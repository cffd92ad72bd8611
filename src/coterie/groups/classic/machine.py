"""The coordinator of one classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the deadlines between them.

Theory of operation. A rebalance has two halves. In the *join phase* (PREPARING_REBALANCE) every JoinGroup is parked
until all known members have rejoined or the longest of their rebalance timeouts has passed; who has not rejoined then
is dropped, the generation rises, and all parked joins are answered, the leader's with everybody's metadata. In the
*sync phase* (COMPLETING_REBALANCE) every SyncGroup is parked until the leader's brings the assignments; they are
written, the group is STABLE, and all parked syncs are answered. Any change of the membership opens the next join phase.

Behaviour, codes and the order of checks are those of Kafka's GroupCoordinator (KIP-62 for the two timeouts, KIP-134 for
the initial delay, KIP-345 for static members, KIP-394 for known member ids, KIP-559 for the protocol in SyncGroup),
except that

- the generation is written when the join phase ends, too (see `GenerationWritten`);
- a leader that is gone is followed by the member that rejoined first;
- a parked request whose member asks again is answered REBALANCE_IN_PROGRESS; Kafka forgets it without an answer;
- a static member that is away when a join phase ends is not waited for in the sync phase after it: it stays until its
  session ends. Kafka removes it with whoever has not synced when the rebalance timeout has passed;
- one that is back in a full group takes its own place, which nobody is given while it is away, also where the group
  joins. Kafka answers GROUP_MAX_SIZE_REACHED, and while it joins lets in whoever comes;
- a join or sync that is answered at once gives a full session, as a heartbeat does. Kafka leaves the session's end
  where it was, so that a member can begin to work on an answer that it got when its session was nearly over.
"""

from collections.abc import Mapping

from coterie.engine.output import Output
from coterie.groups.classic import static_members
from coterie.groups.classic.description import on_describe
from coterie.groups.classic.guards import check_generation, check_group, check_member
from coterie.groups.classic.messages import (
    DescribeGroup,
    DescribeGroupResponse,
    Effect,
    Event,
    ExpiryTimer,
    GroupLoaded,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    JoinPhaseTimer,
    LeaveGroup,
    LeaveGroupResponse,
    MemberProtocol,
    NewMemberTimer,
    PendingMemberTimer,
    Record,
    Request,
    Response,
    SessionTimer,
    SyncGroup,
    SyncGroupResponse,
    SyncTimer,
    TimerKey,
)
from coterie.groups.classic.newcomers import check_size, hand_out_member_id, has_room_for, on_no_room, take_pending
from coterie.groups.classic.offset_messages import (
    DeleteGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    TopicDeleted,
)
from coterie.groups.classic.offsets import (
    keep_watching_expiry,
    on_expiry,
    on_offset_request,
    on_topic_deleted,
    refused_offsets,
)
from coterie.groups.classic.rounds import (
    add_member,
    answer_syncs,
    joined,
    on_join_phase_over,
    park_join,
    rebalance,
    rebalance_after_removal,
    remove_member,
    synced,
    write_generation,
)
from coterie.groups.classic.state import Group, Member, Phase, check
from coterie.groups.classic.turn import Turn
from coterie.groups.effects import TimerFired
from coterie.nouns.ids import MemberId
from coterie.wire.errors import ErrorCode, KafkaRefusal


def step(group: Group, event: Event, *, now_ms: int) -> Output[Record, Effect]:
    """Take one event. Append the records; once they are durable, perform the effects in order."""
    turn = Turn(group, now_ms)
    match event:
        case Heartbeat() | JoinGroup() | SyncGroup() | LeaveGroup() | DescribeGroup():
            answer_or_refuse(turn, event)
        case OffsetCommit() | OffsetFetch() | OffsetDelete() | DeleteGroup():
            answer_or_refuse(turn, event)
        case TopicDeleted(topic=topic):
            on_topic_deleted(turn, topic)
        case TimerFired(key=key):
            on_timer(turn, key)
        case GroupLoaded():
            on_loaded(turn)
    if turn.records or isinstance(event, GroupLoaded):
        keep_watching_expiry(turn, is_loaded=isinstance(event, GroupLoaded))
    check(group)
    return Output(records=tuple(turn.records), effects=tuple(turn.effects))


def answer_or_refuse(turn: Turn, request: Request) -> None:
    try:
        on_request(turn, request)
    except KafkaRefusal as refusal:
        assert not turn.records, "refuse before the first write"
        turn.reply(request.reply_to, refused(request, refusal.error))


def on_request(turn: Turn, request: Request) -> None:
    match request:
        case Heartbeat():
            on_heartbeat(turn, request)
        case JoinGroup():
            on_join(turn, request)
        case SyncGroup():
            on_sync(turn, request)
        case LeaveGroup():
            on_leave(turn, request)
        case DescribeGroup():
            on_describe(turn, request)
        case OffsetCommit() | OffsetFetch() | OffsetDelete() | DeleteGroup():
            on_offset_request(turn, request)


# -- requests -----------------------------------------------------------------------------------------------------


def on_heartbeat(turn: Turn, request: Heartbeat) -> None:
    group = turn.group
    check_group(group)
    member = check_member(group, request.member_id, request.instance_id)
    check_generation(group, request.generation)
    turn.arm_session(member)
    rejoin = group.join_phase is not None
    turn.reply(request.reply_to, HeartbeatResponse(error=ErrorCode.rebalance_in_progress if rejoin else ErrorCode.none))


def on_join(turn: Turn, request: JoinGroup) -> None:
    group = turn.group
    check_group(group)
    limits = group.limits
    if not limits.session_timeout_min_ms <= request.session_timeout_ms <= limits.session_timeout_max_ms:
        raise KafkaRefusal(ErrorCode.invalid_session_timeout)
    if group.is_unheard_of and request.member_id:
        raise KafkaRefusal(ErrorCode.unknown_member_id)
    former_id = static_members.former_id(group, request)
    known_id = former_id or request.member_id
    if not has_room_for(group, known_id):
        on_no_room(turn, request)
        return
    if may_have_more_in_common(group, request):
        ask_for_all_offers(turn, request)
        return
    check_protocols(group, request)
    check_size(group, known_id, request.protocols)
    if former_id is not None:
        static_members.on_return(turn, request, former_id)
    elif not request.member_id and request.requires_known_member_id and request.instance_id is None:
        hand_out_member_id(turn, request)
    elif not request.member_id:
        add_member(turn, request, request.fresh_member_id)
    elif request.instance_id is None and take_pending(turn, request.member_id):
        add_member(turn, request, request.member_id)
    else:
        on_rejoin(turn, request, check_member(group, request.member_id, request.instance_id))


def ask_for_all_offers(turn: Turn, request: JoinGroup) -> None:
    """After a load one protocol of each member is known: all say anew what they offer, and this one asks again.

    Kafka refuses whoever does not offer that one, until something else makes a round: till then a worker that is
    bounced to an older protocol has no place in its group. With us it costs one round, once after each load.
    """
    rebalance(turn)
    turn.reply(
        request.reply_to,
        JoinGroupResponse(error=ErrorCode.coordinator_load_in_progress, member_id=request.member_id),
    )


def on_rejoin(turn: Turn, request: JoinGroup, member: Member) -> None:
    group = turn.group
    phase = group.phase
    unchanged = member.protocols == request.protocols
    # In STABLE a leader's join always rebalances: that is how it asks for a round.
    tell_again = phase is Phase.COMPLETING_REBALANCE or (phase is Phase.STABLE and request.member_id != group.leader)
    if unchanged and tell_again:
        # It may have missed the answer to its join.
        turn.arm_session(member)
        turn.reply(request.reply_to, joined(group, request.member_id))
    else:
        group.change_offer(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        park_join(turn, request.member_id, request.reply_to)
        rebalance(turn)


def on_sync(turn: Turn, request: SyncGroup) -> None:
    group = turn.group
    check_group(group)
    member = check_member(group, request.member_id, request.instance_id)
    check_generation(group, request.generation)
    if request.protocol_type not in (None, group.protocol_type) or request.protocol not in (None, group.protocol):
        raise KafkaRefusal(ErrorCode.inconsistent_group_protocol)
    phase = group.phase
    if phase is Phase.PREPARING_REBALANCE:
        raise KafkaRefusal(ErrorCode.rebalance_in_progress)
    group.unsynced.discard(request.member_id)
    if not group.unsynced:
        turn.cancel_timer(SyncTimer())
    if phase is Phase.STABLE:
        turn.arm_session(member)
        turn.reply(request.reply_to, synced(group, request.member_id))
        return
    replaced = group.syncs.get(request.member_id)
    if replaced is not None:
        turn.reply(replaced, SyncGroupResponse(error=ErrorCode.rebalance_in_progress))
    group.syncs[request.member_id] = request.reply_to
    if request.member_id == group.leader:
        on_assignments(turn, dict(request.assignments))


def on_assignments(turn: Turn, assignments: Mapping[MemberId, bytes]) -> None:
    """The leader's. More than the log may hold is as bad as none: all are told so, as by Kafka, and join once more."""
    group = turn.group
    if sum(map(len, assignments.values())) > group.limits.generation_size_max:
        answer_syncs(turn, ErrorCode.unknown_server_error)
        rebalance(turn)
    else:
        write_generation(turn, group.generation, protocol=group.protocol, assignments=assignments)
        answer_syncs(turn, ErrorCode.none)


def on_leave(turn: Turn, request: LeaveGroup) -> None:
    group = turn.group
    check_group(group)
    codes: list[tuple[MemberId, ErrorCode]] = []
    for leaving in request.members:
        try:
            if not take_pending(turn, leaving.member_id):
                remove_member(turn, static_members.leaving_id(group, leaving))
            codes.append((leaving.member_id, ErrorCode.none))
        except KafkaRefusal as refusal:
            codes.append((leaving.member_id, refusal.error))
    turn.reply(request.reply_to, LeaveGroupResponse(error=ErrorCode.none, members=tuple(codes)))
    if any(code is ErrorCode.none for _, code in codes):
        rebalance_after_removal(turn)


# -- timers and the group's own life ------------------------------------------------------------------------------


def on_timer(turn: Turn, key: TimerKey) -> None:
    group = turn.group
    deadline_ms = group.deadlines.get(key)
    if deadline_ms is None or turn.now_ms < deadline_ms:
        return  # moved or cancelled while it was on its way
    del group.deadlines[key]
    match key:
        case SessionTimer(member_id=member_id):
            # Who waits for our answer cannot be expected to send heartbeats; the answer arms its session again.
            if member_id not in group.joins and member_id not in group.syncs:
                remove_member(turn, member_id)
                rebalance_after_removal(turn)
        case NewMemberTimer(member_id=member_id):
            remove_member(turn, member_id)
            rebalance_after_removal(turn)
        case PendingMemberTimer(member_id=member_id):
            group.pending.discard(member_id)
            rebalance_after_removal(turn)
        case ExpiryTimer():
            on_expiry(turn)
        case JoinPhaseTimer():
            on_join_phase_over(turn)
        case SyncTimer():
            for member_id in sorted(group.unsynced):
                remove_member(turn, member_id)
            rebalance(turn)


def on_loaded(turn: Turn) -> None:
    """Make the soft state anew from what was written, and give every member a full session."""
    group = turn.group
    written = group.written
    if written is None:
        return
    group.protocol_type = written.protocol_type
    group.protocol = written.protocol
    group.leader = written.leader
    for member_id, member in written.members.items():
        loaded = Member(
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            protocols=(MemberProtocol(name=written.protocol, metadata=member.subscription),)
            if written.protocol is not None
            else (),
            session_timer=SessionTimer(member_id=member_id),
            instance_id=member.instance_id,
            is_new=False,
        )
        group.add(member_id, loaded)
        turn.arm_session(loaded)
    group.is_as_loaded = bool(group.members)
    if group.members and (written.protocol is None or len(group.members) > group.limits.group_size_max):
        # Nobody has an assignment in this generation, and who would give it may never have heard of it: once more.
        rebalance(turn)


# -- guards: they refuse before anything is written ---------------------------------------------------------------


def check_protocols(group: Group, request: JoinGroup) -> None:
    if not request.protocol_type or not request.protocols:
        raise KafkaRefusal(ErrorCode.inconsistent_group_protocol)
    if group.members and not (
        request.protocol_type == group.protocol_type and group.offers.all_offer_one_of(request.protocols)
    ):
        raise KafkaRefusal(ErrorCode.inconsistent_group_protocol)


def may_have_more_in_common(group: Group, request: JoinGroup) -> bool:
    """Whether it may only seem that a join offers nothing that all offer."""
    if not (group.is_as_loaded and request.protocols and request.protocol_type == group.protocol_type):
        return False
    return not group.offers.all_offer_one_of(request.protocols)


def refused(request: Request, error: ErrorCode) -> Response:
    match request:
        case Heartbeat():
            return HeartbeatResponse(error=error)
        case JoinGroup(member_id=member_id):
            return JoinGroupResponse(error=error, member_id=member_id)
        case SyncGroup():
            return SyncGroupResponse(error=error)
        case LeaveGroup():
            return LeaveGroupResponse(error=error)
        case DescribeGroup():
            return DescribeGroupResponse(error=error)
        case OffsetCommit() | OffsetFetch() | OffsetDelete() | DeleteGroup():
            return refused_offsets(request, error)
