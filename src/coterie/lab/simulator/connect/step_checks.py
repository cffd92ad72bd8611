"""The checks of one step of the coordinator of a connect group: a member stops holding a job only by the rules, each
computation has a cause, and no member waits for a job that no member holds."""

from collections.abc import Iterable

from coterie.groups.connect.messages import (
    ConnectionClosed,
    ConnectionGraceTimer,
    GroupLoaded,
    GroupState,
    Heartbeat,
    HeldJobsTimer,
    InstallAssignment,
    MemberRecord,
    NextComputationTimer,
    RebalanceDelayTimer,
    RevocationTimer,
    SessionTimer,
    TargetComputed,
)
from coterie.groups.connect.soft_state import CoordinatorComputing, MemberChosenToCompute, MemberComputing
from coterie.groups.connect.state import Group
from coterie.groups.effects import Reply, TimerFired
from coterie.lab.simulator.connect.coordinator import ConnectCoordinatorStep
from coterie.lab.simulator.connect.group_state import HardState
from coterie.lab.simulator.invariants import Invariant, Violation, job_list_text
from coterie.lab.simulator.world import World
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import JOIN_EPOCH, LEAVE_BRIEFLY_EPOCH, LEAVE_EPOCH, AssignorChangeReason
from coterie.nouns.ids import GroupEpoch, MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs


class CoordinatorStepChecker:
    """Checks the steps of the coordinator in the simulation with one seed. A method raises a `Violation` when an
    invariant is broken."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._accepted_ms: dict[MemberId, int] = {}
        """For each member, when the coordinator last accepted a heartbeat of it, or was started after that."""
        self._connection: dict[MemberId, int] = {}
        """For each member, the number of the connection on which the coordinator last accepted a heartbeat of it."""
        self._grace_ends_ms: dict[MemberId, int] = {}
        """For each member whose connection was closed in an orderly way after its last accepted heartbeat: when the
        grace ends in which the coordinator waits for another heartbeat. Its length follows from the configs at the end
        of the connection."""
        self._orderly_connection_ends: list[tuple[int, MemberId, int, int]] = []
        """The orderly ends of members' connections since the coordinator was started: the time, the member, its grace
        in ms, and the number of members at that time."""
        self._pending_since_ms: dict[tuple[MemberId, Job], int] = {}
        """Since when each member has had to give back each job, but not before the last start of the coordinator."""
        self._held_owned: dict[MemberId, Jobs] = {}
        """For each member whose heartbeat has a response that is held back, the owned jobs in that heartbeat. The
        member acts only on this response, so until then it runs no other jobs."""

    def check_and_store_loaded_group(self, group: Group) -> None:
        """Store that the coordinator has loaded ``group``: each of its members gets a new session now; connections and
        held heartbeats from the time before the load are forgotten."""
        self._accepted_ms = dict.fromkeys(group.members, self._world.now_ms)
        self._connection.clear()
        self._grace_ends_ms.clear()
        self._orderly_connection_ends.clear()
        self._held_owned.clear()
        self._pending_since_ms.clear()
        self._store_revocation_times(group)

    def check_step(self, step: ConnectCoordinatorStep) -> None:
        """Check one step: the jobs that members stop holding, the epochs, targets and assignments that the step writes,
        its refusals, and the members whose heartbeats have no response yet."""
        self._check_releases(step)
        self._store_heartbeat_or_connection_end(step)
        after = step.group
        if step.output.records:
            self._check_session_removal(step)
            self._check_epoch_changes(step)
            self._check_target(step)
            self._check_epochs_and_held_jobs(after)
            self._store_revocation_times(after)
        self._check_revocation_deadlines(step)
        self._check_own_instance_id_not_refused(step)
        self._check_computation_is_needed(after)
        if step.output.records or isinstance(step.event, Heartbeat):
            self._check_waiting_members(step)
        self._held_owned = {
            member_id: session.held_heartbeat.owned
            for member_id, session in after.sessions.items()
            if session.held_heartbeat is not None and session.held_heartbeat.owned is not None
        }

    def _store_heartbeat_or_connection_end(self, step: ConnectCoordinatorStep) -> None:
        """If the step accepts a heartbeat, store its time and its connection for the member. If the event is the end of
        a connection, store for its members when their grace ends."""
        event = step.event
        if isinstance(event, Heartbeat) and step.is_accepted_heartbeat and event.member_epoch >= JOIN_EPOCH:
            self._accepted_ms[event.member_id] = self._world.now_ms
            self._connection[event.member_id] = event.connection_number
            if event.resumes:  # the end of the connection has no effect
                del self._connection[event.member_id]
            self._grace_ends_ms.pop(event.member_id, None)
        elif isinstance(event, Heartbeat) and step.is_accepted_heartbeat:
            self._connection.pop(event.member_id, None)
        elif isinstance(event, ConnectionClosed):
            for member_id in event.member_ids:
                metadata = step.hard_state_before.members.get(member_id)
                if metadata is None or self._connection.get(member_id) != event.connection_number:
                    continue
                grace_ms = min(metadata.connection_grace_ms, step.group.settings.connection_grace_ms)
                if grace_ms:
                    self._orderly_connection_ends.append(
                        (self._world.now_ms, member_id, grace_ms, len(step.hard_state_before.members))
                    )
                    self._grace_ends_ms[member_id] = self._world.now_ms + grace_ms

    # -- released as ruled ------------------------------------------------------------------------------------------

    def _check_releases(self, step: ConnectCoordinatorStep) -> None:
        """Check that each job that a member no longer holds was released by a heartbeat of this member, by the end of
        its session, by the end of the grace after the end of its connection, or by a load after a crash that has kept
        only a part of the records of a leave or a join.

        :raises Violation: RELEASED_AS_RULED.
        """
        if not step.output.records:
            return
        released: dict[MemberId, list[Job]] = {}
        for job, holder in step.hard_state_before.holder_by_job.items():
            if step.group.holder.get(job) != holder:
                released.setdefault(holder, []).append(job)
        for holder, jobs in sorted(released.items()):
            unexplained = [job for job in jobs if not self._is_release_explained(step, holder, job)]
            if unexplained:
                text = job_list_text(Jobs.of(unexplained))
                raise Violation(
                    Invariant.RELEASED_AS_RULED,
                    f"{holder} no longer holds {text}, which it has not given back, and neither its session nor the "
                    "grace of its connection has ended",
                )

    def _is_release_explained(self, step: ConnectCoordinatorStep, holder: MemberId, job: Job) -> bool:
        """Whether the event of ``step``, or the held heartbeat of the member ``holder``, is a reason why ``holder`` no
        longer holds ``job``."""
        if holder in self._held_owned and job not in self._held_owned[holder]:
            return True
        match step.event:
            case Heartbeat(member_id=member_id) as heartbeat if member_id == holder and step.is_accepted_heartbeat:
                return heartbeat.member_epoch <= JOIN_EPOCH or (
                    heartbeat.owned is not None and job not in heartbeat.owned
                )
            case TimerFired(key=SessionTimer(member_id=member_id) | HeldJobsTimer(member_id=member_id)):
                return member_id == holder and self._has_session_or_hold_ended(step.hard_state_before, holder)
            case TimerFired(key=ConnectionGraceTimer(member_id=member_id)):
                has_grace_ended = self._world.now_ms >= self._grace_ends_ms.get(holder, self._world.now_ms + 1)
                return member_id == holder and has_grace_ended and not self._may_proxy_have_closed_connection(holder)
            case GroupLoaded():
                # A crash has cut a step in which the member left, or joined again with no jobs.
                before = step.hard_state_before
                count = sum(holder in some for some in (before.members, before.targets, before.current_assignments))
                return count in (1, 2) or (count == 3 and holder in before.departed_members)
            case _:
                return False

    def _may_proxy_have_closed_connection(self, member_id: MemberId) -> bool:
        """Whether the connections of at least two members, and of at least half of the group, were closed within one
        grace of the time at which the connection of the member was closed last: a proxy may have ended, not the
        workers."""
        at_ms, grace_ms, size = next(
            (at, grace, size) for at, one, grace, size in reversed(self._orderly_connection_ends) if one == member_id
        )
        together = {one for closed_ms, one, *_ in self._orderly_connection_ends if abs(closed_ms - at_ms) <= grace_ms}
        return len(together) >= max(2, size / 2)

    def _has_session_or_hold_ended(self, before: HardState, member_id: MemberId) -> bool:
        """Whether the session of the member has ended: a session timeout has passed since the coordinator last accepted
        a heartbeat of it; for a departed member, whether the time has passed until which its jobs are held. ``before``
        is the hard state before the step."""
        departed = before.departed_members.get(member_id)
        if departed is not None:
            return self._world.now_ms >= departed.held_until_ms
        metadata = before.members[member_id]
        return self._world.now_ms >= self._accepted_ms[member_id] + metadata.session_timeout_ms

    def _check_session_removal(self, step: ConnectCoordinatorStep) -> None:
        """If the session timer of a member has removed the member, check that a session timeout had passed since the
        coordinator last accepted a heartbeat of it.

        :raises Violation: PATIENT.
        """
        match step.event:
            case TimerFired(key=SessionTimer(member_id=member_id)):
                if member_id not in step.group.members and not self._has_session_or_hold_ended(
                    step.hard_state_before, member_id
                ):
                    raise Violation(Invariant.PATIENT, f"{member_id} is removed before the end of its session")
            case _:
                pass

    # -- time to give jobs back, and retries ------------------------------------------------------------------------

    def _store_revocation_times(self, group: Group) -> None:
        """For each job that a member now has to give back, store the time of the revocation: the time that is stored
        already, otherwise the present time. The times of all other jobs are removed."""
        self._pending_since_ms = {
            (member_id, job): self._pending_since_ms.get((member_id, job), self._world.now_ms)
            for member_id, current in group.currents.items()
            for job in current.pending
        }

    def _check_revocation_deadlines(self, step: ConnectCoordinatorStep) -> None:
        """Check that each member that has jobs to give back has a timer that removes it a rebalance timeout after the
        revocation of the job that it has had to give back for the longest time.

        :raises Violation: REVOKED_IN_TIME.
        """
        group = step.group
        oldest_ms: dict[MemberId, int] = {}
        for (member_id, _), at_ms in self._pending_since_ms.items():
            oldest_ms[member_id] = min(at_ms, oldest_ms.get(member_id, at_ms))
        for member_id, since_ms in oldest_ms.items():
            timeout_ms = group.members[member_id].rebalance_timeout_ms
            deadline_ms = group.deadlines.get(RevocationTimer(member_id=member_id))
            if deadline_ms != since_ms + timeout_ms:
                raise Violation(
                    Invariant.REVOKED_IN_TIME,
                    f"{member_id} has had to give jobs back since the time {since_ms} and has a rebalance timeout of "
                    f"{timeout_ms} ms, but its timer is set to {deadline_ms}",
                )

    def _check_own_instance_id_not_refused(self, step: ConnectCoordinatorStep) -> None:
        """Check that no heartbeat is refused with UNRELEASED_INSTANCE_ID if its sender is the member with this instance
        id.

        :raises Violation: RETRY_IS_NO_RIVAL.
        """
        event = step.event
        if not isinstance(event, Heartbeat) or event.instance_id is None:
            return
        is_refused = any(
            isinstance(effect, Reply) and effect.response.error is ConnectErrorCode.UNRELEASED_INSTANCE_ID
            for effect in step.output.effects
        )
        if is_refused and step.group.static_member_id(event.instance_id) == event.member_id:
            raise Violation(
                Invariant.RETRY_IS_NO_RIVAL,
                f"{event.member_id} is refused with UNRELEASED_INSTANCE_ID, although it has the instance id itself",
            )

    # -- computed for a cause ---------------------------------------------------------------------------------------

    def _check_epoch_changes(self, step: ConnectCoordinatorStep) -> None:
        """Check that the group epoch rises only for a cause (:func:`_may_raise_group_epoch`), and by one at most,
        except at a load; and that the assignment epoch changes only when a computed target arrives, and rises to at
        most the group epoch.

        :raises Violation: COMPUTED_FOR_A_CAUSE, EPOCH_GIVEN_ONCE.
        """
        before, after = step.hard_state_before, step.group
        raised_by = after.group_epoch - before.group_epoch
        if after.metadata is None:
            return
        if raised_by < 0 or (raised_by > 1 and not isinstance(step.event, GroupLoaded)):
            raise Violation(
                Invariant.EPOCH_GIVEN_ONCE, f"the group epoch changes from {before.group_epoch} to {after.group_epoch}"
            )
        if raised_by and not _may_raise_group_epoch(step):
            raise Violation(
                Invariant.COMPUTED_FOR_A_CAUSE,
                f"the group epoch rises to {after.group_epoch} with the event {type(step.event).__name__}, but "
                "nothing has changed",
            )
        if after.assignment_epoch != before.assignment_epoch and not (
            before.assignment_epoch < after.assignment_epoch <= after.group_epoch
            and isinstance(step.event, InstallAssignment | TargetComputed)
        ):
            raise Violation(
                Invariant.COMPUTED_FOR_A_CAUSE,
                f"the assignment epoch changes from {before.assignment_epoch} to {after.assignment_epoch} with the "
                f"event {type(step.event).__name__}, but it may only rise, with InstallAssignment or TargetComputed, "
                f"to at most the group epoch {after.group_epoch}",
            )

    def _check_computation_is_needed(self, group: Group) -> None:
        """Check that a computation is in progress only while the group epoch is higher than the assignment epoch.

        :raises Violation: COMPUTED_FOR_A_CAUSE.
        """
        is_in_progress = isinstance(group.computation, MemberChosenToCompute | MemberComputing | CoordinatorComputing)
        if is_in_progress and group.group_epoch <= group.assignment_epoch:
            raise Violation(
                Invariant.COMPUTED_FOR_A_CAUSE,
                f"a target is computed for the group epoch {group.group_epoch}, which has a target already",
            )

    # -- targets and members ----------------------------------------------------------------------------------------

    def _check_target(self, step: ConnectCoordinatorStep) -> None:
        """Check that no job is in the targets of two members. Check a target that the step installs: it was computed
        for the group epoch that becomes its assignment epoch, and it has only configured jobs; if this is still the
        group epoch, it has each configured job once: assigned to a member, deferred for a departed member, or listed as
        unplaceable because no member may run the job; and it defers no job for a worker that has returned.

        :raises Violation: LEGAL_TARGET, RETURNED_NOT_AWAITED.
        """
        group = step.group
        placed: list[Job] = [job for written in group.targets.values() for job in written.target.jobs]
        if len(placed) != len(set(placed)):
            repeated = sorted({str(job) for job in placed if placed.count(job) > 1})
            raise Violation(
                Invariant.LEGAL_TARGET, f"these jobs are in the targets of more than one member: {repeated}"
            )
        if group.metadata is None or step.hard_state_before.assignment_epoch == group.assignment_epoch:
            return
        if (epoch := getattr(step.event, "group_epoch", None)) != group.assignment_epoch:
            raise Violation(
                Invariant.LEGAL_TARGET,
                f"a target that was computed for the group epoch {epoch} is installed with the assignment epoch "
                f"{group.assignment_epoch}",
            )
        if surplus := Jobs.of(placed) - group.configured_jobs:
            raise Violation(
                Invariant.LEGAL_TARGET, f"the target has jobs that are not configured: {job_list_text(surplus)}"
            )
        if group.assignment_epoch == group.group_epoch:
            everywhere = [
                *placed,
                *(job for one in group.departed.values() if one.deadline_ms is not None for job in one.jobs),
                *(job for one in group.metadata.unplaceable for job in one.jobs),
            ]
            if sorted(map(str, everywhere)) != sorted(map(str, group.configured_jobs)):
                raise Violation(
                    Invariant.LEGAL_TARGET,
                    f"the assigned, deferred and unplaceable jobs are {sorted(map(str, everywhere))}, the configured "
                    f"jobs are {job_list_text(group.configured_jobs)}",
                )
            _check_no_deferral_for_returned_workers(group)

    def _check_epochs_and_held_jobs(self, group: Group) -> None:
        """Check that a member whose member epoch is that of its target holds only jobs of its target, and that no
        member epoch is above the assignment epoch; that each held job has one job epoch, above 0 and at most the
        assignment epoch; and that in a STABLE group every member, except one that has left for a short time, is
        assigned exactly the jobs of its target at the epoch of its target, and has nothing to give back.

        :raises Violation: VALID_MEMBER_EPOCH, VALID_JOB_EPOCH, VALID_STABLE_STATE.
        """
        is_stable = group.group_state() is GroupState.STABLE
        for member_id, current in group.currents.items():
            target, epoch = group.targets[member_id].target.jobs, group.assignment_epoch_to_reach(member_id)
            member_epoch = GroupEpoch(current.member_epoch)
            if member_epoch == epoch and current.member_epoch > JOIN_EPOCH and not current.held_jobs <= target:
                raise Violation(
                    Invariant.VALID_MEMBER_EPOCH,
                    f"{member_id} is at the epoch {epoch} of its target, but holds "
                    f"{job_list_text(current.held_jobs - target)}, "
                    "which the target does not have",
                )
            if member_epoch > group.assignment_epoch:
                raise Violation(
                    Invariant.VALID_MEMBER_EPOCH,
                    f"the member epoch of {member_id} is {current.member_epoch}, above the assignment epoch "
                    f"{group.assignment_epoch}",
                )
            with_epoch = [job for jobs in current.job_epochs.values() for job in jobs]
            if set(with_epoch) != set(current.held_jobs) or len(with_epoch) != len(set(with_epoch)):
                raise Violation(
                    Invariant.VALID_JOB_EPOCH,
                    f"{member_id} holds {job_list_text(current.held_jobs)}, and each of these jobs must have one job "
                    f"epoch, but its job epochs are for {sorted(map(str, with_epoch))}",
                )
            if any(not 0 < job_epoch <= group.assignment_epoch for job_epoch in current.job_epochs):
                raise Violation(
                    Invariant.VALID_JOB_EPOCH,
                    f"{member_id} holds jobs with the job epochs {sorted(current.job_epochs)}, but a job epoch must be "
                    f"above 0 and at most the assignment epoch {group.assignment_epoch}",
                )
            if is_stable and current.member_epoch != LEAVE_BRIEFLY_EPOCH:
                is_settled = current.assigned == target and not current.pending
                if not is_settled or (epoch is not None and member_epoch != epoch):
                    raise Violation(
                        Invariant.VALID_STABLE_STATE,
                        f"the group is STABLE, but {member_id} is not assigned exactly its target, or not at its epoch",
                    )

    # -- nothing waits for what is free -----------------------------------------------------------------------------

    def _check_waiting_members(self, step: ConnectCoordinatorStep) -> None:
        """Check each member whose heartbeat has a response that is held back, or was accepted in this step: the member
        is assigned all jobs of its target that no member holds, and no job outside its target. A member that has jobs
        to give back is checked only if all of this holds: the response to its heartbeat is held back, no other member
        waits for these jobs, and no new target is needed.

        :raises Violation: NOTHING_WAITS_FOR_FREE.
        """
        group = step.group
        held = {member_id for member_id, session in group.sessions.items() if session.held_heartbeat is not None}
        event = step.event
        answered = set[MemberId]()
        if isinstance(event, Heartbeat) and step.is_accepted_heartbeat and event.member_epoch >= JOIN_EPOCH:
            answered.add(event.member_id)
        for member_id in sorted(held | answered):
            current, target = group.currents[member_id], group.targets[member_id].target.jobs
            if current.assigned == target or group.assignment_epoch_to_reach(member_id) is None:
                continue
            # A member gets no new jobs while another member waits for a job that it has to give back, or while it may
            # not have received a revocation. While a new target is needed, the targets do not show yet which jobs
            # members wait for.
            others_wait = any(job in group.target_owner for job in current.pending)
            if current.pending and (member_id not in held or others_wait or group.needs_target):
                continue
            free = [job for job in target - current.assigned if job not in group.holder]
            revocable = current.assigned - target
            if free and not revocable:
                raise Violation(
                    Invariant.NOTHING_WAITS_FOR_FREE,
                    f"{member_id} waits for {job_list_text(Jobs.of(free))}, which no member holds",
                )
            if revocable:
                raise Violation(
                    Invariant.NOTHING_WAITS_FOR_FREE,
                    f"{member_id} has no order to give back {job_list_text(revocable)}, which its target does not have",
                )


def _check_no_deferral_for_returned_workers(group: Group) -> None:
    """Check that no job is deferred for a departed member whose worker is a member again: a member with its instance id
    or, if it has none, with its URL. The group epoch must be the assignment epoch of the targets: a worker that has
    returned since the computation is known to the next one.

    :raises Violation: RETURNED_NOT_AWAITED.
    """
    for departed in group.departed.values():
        if departed.deadline_ms is None or not departed.jobs:
            continue
        for member in group.members.values():
            if departed.instance_id is not None:
                has_returned = member.instance_id == departed.instance_id
            else:
                has_returned = bool(departed.url) and member.url == departed.url
            if has_returned:
                raise Violation(
                    Invariant.RETURNED_NOT_AWAITED,
                    f"the target defers {job_list_text(departed.jobs)} for {departed.member_id}, whose worker is the "
                    f"member {member.member_id} again",
                )


def _may_raise_group_epoch(step: ConnectCoordinatorStep) -> bool:
    """Whether ``step`` may raise the group epoch, because the step has changed the members, the configured jobs, or
    what a member reports for the computation of targets; a member has joined again; a member's assignor requests a new
    target; a scheduled rebalance delay has ended, or may have ended during a computation; a departed member for which
    jobs are deferred has left with LEAVE_EPOCH; the timer of the next computation, which the last target has set, has
    fired; or the group was loaded."""
    before, after = step.hard_state_before, step.group
    if before.members.keys() != after.members.keys() or isinstance(step.event, GroupLoaded):
        return True
    configured_before = (
        before.configured_jobs_record.configured.jobs if before.configured_jobs_record is not None else NO_JOBS
    )
    if configured_before != after.configured_jobs:
        return True
    if any(
        _target_inputs(before.members[member_id]) != _target_inputs(one) for member_id, one in after.members.items()
    ):
        return True
    match step.event:
        case TimerFired(key=RebalanceDelayTimer()):
            return True
        case TimerFired(key=NextComputationTimer()):
            due_ms = before.metadata.next_at_ms if before.metadata is not None else None
            return due_ms is not None
        case InstallAssignment() | TargetComputed():
            # A delay that has ended while the target was computed.
            return any(one.deadline_ms is not None for one in after.departed.values())
        case Heartbeat(member_id=member_id, member_epoch=epoch) if member_id in before.departed_members:
            # A departed member leaves and does not return: its jobs are no longer deferred.
            return epoch == LEAVE_EPOCH and bool(before.departed_members[member_id].jobs)
        case Heartbeat(member_id=member_id, member_epoch=epoch, client_assignors=assignors):
            has_joined_again = epoch == JOIN_EPOCH and before.current_assignments[member_id].member_epoch != JOIN_EPOCH
            return has_joined_again or _requests_new_target(assignors or ())
        case _:
            return False


def _requests_new_target(assignors: Iterable[object]) -> bool:
    """Whether one of ``assignors``, the assignors in a member's heartbeat, requests a new target assignment."""
    return any(getattr(one, "reason", AssignorChangeReason.NONE) != AssignorChangeReason.NONE for one in assignors)


def _target_inputs(metadata: MemberRecord) -> tuple[object, ...]:
    """The part of a member's metadata that the computation of a target assignment uses."""
    return metadata.client_assignors, metadata.server_assignor, metadata.claims, metadata.draining
