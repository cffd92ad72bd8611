"""The assignor of the simulation, both of the workers and of the coordinator: the real assignor, which at times is
slow, fails or returns an invalid target assignment."""

from dataclasses import replace

from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.assignors.members import RebalancePolicy
from coterie.lab.simulator.connect.settings import COMPUTATION_TIMEOUT_MS
from coterie.lab.simulator.world import World
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot


class FaultyAssignor:
    """Computes target assignments for all members and for the coordinator in the simulation with one seed; some
    computations are faulty."""

    def __init__(self, world: World, policy: RebalancePolicy) -> None:
        self._world = world
        self._assignor = CooperativeAssignor(policy)
        self.fault_probability = 0.0
        """The probability that a computation is faulty: it fails, takes long, or omits the jobs of one member."""

    def compute_duration_and_target(self, snapshot: GroupSnapshot) -> tuple[int, ComputedTarget | None]:
        """How many ms the computation takes, and the computed target; None in place of the target if the computation
        fails. With ``fault_probability`` it fails, takes 1 to 10 s, or omits the jobs of one member."""
        rng = self._world.rng
        duration_ms = rng.choice((1, 20, 300))
        target = self._assignor.assign(snapshot)
        if not self._world.draw_bool(self.fault_probability):
            return duration_ms, target
        match rng.randrange(3):
            case 0:
                return duration_ms, None
            case 1:
                return rng.choice((1_000, COMPUTATION_TIMEOUT_MS, 2 * COMPUTATION_TIMEOUT_MS)), target
            case _:
                # An assignor that forgets the jobs of a member.
                members = dict(target.members)
                loaded = [member_id for member_id, one in members.items() if one.jobs]
                if loaded:
                    forgotten = rng.choice(loaded)
                    members[forgotten] = replace(members[forgotten], jobs=NO_JOBS)
                return duration_ms, replace(target, members=members)
