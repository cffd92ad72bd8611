"""`coterie plan`: shows which jobs would move if a group changed, and why. Reads the group over REST or from a file."""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.assignors.assignor_state import Deferral, union_of_jobs
from coterie.assignors.claims import Eligibility
from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.assignors.moves import RevocationReason
from coterie.assignors.plan import (
    ConnectorGetsTaskCount,
    ConnectorIsDeleted,
    GroupChange,
    GroupSnapshot,
    MemberChangesClaims,
    MemberDrains,
    MemberJoins,
    MemberLeaves,
    Move,
    Plan,
    RestartReason,
    StartReason,
    apply_change,
    compute_plan,
)
from coterie.cli.console import make_console
from coterie.cli.group.client import GroupRestClient
from coterie.cli.group.descriptions import GroupDescription, MemberDescription, parse_group_description
from coterie.config.definition import split_list
from coterie.config.worker import check_no_empty_names, parse_static_task
from coterie.herder.group_view import find_members_by_first_matching_name
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, TASKS_PER_CONNECTOR_MAX, ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.nouns.membership import GroupProtocolName
from coterie.nouns.text import count_text
from coterie.wire.connect import ConnectProtocol

_TEXT_BY_REASON: Mapping[RevocationReason | StartReason | RestartReason, str] = {
    RevocationReason.DELETED: "it is deleted",
    RevocationReason.DUPLICATE: "another worker runs it, too",
    RevocationReason.CLAIM: "static assignments (KIP-987)",
    RevocationReason.DRAIN: "its worker drains",
    RevocationReason.BALANCE: "balance",
    RevocationReason.REPEATED: "revoked already",
    StartReason.NEW: "no worker ran it",
    StartReason.LOST: "its worker has left",
    RestartReason.RESPLIT: "its connector is split again",
}
SOURCES_WITH_FIXED_SPLIT = ("RateSource", "PythonSource")
"""The sources whose number of tasks cannot change once the tasks have checkpoints. `Source.has_fixed_split` is the same
list, but importing the sources imports pyspark, which takes longer than the plan."""


# -- the group -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWithMemberNames:
    """A group as the input of a plan, and the names by which operators call its members. ``protocol`` is STATIC for a
    connect group, too, because both support claims and drains."""

    snapshot: GroupSnapshot
    name_by_member_id: Mapping[MemberId, str]
    """A unique name of each member: its name; its ``host:port`` if several members have this name; its member id if
    several members have this ``host:port`` as well."""
    protocol: ConnectProtocol
    """STATIC for a connect group, too: both support claims and drains."""
    moves_jobs_in_rounds: bool
    """Whether jobs move in rounds of the whole group. In a connect group each job moves on its own."""
    _members: tuple[MemberDescription, ...]

    def matching_members(self, text: str) -> list[MemberId]:
        """The ids of the members that match ``text``: of those with this host:port, else with this name, else with this
        instance id, else with this member id. The leader selects the worker of an order in the same way, but not by
        member id."""
        members_with_id = [member for member in self._members if member.member_id == text]
        return [
            member.member_id for member in find_members_by_first_matching_name(self._members, text) or members_with_id
        ]

    def find_member(self, text: str) -> MemberId:
        """Return the id of the only member that matches ``text`` by host:port, else by name, else by instance id, else
        by member id (:meth:`matching_members`).

        :raises WorldError: when no member matches (lists all members), or several members match (lists these).
        """
        matching = self.matching_members(text)
        if not matching:
            all_names = ", ".join(sorted(self.name_by_member_id.values())) or "no workers"
            raise WorldError(f"The group has no worker {text}; it has {all_names}")
        if len(matching) > 1:
            matching_names = ", ".join(sorted(self.name_by_member_id[member] for member in matching))
            raise WorldError(f"{len(matching)} workers are called {text}; name one of {matching_names}")
        return matching[0]


def to_group_with_member_names(group: GroupDescription, *, source: str) -> GroupWithMemberNames:
    """Convert a group's description. ``source`` names the origin of the description in the error.

    :raises WorldError: when the group's protocol is unknown, or the group uses an assignor that the plan cannot run.
    """
    try:
        is_connect = group.protocol == GroupProtocolName.CONNECT.value
        protocol = ConnectProtocol.STATIC if is_connect else ConnectProtocol.from_setting(group.protocol)
    except KeyError as error:
        raise WorldError(f"{source} is not a valid group description: unknown protocol {group.protocol!r}") from error
    if is_connect and group.assignor not in (None, CooperativeAssignor.name):
        raise WorldError(
            f"the group uses the assignor {group.assignor}, and a plan can only be computed for the assignor "
            f"{CooperativeAssignor.name}"
        )
    members = {
        member.member_id: MemberSpec(
            owned=member.owned.jobs,
            claims=None if member.claims is None else member.claims.jobs,
            is_draining=member.draining,
            instance_id=member.instance_id,
        )
        for member in group.members
    }
    deferrals = tuple(
        Deferral(jobs=deferred.jobs.jobs, deadline_ms=deferred.left_ms, instance_id=deferred.instance_id)
        for deferred in group.deferred
    )
    policy = RebalancePolicy(
        max_delay_ms=group.policy.max_delay_ms,
        moves_per_round_max=group.policy.moves_per_round_max,
        round_interval_ms=group.policy.round_interval_ms,
    )
    # The coordinator of a connect group defers the jobs of any departed member, also those of the leader.
    leader = None if is_connect else next((one.member_id for one in group.members if group.is_led_by(one)), None)
    return GroupWithMemberNames(
        snapshot=GroupSnapshot(
            configured_jobs=group.configured.jobs, members=members, deferrals=deferrals, policy=policy, leader_id=leader
        ),
        name_by_member_id=_unique_names(group.members),
        protocol=protocol,
        moves_jobs_in_rounds=not is_connect,
        _members=group.members,
    )


def _unique_names(members: Sequence[MemberDescription]) -> Mapping[MemberId, str]:
    """Return the unique name of each member, as described at ``GroupWithMemberNames.name_by_member_id``."""
    names, worker_ids = Counter(member.name for member in members), Counter(member.worker_id for member in members)
    return {
        member.member_id: member.name
        if names[member.name] == 1
        else member.worker_id
        if worker_ids[member.worker_id] == 1
        else member.member_id
        for member in members
    }


# -- the requested changes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """The changes that one call of the command asks for, not parsed yet: for each of its options that may be repeated,
    the texts that were typed after it."""

    add: Sequence[str] = ()
    remove: Sequence[str] = ()
    drain: Sequence[str] = ()
    claim_connectors: Sequence[str] = ()
    claim_tasks: Sequence[str] = ()
    create: Sequence[str] = ()
    resize: Sequence[str] = ()
    delete: Sequence[str] = ()


def to_group_changes(options: ChangeOptions, group: GroupWithMemberNames) -> list[GroupChange]:
    """Convert ``options`` to changes of the group, in an order in which they can be applied.

    :raises WorldError: when a worker or connector does not exist, an option is not valid or contradicts another, or
        ``options`` has drains or claims and the group's protocol does not support them.
    """
    joining_members: dict[str, MemberId] = {}
    for name in options.add:
        _check_new_worker_name(name, joining_members, group)
        joining_members[name] = MemberId(name)

    def find_member(text: str) -> MemberId:
        return joining_members[text] if text in joining_members else group.find_member(text)

    resized_connectors = [_parse_task_count("--resize", text) for text in options.resize]
    task_count_changes = [*(_parse_task_count("--create", text) for text in options.create), *resized_connectors]
    task_counts = dict(task_count_changes)
    if len(task_counts) < len(task_count_changes) or task_counts.keys() & set(options.delete):
        raise WorldError(
            "The options --create, --resize and --delete name a connector twice; name each connector in only "
            "one of them, and once"
        )
    for connector, tasks in resized_connectors:
        if connector not in group.snapshot.configured_jobs.connectors:
            raise WorldError(
                f"--resize {connector}={tasks}: the group has no connector {connector}; for a new connector use "
                f"--create {connector}={tasks}"
            )
    for name in options.delete:
        if name not in group.snapshot.configured_jobs.connectors:
            raise WorldError(f"--delete {name}: the group has no connector {name}")
    claims: dict[MemberId, Jobs] = {}
    for worker, jobs in _parse_claim_options(options):
        claims[find_member(worker)] = claims.get(find_member(worker), NO_JOBS) | jobs
    drains = _find_each_once("--drain", options.drain, find_member)
    removals = _find_each_once("--remove", options.remove, group.find_member)
    for worker, member in zip(options.remove, removals, strict=True):
        if member in {*drains, *claims}:
            raise WorldError(f"{worker} cannot be removed and also drained or given claims")
    if group.protocol < ConnectProtocol.STATIC and (drains or claims):
        raise WorldError(
            f"The group's protocol is {group.protocol.setting}, which supports neither drains nor static assignments: "
            "all workers must have connect.protocol=static"
        )
    return [
        *(MemberJoins(member=member) for member in joining_members.values()),
        *(ConnectorGetsTaskCount(connector=connector, task_count=tasks) for connector, tasks in task_counts.items()),
        *(ConnectorIsDeleted(connector=ConnectorName(name)) for name in options.delete),
        *(MemberChangesClaims(member=member, jobs=jobs) for member, jobs in sorted(claims.items())),
        *(MemberDrains(member=member) for member in drains),
        *(MemberLeaves(member=member) for member in removals),
    ]


def _find_each_once(option: str, workers: Sequence[str], find_member: Callable[[str], MemberId]) -> Sequence[MemberId]:
    """The members that ``workers``, the values of ``option``, name, in their order.

    :raises WorldError: when two values name the same worker, or ``find_member`` raises it.
    """
    worker_by_member: dict[MemberId, str] = {}
    for worker in workers:
        member = find_member(worker)
        if member in worker_by_member:
            former_text = worker_by_member[member]
            problem = "is given twice" if worker == former_text else f"and {option} {former_text} name the same worker"
            raise WorldError(f"{option} {worker} {problem}; name each worker only once")
        worker_by_member[member] = worker
    return list(worker_by_member)


def _check_new_worker_name(name: str, joining_members: Mapping[str, MemberId], group: GroupWithMemberNames) -> None:
    """Check ``name``, the value of one option ``--add``. ``joining_members`` has the names of the options before it.

    :raises WorldError: when the name is blank or is in ``joining_members``, or a member of ``group`` matches it
        (:meth:`GroupWithMemberNames.matching_members`).
    """
    if not name.strip():
        raise WorldError("--add: the worker's name is blank; use a name, for example --add worker-4")
    if name in joining_members:
        raise WorldError(f"--add {name} is given twice; give each new worker another name")
    if group.matching_members(name):
        raise WorldError(f"The group has a worker {name} already; give the new worker another name")


def _parse_task_count(option: str, text: str) -> tuple[ConnectorName, int]:
    """Parse ``text``, the value of ``option`` (``--create`` or ``--resize``): NAME=TASKS.

    :raises WorldError: when ``text`` is not of this form, or the number of tasks is out of range.
    """
    name, _, tasks = text.rpartition("=")
    if not (name and re.fullmatch("[0-9]{1,6}", tasks) and 1 <= int(tasks) <= TASKS_PER_CONNECTOR_MAX):
        raise WorldError(f"{option} {text}: use NAME=TASKS, for example orders=4; 1 to {TASKS_PER_CONNECTOR_MAX} tasks")
    return ConnectorName(name), int(tasks)


def _parse_claim_options(options: ChangeOptions) -> Iterable[tuple[str, Jobs]]:
    """Yield the worker's name and its claims for each ``--claim-…`` option, parsed like ``static.connectors`` and
    ``static.tasks``. The claims may be no jobs, and a worker may occur several times.

    :raises WorldError: when an option is not WORKER=NAMES, or a name is not valid.
    """
    for option, example, option_values, parse_name in (
        ("--claim-connectors", "orders,payments", options.claim_connectors, ConnectorName),
        ("--claim-tasks", "orders-0,orders-1", options.claim_tasks, parse_static_task),
    ):
        for text in option_values:
            worker, equals_sign, names = text.partition("=")
            if not (worker and equals_sign):
                raise WorldError(f"{option} {text}: use WORKER=NAMES, for example worker-1={example}")
            try:
                yield worker, Jobs.of(map(parse_name, check_no_empty_names(tuple(split_list(names)))))
            except ValueError as error:
                raise WorldError(f"{option} of {worker}: {error}") from error


# -- the command ------------------------------------------------------------------------------------------------------


def show_plan(options: ChangeOptions, *, url: str, file: Path | None, as_json: bool) -> None:
    """Read the group from ``file`` or, if that is None, from the worker at ``url``; compute the plan and print it.

    :raises WorldError: when the group cannot be read, its protocol is eager, or a requested change is not possible in
        this group.
    """
    with ExitStack() as stack:
        client: GroupRestClient | None = None
        if file is None:
            client = stack.enter_context(GroupRestClient(url))
            named_group = to_group_with_member_names(client.describe_group(), source=f"The response of {url}")
        else:
            named_group = to_group_with_member_names(
                parse_group_description(_read_file_or_stdin(file), source=str(file)), source=str(file)
            )
        if named_group.protocol is ConnectProtocol.EAGER:
            raise WorldError(
                "The group's protocol is eager: in each rebalance every job is stopped and assigned from scratch, "
                "so there is no plan"
            )
        changes = to_group_changes(options, named_group)
        warnings = list(_fixed_split_warnings(changes, named_group.snapshot, client))
    names = {**named_group.name_by_member_id, **{MemberId(name): name for name in options.add}}
    computed_plan = compute_plan(named_group.snapshot, changes)
    changed_snapshot = named_group.snapshot
    for change in changes:
        changed_snapshot = apply_change(changed_snapshot, change)
    _warn_about_claims_on_unknown_jobs(changes, changed_snapshot, names)
    sys.stderr.writelines(warnings)
    if as_json:
        json.dump(_plan_json(computed_plan, names), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    jobs_before = union_of_jobs(
        [named_group.snapshot.configured_jobs, *(view.owned for view in named_group.snapshot.members.values())]
    )
    console = make_console()
    _print_plan(
        computed_plan,
        names,
        job_count=len(jobs_before),
        moves_jobs_in_rounds=named_group.moves_jobs_in_rounds,
        console=console,
    )
    for member, reason in _drains_that_would_wait(computed_plan, changed_snapshot):
        console.print(f"The drain of {escape(names[member])} would wait: {escape(reason)}.")


def _warn_about_claims_on_unknown_jobs(
    changes: Sequence[GroupChange], changed_snapshot: GroupSnapshot, names: Mapping[MemberId, str]
) -> None:
    """Print a warning for each job that a member would claim by ``changes`` and that is not configured in
    ``changed_snapshot``. Claims that ``changes`` leave as they are cause no warning.

    Such claims are allowed, but usually a typing error.
    """
    for change in changes:
        if isinstance(change, MemberChangesClaims) and change.jobs is not None:
            for job in change.jobs - changed_snapshot.configured_jobs:
                job_kind = "task" if isinstance(job, ConnectorTaskId) else "connector"
                sys.stderr.write(f"{names[change.member]} would claim {job}, but there is no {job_kind} {job} now\n")


def _fixed_split_warnings(
    changes: Sequence[GroupChange], snapshot: GroupSnapshot, client: GroupRestClient | None
) -> Iterator[str]:
    """Yield a warning, as a line, for each existing connector whose number of tasks would change and whose source has a
    fixed split: if its tasks have checkpoints, the REST API refuses the config of such a change.

    ``client`` reads the connectors' sources. If it is None, the group is from a file, which does not contain the
    sources: then there is a warning for each existing connector whose number of tasks would change.

    :raises WorldError: see :meth:`.GroupRestClient.connector_config`.
    """
    for change in changes:
        if isinstance(change, ConnectorGetsTaskCount) and change.connector in snapshot.configured_jobs.connectors:
            task_count = sum(task.connector == change.connector for task in snapshot.configured_jobs.tasks)
            if task_count == change.task_count:
                continue
            consequence = (
                f"a config with {count_text(change.task_count, 'task')} is refused (HTTP 400): delete the connector "
                "first, or create one with another name.\n"
            )
            if client is None:
                yield (
                    f"{change.connector} has {count_text(task_count, 'task')}. If it is a "
                    f"{' or '.join(SOURCES_WITH_FIXED_SPLIT)} whose tasks have been started, {consequence}"
                )
            elif source := _source_with_fixed_split(client.connector_config(change.connector)):
                yield (
                    f"{change.connector} is a {source} with {count_text(task_count, 'task')}. If its tasks have "
                    f"been started, {consequence}"
                )


def _source_with_fixed_split(config: Mapping[str, str | None]) -> str | None:
    """Which of :data:`SOURCES_WITH_FIXED_SPLIT` a connector with ``config`` has; None if the connector has another
    source."""
    class_names = ((config.get(key) or "").strip().rpartition(".")[2] for key in ("connector.class", "source.class"))
    return next((name for name in class_names if name in SOURCES_WITH_FIXED_SPLIT), None)


def _drains_that_would_wait(computed_plan: Plan, changed_snapshot: GroupSnapshot) -> Iterable[tuple[MemberId, str]]:
    """Yield each draining member that would keep jobs in the end, with the reason that the leader would report."""
    eligibility = Eligibility.from_members(changed_snapshot.members, changed_snapshot.configured_jobs)
    for member, remaining_jobs in computed_plan.owned_after.items():
        if changed_snapshot.members[member].is_draining and remaining_jobs:
            yield member, eligibility.unassignable_reason(next(iter(remaining_jobs)), changed_snapshot.members)


def _read_file_or_stdin(file: Path) -> bytes:
    """Return the content of ``file``; ``-`` is standard input.

    :raises WorldError: when ``file`` cannot be read.
    """
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise WorldError(f"{file} cannot be read: {error.strerror}") from error


def _plan_json(computed_plan: Plan, names: Mapping[MemberId, str]) -> dict[str, Any]:
    """The plan as printed by ``--json``."""
    return {
        "moves": [
            {
                "connector": move.job.connector if isinstance(move.job, ConnectorTaskId) else move.job,
                "task": move.job.task if isinstance(move.job, ConnectorTaskId) else None,
                "from": None if move.from_member is None else names[move.from_member],
                "to": None if move.to_member is None else names[move.to_member],
                "why": move.reason,
                "stops_in_round": move.stop_round,
                "starts_in_round": move.start_round,
                "waits_ms": move.unassigned_ms,
            }
            for move in computed_plan.moves
        ],
        "stopped": computed_plan.stopped_job_count,
        "rounds": computed_plan.round_count,
        "lasts_ms": computed_plan.waiting_ms,
        "unassigned": [
            {"job": str(job), "reason": reason}
            for job, reason in sorted(_job_names_and_reasons(computed_plan.reason_by_unassigned_job))
        ],
        "after": {
            names[member]: {"connectors": sorted(jobs.connectors), "tasks": [str(task) for task in sorted(jobs.tasks)]}
            for member, jobs in computed_plan.owned_after.items()
        },
    }


def _print_plan(
    computed_plan: Plan, names: Mapping[MemberId, str], *, job_count: int, moves_jobs_in_rounds: bool, console: Console
) -> None:
    """Print the plan, with the number of its rounds if the group ``moves_jobs_in_rounds``; ``job_count`` is the number
    of jobs before the changes."""
    if not computed_plan.moves:
        console.print("Nothing would move.")
    else:
        table = Table("job", "from", "to", "why", "waits", box=None, header_style="bold")
        for move in computed_plan.moves:
            table.add_row(escape(str(move.job)), *map(escape, _move_columns(move, names)))
        console.print(table)
        waiting_count = sum(move.reason is StartReason.LOST and move.unassigned_ms > 0 for move in computed_plan.moves)
        console.print(
            f"\n{computed_plan.stopped_job_count} of {count_text(job_count, 'job')} would be stopped"
            + (
                f", {len(computed_plan.reason_by_unassigned_job)} would be unassigned"
                if computed_plan.reason_by_unassigned_job
                else ""
            )
            + (
                f", {waiting_count} {'waits' if waiting_count == 1 else 'wait'} for a worker that has left"
                if waiting_count
                else ""
            )
            + (f"; {count_text(computed_plan.round_count, 'round')}" if moves_jobs_in_rounds else "")
            + (f", with {_seconds_text(computed_plan.waiting_ms)} of waiting." if computed_plan.waiting_ms else ".")
        )
    for job, reason in sorted(_job_names_and_reasons(computed_plan.reason_by_unassigned_job)):
        console.print(f"[yellow]{escape(job)} would be unassigned[/yellow]: {escape(reason)}")
    table = Table("worker", "connectors", "tasks", box=None, header_style="bold")
    for member, owned_jobs in sorted(computed_plan.owned_after.items(), key=lambda item: names[item[0]]):
        table.add_row(escape(names[member]), str(len(owned_jobs.connectors)), str(len(owned_jobs.tasks)))
    console.print("\nThen:" if computed_plan.moves else "")
    console.print(table)


def _move_columns(move: Move, names: Mapping[MemberId, str]) -> list[str]:
    """The columns of the table of moves after the job: from, to, why, and the waiting time."""
    from_text = "-" if move.from_member is None else names[move.from_member]
    to_text = "unassigned" if move.to_member is None else names[move.to_member]
    return [
        from_text,
        to_text,
        _TEXT_BY_REASON[move.reason],
        _seconds_text(move.unassigned_ms) if move.unassigned_ms else "-",
    ]


def _seconds_text(ms: int) -> str:
    return f"{ms / 1000:g} s"


def _job_names_and_reasons(unassigned: Mapping[Job, str]) -> list[tuple[str, str]]:
    """The job's name and the reason, for each of ``unassigned``."""
    return [(str(job), reason) for job, reason in unassigned.items()]
