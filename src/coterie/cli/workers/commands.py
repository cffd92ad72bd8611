"""`coterie group`, `coterie worker drain` and `coterie workers restart`, through the REST API of any worker."""

import shlex
import sys
import time
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from coterie.assignors.assignor_state import union_of_jobs
from coterie.cli.console import make_console
from coterie.cli.group.client import LEADER_TIMEOUT_S, POLL_INTERVAL_S, GroupRestClient
from coterie.cli.group.descriptions import (
    DeferredJobsDescription,
    GroupDescription,
    JobsDescription,
    MemberDescription,
    OrderResponse,
)
from coterie.cli.plan.preview import to_group_with_member_names
from coterie.nouns.errors import WorldError
from coterie.nouns.jobs import Jobs
from coterie.nouns.membership import GroupProtocolName
from coterie.nouns.text import count_text

_console = make_console()
_UNREACHABLE = "UNREACHABLE"
_STYLE_BY_STATE = {"STABLE": "green", _UNREACHABLE: "red", "UNJOINED": "red"}
STABLE_TIMEOUT_S = 60.0
"""How long a group may take to become stable before the next worker restarts."""
REFUSED_CONNECTIONS_TIMEOUT_S = 60.0
"""A worker that lost its membership in a restart counts as ended if its address refuses connections for this time. The
worker's process replaces itself, and loading the new process takes long on a busy machine."""
TAKE_OVER_CHECKS_MAX = 50
"""The maximum number of checks, one every `POLL_INTERVAL_S`, whether other workers own the jobs of a drained worker.
After the last one, `coterie worker drain` reports that they do not."""
_TRANSITION_PHASES = ("starting", "stopping")
"""The phases of tasks in which a group does not count as stable."""
_PHASES_COUNTED_AS_STARTED = ("running", "failed", "taken")
"""The phases of the tasks that a rolling restart does not wait for after a worker's restart: the task's query has
progressed (running), or waiting would not help (failed; taken: another worker has taken the checkpoint over). In the
phase ``started`` the query has not progressed yet, so the rolling restart waits."""


# -- the group --------------------------------------------------------------------------------------------------------


def show_group(url: str, *, as_json: bool) -> None:
    """Print the group of the worker at ``url``, as JSON or as tables and sentences.

    :raises WorldError: see :meth:`.GroupRestClient.describe_group`.
    """
    with GroupRestClient(url) as group:
        description = group.describe_group()
    if as_json:
        sys.stdout.write(description.model_dump_json(indent=2, by_alias=True) + "\n")
        return
    leader_text = f"led by {escape(description.leader.name)}" if description.leader is not None else "without a leader"
    counter = "Group epoch" if description.protocol == GroupProtocolName.CONNECT.value else "Generation"
    _console.print(f"{counter} {description.generation} ({description.protocol}), {leader_text}")
    table = Table("worker", "at", "state", "connectors", "tasks", "tasks by phase", box=None, header_style="bold")
    for member in description.members:
        table.add_row(
            escape(member.name),
            escape(member.worker_id),
            _member_state_text(member),
            str(len(member.owned.connectors)),
            str(len(member.owned.tasks)),
            ", ".join(f"{count} {phase}" for phase, count in (member.phases or {}).items()) or "-",
        )
    _console.print(table)
    for member in description.members:
        if len(member.revoked):
            _console.print(f"{escape(member.name)} must release {_job_count_text(member.revoked)}.")
        if member.drain_waits is not None:
            _console.print(f"The drain of {escape(member.name)} waits: {escape(member.drain_waits)}.")
        if member.no_new_jobs is not None:
            _console.print(f"[red]{escape(member.no_new_jobs)}.[/red]")
    for deferred in description.deferred:
        left_s = deferred.left_ms / 1000
        _console.print(
            f"{_job_count_text(deferred.jobs)} of {escape(_departed_worker_name(deferred))} wait {left_s:.0f} s "
            "more for the worker's return."
        )
    for job in description.unassigned:
        name = job.connector if job.task is None else f"{job.connector}-{job.task}"
        _console.print(f"[red]{escape(name)} is unassigned[/red]: {escape(job.reason)}.")


def _member_state_text(member: MemberDescription) -> str:
    """The member's state with rich's markup of its color, whether it drains, and how many jobs it claims."""
    style = _STYLE_BY_STATE.get(member.state, "yellow")
    state_parts = [f"[{style}]{escape(member.state)}[/{style}]"]
    if member.draining:
        state_parts.append("draining")
    if member.claims is not None:
        state_parts.append(f"claims {_job_count_text(member.claims)}")
    return ", ".join(state_parts)


# -- scale-in ---------------------------------------------------------------------------------------------------------


def drain_worker_and_wait(url: str, worker: str) -> None:
    """Order ``worker`` to drain, and print the drain's progress until the worker's process has ended. If the worker was
    the group's only one, no worker can describe the group then: the end of the process is enough.

    :raises WorldError: when the worker refuses the drain, is not a member yet, or ends before all its jobs have moved;
        when the drain is cancelled or the process restarted; or when the group cannot be read, or TLS to the worker
        fails.
    """
    with GroupRestClient(url) as group:
        description_before = group.describe_group()
        order_response = group.send_order("POST", worker, "drain")
        last_seen_member = _find_worker_of_order(description_before, order_response) or _find_worker_of_order(
            group.describe_group(), order_response
        )  # The worker may have joined meanwhile.
        if last_seen_member is None:
            raise WorldError(
                f"{order_response.name} is draining and has just joined: follow the drain with `coterie group`"
            )
        printed_text = ""
        checks_left = TAKE_OVER_CHECKS_MAX
        last_description = description_before
        while True:
            description = _describe_group_unless_sole_worker_has_ended(group, last_description, last_seen_member)
            if description is None:
                _print_end_of_sole_worker(last_description, last_seen_member)
                return
            last_description = description
            current_member = _find_worker_of_order(description, order_response)
            if current_member is None and jobs_about_to_be_taken_over(description, last_seen_member) and checks_left:
                checks_left -= 1
            elif current_member is None and group.refuses_connections(last_seen_member.url):
                raise_unless_jobs_handed_over(description, last_seen_member)
                _console.print(f"{escape(order_response.name)} has handed its jobs over and has ended.")
                return
            if current_member is not None:
                last_seen_member = current_member
                # A reachable worker reports `draining` itself; for an unreachable one it is from the last round.
                if current_member.state != _UNREACHABLE and not current_member.draining:
                    raise WorldError(
                        f"The drain of {order_response.name} was cancelled, or its process was restarted: the "
                        "worker stays."
                    )
                text = (
                    f"{escape(order_response.name)} is draining: "
                    f"{count_text(len(current_member.owned) + len(current_member.revoked), 'job')} left"
                )
                if current_member.drain_waits is not None:
                    text += f"; the drain waits: {escape(current_member.drain_waits)}"
                    if all(member.draining for member in description.members):
                        text += (
                            ". Start another worker, which then gets the jobs, or cancel the drain: "
                            f"`coterie worker drain --uncordon {escape(shlex.quote(current_member.name))}`"
                        )
                if text != printed_text:
                    printed_text = text
                    _console.print(text)
            time.sleep(POLL_INTERVAL_S)


def _describe_group_unless_sole_worker_has_ended(
    group: GroupRestClient, last_description: GroupDescription, worker: MemberDescription
) -> GroupDescription | None:
    """The group's present description. None if ``worker``, the only member in ``last_description``, has ended.

    :raises WorldError: see :meth:`.GroupRestClient.describe_group` and :meth:`.GroupRestClient.refuses_connections`.
    """
    if [member.worker_id for member in last_description.members] != [worker.worker_id]:
        return group.describe_group()
    deadline_s = time.monotonic() + LEADER_TIMEOUT_S
    while True:
        try:
            return group.describe_group(timeout_s=0)
        except WorldError:
            if group.refuses_connections(worker.url):
                return None
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(POLL_INTERVAL_S)


def _print_end_of_sole_worker(last_description: GroupDescription, worker: MemberDescription) -> None:
    """Print that the drained ``worker``, the only member in ``last_description``, has ended.

    :raises WorldError: when the worker had jobs in ``last_description``: it keeps them as long as no other worker may
        run them, so its process ended for another reason than its drain.
    """
    jobs = (worker.owned.jobs | worker.revoked.jobs) & last_description.configured.jobs
    if jobs:
        raise WorldError(
            f"{worker.name} ended before its drain was complete. It was the only worker of the group: no worker runs "
            f"its {count_text(len(jobs), 'job')} until a worker starts."
        )
    text = f"{escape(worker.name)} has ended. It was the only worker of the group"
    configured_count = len(last_description.configured)
    if configured_count:
        text += f": the group's {count_text(configured_count, 'job')} run on no worker until a worker starts"
    _console.print(f"{text}.")


def _find_worker_of_order(description: GroupDescription, ordered: OrderResponse) -> MemberDescription | None:
    """The member of ``description`` that has accepted an order to drain, and has sent the response ``ordered``. It is
    found by its host:port, because two members may have the same name. None if ``description`` has no such member."""
    return next((member for member in description.members if member.worker_id == ordered.worker_id), None)


def jobs_about_to_be_taken_over(description: GroupDescription, last: MemberDescription) -> Jobs:
    """The configured jobs of ``last``, a member that has left, that other members are about to start: no member owns
    them yet, they do not wait for the return of a departed worker, and the group does not report them as
    unassigned."""
    had = (last.owned.jobs | last.revoked.jobs) & description.configured.jobs
    owned = union_of_jobs(member.owned.jobs for member in description.members)
    waiting = union_of_jobs(deferred.jobs.jobs for deferred in description.deferred)
    return had - owned - waiting - Jobs.of(unassigned.job for unassigned in description.unassigned)


def raise_unless_jobs_handed_over(description: GroupDescription, last_seen_member: MemberDescription) -> None:
    """Check that a drained member, which has left the group, had handed its jobs over.

    ``last_seen_member`` is the member in the last description that contained it; ``description`` does not contain it.
    A member that crashed was UNREACHABLE then: it stays in the group until its session ends.

    :raises WorldError: when the member had jobs when it was last seen, and either it was UNREACHABLE then, or no other
        member owns one of these jobs now. A job that is not configured any more does not count.
    """
    owned_jobs = (last_seen_member.owned.jobs | last_seen_member.revoked.jobs) & description.configured.jobs
    unowned_jobs = owned_jobs - union_of_jobs(member.owned.jobs for member in description.members)
    if owned_jobs and (last_seen_member.state == _UNREACHABLE or unowned_jobs):
        raise WorldError(
            f"{last_seen_member.name} ended before its drain was complete; its {count_text(len(owned_jobs), 'job')} "
            "are treated as those of a lost worker."
        )


def cancel_drain(url: str, worker: str) -> None:
    """Order ``worker`` to cancel its drain, and print whether it was draining.

    :raises WorldError: see :meth:`.GroupRestClient.send_order` and :meth:`.GroupRestClient.describe_group`.
    """
    with GroupRestClient(url) as group:
        description_before = group.describe_group()
        order_response = group.send_order("DELETE", worker, "drain")
    name = escape(order_response.name)
    member = _find_worker_of_order(description_before, order_response)
    if member is not None and member.state != _UNREACHABLE and not member.draining:
        _console.print(f"{name} was not draining: the worker stays and accepts jobs, as before.")
    else:
        _console.print(f"The drain of {name} is cancelled: the worker stays and accepts jobs again.")


# -- rolling restart --------------------------------------------------------------------------------------------------


def restart_workers_rolling(
    url: str, *, timeout_s: float, only_workers: Sequence[str] = (), moves_jobs: bool = False
) -> None:
    """Restart the workers ``only_workers``, or all workers of the group if it is empty: one after the other, the leader
    last.

    ``timeout_s`` is how long each worker may take from the order until it runs jobs again. With ``moves_jobs``, each
    worker first moves its jobs to the other workers.

    :raises WorldError: when a name in ``only_workers`` does not match exactly one worker, the only worker is not named
        or would have to move its jobs, or the group is not stable at the beginning. Also when a worker refuses to
        restart or does not return in time, another worker leaves meanwhile, or the group does not become stable again:
        then the message names the restarted workers and the command to continue with.
    """
    with GroupRestClient(url) as group:
        description = _wait_until_stable(group)
        expected_members = list(description.members)
        chosen_group = to_group_with_member_names(description, source="The response of the group")
        chosen_member_ids = {
            chosen_group.find_member(worker_text) for worker_text in only_workers
        } or chosen_group.name_by_member_id.keys()
        members_to_restart = [member for member in expected_members if member.member_id in chosen_member_ids]
        names = ", ".join(escape(member.name) for member in expected_members)
        _console.print(f"The group has {count_text(len(expected_members), 'worker')}: {names}.")
        if len(expected_members) == 1:
            _check_sole_worker_may_restart(expected_members[0], is_named=bool(only_workers), moves_jobs=moves_jobs)
        restarted: list[str] = []
        try:
            while members_to_restart:
                description = _wait_until_stable(group, expected_members)
                present_members = (
                    member
                    for member in description.members
                    if any(
                        _have_same_member_or_worker_id(member, remaining_member)
                        for remaining_member in members_to_restart
                    )
                )
                member = min(
                    present_members,
                    key=lambda remaining_member: (description.is_led_by(remaining_member), remaining_member.name),
                )
                began_at_s = time.monotonic()
                # A worker that refuses stays in `members_to_restart`.
                group.send_order("POST", member.worker_id, "restart?moveJobs=true" if moves_jobs else "restart")
                what = "moves its jobs to other workers, then restarts" if moves_jobs else "restarts"
                _console.print(f"{escape(member.name)} {what}…")
                members_to_restart = [
                    remaining_member
                    for remaining_member in members_to_restart
                    if not _have_same_member_or_worker_id(remaining_member, member)
                ]
                rejoined_member = _wait_until_restarted_and_running(
                    group, member, began_at_s=began_at_s, timeout_s=timeout_s, moves_jobs=moves_jobs
                )
                expected_members = [
                    rejoined_member if _have_same_member_or_worker_id(remaining_member, member) else remaining_member
                    for remaining_member in expected_members
                ]
                restarted.append(member.name)
            _wait_until_stable(group, expected_members)  # A restarted worker may have left since.
        except WorldError as error:
            restarted_text = f"Restarted: {', '.join(restarted)}" if restarted else "No worker has restarted"
            remaining_names = " ".join(shlex.quote(remaining_member.name) for remaining_member in members_to_restart)
            options = "--rolling --move-jobs" if moves_jobs else "--rolling"
            continue_hint = (
                f". Once the group is stable, run `coterie workers restart {options} {remaining_names}`"
                if members_to_restart
                else ""
            )
            raise WorldError(f"{str(error).rstrip('.')}. {restarted_text}{continue_hint}.") from error
    if only_workers:
        _console.print(f"Restarted: {escape(', '.join(restarted))}.")
    else:
        _console.print(f"All {len(restarted)} workers have restarted.")


def _check_sole_worker_may_restart(member: MemberDescription, *, is_named: bool, moves_jobs: bool) -> None:
    """Check that ``member``, the group's only member, may restart; if so, print that no job runs until it has done so.

    :raises WorldError: when ``moves_jobs``, because there is no other worker to which the jobs could move; or when
        ``is_named`` is False, because the command does not name the worker: other workers may be about to join.
    """
    if moves_jobs:
        raise WorldError(
            f"The group has no other worker than {member.name}, so its jobs cannot move. To restart it with its jobs: "
            f"`coterie workers restart --rolling {shlex.quote(member.name)}`"
        )
    if not is_named:
        raise WorldError(
            f"The group has no other worker than {member.name}, and no job would run until it has restarted. "
            f"To restart it all the same, name it: `coterie workers restart --rolling {shlex.quote(member.name)}`"
        )
    _console.print(f"{escape(member.name)} is the only worker of the group: no job runs until it has restarted.")


def _wait_until_restarted_and_running(
    group: GroupRestClient, member: MemberDescription, *, began_at_s: float, timeout_s: float, moves_jobs: bool
) -> MemberDescription:
    """Wait until ``member`` has restarted and runs its jobs, or those that it has got instead, and print that; returns
    the new state of the member.

    ``member`` is its state before the restart, and ``began_at_s`` the time of the order (``time.monotonic``).
    ``moves_jobs``: it was ordered to move its jobs first, so it returns as a new member.

    :raises WorldError: when the member has not restarted and started its tasks within ``timeout_s`` of this call, or
        has ended, or TLS to it fails, or a restart with moved jobs was cancelled.
    """
    rejoined_member: MemberDescription | None = None
    has_lost_membership = False
    refused_since_s: float | None = None

    def reason_not_running_again(description: GroupDescription) -> str:
        nonlocal rejoined_member, has_lost_membership, refused_since_s
        rejoined_member = next(
            (other for other in description.members if _have_same_member_or_worker_id(other, member)), None
        )
        if rejoined_member is not None or not group.refuses_connections(member.url):
            refused_since_s = None
        elif refused_since_s is None:
            refused_since_s = time.monotonic()
        elif time.monotonic() - refused_since_s > REFUSED_CONNECTIONS_TIMEOUT_S:
            raise WorldError(
                f"{member.name} has ended instead of restarting: no process has listened at {member.url} for "
                f"{REFUSED_CONNECTIONS_TIMEOUT_S:g} s; see its log for the reason"
            )
        if rejoined_member is None:
            if moves_jobs:
                return "it has moved its jobs and has not joined again"
            if not has_lost_membership:
                has_lost_membership = True
                _console.print(
                    f"{escape(member.name)} took longer than its session timeout and lost its membership; "
                    "waiting for it to join again."
                )
            return "it lost its membership and has not joined again"
        if rejoined_member.life is None:
            return "it does not respond"
        if rejoined_member.life == member.life:
            return (
                _move_progress_or_raise_if_cancelled(rejoined_member)
                if moves_jobs
                else "it is still stopping its tasks"
            )
        if instability := _instability_reason(description):
            return instability
        return _tasks_not_started_text(group, member, rejoined_member)

    if reason := group.wait_and_return_unmet_reason(reason_not_running_again, timeout_s=timeout_s):
        what = "restarted" if moves_jobs else "restarted with all its jobs"
        raise WorldError(f"{member.name} has not {what} within {timeout_s:g} s: {reason}")
    assert rejoined_member is not None, "the worker has restarted"
    jobs_text = _jobs_after_restart_text(member, rejoined_member, moves_jobs=moves_jobs)
    _console.print(f"{escape(member.name)} has restarted after {time.monotonic() - began_at_s:.1f} s{jobs_text}.")
    return rejoined_member


def _jobs_after_restart_text(member: MemberDescription, rejoined_member: MemberDescription, *, moves_jobs: bool) -> str:
    """Which jobs ``rejoined_member`` runs, compared with ``member``, the same worker before its restart, as text.

    The text also says if the worker has lost its membership and joined again as a new member. With ``moves_jobs`` this
    is left out, because such a worker always joins as a new member.
    """
    if moves_jobs:
        return f"; it runs {_job_count_text(rejoined_member.owned)}"
    is_new_member = rejoined_member.member_id != member.member_id
    has_same_jobs = rejoined_member.owned == member.owned
    return (" and has joined again as a new member" if is_new_member else "") + (
        f"; its {_job_count_text(member.owned)} run again" if has_same_jobs else "; its jobs have changed"
    )


def _move_progress_or_raise_if_cancelled(member: MemberDescription) -> str:
    """How many jobs ``member``, which moves its jobs before it restarts, still has; and why the move waits, if it does.

    :raises WorldError: when the restart was cancelled.
    """
    if not member.draining:
        raise WorldError(f"The restart of {member.name} was cancelled: it stays, and accepts jobs again")
    text = f"it is moving its jobs, {count_text(len(member.owned) + len(member.revoked), 'job')} left"
    if member.drain_waits is not None:
        text += f" (the move waits: {member.drain_waits})"
    return f"{text}; to cancel the restart, run `coterie worker drain --uncordon {shlex.quote(member.name)}`"


def _tasks_not_started_text(
    group: GroupRestClient, member: MemberDescription, rejoined_member: MemberDescription
) -> str:
    """Return a text such as "1 of its 2 tasks run" if ``rejoined_member`` runs fewer tasks than ``member`` did; else
    "".

    ``member`` and ``rejoined_member`` are the same worker before and after its restart. Tasks that it no longer owns,
    and tasks of paused connectors, need not run.
    """
    kept_tasks = (rejoined_member.owned.jobs & member.owned.jobs).tasks
    started_count = _started_or_failed_task_count(rejoined_member)
    if started_count < min(_started_or_failed_task_count(member), len(kept_tasks)):
        paused_connectors = group.paused_or_stopped_connectors()
        expected_count = min(
            _started_or_failed_task_count(member), sum(task.connector not in paused_connectors for task in kept_tasks)
        )
        if started_count < expected_count:
            return f"{started_count} of its {count_text(expected_count, 'task')} run"
    return ""


def _have_same_member_or_worker_id(member: MemberDescription, other_member: MemberDescription) -> bool:
    """Whether both are the same worker: they have the same member id or the same host:port.

    After a restart, a worker that kept its membership may have another port. A worker that lost its membership has
    another member id at the same host:port.
    """
    return member.member_id == other_member.member_id or member.worker_id == other_member.worker_id


def _started_or_failed_task_count(member: MemberDescription) -> int:
    """How many tasks of ``member`` are in one of :data:`_PHASES_COUNTED_AS_STARTED`: also failed tasks."""
    return sum((member.phases or {}).get(phase, 0) for phase in _PHASES_COUNTED_AS_STARTED)


def _wait_until_stable(group: GroupRestClient, expected_members: Sequence[MemberDescription] = ()) -> GroupDescription:
    """Wait until all ``expected_members`` are members and the group is stable, so that a worker can restart.

    Returns the stable group. Each new cause of the wait is printed.

    :raises WorldError: with the cause, when the group does not become stable within ``STABLE_TIMEOUT_S``.
    """
    printed_reason = ""
    last_description: GroupDescription | None = None

    def reason_not_stable(description: GroupDescription) -> str:
        nonlocal printed_reason, last_description
        last_description = description
        missing_member = next(
            (
                expected
                for expected in expected_members
                if not any(_have_same_member_or_worker_id(expected, member) for member in description.members)
            ),
            None,
        )
        reason = (
            f"{missing_member.name} has left the group"
            if missing_member is not None
            else _instability_reason(description)
        )
        if reason and reason != printed_reason:
            printed_reason = reason
            _console.print(f"Waiting until the group is stable: {escape(reason)}.")
        return reason

    if reason := group.wait_and_return_unmet_reason(reason_not_stable, timeout_s=STABLE_TIMEOUT_S):
        raise WorldError(f"The group is not stable: {reason}")
    assert last_description is not None, "the group was read"
    return last_description


def _instability_reason(description: GroupDescription) -> str:
    """The first reason why the group is not stable; empty when the group is stable."""
    for member in description.members:
        if member.state != "STABLE":
            return f"{member.name} is {member.state}"
        if member.draining:
            return f"{member.name} is draining"
        if len(member.revoked) or any((member.phases or {}).get(phase) for phase in _TRANSITION_PHASES):
            return f"jobs of {member.name} are starting or stopping"
    for deferred in description.deferred:
        return f"{_job_count_text(deferred.jobs)} of {_departed_worker_name(deferred)} wait for the worker's return"
    return ""


# -- helpers ----------------------------------------------------------------------------------------------------------


def _departed_worker_name(deferred: DeferredJobsDescription) -> str:
    """The departed worker for which the jobs wait: its name, else its instance id, else a general phrase."""
    return deferred.worker or deferred.instance_id or "a worker that has left"


def _job_count_text(jobs: JobsDescription) -> str:
    """The number of ``jobs`` as text, such as "2 jobs"."""
    return count_text(len(jobs), "job")
