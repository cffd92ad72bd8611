"""A target assignment is installed only if each configured job is in exactly one place."""

from dataclasses import replace

import pytest

from coterie.groups.connect.target_check import target_error
from coterie.nouns.ids import ConfigOffset, GroupEpoch, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.target_assignments import (
    ComputedTarget,
    DeferredJobs,
    GroupSnapshot,
    SnapshotDeparted,
    SnapshotMember,
    TargetOfMember,
    UnplaceableJobs,
)

C = ConnectorName("c")
T0, T1, T2 = (ConnectorTaskId(C, number) for number in range(3))
SNAPSHOT = GroupSnapshot(
    group_epoch=GroupEpoch(3),
    assignor="cooperative",
    members=tuple(
        SnapshotMember(
            member_id=MemberId(name), member_epoch=MemberEpoch(2), url=WorkerUrl(""), config_offset=ConfigOffset(1)
        )
        for name in ("a", "b")
    ),
    departed=(SnapshotDeparted(member_id=MemberId("gone"), url=WorkerUrl(""), jobs=Jobs.of([T1]), delay_left_ms=None),),
    config_offset=ConfigOffset(1),
    configured=Jobs.of([C, T0, T1, T2]),
)
VALID = ComputedTarget(
    members={MemberId("a"): TargetOfMember(jobs=Jobs.of([C, T0])), MemberId("b"): TargetOfMember(jobs=NO_JOBS)},
    deferred={MemberId("gone"): DeferredJobs(jobs=Jobs.of([T1]), delay_ms=1)},
    unplaceable=(UnplaceableJobs(jobs=Jobs.of([T2]), reason="no worker claims it"),),
)


def error_of(target: ComputedTarget, *, members: str = "", jobs: Jobs = NO_JOBS) -> str | None:
    return target_error(target, SNAPSHOT, frozenset(map(MemberId, members)), jobs)


def test_a_job_may_be_assigned_deferred_or_unplaceable() -> None:
    assert error_of(VALID) is None


def test_jobs_whose_delay_is_over_are_not_deferred_again() -> None:
    """Each target would begin another computation."""
    for delay_left_ms, is_valid in ((None, True), (1, True), (0, False)):
        (gone,) = SNAPSHOT.departed
        snapshot = replace(SNAPSHOT, departed=(replace(gone, delay_left_ms=delay_left_ms),))
        error = target_error(VALID, snapshot, frozenset(), NO_JOBS)
        assert error == (None if is_valid else "it defers jobs for gone, whose delay is over")


WRONG = {
    "c-0": replace(VALID, members={MemberId("a"): TargetOfMember(jobs=Jobs.of([C]))}),
    "it assigns c-1 twice": replace(VALID, members={MemberId("a"): TargetOfMember(jobs=Jobs.of([C, T0, T1]))}),
    "not configured": replace(
        VALID, members={MemberId("a"): TargetOfMember(jobs=Jobs.of([C, T0, ConnectorName("other")]))}
    ),
    "no member z": replace(VALID, members={**VALID.members, MemberId("z"): TargetOfMember(jobs=NO_JOBS)}),
    "no member a has left": replace(VALID, deferred={MemberId("a"): DeferredJobs(jobs=Jobs.of([T1]), delay_ms=1)}),
    "above 0": replace(VALID, deferred={MemberId("gone"): DeferredJobs(jobs=Jobs.of([T1]), delay_ms=0)}),
    "no reason": replace(VALID, unplaceable=(UnplaceableJobs(jobs=Jobs.of([T2]), reason=""),)),
}


@pytest.mark.parametrize(("text", "target"), WRONG.items(), ids=WRONG.keys())
def test_every_other_target_is_refused_by_name(text: str, target: ComputedTarget) -> None:
    error = error_of(target)
    assert error is not None
    assert text in error


def test_repeated_members_and_jobs_are_refused() -> None:
    assert error_of(VALID, members="a") == "it lists the member a twice"
    assert error_of(VALID, jobs=Jobs.of([T0])) == "it assigns c-0 twice"
