"""The events that the listeners of this worker's rebalances receive (K848C, "Rebalance Process" and "Response
Handling").

The listeners are plug-ins, and nothing waits for them: a job that has stopped is reported to the coordinator at once.
After each event of the herder, the jobs that were announced to the listeners as assigned are compared with those that
are assigned to this worker. Jobs that are gone are announced together, when the last of them has stopped; new jobs when
the last of them has been started. So each job is announced as revoked or lost as often as it was announced as assigned,
and a job that was assigned and revoked before it was announced is not announced.

A relaunch announces nothing: its jobs stay with this worker. The next process announces all of them as assigned.
"""

from coterie.herder.messages import NotifyRebalanceListeners
from coterie.herder.seams import JobsAssigned, JobsLost, JobsRevoked
from coterie.herder.state import Herder, Turn
from coterie.herder.work import NotStarted, Starting
from coterie.nouns.jobs import ConnectorTaskId
from coterie.nouns.membership import MembershipLost
from coterie.nouns.target_assignments import TargetOfMember


def clear_lease_end(turn: Turn) -> None:
    """This worker has an assignment, so it is a member again: jobs that stop from now on are announced as revoked, not
    as lost."""
    turn.herder.targets.has_lease_ended = False


def store_whether_lease_ended(turn: Turn, event: MembershipLost) -> None:
    """The membership is lost. When its jobs have stopped, they are announced as lost if the lease had ended, otherwise
    as revoked."""
    turn.herder.targets.has_lease_ended = event.has_lease_ended


def announce_job_changes(turn: Turn) -> None:
    """Announce to the listeners the jobs that are no longer assigned to this worker, if all of these have stopped, and
    the newly assigned jobs, if all of these have been started."""
    if turn.herder.targets.announced != turn.herder.place.assigned:
        _announce_gone_jobs_if_all_stopped(turn)
        _announce_new_jobs_if_all_started(turn)


def _announce_gone_jobs_if_all_stopped(turn: Turn) -> None:
    """Announce the jobs that were announced as assigned and are no longer assigned to this worker, if all of them have
    stopped."""
    herder, targets = turn.herder, turn.herder.targets
    gone = targets.announced - herder.place.assigned
    if not gone or not gone.tasks.isdisjoint(herder.work.tasks_that_may_hold_checkpoint):
        return
    targets.announced -= gone
    turn.emit(NotifyRebalanceListeners(news=JobsLost(jobs=gone) if targets.has_lease_ended else JobsRevoked(jobs=gone)))


def _announce_new_jobs_if_all_started(turn: Turn) -> None:
    """Announce the newly assigned jobs, if all of them have been started. Does nothing while no job may start, or while
    the worker relaunches."""
    herder, targets = turn.herder, turn.herder.targets
    new = herder.place.assigned - targets.announced
    may_start = herder.lifecycle.is_runtime_open and herder.is_caught_up and herder.place.has_valid_lease(turn.now_ms)
    if not new or not may_start or herder.lifecycle.is_relaunching:
        return
    if any(_is_start_outstanding(herder, task) for task in new.tasks):
        return
    details = targets.details
    assert details is not None, "a worker without an assignment has assigned jobs"
    assignment = TargetOfMember(jobs=herder.place.assigned, version=details.metadata_version, metadata=details.metadata)
    targets.announced |= new
    if targets.announced == herder.place.assigned:
        targets.announced = herder.place.assigned  # One object, so `announce_job_changes` compares it in no time.
    turn.emit(
        NotifyRebalanceListeners(
            news=JobsAssigned(jobs=new, assignment_epoch=details.assignment_epoch, assignment=assignment)
        )
    )


def _is_start_outstanding(herder: Herder, task: ConnectorTaskId) -> bool:
    """Whether the first start of a newly assigned task has not returned yet."""
    match herder.work.local_tasks[task].state:
        case Starting():
            return True
        case NotStarted():
            return herder.spec_to_run(task) is not None
        case _:
            return False
