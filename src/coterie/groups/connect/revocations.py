"""The time that a member has to give back revoked jobs: its rebalance timeout, which runs from the oldest revocation
that the member has not acknowledged."""

from dataclasses import replace

from coterie.groups.connect.messages import RevocationTimer
from coterie.groups.connect.soft_state import Revocation
from coterie.groups.connect.turn import Turn
from coterie.nouns.ids import MemberId


def update_revocations_and_timer(turn: Turn, member_id: MemberId) -> None:
    """Called when the jobs that the member has to give back may have changed. Store for each of these jobs when it was
    revoked, and set the timer to the rebalance timeout after the oldest revocation; without such jobs, cancel it."""
    group = turn.group
    session, pending = group.sessions[member_id], group.currents[member_id].pending
    if not pending and not session.revocations:
        return
    left, new = list[Revocation](), pending
    for one in session.revocations:
        if jobs := one.unreleased_jobs & pending:
            left.append(replace(one, unreleased_jobs=jobs))
            new -= jobs
    if new:
        left.append(Revocation(revoked_at_ms=turn.now_ms, unreleased_jobs=new))
    session.revocations = tuple(left)
    timer = RevocationTimer(member_id=member_id)
    if not left:
        turn.cancel_timer(timer)
        return
    deadline_ms = left[0].revoked_at_ms + group.members[member_id].rebalance_timeout_ms
    if group.deadlines.get(timer) != deadline_ms:
        turn.set_timer(timer, deadline_ms)


def late_revocation_removal_reason(turn: Turn, member_id: MemberId) -> str:
    """Why the member is removed: it has not given back jobs within its rebalance timeout. For the member's worker, and
    for the operator."""
    group = turn.group
    unreleased = group.sessions[member_id].revocations[0].unreleased_jobs
    return (
        f"it has not given back {next(iter(unreleased))} (one of {len(unreleased)} jobs) within "
        f"{group.members[member_id].rebalance_timeout_ms} ms; the worker's rebalance.timeout.ms must be longer than a "
        "stop of its jobs takes (task.shutdown.graceful.timeout.ms)"
    )
