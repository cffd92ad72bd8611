"""A leader that computes rebalances one after another from its own state; jobs in KIP-415's notation."""

from collections.abc import Mapping

from coterie.assignors.assignor_state import AssignorState
from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import GenerationId, InstanceId, MemberId
from coterie.nouns.jobs import Jobs

DELAY_300_MS = RebalancePolicy(max_delay_ms=300)


class Leader:
    """Computes rebalances as a leader does, each from the state after the previous one."""

    def __init__(self, configured: str, policy: RebalancePolicy = DELAY_300_MS) -> None:
        self.configured = parse_jobs(configured)
        self.policy = policy
        self.state = AssignorState()
        self.generation = 0
        self.last_completed_generation = -1
        self.received_delay_ms = 0
        self.instance_ids: dict[MemberId, InstanceId] = {}
        """Instance ids of the static members (KIP-345)."""
        self.claims: dict[MemberId, Jobs] = {}
        """Claims of the static workers (KIP-987)."""
        self.draining: set[MemberId] = set()

    def round(self, now_ms: int = 0, *, delivered: bool = True, **members: str) -> RoundOutcome:
        return self.compute_round(
            {MemberId(member): parse_jobs(jobs) for member, jobs in members.items()}, now_ms, delivered
        )

    def compute_round(self, members: Mapping[MemberId, Jobs], now_ms: int = 0, delivered: bool = True) -> RoundOutcome:
        self.generation += 1
        outcome = assign(
            self.state,
            configured=self.configured,
            members={
                member: MemberSpec(
                    owned=owned,
                    claims=self.claims.get(member),
                    is_draining=member in self.draining,
                    instance_id=self.instance_ids.get(member),
                )
                for member, owned in members.items()
            },
            generation=GenerationId(self.generation),
            last_completed_generation=GenerationId(self.last_completed_generation),
            now_ms=now_ms,
            policy=self.policy,
            received_delay_ms=self.received_delay_ms,
        )
        self.state = outcome.assignor_state
        if delivered:
            self.last_completed_generation = self.generation
        return outcome

    def run_until_settled(
        self, members: Mapping[MemberId, Jobs], now_ms: int = 0
    ) -> tuple[Mapping[MemberId, Jobs], int, int]:
        """Rebalance until no assignment changes; returns the owned jobs by member, the stopped jobs, the rebalances."""
        stopped, rounds = 0, 0
        while True:
            outcome = self.compute_round(members, now_ms)
            members = {member: assignment.owned_after for member, assignment in outcome.assignments.items()}
            if not any(assignment.revoked or assignment.assigned for assignment in outcome.assignments.values()):
                return members, stopped, rounds
            stopped += sum(len(assignment.revoked) for assignment in outcome.assignments.values())
            rounds += 1
            assert rounds < 10, "the group does not settle"
