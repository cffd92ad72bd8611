"""The coordinator of connect groups in a small world with faults: no job runs twice, and everything settles."""

import pytest

from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.assignors.members import RebalancePolicy
from coterie.groups.connect.messages import GroupState
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS
from tests.groups.connect.faulty_play import play
from tests.groups.connect.simple_assignor import DELAY_MS
from tests.groups.connect.world import World, jobs_of


@pytest.mark.parametrize("seed", range(60))
def test_no_job_runs_twice_and_all_settles_after_faults(seed: int) -> None:
    play(seed).settle()


@pytest.mark.parametrize("limit", [None, 2])
@pytest.mark.parametrize("seed", range(100, 140))
def test_all_settles_evenly_with_the_cooperative_assignor(seed: int, limit: int | None) -> None:
    policy = RebalancePolicy(max_delay_ms=DELAY_MS, moves_per_round_max=limit)
    world = play(seed, CooperativeAssignor(policy).assign)
    world.settle()
    loads = [len(worker.running) for worker in world.workers.values() if not worker.draining]
    assert max(loads, default=0) - min(loads, default=0) <= 1
    if len(loads) == len(world.workers):
        computations = world.coordinator.computations
        world.run(world.now_ms + 60_000)
        assert world.coordinator.computations == computations, "a settled group computes nothing"


def test_a_static_member_that_is_back_gets_its_jobs_and_then_its_share_of_new_ones() -> None:
    world = World(1, compute=CooperativeAssignor(RebalancePolicy(max_delay_ms=DELAY_MS)).assign)
    world.is_faulty = False
    world.start("w1")
    world.start("w2", instance_id="i2")
    world.configured = jobs_of(2, 3)
    world.run(20_000)
    before = world.workers[MemberId("w2")].running
    assert len(before) == 4
    world.leave("w2", briefly=True)
    world.run(21_000)
    world.start("w3")
    world.run(27_000)
    assert world.workers[MemberId("w3")].running == NO_JOBS, "nothing moves for balance while w2 is away"
    world.start("w2-back", instance_id="i2")
    world.run(28_000)
    assert world.workers[MemberId("w2-back")].running == before
    world.run(50_000)
    assert sorted(len(worker.running) for worker in world.workers.values()) == [2, 3, 3]
    assert world.coordinator.group.group_state() is GroupState.STABLE
