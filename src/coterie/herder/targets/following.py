"""A worker's part in a connect group: it receives an assignment, or its membership is lost."""

from coterie.herder import place, statuses
from coterie.herder.messages import WriteLogMessage
from coterie.herder.state import Turn
from coterie.herder.targets import configured_jobs, description, listening
from coterie.nouns.membership import Assigned, ConnectAssignmentDetails, MembershipLost


def on_assigned(turn: Turn, event: Assigned) -> None:
    """Apply the assignment, which contains all jobs of this worker. The leader also deletes the statuses of deleted
    jobs, and requests the group's description, which contains the jobs without a worker."""
    herder = turn.herder
    details = event.protocol_details
    assert isinstance(details, ConnectAssignmentDetails), "the assignment is not one of a connect group"
    is_news = herder.place.is_lost or event.jobs != herder.place.assigned or event.leader != herder.place.leader
    if is_news or bool(event.revoked):
        turn.emit(WriteLogMessage(text=_assignment_summary(event, details)))
    herder.targets.details = details
    listening.clear_lease_end(turn)
    place.apply_round_result(turn, event, has_failed=False)
    if herder.place.is_leader_with_current_assignment:
        configured_jobs.start_reporting_if_new_leader(turn, details.leader_epoch)
        statuses.delete_orphaned_statuses(turn)
        description.request_description(turn)
    else:
        configured_jobs.stop_reporting(turn)


def on_membership_lost(turn: Turn, event: MembershipLost) -> None:
    """The membership is lost: drop all jobs, so that all tasks stop. The member rejoins, with no owned jobs, when all
    tasks have stopped."""
    text = f"The group membership is lost; this worker stops all its tasks, and rejoins unless it ends: {event.reason}"
    turn.emit(WriteLogMessage(text=text))
    place.forget_membership(turn)
    turn.herder.targets.details = None
    listening.store_whether_lease_ended(turn, event)
    configured_jobs.stop_reporting(turn)
    description.forget_description(turn)


def _assignment_summary(event: Assigned, details: ConnectAssignmentDetails) -> str:
    """The assignment, as a log message."""
    given = ", ".join(map(str, event.jobs)) or "nothing"
    back = ", ".join(map(str, event.revoked)) or "nothing"
    leader = f"led by {event.leader_url}" if event.leader else "without a leader"
    return (
        f"Member epoch {event.epoch} (assignment epoch {details.assignment_epoch}), {leader}: "
        f"assigned {given}; revoked {back}"
    )
