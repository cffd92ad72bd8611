"""The kill: kills a worker and its JVM while a batch is planned and not committed, and verifies that.

The worker's process group is stopped (SIGSTOP), so that its tasks' checkpoints do not change while they are read. If a
batch has ``offsets/N`` and no ``commits/N``, the stopped group is killed. Otherwise the group resumes (SIGCONT), and
the check is repeated a moment later.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.cli.demo.observe import Checkpoints
from coterie.cli.processes import Child
from coterie.nouns.errors import WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.checkpoint import batch_in_flight, last_batch, starts_of

_PAUSE_S = 0.05
_STOPPED_WITHIN_S = 2.0
_GONE_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInFlight:
    """A batch that was planned and not committed when its worker was killed."""

    task: ConnectorTaskId
    batch: int
    plan: bytes
    """The content of ``offsets/N``."""
    starts: int
    """The number of task starts up to the one that planned the batch."""


def kill_in_mid_batch(
    child: Child,
    tasks: Sequence[ConnectorTaskId],
    checkpoints: Checkpoints,
    *,
    deadline_s: float,
    meanwhile: Callable[[], None],
) -> list[BatchInFlight]:
    """Kill ``child`` and its group in the middle of a batch; return the batches of ``tasks`` that this interrupted.

    The list is empty if the child ended before, for another reason.

    :raises WorldError: when no batch was in flight within ``deadline_s``, or the batch was committed all the same.
    """
    deadline = time.monotonic() + deadline_s
    while child.is_running:
        child.stop()
        wait_until_stopped(child.pid)
        cut = [found for task in tasks if (found := _in_flight(checkpoints.holder(task), task)) is not None]
        if cut:
            child.kill()
            _wait_until_gone(child.pid)
            _assert_uncommitted(cut, checkpoints)
            return cut
        child.go_on()
        if time.monotonic() > deadline:
            raise WorldError(f"No check within {deadline_s:.0f} s found a batch of {child.name} in flight.")
        meanwhile()
        time.sleep(_PAUSE_S)
    return []


def assert_continued(cut: Sequence[BatchInFlight], checkpoints: Checkpoints) -> bool:
    """Whether the new owner of each task has repeated and committed the interrupted batch as its first batch.

    :raises WorldError: when a new owner planned another batch instead, or committed a later batch first.
    """
    try:
        return all(_is_continued(one, checkpoints.holder(one.task)) for one in cut)
    except OSError:
        return False  # another start took the checkpoint over meanwhile


# -- helpers ----------------------------------------------------------------------------------------------------------


def _in_flight(holder: Path | None, task: ConnectorTaskId) -> BatchInFlight | None:
    if holder is None or (batch := batch_in_flight(holder)) is None:
        return None
    try:
        plan = (holder / "offsets" / str(batch)).read_bytes()
    except OSError:
        return None  # another start took the checkpoint over meanwhile
    return BatchInFlight(task=task, batch=batch, plan=plan, starts=starts_of(holder))


def _is_continued(one: BatchInFlight, holder: Path | None) -> bool:
    """:raises OSError: when another start takes the checkpoint in ``holder`` over meanwhile."""
    if holder is None or starts_of(holder) == one.starts:
        return False
    offsets, commits = holder / "offsets", holder / "commits"
    committed = last_batch(commits)
    if committed is None or committed < one.batch:
        return False
    if (offsets / str(one.batch)).read_bytes() != one.plan:
        raise WorldError(f"The new owner of {one.task} planned batch {one.batch} again instead of repeating its plan.")
    later = [path for path in commits.iterdir() if path.name.isdigit() and int(path.name) > one.batch]
    at_ns = (commits / str(one.batch)).stat().st_mtime_ns
    if any(path.stat().st_mtime_ns < at_ns for path in later):
        raise WorldError(f"Batch {one.batch} was not the first batch that the new owner of {one.task} committed.")
    return True


def _assert_uncommitted(cut: Sequence[BatchInFlight], checkpoints: Checkpoints) -> None:
    for one in cut:
        holder = checkpoints.holder(one.task)
        if holder is None or (holder / "commits" / str(one.batch)).exists():
            raise WorldError(f"Batch {one.batch} of {one.task} was committed after its worker had been stopped.")


def wait_until_stopped(group: int) -> None:
    """Wait until every process of the group is stopped: SIGSTOP takes a moment to reach all threads."""
    deadline = time.monotonic() + _STOPPED_WITHIN_S
    while any(state not in "TtZX" for state in states(group)) and time.monotonic() < deadline:
        time.sleep(0.002)


def _wait_until_gone(group: int) -> None:
    deadline = time.monotonic() + _GONE_WITHIN_S
    while any(state not in "ZX" for state in states(group)):
        if time.monotonic() > deadline:
            raise WorldError(f"Process group {group} still runs {_GONE_WITHIN_S:.0f} s after SIGKILL.")
        time.sleep(0.01)


def states(group: int) -> list[str]:
    """The states of all processes of a group, as the kernel writes them (R, S, T, Z, …)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[2]) == group:
            found.append(fields[0])
    return found
