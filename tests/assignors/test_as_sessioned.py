"""Without static workers and drains a `static` group moves exactly as a `sessioned` one, which ignores both.

The leader hears what the bytes of its protocol say of the members. What it says is compared with a reference that knows
of neither: there is nobody in it who may not run a job, and nothing to give back but for what is deleted, twice, or too
much.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assignors.cooperative import assign
from coterie.assignors.dealing import toward_balance
from coterie.assignors.delay import candidates, in_turn, waiting_now
from coterie.assignors.members import MemberView, Policy
from coterie.assignors.memory import MemberRound, Memory, believed, one_owner_each, returned, union
from coterie.assignors.moves import Why, paced
from coterie.herder.rounds.leading import view_of
from coterie.member.classic.reports import report_of
from coterie.nouns.ids import ConfigOffset, Generation, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.wire.connect import ConnectProtocol, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_bytes import decode_metadata, encode_metadata

NAMES = [ConnectorName(name) for name in "abc"]
JOBS: list[Job] = [*NAMES, *(ConnectorTaskId(name, number) for name in NAMES for number in range(4))]
SETS = st.sets(st.sampled_from(JOBS)).map(Jobs.of)
CLAIMS = st.one_of(st.none(), st.sets(st.sampled_from(JOBS), max_size=4).map(Jobs.of))
IDS = [MemberId(f"m{number}") for number in range(5)]
URL = WorkerUrl("http://h:8083/")
Steps: TypeAlias = list[tuple[set[MemberId], int, Jobs | None, bool]]
STEPS = st.lists(
    st.tuples(
        st.sets(st.sampled_from(IDS), min_size=1),  # who is there
        st.sampled_from([0, 10, 100, 300]),  # how much later
        st.one_of(st.none(), st.none(), SETS),  # what is configured now
        st.booleans(),  # whether the round arrives
    ),
    max_size=8,
)


def assign_to_anybody(
    memory: Memory,
    configured: Jobs,
    members: Mapping[MemberId, MemberView],
    generation: Generation,
    completed: Generation,
    now_ms: int,
    policy: Policy,
) -> tuple[Memory, Mapping[MemberId, MemberRound], int]:
    """The reference: what the leader remembers, what it says, and the delay."""
    trusted = believed(memory, members, generation=generation, last_completed_generation=completed)
    configured_only = {member: view.owned & configured for member, view in members.items()}
    owned, twice = one_owner_each(configured_only, trusted, lambda member, job: True)
    unaccounted = configured - union(owned.values())
    back = returned(trusted, unaccounted, members, lambda member, jobs: jobs)
    runs = {member: jobs | back.get(member, NO_JOBS) for member, jobs in owned.items()}
    lost = unaccounted - union(back.values())
    waiting = waiting_now(trusted, lost, members, now_ms=now_ms, max_delay_ms=policy.max_delay_ms, known_delay_ms=0)
    came_first = trusted.candidates
    if waiting:
        arrived = [member for member in sorted(members) if not runs[member] and member not in trusted.members]
        came_first = candidates(came_first, arrived, members)
    gone = [held for member, held in trusted.members.items() if member not in members]
    moved = (trusted.moved | union(held.whole for held in gone)) & configured
    free = lost - union(one.jobs for one in waiting)
    given, surplus = toward_balance(
        runs, to_place=lost, free=free, moved=moved, order=in_turn(came_first, members.keys())
    )
    surplus = {} if waiting else {member: jobs & members[member].owned for member, jobs in surplus.items()}
    _, released = paced({}, surplus, policy=policy, now_ms=now_ms, next_moves_ms=trusted.next_moves_ms)
    said = {}
    for member, view in members.items():
        reasons = {
            Why.DELETED: view.owned - configured,
            Why.DUPLICATE: twice.get(member, NO_JOBS),
            Why.BALANCE: released.get(member, NO_JOBS),
        }
        assigned = back.get(member, NO_JOBS) | given.get(member, NO_JOBS)
        revoked = union(reasons.values())
        said[member] = MemberRound(
            kept=view.owned - revoked,
            assigned=assigned,
            why={why: jobs for why, jobs in reasons.items() if jobs},
            instance_id=view.instance_id,
        )
    now = Memory(
        generation=generation,
        members=said,
        waiting=waiting,
        candidates=came_first if waiting else (),
        moved=moved | (union(one.revoked for one in said.values()) & configured),
        next_moves_ms=now_ms + policy.round_interval_ms if any(released.values()) else trusted.next_moves_ms,
    )
    return now, said, waiting[0].deadline_ms - now_ms if waiting else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a member says of itself that a group without static workers and drains has no use for."""

    claims: Jobs | None = None
    draining: bool = False


NO_WISH = Wish()


def instance_id_of(member: MemberId) -> InstanceId | None:
    return InstanceId(member) if member < "m2" else None


def as_heard(member: MemberId, runs: Jobs | None, protocol: ConnectProtocol, wish: Wish) -> MemberView:
    """What a leader hears of ``member``, by way of the bytes."""
    allocation = None
    if runs is not None:
        allocation = WorkerAssignment(leader=IDS[0], leader_url=URL, config_offset=ConfigOffset(1), assigned=runs)
    said = WorkerMetadata(
        url=URL,
        config_offset=ConfigOffset(1),
        allocation=allocation,
        static_connectors=None if wish.claims is None else wish.claims.connectors,
        static_tasks=None if wish.claims is None else wish.claims.tasks,
        draining=wish.draining,
    )
    return view_of(report_of(decode_metadata(encode_metadata(protocol, said))[1], instance_id_of(member), protocol))


def play(
    protocol: ConnectProtocol, wishes: Mapping[MemberId, Wish], policy: Policy, configured: Jobs, steps: Steps
) -> None:
    memory = Memory()
    runs: dict[MemberId, Jobs] = {}
    now_ms, completed = 0, Generation(-1)
    for number, (members, later_ms, now_configured, arrives) in enumerate(steps, start=1):
        now_ms += later_ms
        configured = now_configured or configured
        generation = Generation(number)
        views = {member: as_heard(member, runs.get(member), protocol, wishes[member]) for member in members}
        plain = {
            member: MemberView(owned=runs.get(member, NO_JOBS), instance_id=instance_id_of(member))
            for member in members
        }
        expected = assign_to_anybody(memory, configured, plain, generation, completed, now_ms, policy)
        outcome = assign(
            memory,
            configured=configured,
            members=views,
            generation=generation,
            last_completed_generation=completed,
            now_ms=now_ms,
            policy=policy,
        )
        assert (outcome.memory, outcome.assignments, outcome.delay_ms) == expected
        memory = outcome.memory
        if arrives:
            completed = generation
            runs = {member: one.whole for member, one in outcome.assignments.items()}


POLICIES = st.sampled_from([Policy(max_delay_ms=300), Policy(max_delay_ms=0), Policy(moves_per_round_max=2)])
WISHES = st.lists(st.builds(Wish, claims=CLAIMS, draining=st.booleans()), min_size=len(IDS), max_size=len(IDS))


@settings(max_examples=100)
@given(configured=SETS, steps=STEPS, policy=POLICIES)
def test_without_static_workers_and_drains_a_static_group_knows_of_neither(
    configured: Jobs, steps: Steps, policy: Policy
) -> None:
    play(ConnectProtocol.STATIC, dict.fromkeys(IDS, NO_WISH), policy, configured, steps)


@settings(max_examples=100)
@given(configured=SETS, steps=STEPS, policy=POLICIES, wishes=WISHES)
def test_where_not_all_speak_static_claims_and_drains_are_ignored(
    configured: Jobs, steps: Steps, policy: Policy, wishes: list[Wish]
) -> None:
    """One worker that does not is enough: the vote downgrades the whole group, and older bytes have no such words."""
    play(ConnectProtocol.SESSIONED, dict(zip(IDS, wishes, strict=True)), policy, configured, steps)
