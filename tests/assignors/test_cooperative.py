"""Rounds of the cooperative assignor: K415's phases and delay, Connect's known defects, properties of any state."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import MemberView, Policy
from coterie.assignors.memory import Memory
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import Generation, InstanceId, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs
from tests.assignors.leader import Leader

W1, W2, W3, W4 = (MemberId(name) for name in ("W1", "W2", "W3", "W4"))
FIVE = "AC0 AT1 AT2 BC0 BT1"


def settled_three() -> Leader:
    """K415's usual start: three workers that run five jobs."""
    leader = Leader(FIVE)
    leader.round(W1="AC0 AT1", W2="AT2 BC0", W3="BT1")
    return leader


def assigned(outcome: RoundOutcome, member: MemberId) -> Jobs:
    return outcome.assignments[member].assigned


def revoked(outcome: RoundOutcome, member: MemberId) -> Jobs:
    return outcome.assignments[member].revoked


# -- K415's phases and delay ------------------------------------------------------------------------------------------


def test_a_round_never_hands_a_job_from_one_worker_to_another() -> None:
    leader = Leader(FIVE)
    first = leader.round(W1=FIVE, W2="", W3="")
    assert revoked(first, W1) == parse_jobs("AT2 BC0 BT1")
    assert not assigned(first, W2)
    second = leader.round(W1="AC0 AT1", W2="", W3="")
    assert assigned(second, W2) == parse_jobs("AT2 BC0")
    assert assigned(second, W3) == parse_jobs("BT1")


def test_a_departed_workers_jobs_wait_and_nobody_else_is_touched() -> None:
    leader = settled_three()
    outcome = leader.round(1_000, W1="AC0 AT1", W3="BT1")
    assert outcome.delay_ms == 300
    assert not any(one.assigned or one.revoked for one in outcome.assignments.values())
    assert leader.round(1_299, W1="AC0 AT1", W3="BT1").delay_ms == 1
    after = leader.round(1_300, W1="AC0 AT1", W3="BT1")
    assert after.delay_ms == 0
    assert assigned(after, W1) | assigned(after, W3) == parse_jobs("AT2 BC0")


@pytest.mark.parametrize("victim", [W1, W2, W3])
def test_what_a_death_has_moved_moves_again_for_its_replacement_and_the_others_are_left_in_peace(
    victim: MemberId,
) -> None:
    jobs = parse_jobs("AC0 AT0 AT1 AT2 AT3 BC0 BT0 BT1 BT2 BT3")
    leader = Leader("")
    leader.configured = jobs
    members, _, _ = leader.settle({W1: NO_JOBS, W2: NO_JOBS, W3: NO_JOBS})
    started_once = set(jobs.tasks - members[victim].tasks)
    survivors = {member: held for member, held in members.items() if member != victim}
    leader.play(survivors, 1_000)
    taken_over, _, _ = leader.settle(survivors, 1_300)
    after, _, _ = leader.settle({**taken_over, W4: NO_JOBS}, 2_000)
    started_once -= after[W4].tasks
    assert len(after[W4]) >= 3
    assert len(started_once) >= 3


def test_while_a_delay_runs_nothing_is_revoked_for_balance_but_new_jobs_are_assigned() -> None:
    leader = Leader("AC0 AT0 AT1 AT2 AT3")
    leader.round(W1="AC0 AT0 AT1 AT2", W2="AT3")
    leader.configured = parse_jobs("AC0 AT0 AT1 AT2 AT3 BC0 BT0")
    outcome = leader.round(1_000, W1="AC0 AT0 AT1 AT2", W3="")
    assert outcome.delay_ms == 300
    assert not any(one.revoked for one in outcome.assignments.values())
    assert assigned(outcome, W3) == parse_jobs("BC0 BT0")


def test_a_job_that_is_deleted_stops_even_while_a_delay_runs() -> None:
    leader = settled_three()
    leader.configured = parse_jobs("AC0 AT2 BC0 BT1")
    outcome = leader.round(1_000, W1="AC0 AT1", W3="BT1")
    assert outcome.delay_ms == 300
    assert revoked(outcome, W1) == parse_jobs("AT1")


def test_a_delay_ends_when_all_that_waited_is_deleted() -> None:
    leader = settled_three()
    leader.round(1_000, W1="AC0 AT1", W3="BT1")
    leader.configured = parse_jobs("AC0 AT1 BT1")
    assert leader.round(1_010, W1="AC0 AT1", W3="BT1").delay_ms == 0


def test_a_delay_ends_when_its_worker_comes_back_with_its_jobs() -> None:
    leader = settled_three()
    leader.round(1_000, W1="AC0 AT1", W3="BT1")
    outcome = leader.round(1_010, W1="AC0 AT1", W2="AT2 BC0", W3="BT1")
    assert outcome.delay_ms == 0
    assert not any(one.assigned or one.revoked for one in outcome.assignments.values())


def test_candidates_are_served_in_the_order_in_which_they_came_each_at_most_its_fair_share() -> None:
    leader = Leader("AT0 AT1 AT2 AT3 AT4 AT5 AT6 AT7")
    leader.round(W1="AT0 AT1 AT2", W2="AT3 AT4 AT5", W3="AT6 AT7")
    leader.round(1_000, W1="AT0 AT1 AT2")
    leader.round(1_010, W1="AT0 AT1 AT2", W9="")
    leader.round(1_020, W1="AT0 AT1 AT2", W8="", W9="")
    assert leader.memory.candidates == ("W9", "W8")
    outcome = leader.round(1_300, W1="AT0 AT1 AT2", W8="", W9="")
    assert assigned(outcome, MemberId("W9")) == parse_jobs("AT3 AT4 AT5")
    assert assigned(outcome, MemberId("W8")) == parse_jobs("AT6 AT7")


def test_a_delay_of_zero_never_delays() -> None:
    leader = Leader(FIVE, Policy(max_delay_ms=0))
    leader.round(W1="AC0 AT1", W2="AT2 BC0", W3="BT1")
    outcome = leader.round(W1="AC0 AT1", W3="BT1")
    assert outcome.delay_ms == 0
    assert assigned(outcome, W1) | assigned(outcome, W3) == parse_jobs("AT2 BC0")


def test_what_was_not_delivered_though_nobody_left_is_assigned_at_once() -> None:
    leader = settled_three()
    outcome = leader.round(W1="AC0 AT1", W2="BC0", W3="BT1")
    assert outcome.delay_ms == 0
    assert assigned(outcome, W2) == parse_jobs("AT2")


def test_a_new_leader_assigns_at_once_what_nobody_runs() -> None:
    leader = Leader(FIVE)
    leader.generation = leader.last_completed_generation = 7
    outcome = leader.round(W2="AT2 BC0", W3="BT1")
    assert outcome.delay_ms == 0
    assert assigned(outcome, W2) | assigned(outcome, W3) == parse_jobs("AC0 AT1")


def test_a_new_leader_honours_the_delay_that_its_last_assignment_told_it_of() -> None:
    leader = Leader(FIVE)
    leader.generation = leader.last_completed_generation = 7
    leader.known_delay_ms = 120
    outcome = leader.round(1_000, W2="", W3="BT1")
    assert outcome.delay_ms == 120
    assert not any(one.assigned for one in outcome.assignments.values())
    leader.known_delay_ms = 0
    assert leader.round(1_020, W1="", W2="", W3="BT1").delay_ms == 100
    after = leader.round(1_120, W1="", W2="", W3="BT1")
    assert assigned(after, W2) == parse_jobs("AC0 AT1"), "it came first"
    assert assigned(after, W1) == parse_jobs("BC0 AT2")


def test_a_memory_from_before_another_leader_is_not_believed() -> None:
    """KAFKA-7026: what a leader remembers is worth nothing once others led rounds that it does not know."""
    leader = settled_three()
    leader.generation = leader.last_completed_generation = 9
    assert leader.round(W1="AC0 AT1", W3="BT1").delay_ms == 0


def test_what_an_undelivered_round_would_have_given_is_not_lost_but_a_departure_in_it_is_seen() -> None:
    """KAFKA-9848: an assignment that was computed and never received says nothing about who ran what."""
    leader = settled_three()
    leader.configured = parse_jobs(FIVE + " CT0")
    leader.round(500, W1="AC0 AT1", W2="AT2 BC0", W3="BT1", delivered=False)
    outcome = leader.round(1_000, W1="AC0 AT1", W2="AT2 BC0")
    assert outcome.delay_ms == 300, "W3 ran BT1 and left"
    waiting = outcome.memory.waiting[0].jobs
    assert waiting == parse_jobs("BT1")
    assert parse_jobs("CT0") <= assigned(outcome, W1) | assigned(outcome, W2), "nobody ever ran it"


def test_joiners_that_keep_coming_during_a_delay_wait_in_line_and_the_delay_counts_down_over_all_their_rounds() -> None:
    twelve = [f"AT{number}" for number in range(12)]
    leader = Leader(" ".join(twelve))
    kept = " ".join(twelve[:4])
    leader.round(W1=kept, W2=" ".join(twelve[4:8]), W3=" ".join(twelve[8:]))
    here = {W1: parse_jobs(kept)}
    assert leader.play(here, 1_000).delay_ms == 300
    for number, joiner in enumerate(["W9", "W7", "W8"]):
        here[MemberId(joiner)] = NO_JOBS
        outcome = leader.play(here, 1_050 + 50 * number)
        assert outcome.delay_ms == 250 - 50 * number
        assert not any(one.assigned or one.revoked for one in outcome.assignments.values())
    assert leader.memory.candidates == ("W9", "W7", "W8")
    del here[MemberId("W7")]
    assert leader.play(here, 1_200).delay_ms == 100, "a candidate that goes leaves nothing behind"
    here[MemberId("W6")] = NO_JOBS
    assert leader.play(here, 1_299).delay_ms == 1
    assert leader.memory.candidates == ("W9", "W8", "W6")
    outcome = leader.play(here, 1_300)
    assert outcome.delay_ms == 0
    shares = {str(member): len(one.assigned) for member, one in outcome.assignments.items()}
    assert shares == {"W1": 0, "W9": 3, "W8": 3, "W6": 2}, "each at most its fair share, who came first before others"
    assert revoked(outcome, W1) == parse_jobs("AT3")


def test_workers_that_join_in_every_round_never_make_balance_wait() -> None:
    """Each comes while the others still give back what the one before it is to get."""
    leader = Leader(" ".join(f"AT{number}" for number in range(24)))
    members: dict[MemberId, Jobs] = {MemberId("W00"): leader.configured}
    for number in range(1, 8):
        outcome = leader.play({**members, MemberId(f"W{number:02}"): NO_JOBS})
        assert outcome.delay_ms == 0
        members = {member: one.whole for member, one in outcome.assignments.items()}
    settled, _, rounds = leader.settle(members)
    assert rounds <= 2
    assert [len(jobs) for jobs in settled.values()] == [3] * 8


def test_a_new_leader_in_the_middle_of_a_delay_counts_it_down_and_gives_later_departures_their_own() -> None:
    leader = Leader(FIVE)
    leader.generation = leader.last_completed_generation = 7
    leader.known_delay_ms = 120
    assert leader.round(1_000, W1="AC0 AT1", W3="BT1").delay_ms == 120
    outcome = leader.round(1_050, W1="AC0 AT1", W9="")
    assert outcome.delay_ms == 70, "what waited goes on to wait"
    assert [one.deadline_ms - 1_050 for one in outcome.memory.waiting] == [70, 300]
    outcome = leader.round(1_120, W1="AC0 AT1", W9="")
    assert assigned(outcome, MemberId("W9")) == parse_jobs("BC0 AT2")
    assert outcome.delay_ms == 230


def test_a_new_leader_waits_no_longer_than_it_would_by_itself() -> None:
    leader = Leader(FIVE)
    leader.generation = leader.last_completed_generation = 7
    leader.known_delay_ms = 9_000
    assert leader.round(1_000, W3="BT1").delay_ms == 300


def test_what_a_lost_round_revoked_runs_on_and_is_revoked_again() -> None:
    leader = Leader("AT0 AT1 AT2 AT3")
    first = leader.round(W1="AT0 AT1 AT2 AT3", W2="", delivered=False)
    again = leader.round(W1="AT0 AT1 AT2 AT3", W2="")
    assert revoked(again, W1) == revoked(first, W1)
    assert not assigned(again, W2)


def test_a_round_in_which_nobody_was_given_anything_makes_nothing_forgotten() -> None:
    """The leader's config log lagged (CONFIG_MISMATCH): all kept what they had. Who left meanwhile is missed."""
    leader = settled_three()
    leader.generation += 1
    outcome = leader.round(1_000, W1="AC0 AT1", W3="BT1")
    assert outcome.delay_ms == 300
    leader.generation += 1
    assert leader.round(1_100, W1="AC0 AT1", W3="BT1").delay_ms == 200


def test_of_a_job_that_three_run_and_nobody_was_given_one_goes_on() -> None:
    leader = Leader("AT0 AT1 AT2")
    outcome = leader.round(W1="AT0 AT1", W2="AT0", W3="AT0 AT2")
    assert outcome.assignments[W2].whole == parse_jobs("AT0"), "the one that runs least"
    assert [len(one.revoked) for one in outcome.assignments.values()] == [1, 0, 1]


# -- Connect's known defects ------------------------------------------------------------------------------------------


def test_d2_an_empty_joiner_does_not_get_all_that_was_lost_nor_is_it_told_to_give_what_it_never_had() -> None:
    leader = Leader(" ".join(f"AT{number}" for number in range(24)))
    members = {
        MemberId(f"W{worker}"): Jobs.of(ConnectorTaskId(ConnectorName("A"), worker * 6 + n) for n in range(6))
        for worker in range(4)
    }
    leader.play(members)
    alive = {member: jobs for member, jobs in members.items() if member in ("W0", "W1")}
    leader.play(alive, 1_000)
    leader.play({**alive, MemberId("W9"): NO_JOBS}, 1_100)
    outcome = leader.play({**alive, MemberId("W9"): NO_JOBS}, 1_300)
    assert sorted(len(one.whole) for one in outcome.assignments.values()) == [8, 8, 8]
    assert not any(one.revoked for one in outcome.assignments.values())


def test_d3_an_idle_worker_that_leaves_after_a_revoking_round_delays_nothing() -> None:
    leader = Leader("AT0 AT1 AT2 AT3")
    leader.round(W1="AT0 AT1 AT2 AT3")
    leader.round(W1="AT0 AT1 AT2 AT3", W2="", W3="")
    outcome = leader.round(1_000, W1="AT0 AT1", W2="")
    assert outcome.delay_ms == 0
    assert assigned(outcome, W2) == parse_jobs("AT2 AT3")


def test_d4_a_new_leader_recognises_deleted_jobs() -> None:
    leader = Leader("AC0 AT1")
    outcome = leader.round(W1="AC0 AT1", W2="BC0 BT0 BT1 BT2")
    assert revoked(outcome, W2) == parse_jobs("BC0 BT0 BT1 BT2")


def test_d5_of_a_job_that_two_run_one_goes_on() -> None:
    leader = Leader("AT0 AT1")
    leader.round(W1="AT0", W2="AT1")
    outcome = leader.round(W1="AT0", W2="AT0 AT1")
    assert revoked(outcome, W2) == parse_jobs("AT0"), "W1 is the one that was given it"
    assert not revoked(outcome, W1)


def test_d6_a_move_takes_two_rounds_and_stops_only_what_moves() -> None:
    """The two rounds are K415's. What is ours is that nothing else stops meanwhile, and that no third is needed."""
    leader = Leader(" ".join(f"AT{number}" for number in range(9)))
    members = {W1: leader.configured, W2: NO_JOBS, W3: NO_JOBS}
    after, stopped, rounds = leader.settle(members)
    assert (stopped, rounds) == (6, 2)
    assert sorted(map(len, after.values())) == [3, 3, 3]


def test_d8_workers_that_join_one_after_another_never_wait_for_a_back_off() -> None:
    leader = Leader(" ".join(f"AT{number}" for number in range(8)))
    members: Mapping[MemberId, Jobs] = {W1: leader.configured}
    for joiner in (W2, W3, W4):
        members = {**members, joiner: NO_JOBS}
        members, _, rounds = leader.settle(members)
        assert rounds == 2
        assert max(map(len, members.values())) - min(map(len, members.values())) <= 1


def test_d9_a_group_that_the_coordinator_forgot_starts_again_without_a_delay() -> None:
    """KAFKA-15676: all come back as new members; the leader has completed no round in this life."""
    leader = settled_three()
    leader.generation, leader.last_completed_generation = 0, -1
    outcome = leader.play({MemberId(name): NO_JOBS for name in ("W1'", "W2'", "W3'")})
    assert outcome.delay_ms == 0
    assert sum(len(one.assigned) for one in outcome.assignments.values()) == 5


def test_d10_a_later_departure_has_a_whole_delay_of_its_own() -> None:
    leader = settled_three()
    leader.round(1_000, W1="AC0 AT1", W3="BT1")
    assert leader.round(1_200, W1="AC0 AT1").delay_ms == 100
    first = leader.round(1_300, W1="AC0 AT1")
    assert assigned(first, W1) == parse_jobs("AT2 BC0")
    assert first.delay_ms == 200
    assert assigned(leader.round(1_500, W1="AC0 AT1 AT2 BC0"), W1) == parse_jobs("BT1")


def test_d13_a_worker_that_left_with_nothing_delays_nothing() -> None:
    """A departure counts by the jobs that it leaves behind (a worker that is drained first leaves none)."""
    leader = Leader(FIVE)
    leader.round(W1="AC0 AT1 BC0", W2="AT2 BT1", W3="")
    assert leader.round(W1="AC0 AT1 BC0", W2="AT2 BT1").delay_ms == 0


def test_d14_what_is_new_is_assigned_in_one_round_that_stops_nothing() -> None:
    """A round there is, for the set of jobs has changed; but for the jobs that were there it is none."""
    leader = Leader("AC0 AT0 AT1 BC0 BT0 BT1")
    settled, _, _ = leader.settle({W1: NO_JOBS, W2: NO_JOBS})
    leader.configured |= parse_jobs("CC0 CT0 CT1 CT2")
    after, stopped, rounds = leader.settle(settled)
    assert (stopped, rounds) == (0, 1)
    assert all(jobs <= after[member] for member, jobs in settled.items())


@pytest.mark.parametrize("max_delay_ms", [0, 300])
def test_d15_a_bounce_of_one_that_is_known_neither_shuffles_nor_leaves_its_jobs_idle(max_delay_ms: int) -> None:
    leader = Leader(FIVE, Policy(max_delay_ms=max_delay_ms))
    back = MemberId("back")
    leader.instance_ids = {W2: InstanceId("two"), back: InstanceId("two")}
    leader.round(W1="AC0 AT1", W2="AT2 BC0", W3="BT1")
    outcome = leader.round(1_000, W1="AC0 AT1", back="", W3="BT1")
    assert assigned(outcome, back) == parse_jobs("AT2 BC0")
    assert outcome.delay_ms == 0
    assert not any(one.revoked for one in outcome.assignments.values())


# -- properties -------------------------------------------------------------------------------------------------------

JOBS: list[Job] = [
    *(ConnectorName(name) for name in "abc"),
    *(ConnectorTaskId(ConnectorName(name), number) for name in "abc" for number in range(4)),
]
SETS = st.sets(st.sampled_from(JOBS)).map(Jobs.of)
MEMBERS = st.dictionaries(st.sampled_from([W1, W2, W3, W4]), SETS, max_size=4)
TIMES = st.integers(0, 500)


def play_two(
    configured: Jobs, before: Mapping[MemberId, Jobs], members: Mapping[MemberId, Jobs], time_ms: int
) -> RoundOutcome:
    first = play(Memory(), configured, before, 1, 0)
    return play(first.memory, configured, members, 2, time_ms)


def play(
    memory: Memory, configured: Jobs, members: Mapping[MemberId, Jobs], generation: int, now_ms: int
) -> RoundOutcome:
    return assign(
        memory,
        configured=configured,
        members={member: MemberView(owned=owned) for member, owned in members.items()},
        generation=Generation(generation),
        last_completed_generation=Generation(generation - 1),
        now_ms=now_ms,
        policy=Policy(max_delay_ms=300),
    )


@settings(max_examples=400)
@given(configured=SETS, before=MEMBERS, members=MEMBERS, time_ms=TIMES)
def test_any_round_accounts_for_every_job_and_gives_none_twice(
    configured: Jobs, before: Mapping[MemberId, Jobs], members: Mapping[MemberId, Jobs], time_ms: int
) -> None:
    """Members may say anything: jobs that do not exist, jobs that others run, jobs they were told to stop."""
    outcome = play_two(configured, before, members, time_ms)
    running = NO_JOBS
    for jobs in members.values():
        running |= jobs
    seen = NO_JOBS
    released = NO_JOBS
    for member, one in outcome.assignments.items():
        assert one.revoked <= members[member], "nobody gives back what it does not run"
        assert not one.assigned & running, "nobody gets what somebody runs"
        assert one.whole == (members[member] - one.revoked) | one.assigned
        assert not one.whole & seen, "nothing has two owners"
        seen |= one.whole
        released |= one.revoked
    waiting = NO_JOBS
    for wait in outcome.memory.waiting:
        assert not wait.jobs & (running | waiting)
        waiting |= wait.jobs
    assert seen <= configured
    assert not seen & waiting
    if members:
        assert configured <= seen | waiting | released, "every job is owned, waits or is on its way"
    assert (outcome.delay_ms > 0) == bool(waiting)


@settings(max_examples=300)
@given(configured=SETS, before=MEMBERS, members=MEMBERS.filter(bool), time_ms=TIMES)
def test_any_state_settles_level_in_two_rounds_once_no_delay_runs(
    configured: Jobs, before: Mapping[MemberId, Jobs], members: Mapping[MemberId, Jobs], time_ms: int
) -> None:
    outcome = play_two(configured, before, members, time_ms)
    for generation in (3, 4):
        members = {member: one.whole for member, one in outcome.assignments.items()}
        outcome = play(outcome.memory, configured, members, generation, time_ms + 300)
    members = {member: one.whole for member, one in outcome.assignments.items()}
    for counts in (
        [len(jobs.connectors) for jobs in members.values()],
        [len(jobs.tasks) for jobs in members.values()],
        [len(jobs) for jobs in members.values()],
    ):
        assert max(counts) - min(counts) <= 1
    assert sum(len(jobs) for jobs in members.values()) == len(configured)
    again = play(outcome.memory, configured, members, 5, time_ms + 300)
    assert not any(one.assigned or one.revoked for one in again.assignments.values()), "its own output stays"


@settings(max_examples=150)
@given(configured=SETS, before=MEMBERS, members=MEMBERS, time_ms=TIMES, data=st.data())
def test_d11_the_order_of_members_does_not_matter(
    configured: Jobs,
    before: Mapping[MemberId, Jobs],
    members: Mapping[MemberId, Jobs],
    time_ms: int,
    data: st.DataObject,
) -> None:
    """Frozen sets have no order to begin with; hash seeds are the simulator's business."""
    shuffled = {member: members[member] for member in data.draw(st.permutations(sorted(members)))}
    assert play_two(configured, before, members, time_ms) == play_two(configured, before, shuffled, time_ms)


@pytest.mark.parametrize("configured", ["", FIVE])
def test_a_group_without_members_gets_an_empty_round(configured: str) -> None:
    outcome = Leader(configured).round()
    assert not outcome.assignments
    assert outcome.delay_ms == 0


def test_fleets_keep_their_moves_at_the_optimum_as_workers_come_and_go() -> None:
    names = [ConnectorName(f"c{number}") for number in range(10)]
    everything = [ConnectorTaskId(name, number) for name in names for number in range(30)]
    leader = Leader("")
    leader.configured = Jobs.of([*names, *everything])
    members: Mapping[MemberId, Jobs] = {MemberId("w00"): NO_JOBS}
    members, stopped, _ = leader.settle(members)
    assert stopped == 0
    for number in range(1, 12):
        members, stopped, _ = leader.settle({**members, MemberId(f"w{number:02}"): NO_JOBS})
        workers = number + 1
        floor = 310 // workers
        # A newcomer's share is what has to move; connectors and tasks are dealt apart, so it may be one more of each.
        assert floor <= stopped <= floor + 2
        assert all(isinstance(jobs, Jobs) for jobs in members.values())
