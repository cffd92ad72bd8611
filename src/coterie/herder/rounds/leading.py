"""The leader's part in a round: it computes the assignments of all members."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from coterie.assignors import cooperative, eager
from coterie.assignors.assignor_state import AssignorState
from coterie.assignors.claims import Eligibility
from coterie.assignors.cooperative import RoundOutcome
from coterie.assignors.members import MemberSpec
from coterie.herder import group_view, place, shared_names
from coterie.herder.group_view import RoundSnapshot
from coterie.herder.messages import CancelTimer, FindConfigLogEnd, LogEndLookupForAssignment, SetTimer, WriteLogMessage
from coterie.herder.requests.views import GroupView
from coterie.herder.rounds import rebalance_window
from coterie.herder.rounds.state import PendingAssignment
from coterie.herder.state import Herder, Turn
from coterie.nouns.ids import ConfigOffset, GenerationId, LogPosition, MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.nouns.membership import (
    AssignmentChange,
    AssignmentsRequested,
    ComputedAssignments,
    MemberReport,
    SendAssignments,
)
from coterie.wire.connect import ConnectProtocol, RoundToken

FIRST_GENERATION = GenerationId(1)
"""The generation of the first round of a new group: no worker was a member before, so no task of the group runs."""


def on_assignments_requested(turn: Turn, event: AssignmentsRequested) -> None:
    """Store the round whose assignment this leader has to compute. If a member has read more of the config log than
    this leader, look up the log's end offset, and set the timer of :func:`end_round_without_changes`."""
    herder, pending = turn.herder, PendingAssignment(request=event)
    herder.leader_state.moves_at_ms = None
    if not herder.has_read_config_to(_highest_non_foreign_config_offset(pending)):
        herder.leader_state.last_lookup_id += 1
        pending = replace(pending, log_end_lookup_id=herder.leader_state.last_lookup_id)
        turn.emit(
            FindConfigLogEnd(purpose=LogEndLookupForAssignment(log_end_lookup_id=herder.leader_state.last_lookup_id))
        )
        turn.emit(SetTimer(timer="assign", at_ms=turn.now_ms + herder.settings.sync_timeout_ms))
    herder.leader_state.pending_assignment = pending


def compute_assignment_if_ready(turn: Turn) -> None:
    """Compute the pending assignment, if there is one and this leader has read the config log as far as all members
    have. Members with another config log do not count (:func:`_members_with_foreign_config_log`)."""
    pending = turn.herder.leader_state.pending_assignment
    if pending is not None and turn.herder.has_read_config_to(_highest_non_foreign_config_offset(pending)):
        turn.emit(CancelTimer(timer="assign"))
        _compute_and_send_assignments(turn, pending)


def on_config_log_end_lookup_ended(turn: Turn, log_end_lookup_id: int, end_offset: LogPosition | None) -> None:
    """Store the log's end offset for the pending assignment; ``end_offset`` None (the log could not be reached) is
    ignored. Members that have reported a higher offset read another config log. If they are more than half of the
    members, this worker leaves the group and rejoins, so that another worker leads it. Otherwise the assignment is
    computed, if this leader has read the log far enough."""
    pending = turn.herder.leader_state.pending_assignment
    if pending is None or log_end_lookup_id != pending.log_end_lookup_id or end_offset is None:
        return
    pending = turn.herder.leader_state.pending_assignment = replace(pending, end_offset=end_offset)
    members = pending.request.members
    if 2 * len(_members_with_foreign_config_log(pending)) > len(members):
        # More than half of the members read another log: so this worker reads another log than its group.
        place.resign_as_leader(
            turn, highest_config_offset=max(one.config_offset for one in members.values()), end_offset=end_offset
        )
    else:
        compute_assignment_if_ready(turn)


def end_round_without_changes(turn: Turn) -> None:
    """End the round without a change of any assignment (CONFIG_MISMATCH), because this leader has still read less of
    the config log than a member. The leader requests another round when it has read the missing lines."""
    herder, pending = turn.herder, turn.herder.leader_state.pending_assignment
    if pending is None:
        return
    request, highest_config_offset = pending.request, _highest_non_foreign_config_offset(pending)
    turn.emit(
        WriteLogMessage(
            text="This rebalance assigns no new jobs: this leader has read the config topic to offset "
            f"{max(herder.config.offset, 0)}, a member to {highest_config_offset}. Another rebalance follows when this "
            "leader has caught up"
        )
    )
    herder.leader_state.pending_assignment = None
    nothing = dict.fromkeys(sorted(request.members), AssignmentChange())
    computed = ComputedAssignments(config_offset=highest_config_offset, assignments=nothing, has_config_mismatch=True)
    turn.emit(SendAssignments(token=request.token, computed=computed))


def last_computed_round_if_leader(herder: Herder) -> RoundSnapshot | None:
    """The last round that this worker has computed; None if it is not the leader now, or has computed none."""
    return herder.leader_state.last_round if herder.place.is_leader_of_last_round else None


def group_view_of(turn: Turn) -> GroupView | None:
    """The group as this leader sees it after its last round; None if this worker is not the leader now, or has computed
    no round."""
    herder, last_round = turn.herder, last_computed_round_if_leader(turn.herder)
    if last_round is None:
        return None
    due = (herder.rounds.rebalance_delay_ends_ms, herder.leader_state.moves_at_ms)
    return group_view.build_group_view(
        last_round,
        herder.leader_state.assignor_state.deferrals,
        configured=herder.config.jobs(),
        policy=herder.settings.rebalance_policy,
        next_round_in_ms=min(
            (remaining_delay_ms(at_ms, turn.now_ms) for at_ms in due if at_ms is not None), default=None
        ),
        now_ms=turn.now_ms,
    )


def unassigned_reasons(herder: Herder) -> Mapping[Job, str]:
    """Why no worker runs each unassigned job, by job; empty unless this worker has computed the current generation."""
    last_round = herder.leader_state.last_round
    if last_round is None or last_round.generation != herder.place.epoch:
        return {}
    return group_view.unassigned_reasons(last_round, herder.leader_state.assignor_state.deferrals)


def drop_pending_assignment(turn: Turn) -> None:
    """Drop the assignment that this leader has not computed yet, if there is one: its round is over."""
    turn.herder.leader_state.pending_assignment = None


def forget_last_round(turn: Turn) -> None:
    """Drop the last computed round and the time of its next moves, because this worker is no longer the leader."""
    turn.herder.leader_state.last_round = turn.herder.leader_state.moves_at_ms = None


def reset_assignor_state(turn: Turn) -> None:
    """Drop the state that the assignor has kept from earlier rounds."""
    turn.herder.leader_state.assignor_state = AssignorState()


def set_postponed_moves_timer(turn: Turn) -> None:
    """If moves of jobs were postponed, set the timer of the next moves. Called when the leader's round has ended."""
    if turn.herder.leader_state.moves_at_ms is not None:
        turn.emit(SetTimer(timer="moves", at_ms=turn.herder.leader_state.moves_at_ms))


def clear_moves_deadline_if_due(turn: Turn) -> bool:
    """Whether the time has come at which the leader may continue postponed moves of jobs. If so, this time is also
    cleared."""
    herder, leader_state = turn.herder, turn.herder.leader_state
    if (
        not herder.place.is_leader_with_current_assignment
        or leader_state.moves_at_ms is None
        or turn.now_ms < leader_state.moves_at_ms
    ):
        return False
    leader_state.moves_at_ms = None
    return True


def _compute_and_send_assignments(turn: Turn, pending: PendingAssignment) -> None:
    """Compute the assignments of a round, store the round for the view of the group, and order the member to send the
    assignments. A member with another config log is assigned no job, and a warning is logged."""
    herder, request, foreign_members = turn.herder, pending.request, _members_with_foreign_config_log(pending)
    herder.leader_state.pending_assignment = None
    token = RoundToken.checked_instance(request.token)
    views = {member: member_spec_of_report(report) for member, report in request.members.items()}
    for member in foreign_members:
        turn.emit(WriteLogMessage(text=_foreign_config_log_warning(pending, request.members[member]), is_warning=True))
        views[member] = replace(views[member], claims=NO_JOBS)
    shared_names.warn_about_shared_names(
        turn,
        ((one.name, group_view.worker_id_of_url(one.url)) for one in request.members.values() if one.name is not None),
    )
    unassigned: Mapping[Job, str] = {}
    if token.protocol is ConnectProtocol.EAGER:
        computed = _assign_eagerly_if_all_stopped(
            turn, request, eligible_members=request.members.keys() - foreign_members
        )
        eligibility = Eligibility.from_members(views, herder.config.jobs())
    else:
        computed, round_ = _assign_cooperatively_and_store_state(turn, token.generation, views)
        eligibility, unassigned = round_.eligibility, round_.reason_by_unassigned_job
    herder.leader_state.last_round = group_view.snapshot_round(
        herder.leader_state.last_round,
        request,
        views,
        computed.assignments,
        generation=token.generation,
        protocol=token.protocol.setting,
        eligibility=eligibility,
        configured=herder.config.jobs(),
        unassigned=unassigned,
        policy=herder.settings.rebalance_policy,
    )
    turn.emit(SendAssignments(token=request.token, computed=computed))


def _assign_cooperatively_and_store_state(
    turn: Turn, generation: GenerationId, views: Mapping[MemberId, MemberSpec]
) -> tuple[ComputedAssignments, RoundOutcome]:
    """Compute a cooperative round: all members keep their jobs, except the jobs that this round revokes. Also stores
    the assignor's state and the time of the next moves. Returns the assignments, and the assignor's result."""
    herder = turn.herder
    round_ = cooperative.assign(
        herder.leader_state.assignor_state,
        configured=herder.config.jobs(),
        members=views,
        generation=generation,
        last_completed_generation=GenerationId(-1) if herder.place.is_lost else herder.rounds.last_completed_generation,
        now_ms=turn.now_ms,
        policy=herder.settings.rebalance_policy,
        received_delay_ms=remaining_delay_ms(herder.rounds.rebalance_delay_ends_ms, turn.now_ms),
    )
    herder.leader_state.assignor_state = round_.assignor_state
    herder.leader_state.moves_at_ms = turn.now_ms + round_.next_moves_timer_ms if round_.next_moves_timer_ms else None
    rebalance_window.store_jobs_of_computed_round(turn, herder.config.jobs())
    return cooperative_assignments(round_, config_offset=herder.config.offset), round_


def remaining_delay_ms(rebalance_delay_ends_ms: int | None, now_ms: int) -> int:
    """The time from ``now_ms`` until ``rebalance_delay_ends_ms``; 0 when that has passed, or is None."""
    return 0 if rebalance_delay_ends_ms is None else max(rebalance_delay_ends_ms - now_ms, 0)


def cooperative_assignments(round_: RoundOutcome, *, config_offset: ConfigOffset) -> ComputedAssignments:
    """The result of a cooperative round, in the form in which the member sends it to the group. ``config_offset`` is
    that of this leader."""
    assignments = {
        member: AssignmentChange(assigned=one.assigned, revoked=one.revoked)
        for member, one in round_.assignments.items()
    }
    return ComputedAssignments(config_offset=config_offset, assignments=assignments, delay_ms=round_.delay_ms)


def _assign_eagerly_if_all_stopped(
    turn: Turn, request: AssignmentsRequested, *, eligible_members: Collection[MemberId]
) -> ComputedAssignments:
    """Compute an eager round. It assigns all jobs to ``eligible_members`` if no member can still run a job
    (:func:`have_all_jobs_stopped`).

    Otherwise it assigns no job, because members of a group that was cooperative may still run their jobs (KIP-415:
    "first sending a downgraded assignment with empty assigned connectors and tasks"). The leader then requests another
    round, which assigns the jobs.
    """
    herder = turn.herder
    last_seen_generation = None if herder.place.is_lost else GenerationId(herder.place.epoch)
    all_stopped = have_all_jobs_stopped(
        request, last_seen_generation=last_seen_generation, protocol=herder.rounds.protocol
    )
    herder.leader_state.assignor_state = AssignorState()
    configured = herder.config.jobs() if all_stopped else NO_JOBS
    rebalance_window.store_jobs_of_computed_round(turn, configured)
    if not all_stopped:
        turn.emit(
            WriteLogMessage(
                text="Rebalance with protocol eager: workers may still run jobs, because the last rebalance used "
                "another protocol or this leader does not know its result. This rebalance assigns no jobs, so that all "
                "workers stop their tasks; the next rebalance assigns all jobs"
            )
        )
    assigned_jobs = eager.assign(configured, eligible_members)
    return eager_assignments(request, assigned_jobs, config_offset=herder.config.offset)


def have_all_jobs_stopped(
    request: AssignmentsRequested, *, last_seen_generation: GenerationId | None, protocol: ConnectProtocol | None
) -> bool:
    """Whether no member of an eager round can still run a job. True if the previous generation was eager, because its
    members stopped all jobs before they joined; if this is the group's first generation; and if the leader is the only
    member.

    ``last_seen_generation`` is the last generation whose result this leader has received (None: the membership was
    lost), and ``protocol`` is the protocol of that generation.
    """
    token = RoundToken.checked_instance(request.token)
    return (
        (last_seen_generation == token.generation - 1 and protocol is ConnectProtocol.EAGER)
        or token.generation == FIRST_GENERATION
        or request.members.keys() | token.undecodable_members == {request.member_id}
    )


def eager_assignments(
    request: AssignmentsRequested, assigned_jobs: Mapping[MemberId, Jobs], *, config_offset: ConfigOffset
) -> ComputedAssignments:
    """The result of an eager round, in the form in which the member sends it to the group: each member's
    ``assigned_jobs``, none if it is not in the mapping."""
    assignments = {member: AssignmentChange(assigned=assigned_jobs.get(member, NO_JOBS)) for member in request.members}
    return ComputedAssignments(config_offset=config_offset, assignments=assignments)


def member_spec_of_report(report: MemberReport) -> MemberSpec:
    """A member's report, in the form that the assignor takes."""
    return MemberSpec(
        owned=report.owned, claims=report.claims, is_draining=report.draining, instance_id=report.instance_id
    )


def _members_with_foreign_config_log(pending: PendingAssignment) -> Collection[MemberId]:
    """The members that read another config log: they report an offset beyond the end of this leader's log. Empty before
    the end offset is found.

    Such a member is assigned no job. It stays in the group, because it would rejoin again and again if it were removed.
    """
    request, end = pending.request, pending.end_offset
    if end is None:
        return ()
    return [
        member
        for member, report in request.members.items()
        if report.config_offset > end and member != request.member_id
    ]


def _foreign_config_log_warning(pending: PendingAssignment, report: MemberReport) -> str:
    """The log message about a member that reads another config log than this leader."""
    worker_id = group_view.worker_id_of_url(report.url)
    name = f"{report.name} ({worker_id})" if report.name else worker_id
    return (
        f"Worker {name} reported config offset {report.config_offset}, but the config topic ends at "
        f"{pending.end_offset}. "
        "No jobs are assigned to this worker. Check that all workers have the same config.storage.topic, and whether "
        "this topic has lost records"
    )


def _highest_non_foreign_config_offset(pending: PendingAssignment) -> ConfigOffset:
    """The highest config offset that a member has reported, without the members of
    :func:`_members_with_foreign_config_log`."""
    foreign_members = _members_with_foreign_config_log(pending)
    return max(one.config_offset for member, one in pending.request.members.items() if member not in foreign_members)
