"""A group of three workers as a worker's REST API shows it, and variations of it."""

import json
from typing import Any

from coterie.assignors.members import RebalancePolicy
from coterie.herder.requests.views import GroupView, MemberInfo
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import ConfigOffset, GenerationId, InstanceId, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import Jobs
from coterie.rest.group_views import group_json


def member(name: str, owned: str, claims: Jobs | None = None) -> MemberInfo:
    return MemberInfo(
        member_id=MemberId(f"id-of-{name}"),
        worker_id=WorkerId(f"{name}:8083"),
        name=name,
        url=WorkerUrl(f"http://{name}:8083/"),
        instance_id=InstanceId(f"place-of-{name}"),
        claims=claims,
        draining=False,
        config_offset=ConfigOffset(4),
        owned=parse_jobs(owned),
        revoked=Jobs(),
        drain_wait_reason=None,
    )


def view(**different: Any) -> GroupView:
    return GroupView(
        **{
            "generation": GenerationId(7),
            "protocol": "static",
            "assignor": None,
            "leader": MemberId("id-of-one"),
            "config_offset": ConfigOffset(4),
            "configured": parse_jobs("AC0 AT0 AT1 BC0 BT0"),
            "members": (member("one", "AC0 AT0"), member("three", "BT0"), member("two", "AT1 BC0")),
            "deferred": (),
            "unassigned": (),
            "policy": RebalancePolicy(),
            "next_round_in_ms": None,
            **different,
        }
    )


def as_json(group_view: GroupView) -> str:
    return json.dumps(group_json(group_view, [None] * len(group_view.members)))
