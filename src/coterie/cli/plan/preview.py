"""`coterie plan`: shows which jobs would move if a group changed, and why. Reads the group over REST or from a file."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.assignors.assignor_state import Deferral, union
from coterie.assignors.claims import Eligibility
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.assignors.moves import RevocationReason
from coterie.assignors.plan import (
    ConnectorCreated,
    ConnectorDeleted,
    GroupChange,
    GroupSnapshot,
    MemberClaims,
    MemberDrains,
    MemberJoins,
    MemberLeaves,
    Move,
    Plan,
    StartReason,
    apply_change,
    plan,
)
from coterie.cli.group.client import GroupClient
from coterie.cli.group.descriptions import GroupDescription, MemberDescription, read_group
from coterie.config.definition import as_list
from coterie.config.worker import check_static_names, parse_static_task
from coterie.herder.group_view import find_members
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, TASKS_MAX, ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.wire.connect import ConnectProtocol

_WHY: Mapping[RevocationReason | StartReason, str] = {
    RevocationReason.DELETED: "it is deleted",
    RevocationReason.DUPLICATE: "another worker runs it, too",
    RevocationReason.CLAIM: "static assignments (KIP-987)",
    RevocationReason.DRAIN: "its worker drains",
    RevocationReason.BALANCE: "balance",
    StartReason.NEW: "no worker ran it",
    StartReason.LOST: "its worker has left",
}


# -- the group -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedGroup:
    """A group as the input of a plan, and the names by which operators call its members."""

    snapshot: GroupSnapshot
    names: Mapping[MemberId, str]
    """A unique name of each member: its name; its ``host:port`` if several members have this name; its member id if
    several members have this ``host:port`` as well."""
    protocol: ConnectProtocol
    _members: tuple[MemberDescription, ...]

    def matching_members(self, text: str) -> list[MemberId]:
        """The members that match ``text``: those with this host:port, else with this name, else with this instance id,
        else with this member id. The leader selects the worker of an order in the same way, but not by member id."""
        by_id = [member for member in self._members if member.member_id == text]
        return [member.member_id for member in find_members(self._members, text) or by_id]

    def find_member(self, text: str) -> MemberId:
        """Return the only member that matches ``text``.

        :raises WorldError: when no member matches (lists all members), or several members match (lists these).
        """
        found = self.matching_members(text)
        if not found:
            there = ", ".join(sorted(self.names.values())) or "no workers"
            raise WorldError(f"The group has no worker {text}; it has {there}")
        if len(found) > 1:
            which = ", ".join(sorted(self.names[member] for member in found))
            raise WorldError(f"{len(found)} workers are called {text}; name one of {which}")
        return found[0]


def named_group(group: GroupDescription, *, source: str) -> NamedGroup:
    """Convert a group's description. ``source`` names the origin of the description in the error.

    :raises WorldError: when the group's protocol is unknown.
    """
    try:
        protocol = ConnectProtocol.from_setting(group.protocol)
    except KeyError as error:
        raise WorldError(f"{source} is not a valid group description: unknown protocol {group.protocol!r}") from error
    members = {
        member.member_id: MemberSpec(
            owned=member.owned.jobs,
            claims=None if member.claims is None else member.claims.jobs,
            draining=member.draining,
            instance_id=member.instance_id,
        )
        for member in group.members
    }
    deferrals = tuple(
        Deferral(jobs=one.jobs.jobs, deadline_ms=one.left_ms, instance_id=one.instance_id) for one in group.deferred
    )
    policy = RebalancePolicy(
        max_delay_ms=group.policy.max_delay_ms,
        moves_per_round_max=group.policy.moves_per_round_max,
        round_interval_ms=group.policy.round_interval_ms,
    )
    leader = next((member.member_id for member in group.members if group.is_led_by(member)), None)
    return NamedGroup(
        snapshot=GroupSnapshot(
            configured=group.configured.jobs, members=members, deferrals=deferrals, policy=policy, leader=leader
        ),
        names=_names(group.members),
        protocol=protocol,
        _members=group.members,
    )


def _names(members: Sequence[MemberDescription]) -> Mapping[MemberId, str]:
    """Return the unique name of each member, as described at ``NamedGroup.names``."""
    names, worker_ids = Counter(one.name for one in members), Counter(one.worker_id for one in members)
    return {
        one.member_id: one.name
        if names[one.name] == 1
        else one.worker_id
        if worker_ids[one.worker_id] == 1
        else one.member_id
        for one in members
    }


# -- the requested changes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of one call of the command, each with the texts that were typed after it."""

    add: Sequence[str] = ()
    remove: Sequence[str] = ()
    drain: Sequence[str] = ()
    claim_connectors: Sequence[str] = ()
    claim_tasks: Sequence[str] = ()
    create: Sequence[str] = ()
    delete: Sequence[str] = ()


def changes_of(asked: PlanOptions, group: NamedGroup) -> list[GroupChange]:
    """Convert the options ``asked`` to changes of the group, in an order in which they can be applied.

    :raises WorldError: when a worker or connector does not exist, an option is not valid or contradicts another, or the
        group's protocol supports neither drains nor claims.
    """
    joined: dict[str, MemberId] = {}
    for name in asked.add:
        if not name.strip():
            raise WorldError("--add: a worker needs a name")
        if name in joined or group.matching_members(name):
            raise WorldError(f"The group has a worker {name} already; give the new worker another name")
        joined[name] = MemberId(name)

    def member(text: str) -> MemberId:
        return joined[text] if text in joined else group.find_member(text)

    created = dict(_created(text) for text in asked.create)
    if len(created) < len(asked.create) or created.keys() & set(asked.delete):
        raise WorldError("A connector can be created or deleted only once at a time")
    for name in asked.delete:
        if name not in group.snapshot.configured.connectors:
            raise WorldError(f"There is no connector {name}")
    claims: dict[MemberId, Jobs] = {}
    for worker, jobs in _claims(asked):
        claims[member(worker)] = claims.get(member(worker), NO_JOBS) | jobs
    drains = [member(worker) for worker in asked.drain]
    for worker in asked.remove:
        if group.find_member(worker) in {*drains, *claims}:
            raise WorldError(f"{worker} cannot be removed and also drained or given claims")
    if group.protocol < ConnectProtocol.STATIC and (drains or claims):
        raise WorldError(
            f"The group's protocol is {group.protocol.setting}, which supports neither drains nor static assignments: "
            "all workers must have connect.protocol=static"
        )
    return [
        *(MemberJoins(member=member) for member in joined.values()),
        *(ConnectorCreated(connector=connector, tasks=tasks) for connector, tasks in created.items()),
        *(ConnectorDeleted(connector=ConnectorName(name)) for name in asked.delete),
        *(MemberClaims(member=member, jobs=jobs) for member, jobs in sorted(claims.items())),
        *(MemberDrains(member=member) for member in drains),
        *(MemberLeaves(member=group.find_member(worker)) for worker in asked.remove),
    ]


def _created(text: str) -> tuple[ConnectorName, int]:
    """Parse the value of ``--create``: NAME=TASKS.

    :raises WorldError: when ``text`` is not of this form, or the number of tasks is out of range.
    """
    name, _, tasks = text.rpartition("=")
    if not (name and re.fullmatch("[0-9]{1,6}", tasks) and 1 <= int(tasks) <= TASKS_MAX):
        raise WorldError(f"--create {text}: use NAME=TASKS, for example orders=4; 1 to {TASKS_MAX} tasks")
    return ConnectorName(name), int(tasks)


def _claims(asked: PlanOptions) -> Iterable[tuple[str, Jobs]]:
    """Yield the worker's name and its claims for each ``--claim-…`` option, parsed like ``static.connectors`` and
    ``static.tasks``. The claims may be no jobs, and a worker may occur several times.

    :raises WorldError: when an option is not WORKER=NAMES, or a name is not valid.
    """
    for option, example, texts, read in (
        ("--claim-connectors", "orders,payments", asked.claim_connectors, ConnectorName),
        ("--claim-tasks", "orders-0,orders-1", asked.claim_tasks, parse_static_task),
    ):
        for text in texts:
            worker, equals, names = text.partition("=")
            if not (worker and equals):
                raise WorldError(f"{option} {text}: use WORKER=NAMES, for example worker-1={example}")
            try:
                yield worker, Jobs.of(map(read, check_static_names(tuple(as_list(names)))))
            except ValueError as error:
                raise WorldError(f"{option} of {worker}: {error}") from error


# -- the command ------------------------------------------------------------------------------------------------------


def show(asked: PlanOptions, *, url: str, file: Path | None, as_json: bool) -> None:
    """Read the group from ``file`` or, if that is None, from the worker at ``url``; compute the plan and print it.

    :raises WorldError: when the group cannot be read, its protocol is eager, or a requested change is not possible in
        this group.
    """
    if file is None:
        with GroupClient(url) as group:
            known = named_group(group.describe(), source=f"The response of {url}")
    else:
        known = named_group(read_group(_read(file), source=str(file)), source=str(file))
    if known.protocol is ConnectProtocol.EAGER:
        raise WorldError(
            "The group's protocol is eager: in each rebalance every job is stopped and assigned from scratch, "
            "so there is no plan"
        )
    changes = changes_of(asked, known)
    names = {**known.names, **{MemberId(name): name for name in asked.add}}
    planned = plan(known.snapshot, changes)
    target = known.snapshot
    for change in changes:
        target = apply_change(target, change)
    _warn_of_unknown(changes, target, names)
    _warn_of_other_counts(changes, known.snapshot)
    if as_json:
        json.dump(_as_json(planned, names), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    before = union([known.snapshot.configured, *(view.owned for view in known.snapshot.members.values())])
    console = Console(highlight=False, emoji=False)
    _print(planned, names, jobs=len(before), console=console)
    for member, why in _drains_that_wait(planned, target):
        console.print(f"The drain of {escape(names[member])} would wait: {escape(why)}.")


def _warn_of_unknown(changes: Sequence[GroupChange], target: GroupSnapshot, names: Mapping[MemberId, str]) -> None:
    """Print a warning for each claim on a job that does not exist after ``changes``.

    Such claims are allowed, but usually a typing error.
    """
    for change in changes:
        if isinstance(change, MemberClaims) and change.jobs is not None:
            for job in change.jobs - target.configured:
                what = "task" if isinstance(job, ConnectorTaskId) else "connector"
                sys.stderr.write(f"{names[change.member]} would claim {job}, but there is no {what} {job} now\n")


def _warn_of_other_counts(changes: Sequence[GroupChange], snapshot: GroupSnapshot) -> None:
    """Print a warning if a connector's number of tasks would change: REST refuses it for a connector with checkpoints.

    The description of a group does not contain whether there are checkpoints, so the warning is printed in any case.
    """
    for change in changes:
        if isinstance(change, ConnectorCreated) and change.connector in snapshot.configured.connectors:
            tasks = sum(task.connector == change.connector for task in snapshot.configured.tasks)
            if tasks != change.tasks:
                sys.stderr.write(
                    f"{change.connector} has {_count(tasks, 'task')}: once they have been started, a config that gives "
                    f"the connector {_count(change.tasks, 'task')} is refused (HTTP 400). Delete the connector first, "
                    "or create one with another name.\n"
                )


def _drains_that_wait(planned: Plan, target: GroupSnapshot) -> Iterable[tuple[MemberId, str]]:
    """Yield each draining member that would keep jobs in the end, with the reason that the leader would report."""
    eligibility = Eligibility.of(target.members, target.configured)
    for member, left in planned.owned_after.items():
        if target.members[member].draining and left:
            yield member, eligibility.unassigned_reason(next(iter(left)), target.members)


def _read(file: Path) -> bytes:
    """Return the content of ``file``; ``-`` is standard input.

    :raises WorldError: when ``file`` cannot be read.
    """
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise WorldError(f"{file} cannot be read: {error.strerror}") from error


def _as_json(planned: Plan, names: Mapping[MemberId, str]) -> dict[str, Any]:
    """The plan as printed by ``--json``."""
    return {
        "moves": [
            {
                "connector": move.job.connector if isinstance(move.job, ConnectorTaskId) else move.job,
                "task": move.job.task if isinstance(move.job, ConnectorTaskId) else None,
                "from": None if move.from_member is None else names[move.from_member],
                "to": None if move.to_member is None else names[move.to_member],
                "why": move.why,
                "stops_in_round": move.stop_round,
                "starts_in_round": move.start_round,
                "waits_ms": move.unassigned_ms,
            }
            for move in planned.moves
        ],
        "stopped": planned.stopped_jobs_count,
        "rounds": planned.rounds,
        "lasts_ms": planned.waiting_ms,
        "unassigned": [{"job": str(job), "reason": reason} for job, reason in sorted(_texts(planned.unassigned))],
        "after": {
            names[member]: {"connectors": sorted(jobs.connectors), "tasks": [str(task) for task in sorted(jobs.tasks)]}
            for member, jobs in planned.owned_after.items()
        },
    }


def _print(planned: Plan, names: Mapping[MemberId, str], *, jobs: int, console: Console) -> None:
    """Print the plan; ``jobs`` is the number of jobs before the changes."""
    if not planned.moves:
        console.print("Nothing would move.")
    else:
        table = Table("job", "from", "to", "why", "waits", box=None, header_style="bold")
        for move in planned.moves:
            table.add_row(escape(str(move.job)), *map(escape, _row(move, names)))
        console.print(table)
        waits = sum(move.why is StartReason.LOST and move.unassigned_ms > 0 for move in planned.moves)
        console.print(
            f"\n{planned.stopped_jobs_count} of {_count(jobs, 'job')} would be stopped"
            + (f", {len(planned.unassigned)} would be unassigned" if planned.unassigned else "")
            + (f", {waits} {'waits' if waits == 1 else 'wait'} for a worker that has left" if waits else "")
            + f"; {_count(planned.rounds, 'round')}"
            + (f", with {_seconds(planned.waiting_ms)} of waiting." if planned.waiting_ms else ".")
        )
    for job, reason in sorted(_texts(planned.unassigned)):
        console.print(f"[yellow]{escape(job)} would be unassigned[/yellow]: {escape(reason)}")
    table = Table("worker", "connectors", "tasks", box=None, header_style="bold")
    for member, has in sorted(planned.owned_after.items(), key=lambda item: names[item[0]]):
        table.add_row(escape(names[member]), str(len(has.connectors)), str(len(has.tasks)))
    console.print("\nThen:" if planned.moves else "")
    console.print(table)


def _row(move: Move, names: Mapping[MemberId, str]) -> list[str]:
    """The columns of the table of moves after the job: from, to, why, and the waiting time."""
    came_from = "-" if move.from_member is None else names[move.from_member]
    goes_to = "unassigned" if move.to_member is None else names[move.to_member]
    return [came_from, goes_to, _WHY[move.why], _seconds(move.unassigned_ms) if move.unassigned_ms else "-"]


def _count(number: int, what: str) -> str:
    """``number`` and ``what`` as text, such as "1 job" or "2 jobs"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:g} s"


def _texts(unassigned: Mapping[Job, str]) -> list[tuple[str, str]]:
    """The job's name and the reason, for each of ``unassigned``."""
    return [(str(job), reason) for job, reason in unassigned.items()]
