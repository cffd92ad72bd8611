"""The computation of a target assignment: the coordinator has chosen this worker, whose assignor runs as a chore.

The assignor may be a plug-in, so it may fail in any way. Its failure is sent to the coordinator, which then chooses
another worker; this worker keeps its jobs.
"""

from coterie.herder.messages import ComputeTarget, TargetComputationEnded, WriteLogMessage
from coterie.herder.state import Turn
from coterie.nouns.membership import InstallTarget, TargetRequested


def on_target_requested(turn: Turn, event: TargetRequested) -> None:
    """The coordinator has requested a target assignment from this worker: order the chore that computes it."""
    turn.emit(ComputeTarget(token=event.token, snapshot=event.snapshot))


def send_target_or_failure(turn: Turn, event: TargetComputationEnded) -> None:
    """Send the target assignment, or the assignor's failure, to the coordinator. The member drops it if the coordinator
    no longer waits for it."""
    if event.target is None:
        turn.emit(
            WriteLogMessage(
                text=f"The assignor of this worker could not compute the target assignment: {event.error}. The present "
                "assignments stay; the coordinator orders another computation",
                is_error=True,
            )
        )
    turn.emit(InstallTarget(token=event.token, target=event.target, error=event.error))
