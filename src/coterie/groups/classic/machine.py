"""The coordinator of one classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the deadlines between them.

Theory of operation. A rebalance has two halves. In the *join phase* (PREPARING_REBALANCE) every JoinGroup is parked
until all known members have rejoined or the longest of their rebalance timeouts has passed. Members that have not
rejoined by then are removed, the generation rises, and all parked joins get their responses; the leader's response
contains the metadata of all members. In the *sync phase* (COMPLETING_REBALANCE) every SyncGroup is parked until the
leader's SyncGroup arrives with the assignments. Then the assignments are written, the group is STABLE, and all parked
syncs get their responses. Any change of the membership opens the next join phase.

Behaviour, codes and the order of checks are those of Kafka's GroupCoordinator (KIP-62 for the two timeouts, KIP-134 for
the initial delay, KIP-345 for static members, KIP-394 for known member ids, KIP-559 for the protocol in SyncGroup),
except that

- the generation is written when the join phase ends, too (see `GenerationWritten`);
- when the leader was removed, the member that rejoined first becomes the leader;
- when a member sends a request again, its parked request gets the response REBALANCE_IN_PROGRESS; Kafka drops the
  parked request without a response;
- a static member that is absent when a join phase ends is not awaited in the sync phase after it: it stays a member
  until its session ends. Kafka removes it, with all members that have not synced when the rebalance timeout has passed;
- a static member that returns to a full group is accepted, also during a join phase: its slot within the size limit is
  reserved while it is absent. Kafka responds GROUP_MAX_SIZE_REACHED, and during a join phase accepts other members
  instead;
- a join or sync with an immediate response renews the session in full, as a heartbeat does. Kafka does not move the end
  of the session, so a member can start jobs on a response that it received shortly before its session ended.
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
    """Process one event. The caller appends the records and, once they are durable, performs the effects in order."""
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
    """After a load the coordinator has only the selected protocol of each member. Start a rebalance, in which all
    members send all their protocols, and make this client retry.

    Kafka refuses every client that does not offer the selected protocol until another event starts a rebalance. Until
    then a worker that was restarted with an older protocol cannot join its group. Here that worker causes one
    rebalance, once after each load.
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
    # In STABLE a leader's join always starts a rebalance: the leader has no other way to request one.
    tell_again = phase is Phase.COMPLETING_REBALANCE or (phase is Phase.STABLE and request.member_id != group.leader)
    if unchanged and tell_again:
        # The member may not have received the response to its join.
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
    """Write the leader's assignments. If they exceed the size limit of the log, all members get UNKNOWN_SERVER_ERROR,
    as from Kafka, and join again."""
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


# -- timers and loading -------------------------------------------------------------------------------------------


def on_timer(turn: Turn, key: TimerKey) -> None:
    group = turn.group
    deadline_ms = group.deadlines.get(key)
    if deadline_ms is None or turn.now_ms < deadline_ms:
        return  # the timer was moved or cancelled after it fired
    del group.deadlines[key]
    match key:
        case SessionTimer(member_id=member_id):
            # A member with a parked request need not send heartbeats; the response to the request renews its session.
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
    """Rebuild the soft state from the stored generation, and give every member a full session."""
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
        # No member has an assignment in this generation, and the leader may not have received its response, so a new
        # rebalance is needed. It is also needed when the group exceeds the size limit, to remove members.
        rebalance(turn)


# -- guards: they refuse a request before any record is written ---------------------------------------------------


def check_protocols(group: Group, request: JoinGroup) -> None:
    if not request.protocol_type or not request.protocols:
        raise KafkaRefusal(ErrorCode.inconsistent_group_protocol)
    if group.members and not (
        request.protocol_type == group.protocol_type and group.offers.all_offer_one_of(request.protocols)
    ):
        raise KafkaRefusal(ErrorCode.inconsistent_group_protocol)


def may_have_more_in_common(group: Group, request: JoinGroup) -> bool:
    """Whether the request may share a protocol with all members, although none of its protocols is known to be offered
    by all: after a load only one protocol of each member is known."""
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
