"""What `coterie groups describe` says of groups that are not settled."""

from dataclasses import replace
from typing import Any

import pytest

from coterie.cli.groups.report import connect_group_instability_sentences, group_json, name_by_member_id
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.connect_groups import LEAVE_BRIEFLY_EPOCH
from coterie.nouns.group_description import DepartedMemberDescription, GroupDescription, MemberDescription
from coterie.nouns.ids import ConfigOffset, GroupEpoch, GroupId, LeaderEpoch, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.member_state import MemberState
from coterie.nouns.target_assignments import UnplaceableJobs


def member(of: str, **different: Any) -> MemberDescription:
    settled = MemberDescription(
        member_id=MemberId(f"m-{of}"),
        member_epoch=MemberEpoch(3),
        state=MemberState.STABLE,
        url=WorkerUrl(f"http://{of}:8083/"),
        name=of,
        config_offset=ConfigOffset(4),
        assigned=NO_JOBS,
        pending=NO_JOBS,
        target=NO_JOBS,
        awaited_jobs_by_holder={},
    )
    return replace(settled, **different)


def departed(**different: Any) -> DepartedMemberDescription:
    gone = DepartedMemberDescription(
        member_id=MemberId("m-carl"),
        url=WorkerUrl("http://carl:8083/"),
        jobs=NO_JOBS,
        delay_left_ms=None,
        held_jobs_left_ms=0,
    )
    return replace(gone, **different)


def group(*members: MemberDescription, **different: Any) -> GroupDescription:
    settled = GroupDescription(
        state="Stable",
        group_epoch=GroupEpoch(3),
        assignment_epoch=GroupEpoch(3),
        assignor="cooperative",
        computing_member=MemberId(""),
        assignment_error="",
        leader=MemberId("m-anna"),
        leader_epoch=LeaderEpoch(1),
        config_offset=ConfigOffset(4),
        members=members,
        departed=(),
        unplaceable=(),
    )
    return replace(settled, **different)


AWAITED = {MemberId("m-carl"): parse_jobs("AT0")}
SENTENCES = {
    "it is settled": (group(member("anna")), []),
    "it is empty": (group(), ["The group has no members."]),
    "no target yet": (
        group(member("anna"), group_epoch=GroupEpoch(4)),
        ["The target of group epoch 4 is not computed yet."],
    ),
    "a computation has failed": (
        group(member("anna"), assignment_error="no member could"),
        ["The last computation has failed: no member could."],
    ),
    "a static member is away": (
        group(member("anna", member_epoch=LEAVE_BRIEFLY_EPOCH, target=parse_jobs("AC0"))),
        ["anna has left for a short time: until it returns or its session ends, no worker runs 1 job (A)."],
    ),
    "a departed worker may still run a job": (
        group(member("anna", awaited_jobs_by_holder=AWAITED), departed=(departed(held_jobs_left_ms=7_000),)),
        [
            "anna waits for 1 job (A-0): carl:8083 has left; its session would have ended in 7 s.",
            "carl:8083 has left without stopping its jobs: they may run there, and start on no other worker, for "
            "7 s more.",
        ],
    ),
    "a worker was removed": (
        group(member("anna"), departed=(departed(reason="it has not given back AT0 within 5000 ms"),)),
        ["carl:8083 is no longer a member: it has not given back AT0 within 5000 ms."],
    ),
    "jobs wait for a departed worker": (
        group(member("anna"), departed=(departed(jobs=parse_jobs("AC0 AT0"), delay_left_ms=12_000),)),
        ["For 12 s more no worker runs 2 jobs (A, A-0), in case carl:8083, which has left, returns."],
    ),
    "a job has no worker": (
        group(member("anna"), unplaceable=(UnplaceableJobs(jobs=parse_jobs("AT1"), reason="no worker claims it"),)),
        ["No worker runs 1 job (A-1): no worker claims it."],
    ),
    "many jobs are to be stopped": (
        group(member("anna", pending=parse_jobs("AT0 AT1 AT2 AT3 AT4 AT5 AT6"))),
        ["anna must stop 7 jobs (A-0, A-1, A-2, A-3, A-4 and 2 more), and has not reported the stop."],
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_each_unsettled_fact_is_a_sentence(case: str) -> None:
    described, sentences = SENTENCES[case]
    assert list(connect_group_instability_sentences(described)) == sentences


def test_a_member_is_called_by_its_name_unless_another_has_the_same() -> None:
    named = group(member("anna"), member("bert", name=""), member("x", name="same"), member("y", name="same"))
    assert dict(name_by_member_id(named)) == {
        "m-anna": "anna", "m-bert": "bert:8083", "m-x": "m-x", "m-y": "m-y",
    }  # fmt: skip


def test_absent_values_are_null_in_json() -> None:
    described = group_json(GroupId("g"), group(leader=MemberId(""), departed=(departed(),)))
    assert [described[key] for key in ("leader", "computing_member", "assignment_error")] == [None, None, None]
    assert described["departed"] == [
        {
            "member_id": "m-carl",
            "worker_id": "carl:8083",
            "instance_id": None,
            "jobs": {"connectors": [], "tasks": []},
            "delay_left_ms": None,
            "held_left_ms": 0,
            "reason": None,
        }
    ]
