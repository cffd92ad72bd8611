"""The kill: kills a worker and its JVM while a batch is planned and not committed, and checks this after the kill.

The worker's process group is stopped (SIGSTOP), so that its tasks' checkpoints do not change while they are read. If a
batch has ``offsets/N`` and no ``commits/N``, the stopped group is killed. Otherwise the group resumes (SIGCONT), and
the check is repeated a moment later.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.cli.demo.observe import CheckpointFinder
from coterie.cli.processes import Child
from coterie.nouns.errors import WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.checkpoint import find_batch_id_in_flight, last_batch_id_in_log, task_start_number_of

_CHECK_INTERVAL_S = 0.05
"""Time between two checks; meanwhile the worker runs."""
SUSPENSION_TIMEOUT_S = 10.0
"""How long the processes may take to stop after SIGSTOP; only a process that waits for a disk takes more than a
moment."""
_END_AFTER_KILL_TIMEOUT_S = 10.0
"""How long the processes may take to end after SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInFlight:
    """A batch that was planned and not committed when its worker was killed."""

    task: ConnectorTaskId
    batch_id: int
    planned_offsets: bytes
    """The content of ``offsets/N``, where N is ``batch_id``."""
    task_start_number: int
    """How often the task had been started, on all workers together, when the worker was killed."""


def kill_in_mid_batch_unless_ended(
    child: Child,
    tasks: Sequence[ConnectorTaskId],
    checkpoints: CheckpointFinder,
    *,
    timeout_s: float,
    between_checks: Callable[[], None],
) -> list[BatchInFlight]:
    """Kill ``child`` and its process group in the middle of a batch; return the interrupted batches of ``tasks``.

    The list is empty if the child ended before, for another reason. ``between_checks`` is called after each check that
    has found no batch in flight.

    :raises WorldError: when no check found a batch in flight within ``timeout_s`` of this call, the processes have not
        stopped 10 s after SIGSTOP or still run 10 s after SIGKILL, or an interrupted batch was committed after the
        processes had been stopped.
    """
    deadline = time.monotonic() + timeout_s
    while child.is_running:
        child.suspend()
        try:
            wait_until_processes_suspended(child.pid)
        except WorldError:
            child.resume()
            raise
        interrupted = [
            found
            for task in tasks
            if (found := _find_batch_in_flight(checkpoints.checkpoint_dir(task), task)) is not None
        ]
        if interrupted:
            child.kill()
            _wait_until_processes_ended(child.pid)
            _check_batches_uncommitted(interrupted, checkpoints)
            return interrupted
        child.resume()
        if time.monotonic() > deadline:
            raise WorldError(
                f"The demo could not kill {child.name} in the middle of a batch: within {timeout_s:.0f} s, it was "
                "never found with a batch that was planned and not committed. Run the demo again."
            )
        between_checks()
        time.sleep(_CHECK_INTERVAL_S)
    return []


def are_batches_repeated_or_raise(interrupted: Sequence[BatchInFlight], checkpoints: CheckpointFinder) -> bool:
    """Whether each interrupted batch has been repeated and committed by its task's new owner, as its first batch. False
    also while another start takes one of the checkpoints over: call this again then.

    :raises WorldError: when a new owner planned the batch differently, or committed a later batch first.
    """
    try:
        return all(_is_batch_repeated_or_raise(batch, checkpoints.checkpoint_dir(batch.task)) for batch in interrupted)
    except OSError:
        return False  # another start took the checkpoint over meanwhile


# -- helpers ----------------------------------------------------------------------------------------------------------


def _find_batch_in_flight(checkpoint_dir: Path | None, task: ConnectorTaskId) -> BatchInFlight | None:
    """The batch that is planned and not committed in ``checkpoint_dir``; None when there is none or no checkpoint."""
    if checkpoint_dir is None or (batch_id := find_batch_id_in_flight(checkpoint_dir)) is None:
        return None
    try:
        planned_offsets = (checkpoint_dir / "offsets" / str(batch_id)).read_bytes()
    except OSError:
        return None  # another start took the checkpoint over meanwhile
    return BatchInFlight(
        task=task,
        batch_id=batch_id,
        planned_offsets=planned_offsets,
        task_start_number=task_start_number_of(checkpoint_dir),
    )


def _is_batch_repeated_or_raise(interrupted: BatchInFlight, checkpoint_dir: Path | None) -> bool:
    """Whether a later start of the task has repeated and committed the batch ``interrupted`` as its first
    batch.

    :raises WorldError: when the new owner planned the batch differently, or committed a later batch first.
    :raises OSError: when another start takes the checkpoint in ``checkpoint_dir`` over meanwhile.
    """
    if checkpoint_dir is None or task_start_number_of(checkpoint_dir) == interrupted.task_start_number:
        return False
    offsets, commits = checkpoint_dir / "offsets", checkpoint_dir / "commits"
    committed = last_batch_id_in_log(commits)
    if committed is None or committed < interrupted.batch_id:
        return False
    if (offsets / str(interrupted.batch_id)).read_bytes() != interrupted.planned_offsets:
        raise WorldError(
            f"The new owner of {interrupted.task} planned batch {interrupted.batch_id} again instead of repeating "
            "the old plan: this is a bug in Coterie."
        )
    later_commits = [
        path for path in commits.iterdir() if path.name.isdigit() and int(path.name) > interrupted.batch_id
    ]
    committed_at_ns = (commits / str(interrupted.batch_id)).stat().st_mtime_ns
    if any(path.stat().st_mtime_ns < committed_at_ns for path in later_commits):
        raise WorldError(
            f"Batch {interrupted.batch_id} was interrupted, but the new owner of {interrupted.task} first committed a "
            "later batch: this is a bug in Coterie."
        )
    return True


def _check_batches_uncommitted(interrupted: Sequence[BatchInFlight], checkpoints: CheckpointFinder) -> None:
    """Check that none of the ``interrupted`` batches is committed.

    :raises WorldError: when one of the batches is committed, or its task has no checkpoint any more.
    """
    for batch in interrupted:
        checkpoint_dir = checkpoints.checkpoint_dir(batch.task)
        if checkpoint_dir is None or (checkpoint_dir / "commits" / str(batch.batch_id)).exists():
            raise WorldError(
                f"Batch {batch.batch_id} of {batch.task} was committed, or its checkpoint disappeared, although its "
                "worker was suspended (SIGSTOP) and then killed. Run the demo again."
            )


def wait_until_processes_suspended(process_group: int) -> None:
    """Wait until every process of the process group is suspended (SIGSTOP, which takes effect a moment later) or has
    ended.

    :raises WorldError: when a process still runs after ``SUSPENSION_TIMEOUT_S``.
    """
    deadline = time.monotonic() + SUSPENSION_TIMEOUT_S
    while any(state not in "TtZX" for state in process_states(process_group)):
        if time.monotonic() > deadline:
            raise WorldError(
                f"Process group {process_group} has not stopped {SUSPENSION_TIMEOUT_S:g} s after SIGSTOP, and may "
                "still write to "
                "its tasks' checkpoints; run the demo again."
            )
        time.sleep(0.002)


def _wait_until_processes_ended(process_group: int) -> None:
    """Wait until every process of the process group has ended.

    :raises WorldError: when one still runs after ``_END_AFTER_KILL_TIMEOUT_S``.
    """
    deadline = time.monotonic() + _END_AFTER_KILL_TIMEOUT_S
    while any(state not in "ZX" for state in process_states(process_group)):
        if time.monotonic() > deadline:
            raise WorldError(
                f"Process group {process_group} still runs {_END_AFTER_KILL_TIMEOUT_S:.0f} s after SIGKILL. "
                "Run the demo again when its processes have ended."
            )
        time.sleep(0.01)


def process_states(process_group: int) -> list[str]:
    """The states of all processes of the process group, as in ``/proc/<pid>/stat``: R, S, T, Z, …"""
    states = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[2]) == process_group:
            states.append(fields[0])
    return states
