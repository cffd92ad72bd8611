"""A group as JSON, as `docs/rest.md` describes it. `coterie plan` reads this JSON from a worker or from a file."""

from collections import Counter
from collections.abc import Mapping, Sequence

from coterie.herder.requests.views import GroupView, MemberInfo
from coterie.nouns.jobs import ConnectorTaskId, Job
from coterie.rest.views import Json, jobs_json

UNREACHABLE = "UNREACHABLE"
"""The ``state`` of a member from which the leader received no valid ``GET /coterie/worker`` in time."""


def group_json(view: GroupView, member_views_in_order: Sequence[Mapping[str, object] | None]) -> Json:
    """The JSON of ``GET /coterie/group``. ``member_views_in_order`` contains the JSON of each member's ``GET
    /coterie/worker``, in the order of ``view.members``; None for a member without a valid response."""
    members_with_views = list(zip(view.members, member_views_in_order, strict=True))
    leader = next((member for member in view.members if member.member_id == view.leader), None)
    return {
        "protocol": view.protocol,
        "assignor": view.assignor,
        "generation": view.generation,
        "leader": None if leader is None else _worker_identity_json(leader),
        "config_offset": view.config_offset,
        "next_round_ms": view.next_round_in_ms,
        "policy": {
            "scheduled.rebalance.max.delay.ms": view.policy.max_delay_ms,
            "rebalance.max.moves.per.round": view.policy.moves_per_round_max,
            "rebalance.round.interval.ms": view.policy.round_interval_ms,
        },
        "configured": jobs_json(view.configured),
        "members": [_member_json(member, member_view) for member, member_view in members_with_views],
        "deferred": [
            {
                "worker": deferred.worker,
                "instance_id": deferred.instance_id,
                "left_ms": deferred.time_left_ms,
                "jobs": jobs_json(deferred.jobs),
            }
            for deferred in view.deferred
        ],
        "unassigned": [{**_job_json(job), "reason": reason} for job, reason in view.unassigned],
    }


def _member_json(member: MemberInfo, member_view: Mapping[str, object] | None) -> Json:
    """One member of the group as JSON. ``member``: the leader's data about the member. ``member_view``: the JSON of the
    member's own ``GET /coterie/worker``; None when the leader received none.

    Where both contain a value, that of ``member_view`` is used, since it is newer.
    """
    own = member_view or {}
    membership, threads, tasks = own.get("group"), own.get("plugin_threads"), own.get("tasks")
    draining, drain_waits = own.get("draining"), own.get("drain_waits")
    state = membership.get("state") if isinstance(membership, Mapping) else None
    phases = (
        Counter(str(task.get("phase", "unknown")) for task in tasks if isinstance(task, Mapping))
        if isinstance(tasks, list)
        else None
    )
    return {
        **_worker_identity_json(member),
        "member_id": member.member_id,
        "state": state if isinstance(state, str) else UNREACHABLE,
        "draining": draining if isinstance(draining, bool) else member.draining,
        "drain_waits": drain_waits if isinstance(drain_waits, str) else member.drain_wait_reason,
        "no_new_jobs": threads.get("no_new_jobs") if isinstance(threads, Mapping) else None,
        "claims": None if member.claims is None else jobs_json(member.claims),
        "config_offset": member.config_offset,
        "owned": jobs_json(member.owned),
        "revoked": jobs_json(member.revoked),
        "phases": None if phases is None else dict(sorted(phases.items())),
        "life": own.get("life"),
    }


def _worker_identity_json(member: MemberInfo) -> Json:
    """The fields of ``member`` that identify the worker. Each of them except ``url`` can name the worker in a client's
    request."""
    return {
        "name": member.name,
        "worker_id": member.worker_id,
        "url": member.url,
        "instance_id": member.instance_id,
    }


def _job_json(job: Job) -> Json:
    """A connector or a task as JSON; the field ``task`` is null for a connector."""
    if isinstance(job, ConnectorTaskId):
        return {"connector": job.connector, "task": job.task}
    return {"connector": job, "task": None}
