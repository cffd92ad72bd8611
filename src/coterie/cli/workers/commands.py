"""`coterie group`, `coterie worker drain` and `coterie workers restart`, through the REST API of any worker."""

import shlex
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.assignors.assignor_state import union
from coterie.cli.group.client import GroupClient
from coterie.cli.group.descriptions import (
    DeferredDescription,
    GroupDescription,
    JobsDescription,
    MemberDescription,
    OrderAnswer,
)
from coterie.cli.plan.preview import named_group
from coterie.nouns.errors import WorldError

# A name may contain the code of an emoji, such as :boom:.
_console = Console(highlight=False, emoji=False)
_UNREACHABLE = "UNREACHABLE"
_STYLES = {"STABLE": "green", _UNREACHABLE: "red", "UNJOINED": "red"}
SETTLE_S = 60.0
"""How long a group may take to become stable before the next worker restarts."""
START_S = 60.0
"""A worker that lost its membership in a restart counts as ended if its address refuses connections for this time. The
worker's process replaces itself, and loading the new process takes long on a busy machine."""
_TRANSITION_PHASES = ("starting", "stopping")
"""The phases of tasks in which a group does not count as stable."""
_STARTED_PHASES = ("running", "failed", "taken")
"""The phases of tasks that count as started again after a restart."""


# -- the group --------------------------------------------------------------------------------------------------------


def show_group(url: str, *, as_json: bool) -> None:
    """Print the group of the worker at ``url``, as JSON or as tables and sentences.

    :raises WorldError: see :meth:`.GroupClient.describe`.
    """
    with GroupClient(url) as group:
        shown = group.describe()
    if as_json:
        sys.stdout.write(shown.model_dump_json(indent=2, by_alias=True) + "\n")
        return
    led_by = f"led by {escape(shown.leader.name)}" if shown.leader is not None else "without a leader"
    _console.print(f"Generation {shown.generation} ({shown.protocol}), {led_by}")
    table = Table("worker", "at", "state", "connectors", "tasks", "tasks by phase", box=None, header_style="bold")
    for member in shown.members:
        table.add_row(
            escape(member.name),
            escape(member.worker_id),
            _state(member),
            str(len(member.owned.connectors)),
            str(len(member.owned.tasks)),
            ", ".join(f"{count} {phase}" for phase, count in (member.phases or {}).items()) or "-",
        )
    _console.print(table)
    for member in shown.members:
        if len(member.revoked):
            _console.print(f"{escape(member.name)} must release {_jobs(member.revoked)}.")
        if member.drain_waits is not None:
            _console.print(f"The drain of {escape(member.name)} waits: {escape(member.drain_waits)}.")
    for deferred in shown.deferred:
        left_s = deferred.left_ms / 1000
        _console.print(
            f"{_jobs(deferred.jobs)} of {escape(_whose(deferred))} wait {left_s:.0f} s more for the worker's return."
        )
    for job in shown.unassigned:
        name = job.connector if job.task is None else f"{job.connector}-{job.task}"
        _console.print(f"[red]{escape(name)} is unassigned[/red]: {escape(job.reason)}.")


def _state(member: MemberDescription) -> str:
    """The member's state with rich's markup of its color, whether it drains, and how many jobs it claims."""
    style = _STYLES.get(member.state, "yellow")
    said = [f"[{style}]{escape(member.state)}[/{style}]"]
    if member.draining:
        said.append("draining")
    if member.claims is not None:
        said.append(f"claims {_jobs(member.claims)}")
    return ", ".join(said)


# -- scale-in ---------------------------------------------------------------------------------------------------------


def drain(url: str, worker: str) -> None:
    """Order ``worker`` to drain, and print the drain's progress until the worker's process has ended.

    :raises WorldError: when the worker refuses the drain, is not a member yet, or ends before all its jobs have moved;
        when the drain is cancelled or the process restarted; or when the group cannot be read.
    """
    with GroupClient(url) as group:
        before = group.describe()
        drained = group.send_order("POST", worker, "drain")
        last = _find_ordered_worker(before, drained) or _find_ordered_worker(
            group.describe(), drained
        )  # The worker may have joined meanwhile.
        if last is None:
            raise WorldError(f"{drained.name} is draining and has just joined: follow the drain with `coterie group`")
        said = ""
        while True:
            shown = group.describe()
            now = _find_ordered_worker(shown, drained)
            if now is None and group.refuses_connections(last.url):
                check_handed_over(shown, last)
                _console.print(f"{escape(drained.name)} has handed its jobs over and has ended.")
                return
            if now is not None:
                last = now
                # A reachable worker reports `draining` itself; for an unreachable one it is from the last round.
                if now.state != _UNREACHABLE and not now.draining:
                    raise WorldError(
                        f"The drain of {drained.name} was cancelled, or its process was restarted: the worker stays."
                    )
                text = f"{escape(drained.name)} is draining: {_count(len(now.owned) + len(now.revoked))} left"
                if now.drain_waits is not None:
                    text += f"; the drain waits: {escape(now.drain_waits)}"
                if text != said:
                    said = text
                    _console.print(text)
            time.sleep(0.2)


def _find_ordered_worker(description: GroupDescription, ordered: OrderAnswer) -> MemberDescription | None:
    """The member that accepted an order, found by its host:port, because two members may have the same name.

    None if ``description`` has no such member.
    """
    return next((member for member in description.members if member.worker_id == ordered.worker_id), None)


def check_handed_over(description: GroupDescription, last: MemberDescription) -> None:
    """Check that a drained member left the group after its jobs had moved.

    ``last`` is the last state of the member, which is missing in ``description``. After a crash a member stays in the
    group, UNREACHABLE, until its session ends.

    :raises WorldError: when ``last`` had jobs, and was UNREACHABLE or had a job that no other member owns now.
    """
    had = (last.owned.jobs | last.revoked.jobs) & description.configured.jobs
    left = had - union(member.owned.jobs for member in description.members)
    if had and (last.state == _UNREACHABLE or left):
        raise WorldError(
            f"{last.name} ended before its drain was complete; its {_count(len(had))} are treated as those of a lost "
            "worker."
        )


def uncordon(url: str, worker: str) -> None:
    """Order ``worker`` to cancel its drain.

    :raises WorldError: see :meth:`.GroupClient.send_order`.
    """
    with GroupClient(url) as group:
        name = group.send_order("DELETE", worker, "drain").name
    _console.print(f"The drain of {escape(name)} is cancelled: the worker stays and accepts jobs again.")


# -- rolling restart --------------------------------------------------------------------------------------------------


def restart_rolling(url: str, *, timeout_s: float, only: Sequence[str] = ()) -> None:
    """Restart all workers of a group, or ``only`` these, one after the other, the leader last.

    ``timeout_s`` is how long each worker may take from the order until it runs its jobs again.

    :raises WorldError: when a name in ``only`` does not match exactly one worker, the only worker is not named, or the
        group is not stable at the beginning. Also when a worker refuses to restart or does not return in time, another
        worker leaves meanwhile, or the group does not become stable again: then the message names the restarted workers
        and the command to continue with.
    """
    with GroupClient(url) as group:
        shown = _wait_until_stable(group)
        seen = list(shown.members)
        known = named_group(shown, source="The response of the group")
        named = {known.find_member(text) for text in only} or known.names.keys()
        left = [member for member in seen if member.member_id in named]
        names = ", ".join(escape(member.name) for member in seen)
        _console.print(f"The group has {_count(len(seen), 'worker')}: {names}.")
        if len(seen) == 1:
            _check_alone(seen[0], is_named=bool(only))
        restarted: list[str] = []
        try:
            while left:
                shown = _wait_until_stable(group, seen)
                here = (member for member in shown.members if any(_is_same_worker(member, one) for one in left))
                member = min(here, key=lambda one: (shown.is_led_by(one), one.name))
                began = time.monotonic()
                group.send_order("POST", member.worker_id, "restart")  # A worker that refuses stays in `left`.
                _console.print(f"{escape(member.name)} restarts…")
                left = [one for one in left if not _is_same_worker(one, member)]
                back = _wait_until_rejoined(group, member, began=began, timeout_s=timeout_s)
                seen = [back if _is_same_worker(one, member) else one for one in seen]
                restarted.append(member.name)
            _wait_until_stable(group, seen)  # A restarted worker may have left since.
        except WorldError as error:
            done = f"Restarted: {', '.join(restarted)}" if restarted else "No worker has restarted"
            again = " ".join(shlex.quote(one.name) for one in left)
            go_on = f". Once the group is stable, run `coterie workers restart --rolling {again}`" if left else ""
            raise WorldError(f"{str(error).rstrip('.')}. {done}{go_on}.") from error
    if only:
        _console.print(f"Restarted: {escape(', '.join(restarted))}.")
    else:
        _console.print(f"All {len(restarted)} workers have restarted.")


def _check_alone(member: MemberDescription, *, is_named: bool) -> None:
    """Print that no job runs until ``member``, the only worker of the group, has restarted.

    :raises WorldError: when the worker was not named in the command: other workers may be about to join.
    """
    if not is_named:
        raise WorldError(
            f"The group has no other worker than {member.name}, and no job would run until it has restarted. "
            f"To restart it all the same, name it: `coterie workers restart --rolling {shlex.quote(member.name)}`"
        )
    _console.print(f"{escape(member.name)} is the only worker of the group: no job runs until it has restarted.")


def _wait_until_rejoined(
    group: GroupClient, member: MemberDescription, *, began: float, timeout_s: float
) -> MemberDescription:
    """Wait until ``member`` has restarted and runs its jobs, and print that; returns the new state of the member.

    ``member`` is its state before the restart, and ``began`` the time of the order (``time.monotonic``).

    :raises WorldError: when the member has not restarted and started its tasks within ``timeout_s`` of this call, or
        has ended.
    """
    back: MemberDescription | None = None
    has_lost_place = False
    refused_since: float | None = None

    def away(shown: GroupDescription) -> str:
        nonlocal back, has_lost_place, refused_since
        back = next((one for one in shown.members if _is_same_worker(one, member)), None)
        if back is not None or not group.refuses_connections(member.url):
            refused_since = None
        elif refused_since is None:
            refused_since = time.monotonic()
        elif time.monotonic() - refused_since > START_S:
            raise WorldError(
                f"{member.name} has ended instead of restarting: no process has listened at {member.url} for "
                f"{START_S:g} s; see its log for the reason"
            )
        if back is None:
            if not has_lost_place:
                has_lost_place = True
                _console.print(
                    f"{escape(member.name)} took longer than its session.timeout.ms and lost its membership; "
                    "waiting for it to join again."
                )
            return "it lost its membership and has not joined again"
        if back.life is None:
            return "it does not respond"
        if back.life == member.life:
            return "it is still stopping its tasks"
        if trouble := _instability(shown):
            return trouble
        return _tasks_left_to_start(group, member, back)

    if why := group.wait_until_met(away, within_s=timeout_s):
        raise WorldError(f"{member.name} has not restarted with all its jobs within {timeout_s:g} s: {why}")
    assert back is not None, "the worker has restarted"
    stayed = back.owned == member.owned
    told = f"its {_jobs(member.owned)} run again" if stayed else "its jobs have changed"
    again = " and has joined again as a new member" if back.member_id != member.member_id else ""
    _console.print(f"{escape(member.name)} has restarted after {time.monotonic() - began:.1f} s{again}; {told}.")
    return back


def _tasks_left_to_start(group: GroupClient, member: MemberDescription, back: MemberDescription) -> str:
    """Return a text such as "1 of its 2 tasks run" if ``back`` runs fewer tasks than ``member`` did; else "".

    ``member`` and ``back`` are the same worker before and after its restart. Tasks that it no longer owns, and tasks of
    paused connectors, need not run.
    """
    kept = (back.owned.jobs & member.owned.jobs).tasks
    works = _started_task_count(back)
    if works < min(_started_task_count(member), len(kept)):
        paused = group.paused_connectors()
        due = min(_started_task_count(member), sum(task.connector not in paused for task in kept))
        if works < due:
            return f"{works} of its {_count(due, 'task')} run"
    return ""


def _is_same_worker(one: MemberDescription, other: MemberDescription) -> bool:
    """Whether both are the same worker: they have the same member id or the same host:port.

    A worker that kept its membership may have another port. A worker that lost its membership has another member id at
    the same host:port.
    """
    return one.member_id == other.member_id or one.worker_id == other.worker_id


def _started_task_count(member: MemberDescription) -> int:
    """How many tasks of ``member`` are in ``_STARTED_PHASES``."""
    return sum((member.phases or {}).get(phase, 0) for phase in _STARTED_PHASES)


def _wait_until_stable(group: GroupClient, seen: Sequence[MemberDescription] = ()) -> GroupDescription:
    """Wait until all ``seen`` workers are members and the group is stable, so that a worker can restart.

    Returns the stable group. Each new cause of the wait is printed.

    :raises WorldError: with the cause, when the group does not become stable within ``SETTLE_S``.
    """
    said = ""
    well: GroupDescription | None = None

    def wrong(shown: GroupDescription) -> str:
        nonlocal said, well
        well = shown
        gone = next((one for one in seen if not any(_is_same_worker(one, member) for member in shown.members)), None)
        trouble = f"{gone.name} has left the group" if gone is not None else _instability(shown)
        if trouble and trouble != said:
            said = trouble
            _console.print(f"Waiting until the group is stable: {escape(trouble)}.")
        return trouble

    if trouble := group.wait_until_met(wrong, within_s=SETTLE_S):
        raise WorldError(f"The group is not stable: {trouble}")
    assert well is not None, "the group was read"
    return well


def _instability(description: GroupDescription) -> str:
    """The first reason why the group is not stable; empty when the group is stable."""
    for member in description.members:
        if member.state != "STABLE":
            return f"{member.name} is {member.state}"
        if member.draining:
            return f"{member.name} is draining"
        if len(member.revoked) or any((member.phases or {}).get(phase) for phase in _TRANSITION_PHASES):
            return f"jobs of {member.name} are starting or stopping"
    for deferred in description.deferred:
        return f"{_jobs(deferred.jobs)} of {_whose(deferred)} wait for the worker's return"
    return ""


# -- helpers ----------------------------------------------------------------------------------------------------------


def _whose(deferred: DeferredDescription) -> str:
    """The departed worker for which the jobs wait: its name, else its instance id, else a general phrase."""
    return deferred.worker or deferred.instance_id or "a worker that has left"


def _jobs(jobs: JobsDescription) -> str:
    """The number of ``jobs`` as text, such as "2 jobs"."""
    return _count(len(jobs))


def _count(count: int, what: str = "job") -> str:
    """``count`` and ``what`` as text, such as "1 job" or "2 jobs"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
