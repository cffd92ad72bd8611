"""A plan contains the moves that the leader's own rebalances would make."""

from dataclasses import replace
from functools import reduce

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assignors.assignor_state import Deferral
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
    Plan,
    RestartReason,
    StartReason,
    apply_change,
    compute_plan,
)
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, Jobs

W1, W2, W3, W4 = (MemberId(name) for name in ("W1", "W2", "W3", "W4"))
THREE = GroupSnapshot(
    configured_jobs=parse_jobs("AC0 AT1 AT2 BC0 BT1"),
    members={
        W1: MemberSpec(owned=parse_jobs("AC0 AT1")),
        W2: MemberSpec(owned=parse_jobs("AT2 BC0")),
        W3: MemberSpec(owned=parse_jobs("BT1")),
    },
)


def plan_and_moves(
    snapshot: GroupSnapshot, *changes: GroupChange
) -> tuple[Plan, list[tuple[str, str | None, str | None, str]]]:
    """The plan, and its moves as (job, from member, to member, reason)."""
    found = compute_plan(snapshot, changes)
    return found, [(str(move.job), move.from_member, move.to_member, str(move.reason)) for move in found.moves]


def test_a_plan_without_changes_moves_nothing() -> None:
    found, moves = plan_and_moves(THREE)
    assert (moves, found.round_count, found.waiting_ms, found.stopped_job_count) == ([], 0, 0, 0)
    assert found.owned_after == {member: view.owned for member, view in THREE.members.items()}


def test_the_jobs_of_a_departed_leader_are_not_deferred_unless_a_delay_runs() -> None:
    """The next leader does not have the state that shows which member owned the jobs."""
    led = replace(THREE, leader_id=W1)
    assert {move.unassigned_ms for move in compute_plan(led, [MemberLeaves(member=W2)]).moves} == {300_000}
    found = compute_plan(led, [MemberLeaves(member=W1)])
    assert {(move.job, move.unassigned_ms) for move in found.moves} == {(job, 0) for job in parse_jobs("AC0 AT1")}
    assert (found.round_count, found.waiting_ms) == (1, 0)
    others = {member: led.members[member] for member in (W1, W2)}
    waiting = Deferral(jobs=parse_jobs("BT1"), deadline_ms=20_000)
    found = compute_plan(replace(led, members=others, deferrals=(waiting,)), [MemberLeaves(member=W1)])
    assert {(move.job, move.unassigned_ms) for move in found.moves} == {
        (job, 20_000) for job in parse_jobs("AC0 AT1 BT1")
    }


def test_a_new_worker_gets_its_share_and_nothing_else_is_stopped() -> None:
    snapshot = GroupSnapshot(
        configured_jobs=parse_jobs("AC0 AT1 AT2 AT3"), members={W1: MemberSpec(owned=parse_jobs("AC0 AT1 AT2 AT3"))}
    )
    found, moves = plan_and_moves(snapshot, MemberJoins(member=W2))
    assert [(move[1:]) for move in moves] == [(W1, W2, "balance")] * 2
    assert found.stopped_job_count == 2
    assert {(move.stop_round, move.start_round, move.unassigned_ms) for move in found.moves} == {(1, 2, 0)}


def test_the_jobs_of_a_departed_worker_are_deferred_for_the_whole_delay() -> None:
    found, moves = plan_and_moves(THREE, MemberLeaves(member=W2))
    assert [move[0] for move in moves] == ["B", "A-2"]
    assert {move[1] for move in moves} == {W2}
    assert {move.reason for move in found.moves} == {StartReason.LOST}
    assert {move.unassigned_ms for move in found.moves} == {300_000}
    assert (found.stopped_job_count, found.waiting_ms) == (0, 300_000)


def test_already_deferred_jobs_wait_only_for_the_remaining_delay() -> None:
    waiting = Deferral(jobs=parse_jobs("AT2 BC0"), deadline_ms=1_000)
    snapshot = GroupSnapshot(
        configured_jobs=THREE.configured_jobs, members={m: THREE.members[m] for m in (W1, W3)}, deferrals=(waiting,)
    )
    found, _ = plan_and_moves(snapshot)
    assert {(move.reason, move.unassigned_ms) for move in found.moves} == {(StartReason.LOST, 1_000)}


def test_a_drained_worker_loses_all_jobs_without_a_delay() -> None:
    found, moves = plan_and_moves(THREE, MemberDrains(member=W2))
    assert [move[0] for move in moves if move[3] == "drain"] == ["B", "A-2"]
    assert found.owned_after[W2] == NO_JOBS
    assert found.waiting_ms == 0


def test_a_claimed_job_moves_to_its_claimant_and_a_job_without_claimants_is_unassigned() -> None:
    found, moves = plan_and_moves(THREE, MemberChangesClaims(member=W3, jobs=parse_jobs("AT1")))
    assert ("A-1", W1, W3, "claim") in moves
    found, _ = plan_and_moves(THREE, *(MemberChangesClaims(member=member, jobs=NO_JOBS) for member in (W1, W2, W3)))
    assert Jobs.of(found.reason_by_unassigned_job) == THREE.configured_jobs
    assert {move.to_member for move in found.moves} == {None}


def test_connectors_can_be_created_and_deleted() -> None:
    found, moves = plan_and_moves(THREE, ConnectorGetsTaskCount(connector=ConnectorName("C"), task_count=2))
    assert [(move[0], move[1], move[3]) for move in moves if move[3] == "new"] == [
        ("C", None, "new"), ("C-0", None, "new"), ("C-1", None, "new"),
    ]  # fmt: skip
    found, moves = plan_and_moves(THREE, ConnectorIsDeleted(connector=ConnectorName("B")))
    assert [move[0] for move in moves if move[3] == "deleted"] == ["B", "B-1"]
    assert {move.to_member for move in found.moves if move.reason is RevocationReason.DELETED} == {None}


def test_another_number_of_tasks_restarts_every_task_of_the_connector_that_a_round_does_not_stop() -> None:
    snapshot = GroupSnapshot(
        configured_jobs=parse_jobs("AC0 AT0 AT1 BT0"),
        members={W1: MemberSpec(owned=parse_jobs("AC0 AT0")), W2: MemberSpec(owned=parse_jobs("AT1 BT0"))},
    )

    def resized(task_count: int, *changes: GroupChange) -> tuple[Plan, list[tuple[str, str | None, str | None, str]]]:
        resize = ConnectorGetsTaskCount(connector=ConnectorName("A"), task_count=task_count)
        return plan_and_moves(snapshot, resize, *changes)

    found, moves = resized(4)
    assert {move for move in moves if move[3] != "new"} == {
        ("A-0", W1, W1, "resplit"),
        ("A-1", W2, W2, "resplit"),
    }
    assert found.stopped_job_count == 2
    assert {(move.stop_round, move.start_round) for move in found.moves if move.reason is RestartReason.RESPLIT} == {
        (None, None)
    }
    found, moves = resized(1)
    assert {("A-0", W1, W1, "resplit"), ("A-1", W2, None, "deleted")} <= set(moves)
    found, moves = resized(2)
    assert (moves, found.stopped_job_count) == ([], 0), "the split does not change"
    found, moves = resized(3, MemberDrains(member=W1))
    assert [move for move in moves if move[0] == "A-0"] == [("A-0", W1, W2, "drain")]
    assert found.stopped_job_count == 3, "A, A-0 and A-1: each of them once"
    found, moves = resized(3, MemberLeaves(member=W1))
    assert ("A-0", W1, W2, "lost") in moves
    assert found.stopped_job_count == 1


def test_when_the_last_worker_leaves_all_jobs_are_unassigned() -> None:
    alone = GroupSnapshot(configured_jobs=parse_jobs("AC0"), members={W1: MemberSpec(owned=parse_jobs("AC0"))})
    found, moves = plan_and_moves(alone, MemberLeaves(member=W1))
    assert moves == [("A", W1, None, "lost")]
    assert found.reason_by_unassigned_job == {ConnectorName("A"): "the group has no workers"}


def test_a_limit_of_moves_per_rebalance_increases_the_number_of_rebalances() -> None:
    jobs = parse_jobs(" ".join(f"AT{number}" for number in range(10)))
    policy = RebalancePolicy(moves_per_round_max=2, round_interval_ms=1_000)
    snapshot = GroupSnapshot(configured_jobs=jobs, members={W1: MemberSpec(owned=jobs)}, policy=policy)
    found, _ = plan_and_moves(snapshot, MemberJoins(member=W2))
    assert found.stopped_job_count == 5
    assert found.waiting_ms == 2_000
    assert max(move.start_round or 0 for move in found.moves) == found.round_count


CHANGES = st.lists(
    st.sampled_from(
        [
            MemberJoins(member=W4),
            MemberJoins(member=MemberId("W5"), claims=parse_jobs("AT1 ZT9")),
            MemberDrains(member=W1),
            MemberChangesClaims(member=W3, jobs=parse_jobs("BC0")),
            ConnectorGetsTaskCount(connector=ConnectorName("C"), task_count=5),
            ConnectorGetsTaskCount(connector=ConnectorName("B"), task_count=3),
            ConnectorIsDeleted(connector=ConnectorName("A")),
            MemberLeaves(member=W2),
        ]
    ),
    unique=True,
    max_size=5,
)


@settings(max_examples=60)
@given(CHANGES, st.sampled_from([None, 1, 3]))
def test_every_plan_ends_and_accounts_for_every_job(changes: list[GroupChange], at_most: int | None) -> None:
    snapshot = GroupSnapshot(
        configured_jobs=THREE.configured_jobs,
        members=THREE.members,
        policy=RebalancePolicy(moves_per_round_max=at_most, round_interval_ms=100),
    )
    found = compute_plan(snapshot, changes)
    held = [job for jobs in found.owned_after.values() for job in jobs]
    assert len(held) == len(set(held))
    assert (
        Jobs.of(held) | Jobs.of(found.reason_by_unassigned_job)
        == reduce(apply_change, changes, snapshot).configured_jobs
    )
    for move in found.moves:
        assert move.to_member is None or move.job in found.owned_after[move.to_member]
