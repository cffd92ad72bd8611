"""A leader that plays rounds, each on what it said before; jobs in K415's notation."""

from collections.abc import Mapping

from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import MemberView, Policy
from coterie.assignors.memory import Memory
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import Generation, InstanceId, MemberId
from coterie.nouns.jobs import Jobs

PATIENT = Policy(max_delay_ms=300)


class Leader:
    """Plays rounds as a leader does, each on top of the memory of the one before."""

    def __init__(self, configured: str, policy: Policy = PATIENT) -> None:
        self.configured = parse_jobs(configured)
        self.policy = policy
        self.memory = Memory()
        self.generation = 0
        self.last_completed_generation = -1
        self.known_delay_ms = 0
        self.instance_ids: dict[MemberId, InstanceId] = {}
        """Of the static members (KIP-345)."""
        self.claims: dict[MemberId, Jobs] = {}
        """Of the static workers (K987)."""
        self.draining: set[MemberId] = set()

    def round(self, now_ms: int = 0, *, delivered: bool = True, **members: str) -> RoundOutcome:
        return self.play({MemberId(member): parse_jobs(jobs) for member, jobs in members.items()}, now_ms, delivered)

    def play(self, members: Mapping[MemberId, Jobs], now_ms: int = 0, delivered: bool = True) -> RoundOutcome:
        self.generation += 1
        outcome = assign(
            self.memory,
            configured=self.configured,
            members={
                member: MemberView(
                    owned=owned,
                    claims=self.claims.get(member),
                    draining=member in self.draining,
                    instance_id=self.instance_ids.get(member),
                )
                for member, owned in members.items()
            },
            generation=Generation(self.generation),
            last_completed_generation=Generation(self.last_completed_generation),
            now_ms=now_ms,
            policy=self.policy,
            known_delay_ms=self.known_delay_ms,
        )
        self.memory = outcome.memory
        if delivered:
            self.last_completed_generation = self.generation
        return outcome

    def settle(self, members: Mapping[MemberId, Jobs], now_ms: int = 0) -> tuple[Mapping[MemberId, Jobs], int, int]:
        """Play rounds until nobody is told anything new; what each runs then, the jobs stopped, the rounds."""
        stopped, rounds = 0, 0
        while True:
            outcome = self.play(members, now_ms)
            members = {member: one.whole for member, one in outcome.assignments.items()}
            if not any(one.revoked or one.assigned for one in outcome.assignments.values()):
                return members, stopped, rounds
            stopped += sum(len(one.revoked) for one in outcome.assignments.values())
            rounds += 1
            assert rounds < 10, "the group does not settle"
