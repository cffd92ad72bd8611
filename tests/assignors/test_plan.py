"""A plan says what the leader's own rounds would do."""

from dataclasses import replace
from functools import reduce

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assignors.members import MemberView, Policy
from coterie.assignors.memory import Waiting
from coterie.assignors.moves import Why
from coterie.assignors.plan import (
    Created,
    Deleted,
    GroupChange,
    MemberClaims,
    MemberDrains,
    MemberJoins,
    MemberLeaves,
    Picture,
    Plan,
    Reason,
    changed,
    plan,
)
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, Jobs

W1, W2, W3, W4 = (MemberId(name) for name in ("W1", "W2", "W3", "W4"))
THREE = Picture(
    configured=parse_jobs("AC0 AT1 AT2 BC0 BT1"),
    members={
        W1: MemberView(owned=parse_jobs("AC0 AT1")),
        W2: MemberView(owned=parse_jobs("AT2 BC0")),
        W3: MemberView(owned=parse_jobs("BT1")),
    },
)


def told(picture: Picture, *changes: GroupChange) -> tuple[Plan, list[tuple[str, str | None, str | None, str]]]:
    """The plan, and its moves in few words."""
    found = plan(picture, changes)
    return found, [(str(move.job), move.came_from, move.goes_to, str(move.why)) for move in found.moves]


def test_a_group_that_nothing_happens_to_moves_nothing() -> None:
    found, moves = told(THREE)
    assert (moves, found.rounds, found.lasts_ms, found.stopped) == ([], 0, 0, 0)
    assert found.after == {member: view.owned for member, view in THREE.members.items()}


def test_what_a_leader_had_waits_for_nobody_unless_a_delay_runs() -> None:
    """Whoever leads next does not know who had it."""
    led = replace(THREE, leader=W1)
    assert {move.waits_ms for move in plan(led, [MemberLeaves(member=W2)]).moves} == {300_000}
    found = plan(led, [MemberLeaves(member=W1)])
    assert {(move.job, move.waits_ms) for move in found.moves} == {(job, 0) for job in parse_jobs("AC0 AT1")}
    assert (found.rounds, found.lasts_ms) == (1, 0)
    others = {member: led.members[member] for member in (W1, W2)}
    waiting = Waiting(jobs=parse_jobs("BT1"), deadline_ms=20_000)
    found = plan(replace(led, members=others, waiting=(waiting,)), [MemberLeaves(member=W1)])
    assert {(move.job, move.waits_ms) for move in found.moves} == {(job, 20_000) for job in parse_jobs("AC0 AT1 BT1")}


def test_a_joiner_gets_its_share_and_nothing_else_is_stopped() -> None:
    picture = Picture(
        configured=parse_jobs("AC0 AT1 AT2 AT3"), members={W1: MemberView(owned=parse_jobs("AC0 AT1 AT2 AT3"))}
    )
    found, moves = told(picture, MemberJoins(member=W2))
    assert [(one[1:]) for one in moves] == [(W1, W2, "balance")] * 2
    assert found.stopped == 2
    assert {(move.stops_in, move.starts_in, move.waits_ms) for move in found.moves} == {(1, 2, 0)}


def test_what_a_worker_ran_waits_for_it_before_others_get_it() -> None:
    found, moves = told(THREE, MemberLeaves(member=W2))
    assert [one[0] for one in moves] == ["B", "A-2"]
    assert {one[1] for one in moves} == {W2}
    assert {move.why for move in found.moves} == {Reason.LOST}
    assert {move.waits_ms for move in found.moves} == {300_000}
    assert (found.stopped, found.lasts_ms) == (0, 300_000)


def test_what_waits_already_waits_no_longer() -> None:
    waiting = Waiting(jobs=parse_jobs("AT2 BC0"), deadline_ms=1_000)
    picture = Picture(configured=THREE.configured, members={m: THREE.members[m] for m in (W1, W3)}, waiting=(waiting,))
    found, _ = told(picture)
    assert {(move.why, move.waits_ms) for move in found.moves} == {(Reason.LOST, 1_000)}


def test_a_drained_worker_gives_all_it_has_and_waits_for_nobody() -> None:
    found, moves = told(THREE, MemberDrains(member=W2))
    assert [one[0] for one in moves if one[3] == "drain"] == ["B", "A-2"]
    assert found.after[W2] == NO_JOBS
    assert found.lasts_ms == 0


def test_a_claim_brings_a_job_to_its_claimant_and_what_nobody_claims_has_nobody() -> None:
    found, moves = told(THREE, MemberClaims(member=W3, jobs=parse_jobs("AT1")))
    assert ("A-1", W1, W3, "claim") in moves
    found, _ = told(THREE, *(MemberClaims(member=member, jobs=NO_JOBS) for member in (W1, W2, W3)))
    assert Jobs.of(found.unassigned) == THREE.configured
    assert {move.goes_to for move in found.moves} == {None}


def test_connectors_come_change_and_go() -> None:
    found, moves = told(THREE, Created(connector=ConnectorName("C"), tasks=2))
    assert [(one[0], one[1], one[3]) for one in moves if one[3] == "new"] == [
        ("C", None, "new"), ("C-0", None, "new"), ("C-1", None, "new"),
    ]  # fmt: skip
    found, moves = told(THREE, Deleted(connector=ConnectorName("B")))
    assert [one[0] for one in moves if one[3] == "deleted"] == ["B", "B-1"]
    assert {move.goes_to for move in found.moves if move.why is Why.DELETED} == {None}


def test_when_the_last_worker_leaves_nobody_has_anything() -> None:
    alone = Picture(configured=parse_jobs("AC0"), members={W1: MemberView(owned=parse_jobs("AC0"))})
    found, moves = told(alone, MemberLeaves(member=W1))
    assert moves == [("A", W1, None, "lost")]
    assert found.unassigned == {ConnectorName("A"): "the group has no workers"}


def test_few_moves_a_round_take_as_many_rounds() -> None:
    jobs = parse_jobs(" ".join(f"AT{number}" for number in range(10)))
    policy = Policy(moves_per_round_max=2, round_interval_ms=1_000)
    picture = Picture(configured=jobs, members={W1: MemberView(owned=jobs)}, policy=policy)
    found, _ = told(picture, MemberJoins(member=W2))
    assert found.stopped == 5
    assert found.lasts_ms == 2_000
    assert max(move.starts_in or 0 for move in found.moves) == found.rounds


CHANGES = st.lists(
    st.sampled_from(
        [
            MemberJoins(member=W4),
            MemberJoins(member=MemberId("W5"), claims=parse_jobs("AT1 ZT9")),
            MemberDrains(member=W1),
            MemberClaims(member=W3, jobs=parse_jobs("BC0")),
            Created(connector=ConnectorName("C"), tasks=5),
            Deleted(connector=ConnectorName("A")),
            MemberLeaves(member=W2),
        ]
    ),
    unique=True,
    max_size=5,
)


@settings(max_examples=60)
@given(CHANGES, st.sampled_from([None, 1, 3]))
def test_every_plan_ends_and_accounts_for_every_job(changes: list[GroupChange], at_most: int | None) -> None:
    picture = Picture(
        configured=THREE.configured,
        members=THREE.members,
        policy=Policy(moves_per_round_max=at_most, round_interval_ms=100),
    )
    found = plan(picture, changes)
    held = [job for jobs in found.after.values() for job in jobs]
    assert len(held) == len(set(held))
    assert Jobs.of(held) | Jobs.of(found.unassigned) == reduce(changed, changes, picture).configured
    for move in found.moves:
        assert move.goes_to is None or move.job in found.after[move.goes_to]
