"""A group as its coordinator describes it, for an operator: as tables and sentences, or as JSON."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.herder.group_view import worker_id_of_url
from coterie.kafka.group_admin import ClassicGroupDescription, ListedGroup
from coterie.nouns.connect_groups import LEAVE_BRIEFLY_EPOCH
from coterie.nouns.group_description import DepartedMemberDescription, GroupDescription, MemberDescription
from coterie.nouns.ids import GroupId, MemberId
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.rest.views import Json, jobs_json

_NAMED_JOBS_MAX = 5
"""How many jobs a sentence names; the JSON has all."""
_STYLE_BY_STATE = {"STABLE": "green", "UNJOINED": "red"}

# -- tables and sentences ---------------------------------------------------------------------------------------------


def print_group(group_id: GroupId, group: GroupDescription | ClassicGroupDescription, console: Console) -> None:
    """Print ``group``, with the id ``group_id``, to ``console``: tables, and sentences for a connect group."""
    match group:
        case GroupDescription():
            _print_connect_group(group_id, group, console)
        case ClassicGroupDescription():
            _print_classic_group(group_id, group, console)


def _print_connect_group(group_id: GroupId, group: GroupDescription, console: Console) -> None:
    names = name_by_member_id(group)
    leader = (
        f"led by {names[group.leader]} (leader epoch {group.leader_epoch})" if group.leader in names else "no leader"
    )
    console.print(
        f"Connect group {escape(group_id)}: {group.state}, group epoch {group.group_epoch}, assignment epoch "
        f"{group.assignment_epoch}, assignor {escape(group.assignor)}, {escape(leader)}"
    )
    table = Table(
        "worker", "at", "state", "epoch", "current", "target", "to stop", "config offset", box=None, header_style="bold"
    )
    for member in group.members:
        style = _STYLE_BY_STATE.get(member.state, "yellow")
        draining = ", draining" if member.draining else ""
        table.add_row(
            escape(names[member.member_id]),
            escape(worker_id_of_url(member.url)),
            f"[{style}]{member.state}[/{style}]{draining}",
            str(member.member_epoch),
            str(len(member.assigned)),
            str(len(member.target)),
            str(len(member.pending)),
            str(member.config_offset),
        )
    if group.members:
        console.print(table)
    for sentence in connect_group_instability_sentences(group):
        console.print(escape(sentence))


def _print_classic_group(group_id: GroupId, group: ClassicGroupDescription, console: Console) -> None:
    protocol = f", protocol {escape(group.protocol)}" if group.protocol else ""
    kind = f" of type {escape(group.protocol_type)}" if group.protocol_type else ""
    console.print(f"Classic group {escape(group_id)}{kind}: {escape(group.state)}{protocol}")
    table = Table("member", "instance id", "client", "host", box=None, header_style="bold")
    for member in group.members:
        table.add_row(*map(escape, (member.member_id, member.instance_id or "-", member.client_id, member.client_host)))
    if group.members:
        console.print(table)
    else:
        console.print(f"Group {escape(group_id)} has no members.")


def connect_group_instability_sentences(group: GroupDescription) -> Iterator[str]:
    """One sentence for each fact that keeps the group from being stable: no members, a computation that is running or
    has failed, jobs that must stop or that wait, departed members, and jobs that no worker may run."""
    if not group.members:
        yield "The group has no members."
    yield from _computation_sentences(group)
    names = name_by_member_id(group)
    for member in group.members:
        if member.member_epoch == LEAVE_BRIEFLY_EPOCH:
            yield (
                f"{names[member.member_id]} has left for a short time: until it returns or its session ends, no worker "
                f"runs {_jobs_text(member.target)}."
            )
        if member.pending:
            yield (f"{names[member.member_id]} must stop {_jobs_text(member.pending)}, and has not reported the stop.")
    for member in group.members:
        for holder, jobs in member.awaited_jobs_by_holder.items():
            yield f"{names[member.member_id]} waits for {_jobs_text(jobs)}: {_wait_reason(group, names, holder, jobs)}."
    for departed in group.departed:
        name = worker_id_of_url(departed.url)
        if departed.reason:
            yield f"{name} is no longer a member: {departed.reason}."
        if departed.delay_left_ms is not None:
            yield (
                f"For {_whole_seconds_text(departed.delay_left_ms)} more no worker runs {_jobs_text(departed.jobs)}, "
                f"in case {name}, which has left, returns."
            )
        if departed.held_jobs_left_ms:
            yield (
                f"{name} has left without stopping its jobs: they may run there, and start on no other worker, for "
                f"{_whole_seconds_text(departed.held_jobs_left_ms)} more."
            )
    for unplaceable in group.unplaceable:
        yield f"No worker runs {_jobs_text(unplaceable.jobs)}: {unplaceable.reason}."


def _computation_sentences(group: GroupDescription) -> Iterator[str]:
    """The sentences about a target assignment that is being computed or is not computed yet, and about the error of the
    last computation; none if there is nothing to report."""
    if group.computing_member:
        name = name_by_member_id(group).get(group.computing_member, group.computing_member)
        yield f"{name} computes the target of group epoch {group.group_epoch}."
    elif group.assignment_epoch < group.group_epoch and group.members:
        yield f"The target of group epoch {group.group_epoch} is not computed yet."
    if group.assignment_error:
        yield f"The last computation has failed: {group.assignment_error}."


def _wait_reason(group: GroupDescription, names: Mapping[MemberId, str], holder: MemberId, jobs: Jobs) -> str:
    """Why ``jobs``, which the target assigns to other members, cannot start there yet: what the group waits for from
    ``holder``, the member or departed member that may still run them. ``names``: see :func:`name_by_member_id`."""
    name = names.get(holder, holder)
    member = _find_member(group, holder)
    if member is not None:
        if jobs & member.pending:
            return f"{name} has received the order to stop them, and has not reported the stop"
        return f"{name} receives the order to stop them with the response to its next heartbeat"
    departed = next((one for one in group.departed if one.member_id == holder), None)
    if departed is None:
        return f"{name} runs them"
    return f"{name} has left; its session would have ended in {_whole_seconds_text(departed.held_jobs_left_ms)}"


def name_by_member_id(group: GroupDescription | ClassicGroupDescription) -> Mapping[MemberId, str]:
    """The name of each member in messages, by member id. In a connect group: the worker's name, or its ``host:port`` if
    it has no name, or its member id if several members have the same name; and the ``host:port`` of each departed
    worker. In a classic group: the member id."""
    if isinstance(group, ClassicGroupDescription):
        return {one.member_id: one.member_id for one in group.members}
    names = {one.member_id: one.name or worker_id_of_url(one.url) for one in group.members}
    count_by_name = Counter(names.values())
    names = {key: name if count_by_name[name] == 1 else key for key, name in names.items()}
    return {one.member_id: worker_id_of_url(one.url) for one in group.departed} | names


def _find_member(group: GroupDescription, member_id: MemberId) -> MemberDescription | None:
    return next((one for one in group.members if one.member_id == member_id), None)


def _jobs_text(jobs: Jobs) -> str:
    """The number of ``jobs`` and the names of some: "2 jobs (orders, orders-0)"."""
    names = [str(job) for job in jobs]
    named = ", ".join(names[:_NAMED_JOBS_MAX])
    rest = f" and {len(names) - _NAMED_JOBS_MAX} more" if len(names) > _NAMED_JOBS_MAX else ""
    return f"{len(names)} {'job' if len(names) == 1 else 'jobs'}" + (f" ({named}{rest})" if names else "")


def _whole_seconds_text(duration_ms: int) -> str:
    """``duration_ms`` in whole seconds, such as "12 s"."""
    return f"{duration_ms / 1000:.0f} s"


# -- JSON -------------------------------------------------------------------------------------------------------------


def listed_group_json(group: ListedGroup) -> Json:
    """One entry in the JSON output of `coterie groups list`."""
    return {
        "group_id": group.group_id,
        "type": group.type,
        "protocol_type": group.protocol_type,
        "state": group.state,
    }


def group_json(group_id: GroupId, group: GroupDescription | ClassicGroupDescription) -> Json:
    """The JSON output of `coterie groups describe`."""
    if isinstance(group, ClassicGroupDescription):
        return {
            "group_id": group_id,
            "type": "classic",
            "state": group.state,
            "protocol_type": group.protocol_type,
            "protocol": group.protocol,
            "members": [
                {
                    "member_id": one.member_id,
                    "instance_id": one.instance_id,
                    "client_id": one.client_id,
                    "client_host": one.client_host,
                }
                for one in group.members
            ],
        }
    names = name_by_member_id(group)
    return {
        "group_id": group_id,
        "type": "connect",
        "state": group.state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor": group.assignor,
        "computing_member": group.computing_member or None,
        "assignment_error": group.assignment_error or None,
        "leader": group.leader or None,
        "leader_epoch": group.leader_epoch,
        "config_offset": group.config_offset,
        "members": [_member_json(group, names, one) for one in group.members],
        "departed": [_departed_json(one) for one in group.departed],
        "unplaceable": [{"jobs": jobs_json(one.jobs), "reason": one.reason} for one in group.unplaceable],
        "configs": dict(group.configs),
    }


def _member_json(group: GroupDescription, names: Mapping[MemberId, str], member: MemberDescription) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "name": member.name or None,
        "worker_id": worker_id_of_url(member.url),
        "url": member.url,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_epoch": member.member_epoch,
        "state": member.state,
        "draining": member.draining,
        "config_offset": member.config_offset,
        "claims": None if member.claims is None else jobs_json(member.claims),
        "current": jobs_json(member.assigned),
        "target": jobs_json(member.target),
        "to_stop": jobs_json(member.pending or NO_JOBS),
        "waits_for": [
            {"holder": holder, "jobs": jobs_json(jobs), "why": _wait_reason(group, names, holder, jobs)}
            for holder, jobs in member.awaited_jobs_by_holder.items()
        ],
    }


def _departed_json(departed: DepartedMemberDescription) -> dict[str, Any]:
    return {
        "member_id": departed.member_id,
        "worker_id": worker_id_of_url(departed.url),
        "instance_id": departed.instance_id,
        "jobs": jobs_json(departed.jobs),
        "delay_left_ms": departed.delay_left_ms,
        "held_left_ms": departed.held_jobs_left_ms,
        "reason": departed.reason or None,
    }
