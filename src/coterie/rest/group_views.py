"""A group as JSON, as `docs/rest.md` describes it. `coterie plan` reads this JSON from a worker or from a file."""

from collections import Counter
from collections.abc import Mapping, Sequence

from coterie.herder.requests import GroupView, MemberInfo
from coterie.nouns.jobs import ConnectorTaskId, Job
from coterie.rest.views import Json, jobs

UNREACHABLE = "UNREACHABLE"
"""The state of a member that did not report its own state."""


def group(view: GroupView, words: Sequence[Mapping[str, object] | None]) -> Json:
    """The JSON of ``GET /coterie/group``. ``words`` contains each member's ``GET /coterie/worker``, in the order of
    ``view.members``; None for a member that did not respond."""
    members = list(zip(view.members, words, strict=True))
    leader = next((member for member in view.members if member.member_id == view.leader), None)
    return {
        "protocol": view.protocol,
        "generation": view.generation,
        "leader": None if leader is None else _called(leader),
        "config_offset": view.config_offset,
        "next_round_ms": view.next_round_ms,
        "policy": {
            "scheduled.rebalance.max.delay.ms": view.policy.max_delay_ms,
            "rebalance.max.moves.per.round": view.policy.moves_per_round_max,
            "rebalance.round.interval.ms": view.policy.round_interval_ms,
        },
        "configured": jobs(view.configured),
        "members": [_member(member, word) for member, word in members],
        "deferred": [
            {
                "worker": deferred.worker,
                "instance_id": deferred.instance_id,
                "left_ms": deferred.left_ms,
                "jobs": jobs(deferred.jobs),
            }
            for deferred in view.deferred
        ],
        "unassigned": [{**_job(job), "reason": reason} for job, reason in view.unassigned],
    }


def _member(member: MemberInfo, word: Mapping[str, object] | None) -> Json:
    place = word.get("group") if word is not None else None
    state = place.get("state") if isinstance(place, Mapping) else None
    tasks = word.get("tasks") if word is not None else None
    draining = word.get("draining") if word is not None else None
    waits = word.get("drain_waits") if word is not None else None
    phases = Counter(str(task["phase"]) for task in tasks) if isinstance(tasks, list) else None
    return {
        **_called(member),
        "member_id": member.member_id,
        "state": state if isinstance(state, str) else UNREACHABLE,
        "draining": draining if isinstance(draining, bool) else member.draining,
        "drain_waits": waits if isinstance(waits, str) else member.waits,
        "claims": None if member.claims is None else jobs(member.claims),
        "config_offset": member.config_offset,
        "owned": jobs(member.owned),
        "revoked": jobs(member.revoked),
        "phases": None if phases is None else dict(sorted(phases.items())),
        "life": word.get("life") if word is not None else None,
    }


def _called(member: MemberInfo) -> Json:
    return {
        "name": member.name,
        "worker_id": member.worker_id,
        "url": member.url,
        "instance_id": member.instance_id,
    }


def _job(job: Job) -> Json:
    if isinstance(job, ConnectorTaskId):
        return {"connector": job.connector, "task": job.task}
    return {"connector": job, "task": None}
