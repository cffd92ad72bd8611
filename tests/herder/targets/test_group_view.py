"""The view of a connect group, from the coordinator's description."""

from dataclasses import replace

from coterie.assignors.members import RebalancePolicy
from coterie.herder.group_view import MOVES_LIMITED_REASON
from coterie.herder.targets.group_view import build_group_view, unassigned_reasons
from coterie.nouns.group_description import DepartedMemberDescription, GroupDescription
from coterie.nouns.ids import GroupEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.target_assignments import UnplaceableJobs
from tests.herder.builders import ALL_JOBS, BOTH_TASKS, FIRST
from tests.herder.herder_driver import ME, OTHER
from tests.herder.targets.connect_driver import described_group, described_member

DEPARTED = DepartedMemberDescription(
    member_id=MemberId("gone"), url=WorkerUrl("http://gone:8083/"), jobs=FIRST, delay_left_ms=2_000, held_jobs_left_ms=0
)


def test_jobs_of_a_departed_member_are_deferred_and_have_a_reason() -> None:
    group = replace(described_group(described_member(ME)), departed=(DEPARTED,))
    (deferred,) = build_group_view(group, configured=ALL_JOBS, policy=RebalancePolicy()).deferred
    assert (deferred.jobs, deferred.time_left_ms, deferred.worker) == (FIRST, 2_000, "gone:8083")
    (reason,) = set(unassigned_reasons(group).values())
    assert reason == "gone:8083 has left the group and may rejoin: the job waits for scheduled.rebalance.max.delay.ms"


def test_jobs_that_may_still_run_on_a_departed_member_are_not_deferred() -> None:
    held = replace(DEPARTED, delay_left_ms=None, held_jobs_left_ms=500)
    group = replace(described_group(described_member(ME)), departed=(held,))
    assert not build_group_view(group, configured=ALL_JOBS, policy=RebalancePolicy()).deferred
    assert not unassigned_reasons(group)


def test_the_groups_own_delay_takes_precedence_over_the_workers() -> None:
    group, policy = described_group(described_member(ME)), RebalancePolicy(max_delay_ms=5, moves_per_round_max=2)
    assert build_group_view(group, configured=ALL_JOBS, policy=policy).policy == policy
    configs = {"connect.session.timeout.ms": "10000", "connect.scheduled.rebalance.max.delay.ms": "0"}
    with_delay = build_group_view(replace(group, configs=configs), configured=ALL_JOBS, policy=policy)
    assert with_delay.policy == replace(policy, max_delay_ms=0)


def test_unplaceable_jobs_are_unassigned_with_their_reason() -> None:
    unplaceable = (UnplaceableJobs(jobs=FIRST, reason="no worker claims it"),)
    group = replace(described_group(described_member(ME)), unplaceable=unplaceable)
    (job,) = FIRST.tasks
    assert build_group_view(group, configured=ALL_JOBS, policy=RebalancePolicy()).unassigned == (
        (job, "no worker claims it"),
    )


def test_the_view_contains_the_reason_why_a_draining_member_keeps_jobs() -> None:
    drains = described_member(ME, assigned=BOTH_TASKS, draining=True)
    claims_nothing = described_member(OTHER, claims=NO_JOBS)
    by_name = {
        info.name: info
        for info in build_group_view(
            described_group(drains, claims_nothing), configured=ALL_JOBS, policy=RebalancePolicy()
        ).members
    }
    assert by_name["here"].drain_wait_reason not in (None, MOVES_LIMITED_REASON)
    has_place = described_group(drains, described_member(OTHER))

    def reason(group: GroupDescription, policy: RebalancePolicy) -> str | None:
        (info, _) = build_group_view(group, configured=ALL_JOBS, policy=policy).members
        return info.drain_wait_reason

    limited = RebalancePolicy(moves_per_round_max=1)
    assert reason(has_place, limited) == MOVES_LIMITED_REASON
    assert reason(has_place, RebalancePolicy()) is None, "no limit is set: the next target moves the jobs"
    not_computed = replace(has_place, group_epoch=GroupEpoch(has_place.assignment_epoch + 1))
    assert reason(not_computed, limited) is None, "the target does not contain the drain yet"
    leaves = described_member(ME, assigned=BOTH_TASKS, target=NO_JOBS, draining=True)
    (info,) = build_group_view(described_group(leaves), configured=ALL_JOBS, policy=RebalancePolicy()).members
    assert info.drain_wait_reason is None
