"""Without static workers a `static` group moves exactly as a `sessioned` one, and a `sessioned` one ignores all claims.

Two leaders of one history, each told what the bytes of its protocol say of the members.
"""

from collections.abc import Mapping
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assignors.cooperative import Round, assign
from coterie.assignors.members import Policy
from coterie.assignors.memory import Memory
from coterie.herder.leading import view_of
from coterie.nouns.ids import ConfigOffset, Generation, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs
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


class Group:
    """A leader and its members, who all speak one protocol."""

    def __init__(self, protocol: ConnectProtocol, claims: Mapping[MemberId, Jobs | None], policy: Policy) -> None:
        self.protocol = protocol
        self.claims = claims
        self.policy = policy
        self.memory = Memory()
        self.runs: dict[MemberId, Jobs] = {}
        self.completed = Generation(-1)

    def round(self, generation: int, members: set[MemberId], configured: Jobs, now_ms: int, arrives: bool) -> Round:
        outcome = assign(
            self.memory,
            configured=configured,
            members={
                member: view_of(self.as_heard(member), InstanceId(member) if member < "m2" else None, self.protocol)
                for member in members
            },
            generation=Generation(generation),
            last_completed_generation=self.completed,
            now_ms=now_ms,
            policy=self.policy,
        )
        self.memory = outcome.memory
        if arrives:
            self.completed = Generation(generation)
            self.runs = {member: one.whole for member, one in outcome.assignments.items()}
        return outcome

    def as_heard(self, member: MemberId) -> WorkerMetadata:
        claims, runs = self.claims[member], self.runs.get(member)
        allocation = None
        if runs is not None:
            leader = IDS[0]
            allocation = WorkerAssignment(leader=leader, leader_url=URL, config_offset=ConfigOffset(1), assigned=runs)
        said = WorkerMetadata(
            url=URL,
            config_offset=ConfigOffset(1),
            allocation=allocation,
            static_connectors=None if claims is None else claims.connectors,
            static_tasks=None if claims is None else claims.tasks,
        )
        return decode_metadata(encode_metadata(self.protocol, said))[1]


def play_both(one: Group, other: Group, configured: Jobs, steps: Steps) -> None:
    now_ms = 0
    for generation, (members, later_ms, now_configured, arrives) in enumerate(steps, start=1):
        now_ms += later_ms
        configured = now_configured or configured
        ours = one.round(generation, members, configured, now_ms, arrives)
        assert ours == other.round(generation, members, configured, now_ms, arrives)


POLICIES = st.sampled_from([Policy(max_delay_ms=300), Policy(max_delay_ms=0), Policy(moves_per_round_max=2)])


@settings(max_examples=100)
@given(configured=SETS, steps=STEPS, policy=POLICIES)
def test_without_static_workers_static_moves_exactly_as_sessioned(
    configured: Jobs, steps: Steps, policy: Policy
) -> None:
    none = dict.fromkeys(IDS)
    sessioned = Group(ConnectProtocol.SESSIONED, none, policy)
    play_both(Group(ConnectProtocol.STATIC, none, policy), sessioned, configured, steps)


@settings(max_examples=100)
@given(configured=SETS, steps=STEPS, policy=POLICIES, claims=st.lists(CLAIMS, min_size=len(IDS), max_size=len(IDS)))
def test_where_not_all_speak_static_claims_are_ignored(
    configured: Jobs,
    steps: Steps,
    policy: Policy,
    claims: list[Jobs | None],
) -> None:
    """One worker that does not is enough: the vote downgrades the whole group, and older bytes have no claims."""
    none = Group(ConnectProtocol.SESSIONED, dict.fromkeys(IDS), policy)
    play_both(Group(ConnectProtocol.SESSIONED, dict(zip(IDS, claims, strict=True)), policy), none, configured, steps)
