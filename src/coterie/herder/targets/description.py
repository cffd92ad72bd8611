"""The description of the group, which the coordinator returns on request."""

from coterie.herder import shared_names, statuses
from coterie.herder.group_view import worker_id_of_url
from coterie.herder.state import Turn
from coterie.herder.targets import group_view
from coterie.nouns.membership import GroupDescribed, RequestGroupDescription


def request_description(turn: Turn) -> None:
    """Request the description from the coordinator, unless a request has no response yet."""
    targets = turn.herder.targets
    if not targets.is_description_requested:
        targets.is_description_requested = True
        turn.emit(RequestGroupDescription())


def on_group_described(turn: Turn, event: GroupDescribed) -> None:
    """Store the description, or the error if the coordinator has returned none. The leader also queues the status
    UNASSIGNED, with the reason, of the jobs without a worker, and logs a warning if workers have the same name."""
    targets = turn.herder.targets
    targets.is_description_requested = False
    targets.description, targets.description_error = event.description, event.error
    if event.description is not None and turn.herder.place.is_leader_with_current_assignment:
        statuses.report_unassigned_jobs(turn, group_view.unassigned_reasons(event.description))
        shared_names.warn_about_shared_names(
            turn, ((one.name, worker_id_of_url(one.url)) for one in event.description.members if one.name)
        )


def forget_description(turn: Turn) -> None:
    """Drop the description, because this worker is no longer a member."""
    turn.herder.targets.description = None
