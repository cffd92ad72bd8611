"""The next step of one member towards its target assignment (K848C, "Reconciliation of the group").

A member first gives back the revoked jobs, and receives new jobs only afterwards: one response never both revokes and
assigns. A job is assigned as soon as it is free; it does not wait for other jobs of its former owner.

A revoked job that no member's target contains (its connector was deleted) does not delay the new jobs of its member: no
member waits for this job, and its stop can hang in a plug-in. The new jobs come in a later response than the one that
revokes this job.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from coterie.groups.connect.messages import CurrentAssignment
from coterie.nouns.ids import GroupEpoch, MemberEpoch
from coterie.nouns.jobs import Job, Jobs


def reconcile(
    current: CurrentAssignment,
    *,
    target: Jobs,
    assignment_epoch: GroupEpoch,
    request_epoch: MemberEpoch,
    owned: Jobs | None,
    is_free: Callable[[Job], bool],
    is_in_a_target: Callable[[Job], bool],
    has_received_responses: bool,
) -> CurrentAssignment:
    """The member's assignment after the next step towards ``target``, which was computed for ``assignment_epoch``.

    The step only revokes if the member has jobs outside of ``target``: they become pending, and no job is assigned. It
    also assigns no job while the member has not given back a pending job that is in the target of any member, and,
    while any job is pending, if the member may have missed a response. Otherwise the step assigns the free jobs of
    ``target``. The member epoch becomes ``assignment_epoch`` when no job is pending.

    :param request_epoch: the member epoch in the member's request; it becomes the previous epoch when the epoch
        changes.
    :param owned: the jobs that the member reports in its request; each job that is not in ``owned`` has stopped on the
        member. None if the request lists no jobs: it then acknowledges nothing.
    :param is_free: whether no other member has a job. A job of the target that this member has given back is free for
        it at once.
    :param is_in_a_target: whether the target of any member contains a job.
    :param has_received_responses: whether the member has certainly received all earlier responses.
    """
    epoch = MemberEpoch(assignment_epoch)
    if owned is None and current.member_epoch == epoch and not current.pending and current.assigned == target:
        return current  # Nothing is to be done. Most heartbeats end here, in the same time for any number of jobs.
    pending, to_revoke = current.pending, current.assigned - target
    if owned is not None:
        pending &= owned
        to_revoke &= owned  # the member has stopped the others, or has never received them
    pending |= to_revoke
    kept = current.assigned & target
    if to_revoke or (pending and not has_received_responses) or any(map(is_in_a_target, pending)):
        # A job that is not in `owned` was assigned in a lost response: it is assigned again after the revocation.
        kept = kept if owned is None else kept & owned
        return _with_jobs(current, kept, pending, current.job_epochs)
    missing = target - kept
    assigned = kept | Jobs.of(job for job in missing if is_free(job))
    if assigned == target:
        assigned = target  # The same object as the target, so that the next comparison is quick.
    job_epochs = current.job_epochs
    if new := assigned - kept:
        # A job that was given back in this step, and is assigned again, has its former epoch no more.
        job_epochs = {epoch: left for epoch, jobs in job_epochs.items() if (left := jobs - new)}
        job_epochs[assignment_epoch] = job_epochs.get(assignment_epoch, Jobs()) | new
    reconciled = _with_jobs(current, assigned, pending, job_epochs)
    if pending or epoch == current.member_epoch:
        return reconciled
    return replace(reconciled, member_epoch=epoch, previous_epoch=request_epoch)


def _with_jobs(
    current: CurrentAssignment, assigned: Jobs, pending: Jobs, job_epochs: Mapping[GroupEpoch, Jobs]
) -> CurrentAssignment:
    """``current`` with these assigned and pending jobs, and with the job epochs of these jobs only; ``current`` itself
    if neither set has changed."""
    if assigned == current.assigned and pending == current.pending:
        return current
    held = assigned | pending
    remaining = {epoch: left for epoch, jobs in job_epochs.items() if (left := jobs & held)}
    return replace(current, assigned=assigned, pending=pending, job_epochs=remaining)
