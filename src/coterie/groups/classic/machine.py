"""The coordinator of one classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the deadlines between them.

Theory of operation. A rebalance has two halves. In the *join phase* (PREPARING_REBALANCE) every JoinGroup is *parked*:
the response is sent later, when all members have rejoined and every issued member id was used, or when the longest
rebalance timeout of all members has passed. Members that have not rejoined by then are removed, except static members;
the generation rises, and all parked joins get their responses. The leader's response contains the metadata of all
members. In the *sync phase* (COMPLETING_REBALANCE) every SyncGroup is parked until the leader's SyncGroup arrives with
the assignments. Then the assignments are written, the group is STABLE, and all parked syncs get their responses. The
next join phase begins when a member is added or removed, when a member joins with other protocols, or when the leader
joins.

Behaviour, codes and the order of checks are those of Kafka's GroupCoordinator (KIP-62 for the two timeouts, KIP-134 for
the initial delay, KIP-345 for static members, KIP-394 for known member ids, KIP-559 for the protocol in SyncGroup),
except that

- the generation is written to the log when its join phase ends, too, not only after the leader's SyncGroup (see
  `GenerationWritten`);
- when the leader was removed, the member that rejoined first becomes the leader;
- when a member sends a request again, its parked request gets the response REBALANCE_IN_PROGRESS; Kafka drops the
  parked request without a response;
- the sync phase does not wait for a static member that was absent when the join phase ended: this member stays in the
  group until its session ends. Kafka removes it with all members that have not sent SyncGroup when the rebalance
  timeout has passed;
- a static member that returns to a full group is accepted, also during a join phase: its slot within the size limit is
  reserved while it is absent. Kafka responds GROUP_MAX_SIZE_REACHED, and during a join phase accepts other members
  instead;
- a JoinGroup or SyncGroup that gets its response at once begins a new session timeout, as a heartbeat does. Kafka does
  not move the end of the session, so a member can start jobs on a response that it received shortly before its session
  ended.
"""

from collections.abc import Mapping

from coterie.engine.output import Output
from coterie.groups.classic import static_members
from coterie.groups.classic.description import on_describe_group
from coterie.groups.classic.messages import (
    DescribeGroup,
    DescribeGroupResponse,
    Effect,
    Event,
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
    OffsetExpiryTimer,
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
from coterie.groups.classic.new_members import (
    check_size_of_all_offered_protocols,
    has_room_for,
    issue_member_id_or_raise,
    refuse_as_full_and_remove_member,
    remove_pending_member,
)
from coterie.groups.classic.offset_messages import (
    DeleteGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    TopicDeleted,
    TransactionEnded,
    TxnOffsetCommit,
)
from coterie.groups.classic.offsets import (
    offset_refusal_response,
    on_expiry_timer,
    on_offset_request,
    on_topic_deleted,
    on_transaction_ended,
    schedule_expiry_check_if_needed,
)
from coterie.groups.classic.request_checks import check_generation, check_group_id, check_member
from coterie.groups.classic.rounds import (
    add_member,
    join_response,
    on_join_phase_timer,
    park_join,
    rebalance_after_removal_if_needed,
    remove_member,
    reply_to_parked_syncs,
    start_or_continue_rebalance,
    sync_response,
    write_generation,
)
from coterie.groups.classic.state import Group, GroupPhase, Member, check_invariants
from coterie.groups.classic.turn import Turn
from coterie.groups.effects import TimerFired
from coterie.nouns.ids import MemberId
from coterie.wire.errors import ErrorCode, KafkaRefusal


def step(group: Group, event: Event, *, now_ms: int) -> Output[Record, Effect]:
    """Process one event: change the group's state and return the records and effects. The caller appends the records
    and, once they are durable, performs the effects in order.

    A request that a check refuses (`KafkaRefusal`) writes no record; its effect is a response with the error code.
    """
    turn = Turn(group, now_ms)
    match event:
        case Heartbeat() | JoinGroup() | SyncGroup() | LeaveGroup() | DescribeGroup():
            respond_or_refuse(turn, event)
        case OffsetCommit() | TxnOffsetCommit() | OffsetFetch() | OffsetDelete() | DeleteGroup():
            respond_or_refuse(turn, event)
        case TopicDeleted(topic=topic):
            on_topic_deleted(turn, topic)
        case TransactionEnded():
            on_transaction_ended(turn, event)
        case TimerFired(key=key):
            on_timer(turn, key)
        case GroupLoaded():
            on_loaded(turn)
    if turn.records or isinstance(event, GroupLoaded):
        schedule_expiry_check_if_needed(turn, is_just_loaded=isinstance(event, GroupLoaded))
    check_invariants(group)
    return Output(records=tuple(turn.records), effects=tuple(turn.effects))


def respond_or_refuse(turn: Turn, request: Request) -> None:
    """Process ``request``. If a check refuses the request, reply with the error code; nothing was written then."""
    try:
        on_request(turn, request)
    except KafkaRefusal as refusal:
        assert not turn.records, "refuse before the first write"
        turn.reply(request.reply_to, refusal_response(request, refusal.error))


def on_request(turn: Turn, request: Request) -> None:
    """Pass ``request`` to the function for its kind.

    :raises KafkaRefusal: when the request is refused; no record was written then.
    """
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
            on_describe_group(turn, request)
        case OffsetCommit() | TxnOffsetCommit() | OffsetFetch() | OffsetDelete() | DeleteGroup():
            on_offset_request(turn, request)


# -- requests -----------------------------------------------------------------------------------------------------


def on_heartbeat(turn: Turn, request: Heartbeat) -> None:
    """Renew the member's session. The response is REBALANCE_IN_PROGRESS during a join phase: the member must rejoin.

    :raises KafkaRefusal: for an empty group id, an unknown or replaced member, or another generation.
    """
    group = turn.group
    check_group_id(group)
    member = check_member(group, request.member_id, request.instance_id)
    check_generation(group, request.generation)
    turn.renew_session(member)
    must_rejoin = group.join_phase is not None
    turn.reply(
        request.reply_to, HeartbeatResponse(error=ErrorCode.rebalance_in_progress if must_rejoin else ErrorCode.none)
    )


def on_join(turn: Turn, request: JoinGroup) -> None:
    """Process a JoinGroup of a new client, of one that was issued its member id, of a static member that has restarted,
    or of a current member. The response is sent at once, or when the join phase ends. If the group is full, the
    response is GROUP_MAX_SIZE_REACHED, and a member that sent the request is removed.

    :raises KafkaRefusal: for an empty group id, a session timeout outside of the limits, an unknown or replaced member
        id, no protocol in common with the members, metadata that exceeds the size limit, or too many unused member ids.
    """
    group = turn.group
    check_group_id(group)
    limits = group.limits
    if not limits.session_timeout_min_ms <= request.session_timeout_ms <= limits.session_timeout_max_ms:
        raise KafkaRefusal(ErrorCode.invalid_session_timeout)
    if group.is_nonexistent and request.member_id:
        raise KafkaRefusal(ErrorCode.unknown_member_id)
    former_id_if_static_rejoin = static_members.former_id_if_static_rejoin(group, request)
    present_member_id = former_id_if_static_rejoin or request.member_id
    if not has_room_for(group, present_member_id):
        refuse_as_full_and_remove_member(turn, request)
        return
    if needs_rebalance_to_learn_protocols(group, request):
        refuse_join_and_rebalance_for_protocols(turn, request)
        return
    check_protocols(group, request)
    check_size_of_all_offered_protocols(group, present_member_id, request.protocols)
    if former_id_if_static_rejoin is not None:
        static_members.on_static_rejoin(turn, request, former_id_if_static_rejoin)
    elif not request.member_id and request.requires_known_member_id and request.instance_id is None:
        issue_member_id_or_raise(turn, request)
    elif not request.member_id:
        add_member(turn, request, request.fresh_member_id)
    elif request.instance_id is None and remove_pending_member(turn, request.member_id):
        add_member(turn, request, request.member_id)
    else:
        on_rejoin(turn, request, check_member(group, request.member_id, request.instance_id))


def refuse_join_and_rebalance_for_protocols(turn: Turn, request: JoinGroup) -> None:
    """Start a rebalance, in which all members send all their protocols, and reply with COORDINATOR_LOAD_IN_PROGRESS,
    after which the client joins again. After a load the coordinator has only the selected protocol of each member.

    Kafka refuses every client that does not offer the selected protocol until another event starts a rebalance. Until
    then a worker that was restarted with an older protocol cannot join its group. Here the join of such a worker causes
    one rebalance, once after each load.
    """
    start_or_continue_rebalance(turn)
    turn.reply(
        request.reply_to,
        JoinGroupResponse(error=ErrorCode.coordinator_load_in_progress, member_id=request.member_id),
    )


def on_rejoin(turn: Turn, request: JoinGroup, member: Member) -> None:
    """Process a JoinGroup of the current member ``member``.

    The request counts as repeated if its protocols are unchanged, and the group is in the sync phase, or is STABLE with
    another member as the leader. The response with the current generation is then sent again. Every other JoinGroup is
    parked, that is, answered at the end of the join phase, and starts or continues a rebalance.
    """
    group = turn.group
    phase = group.phase
    has_same_protocols = member.protocols == request.protocols
    # In STABLE a leader's join always starts a rebalance: the leader has no other way to request one.
    repeats_response = phase is GroupPhase.COMPLETING_REBALANCE or (
        phase is GroupPhase.STABLE and request.member_id != group.leader
    )
    if has_same_protocols and repeats_response:
        # The member may not have received the response to its join.
        turn.renew_session(member)
        turn.reply(request.reply_to, join_response(group, request.member_id))
    else:
        group.change_protocols(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        park_join(turn, request.member_id, request.reply_to)
        start_or_continue_rebalance(turn)


def on_sync(turn: Turn, request: SyncGroup) -> None:
    """Reply with the member's assignment if the group is STABLE. In the sync phase the request is parked: it gets its
    response when the leader's request arrives, which ends the sync phase. An earlier request of the same member that is
    parked gets REBALANCE_IN_PROGRESS.

    :raises KafkaRefusal: for an empty group id, an unknown or replaced member, another generation, another protocol, or
        during a join phase.
    """
    group = turn.group
    check_group_id(group)
    member = check_member(group, request.member_id, request.instance_id)
    check_generation(group, request.generation)
    check_selected_protocol(group, request)
    phase = group.phase
    if phase is GroupPhase.PREPARING_REBALANCE:
        raise KafkaRefusal(ErrorCode.rebalance_in_progress)
    group.pending_sync_members.discard(request.member_id)
    if not group.pending_sync_members:
        turn.cancel_timer(SyncTimer())
    if phase is GroupPhase.STABLE:
        turn.renew_session(member)
        turn.reply(request.reply_to, sync_response(group, request.member_id))
        return
    earlier_reply_to = group.parked_syncs.get(request.member_id)
    if earlier_reply_to is not None:
        turn.reply(earlier_reply_to, SyncGroupResponse(error=ErrorCode.rebalance_in_progress))
    group.parked_syncs[request.member_id] = request.reply_to
    if request.member_id == group.leader:
        write_assignments_or_rebalance(turn, dict(request.assignments))


def write_assignments_or_rebalance(turn: Turn, assignments: Mapping[MemberId, bytes]) -> None:
    """Write the leader's assignments, and reply to all parked SyncGroups, which have waited for them. If the
    assignments exceed ``protocols_or_assignments_size_max_bytes``, all parked SyncGroups get UNKNOWN_SERVER_ERROR, as
    from Kafka, and a rebalance starts."""
    group = turn.group
    if sum(map(len, assignments.values())) > group.limits.protocols_or_assignments_size_max_bytes:
        reply_to_parked_syncs(turn, ErrorCode.unknown_server_error)
        start_or_continue_rebalance(turn)
    else:
        write_generation(turn, group.generation, protocol=group.protocol, assignments=assignments)
        reply_to_parked_syncs(turn, ErrorCode.none)


def on_leave(turn: Turn, request: LeaveGroup) -> None:
    """Remove the members and the issued member ids that the request lists. An open join phase no longer waits for them;
    otherwise a rebalance starts if the group now has fewer members than its generation. Each member that cannot be
    removed has its own error code in the response.

    :raises KafkaRefusal: INVALID_GROUP_ID, when the group id is empty.
    """
    group = turn.group
    check_group_id(group)
    member_errors: list[tuple[MemberId, ErrorCode]] = []
    for leaving_member in request.members:
        try:
            if not remove_pending_member(turn, leaving_member.member_id):
                remove_member(turn, static_members.leaving_member_id(group, leaving_member))
            member_errors.append((leaving_member.member_id, ErrorCode.none))
        except KafkaRefusal as refusal:
            member_errors.append((leaving_member.member_id, refusal.error))
    turn.reply(request.reply_to, LeaveGroupResponse(error=ErrorCode.none, members=tuple(member_errors)))
    if any(error is ErrorCode.none for _, error in member_errors):
        rebalance_after_removal_if_needed(turn)


# -- timers and loading -------------------------------------------------------------------------------------------


def on_timer(turn: Turn, key: TimerKey) -> None:
    """Process the timer ``key`` that has fired; do nothing if its deadline was moved to a later time or removed
    meanwhile."""
    group = turn.group
    deadline_ms = group.deadlines.get(key)
    if deadline_ms is None or turn.now_ms < deadline_ms:
        return  # the timer was moved or cancelled after it fired
    del group.deadlines[key]
    match key:
        case SessionTimer(member_id=member_id):
            # A member with a parked request need not send heartbeats; the response to the request renews its session.
            if member_id not in group.parked_joins and member_id not in group.parked_syncs:
                remove_member(turn, member_id)
                rebalance_after_removal_if_needed(turn)
        case NewMemberTimer(member_id=member_id):
            remove_member(turn, member_id)
            rebalance_after_removal_if_needed(turn)
        case PendingMemberTimer(member_id=member_id):
            group.pending_join_members.discard(member_id)
            rebalance_after_removal_if_needed(turn)
        case OffsetExpiryTimer():
            on_expiry_timer(turn)
        case JoinPhaseTimer():
            on_join_phase_timer(turn)
        case SyncTimer():
            for member_id in sorted(group.pending_sync_members):
                remove_member(turn, member_id)
            start_or_continue_rebalance(turn)


def on_loaded(turn: Turn) -> None:
    """Rebuild the soft state from the stored generation: each member begins a full session timeout now. A rebalance
    starts if the generation has members without assignments, or more members than the size limit permits."""
    group = turn.group
    stored_generation = group.generation_record
    if stored_generation is None:
        return
    group.protocol_type = stored_generation.protocol_type
    group.protocol = stored_generation.protocol
    group.leader = stored_generation.leader
    for member_id, stored_member in stored_generation.members.items():
        loaded_member = Member(
            client_id=stored_member.client_id,
            client_host=stored_member.client_host,
            session_timeout_ms=stored_member.session_timeout_ms,
            rebalance_timeout_ms=stored_member.rebalance_timeout_ms,
            protocols=(MemberProtocol(name=stored_generation.protocol, metadata=stored_member.subscription),)
            if stored_generation.protocol is not None
            else (),
            session_timer_key=SessionTimer(member_id=member_id),
            instance_id=stored_member.instance_id,
            awaits_first_join_response=False,
        )
        group.add_member(member_id, loaded_member)
        turn.renew_session(loaded_member)
    group.is_unrebalanced_since_load = bool(group.members)
    if group.members and (stored_generation.protocol is None or len(group.members) > group.limits.group_size_max):
        # No member has an assignment in this generation, and the leader may not have received its response, so a new
        # rebalance is needed. It is also needed when the group exceeds the size limit, to remove members.
        start_or_continue_rebalance(turn)


# -- guards: they refuse a request before any record is written ---------------------------------------------------


def check_protocols(group: Group, request: JoinGroup) -> None:
    """Check that the request names a protocol type and protocols and, if the group has members, that the type is the
    group's and at least one of the protocols is offered by all members.

    :raises KafkaRefusal: INCONSISTENT_GROUP_PROTOCOL.
    """
    if not request.protocol_type or not request.protocols:
        raise KafkaRefusal(ErrorCode.inconsistent_group_protocol)
    if group.members and not (
        request.protocol_type == group.protocol_type and group.protocol_support.any_supported_by_all(request.protocols)
    ):
        raise KafkaRefusal(ErrorCode.inconsistent_group_protocol)


def check_selected_protocol(group: Group, request: SyncGroup) -> None:
    """Check that the protocol type and the protocol of the request, if it has them (KIP-559), are the group's. The
    protocol is not checked while the coordinator does not know the group's, after a load in the sync phase.

    :raises KafkaRefusal: INCONSISTENT_GROUP_PROTOCOL.
    """
    if request.protocol_type not in (None, group.protocol_type):
        raise KafkaRefusal(ErrorCode.inconsistent_group_protocol)
    # A coordinator that was restarted in the sync phase does not know the protocol that was selected: a generation
    # without assignments is stored without its protocol. Clients end with this error, so it is not guessed.
    if group.protocol is not None and request.protocol not in (None, group.protocol):
        raise KafkaRefusal(ErrorCode.inconsistent_group_protocol)


def needs_rebalance_to_learn_protocols(group: Group, request: JoinGroup) -> bool:
    """Whether the coordinator knows no protocol that both this join and all members offer, but the members may offer
    further ones: no join phase has ended since the last load, and a load restores only the selected
    protocol of each member. False if the request has no protocols or another protocol type than the group."""
    if not (group.is_unrebalanced_since_load and request.protocols and request.protocol_type == group.protocol_type):
        return False
    return not group.protocol_support.any_supported_by_all(request.protocols)


def refusal_response(request: Request, error: ErrorCode) -> Response:
    """The response of the request's kind with ``error``, and without other content; only a JoinGroupResponse also has
    the request's member id."""
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
        case OffsetCommit() | TxnOffsetCommit() | OffsetFetch() | OffsetDelete() | DeleteGroup():
            return offset_refusal_response(request, error)
