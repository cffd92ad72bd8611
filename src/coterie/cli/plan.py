"""`coterie plan`: what would move if the group changed, and why; of a live group, or of one in a file."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.assignors.members import MemberView, Policy
from coterie.assignors.memory import Waiting
from coterie.assignors.moves import Why
from coterie.assignors.plan import (
    Change,
    Claims,
    Created,
    Deleted,
    Drains,
    Joins,
    Leaves,
    Move,
    Picture,
    Plan,
    Reason,
    changed,
    plan,
)
from coterie.cli.asking import ask
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import InstanceId, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.wire.connect import ConnectProtocol

_WHY: Mapping[Why | Reason, str] = {
    Why.DELETED: "it is deleted",
    Why.DUPLICATE: "another worker runs it, too",
    Why.CLAIM: "static assignments (KIP-987)",
    Why.DRAIN: "its worker drains",
    Why.BALANCE: "balance",
    Reason.NEW: "nobody ran it",
    Reason.LOST: "its worker has left",
}


# -- the group, as REST tells of it -----------------------------------------------------------------------------------


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Task(_Shown):
    connector: ConnectorName
    task: int = Field(ge=0)


class _Jobs(_Shown):
    connectors: tuple[ConnectorName, ...]
    tasks: tuple[_Task, ...]

    @property
    def jobs(self) -> Jobs:
        tasks = (ConnectorTaskId(task.connector, task.task) for task in self.tasks)
        return Jobs(frozenset(self.connectors), frozenset(tasks))


class _Member(_Shown):
    member_id: MemberId
    name: str
    worker_id: str
    instance_id: InstanceId | None
    draining: bool
    claims: _Jobs | None
    owned: _Jobs


class _Deferred(_Shown):
    worker: str | None
    instance_id: InstanceId | None
    left_ms: int = Field(ge=0)
    jobs: _Jobs


class _Policy(_Shown):
    max_delay_ms: int = Field(alias="scheduled.rebalance.max.delay.ms", ge=0)
    moves_per_round_max: int | None = Field(alias="rebalance.max.moves.per.round", ge=1)
    round_interval_ms: int = Field(alias="rebalance.round.interval.ms", ge=0)


class _Group(_Shown):
    """What a plan needs of ``GET /coterie/group``."""

    protocol: str
    policy: _Policy
    configured: _Jobs
    members: tuple[_Member, ...]
    deferred: tuple[_Deferred, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A group as it is now, and what people call its members."""

    picture: Picture
    names: Mapping[MemberId, str]
    protocol: ConnectProtocol
    _ids: Mapping[str, MemberId]

    def member(self, called: str) -> MemberId:
        """:raises WorldError: when nobody is called so; says who there is."""
        if called not in self._ids:
            there = ", ".join(sorted(self.names.values())) or "nobody"
            raise WorldError(f"The group has no worker {called}; it has {there}")
        return self._ids[called]


def read_group(data: str | bytes, *, source: str) -> Known:
    """The group in JSON ``data``.

    :raises WorldError: when it is none; names ``source``, and what is wrong where.
    """
    try:
        group = _Group.model_validate_json(data)
        protocol = ConnectProtocol.named(group.protocol)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        where = ".".join(map(str, detail["loc"]))
        raise WorldError(
            f"{source} holds no group{f', at {where}' if where else ''}: {detail['msg']}. "
            "Save one with `curl http://WORKER/coterie/group > FILE`."
        ) from error
    except KeyError as error:
        raise WorldError(f"{source} holds no group: there is no protocol {group.protocol!r}") from error
    members = {
        member.member_id: MemberView(
            owned=member.owned.jobs,
            claims=None if member.claims is None else member.claims.jobs,
            draining=member.draining,
            instance_id=member.instance_id,
        )
        for member in group.members
    }
    ids: dict[str, MemberId] = {
        **{member.instance_id: member.member_id for member in group.members if member.instance_id is not None},
        **{member.worker_id: member.member_id for member in group.members},
        **{member.name: member.member_id for member in group.members},
    }
    waiting = tuple(
        Waiting(jobs=one.jobs.jobs, deadline_ms=one.left_ms, instance_id=one.instance_id) for one in group.deferred
    )
    policy = Policy(
        max_delay_ms=group.policy.max_delay_ms,
        moves_per_round_max=group.policy.moves_per_round_max,
        round_interval_ms=group.policy.round_interval_ms,
    )
    return Known(
        picture=Picture(configured=group.configured.jobs, members=members, waiting=waiting, policy=policy),
        names={member.member_id: member.name for member in group.members},
        protocol=protocol,
        _ids=ids,
    )


# -- what is asked ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of one call, as they were typed."""

    add: Sequence[str] = ()
    remove: Sequence[str] = ()
    drain: Sequence[str] = ()
    claim_connectors: Sequence[str] = ()
    claim_tasks: Sequence[str] = ()
    create: Sequence[str] = ()
    delete: Sequence[str] = ()


def changes_of(asked: Asked, known: Known) -> list[Change]:
    """What ``asked`` means for the group, in an order in which all of it can be.

    :raises WorldError: when a worker or connector is not there, or something cannot be read.
    """
    joined = {name: MemberId(name) for name in asked.add}
    for name in joined:
        if name in known.names.values():
            raise WorldError(f"The group has a worker {name} already; give the new one another name")

    def member(called: str) -> MemberId:
        return joined[called] if called in joined else known.member(called)

    changes: list[Change] = [Joins(member=id_) for id_ in joined.values()]
    for text in asked.create:
        name, _, tasks = text.rpartition("=")
        if not (name and tasks.isascii() and tasks.isdigit()):
            raise WorldError(f"--create {text}: say NAME=TASKS, for example orders=4")
        changes.append(Created(connector=ConnectorName(name), tasks=int(tasks)))
    for name in asked.delete:
        if name not in known.picture.configured.connectors:
            raise WorldError(f"There is no connector {name}")
        changes.append(Deleted(connector=ConnectorName(name)))
    claims = _claims(asked)
    changes += [Claims(member=member(worker), jobs=jobs) for worker, jobs in sorted(claims.items())]
    changes += [Drains(member=member(worker)) for worker in asked.drain]
    changes += [Leaves(member=known.member(worker)) for worker in asked.remove]
    if gone := set(asked.remove) & {*asked.drain, *claims}:
        raise WorldError(f"{', '.join(sorted(gone))} cannot be removed and go on at the same time")
    if known.protocol < ConnectProtocol.STATIC and (asked.drain or claims):
        raise WorldError(
            f"The group speaks {known.protocol.setting}, which knows neither drains nor static assignments: "
            "all workers have to offer connect.protocol=static"
        )
    return changes


def _claims(asked: Asked) -> dict[str, Jobs]:
    """What each worker is to claim, as ``static.connectors`` and ``static.tasks`` name it; perhaps nothing."""
    claims: dict[str, Jobs] = {}
    for worker, names in _named("--claim-connectors", "orders,payments", asked.claim_connectors):
        claims[worker] = claims.get(worker, NO_JOBS) | Jobs.of(map(ConnectorName, names))
    for worker, names in _named("--claim-tasks", "orders-0,orders-1", asked.claim_tasks):
        try:
            claims[worker] = claims.get(worker, NO_JOBS) | Jobs.of(map(ConnectorTaskId.parse, names))
        except ValueError as error:
            raise WorldError(f"--claim-tasks of {worker}: {error}") from error
    return claims


def _named(option: str, example: str, texts: Iterable[str]) -> Iterable[tuple[str, list[str]]]:
    for text in texts:
        worker, equals, names = text.partition("=")
        if not (worker and equals):
            raise WorldError(f"{option} {text}: say WORKER=NAMES, for example worker-1={example}")
        yield worker, [name.strip() for name in names.split(",") if name.strip()]


# -- the command ------------------------------------------------------------------------------------------------------


def show(asked: Asked, *, url: str, file: Path | None, as_json: bool) -> None:
    """Read the group, plan, and print it.

    :raises WorldError: when there is no group to be had, or what is asked makes no sense of it.
    """
    if file is None:
        known = read_group(ask(url, "GET", "/coterie/group").content, source=f"The answer of {url}")
    else:
        known = read_group(_read(file), source=str(file))
    if known.protocol is ConnectProtocol.EAGER:
        raise WorldError("The group speaks eager: whatever happens, every job is stopped and dealt out anew")
    changes = changes_of(asked, known)
    names = {**known.names, **{MemberId(name): name for name in asked.add}}
    planned = plan(known.picture, changes)
    if as_json:
        json.dump(_as_json(planned, names), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    target = reduce(changed, changes, known.picture)
    _print(planned, names, jobs=len(target.configured), console=Console(highlight=False, emoji=False))


def _read(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise WorldError(f"{file} cannot be read: {error.strerror}") from error


def _as_json(planned: Plan, names: Mapping[MemberId, str]) -> dict[str, Any]:
    return {
        "moves": [
            {
                "connector": move.job.connector if isinstance(move.job, ConnectorTaskId) else move.job,
                "task": move.job.task if isinstance(move.job, ConnectorTaskId) else None,
                "from": None if move.came_from is None else names[move.came_from],
                "to": None if move.goes_to is None else names[move.goes_to],
                "why": move.why,
                "stops_in_round": move.stops_in,
                "starts_in_round": move.starts_in,
                "waits_ms": move.waits_ms,
            }
            for move in planned.moves
        ],
        "stopped": planned.stopped,
        "rounds": planned.rounds,
        "lasts_ms": planned.lasts_ms,
        "unassigned": [{"job": str(job), "reason": reason} for job, reason in sorted(_texts(planned.unassigned))],
        "after": {
            names[member]: {"connectors": sorted(jobs.connectors), "tasks": [str(task) for task in sorted(jobs.tasks)]}
            for member, jobs in planned.after.items()
        },
    }


def _print(planned: Plan, names: Mapping[MemberId, str], *, jobs: int, console: Console) -> None:
    if not planned.moves:
        console.print("Nothing would move.")
    else:
        table = Table("job", "from", "to", "why", "waits", box=None, header_style="bold")
        for move in planned.moves:
            table.add_row(escape(str(move.job)), *map(escape, _row(move, names)))
        console.print(table)
        lost = sum(move.why is Reason.LOST for move in planned.moves)
        console.print(
            f"\n{planned.stopped} of {jobs} jobs would be stopped"
            + (f", {lost} wait for a worker that has left" if lost else "")
            + f"; {planned.rounds} rounds"
            + (f", with {_seconds(planned.lasts_ms)} of waiting." if planned.lasts_ms else ".")
        )
    for job, reason in sorted(_texts(planned.unassigned)):
        console.print(f"[yellow]{escape(job)} would have nobody[/yellow]: {escape(reason)}")
    table = Table("worker", "connectors", "tasks", box=None, header_style="bold")
    for member, has in sorted(planned.after.items(), key=lambda item: names[item[0]]):
        table.add_row(escape(names[member]), str(len(has.connectors)), str(len(has.tasks)))
    console.print("\nThen:" if planned.moves else "")
    console.print(table)


def _row(move: Move, names: Mapping[MemberId, str]) -> list[str]:
    came_from = "-" if move.came_from is None else names[move.came_from]
    goes_to = "nobody" if move.goes_to is None else names[move.goes_to]
    return [came_from, goes_to, _WHY[move.why], _seconds(move.waits_ms) if move.waits_ms else "-"]


def _seconds(ms: int) -> str:
    return f"{ms / 1000:g} s"


def _texts(unassigned: Mapping[Job, str]) -> list[tuple[str, str]]:
    return [(str(job), reason) for job, reason in unassigned.items()]
