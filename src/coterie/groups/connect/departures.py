"""Members that have departed: how long their jobs are deferred for them, and how long the jobs may still run on
them."""

from dataclasses import replace

from coterie.groups.connect.messages import DepartedMemberRemoved, HeldJobsTimer, MemberDeparted, RebalanceDelayTimer
from coterie.groups.connect.turn import Turn
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.target_assignments import DeferredJobs


def release_held_jobs(turn: Turn, member_id: MemberId) -> None:
    """Called when the session of a departed member would have ended: its worker runs no job any more, so the jobs that
    were held for it are free for other members. The departed member is forgotten if no job is deferred for it."""
    departed = turn.group.departed[member_id]
    if departed.jobs:
        turn.write(replace(departed, held=NO_JOBS))
    else:
        forget_departed_member(turn, member_id)


def defer_jobs(turn: Turn, departed: MemberDeparted, deferred: DeferredJobs) -> None:
    """Defer the jobs of ``deferred`` for the departed member: until the delay is over, no member gets them. The delay
    counts from the departure, and a delay that has begun never becomes longer. If the delay is already over, a new
    target is needed: the group epoch rises."""
    if departed.deadline_ms is None:
        deadline_ms = departed.left_at_ms + deferred.delay_ms
    else:
        deadline_ms = min(departed.deadline_ms, turn.now_ms + deferred.delay_ms)
    changed = replace(departed, jobs=deferred.jobs, deadline_ms=deadline_ms)
    if changed != departed:
        turn.write(changed)
    if deadline_ms > turn.now_ms:
        turn.set_timer(RebalanceDelayTimer(member_id=departed.member_id), deadline_ms)
    else:
        turn.bump_group_epoch()  # the delay has ended while the target was computed


def end_deferral(turn: Turn, departed: MemberDeparted) -> None:
    """End the deferral of the jobs of a departed member. If no job may still run on its worker either, forget it."""
    if not departed.held:
        forget_departed_member(turn, departed.member_id)
    elif departed.jobs:
        turn.write(replace(departed, jobs=NO_JOBS, deadline_ms=None))
        turn.cancel_timer(RebalanceDelayTimer(member_id=departed.member_id))


def forget_departed_member(turn: Turn, member_id: MemberId) -> None:
    """Remove the record and the timers of a departed member. Called when it has returned or has left with LEAVE_EPOCH,
    when no job is deferred for it and none may still run on its worker, and when the group is removed."""
    turn.write(DepartedMemberRemoved(member_id=member_id))
    turn.cancel_timer(HeldJobsTimer(member_id=member_id))
    turn.cancel_timer(RebalanceDelayTimer(member_id=member_id))
