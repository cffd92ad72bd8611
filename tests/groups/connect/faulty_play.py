"""A play of a connect group with faults: workers come, go and change, messages are lost, the coordinator crashes."""

from coterie.groups.connect.machine import step
from coterie.groups.connect.messages import Record
from tests.groups.connect.simple_assignor import compute
from tests.groups.connect.world import Compute, StepGroup, World, jobs_of


def played_log(seed: int) -> list[Record]:
    """The records of the world of this seed."""
    world = play(seed)
    world.settle()
    return world.coordinator.log


def play(seed: int, compute: Compute = compute, step_group: StepGroup = step) -> World:
    """A world with faults, some time after its begin. ``compute`` is the assignor of all members, and ``step_group``
    steps the coordinator."""
    world = World(seed, compute=compute, step_group=step_group)
    rng = world.rng
    world.configured = jobs_of(2, 3)
    names = (f"w{number}" for number in range(1000))
    for _ in range(rng.randrange(1, 4)):
        world.start(
            next(names), holds=rng.random() < 0.5, instance_id=f"i{rng.random()}" if rng.random() < 0.2 else None
        )
    for _ in range(rng.randrange(5, 25)):
        world.run(world.now_ms + rng.choice([50, 500, 3_000, 15_000]))
        alive = sorted(world.workers)
        match rng.randrange(8):
            case 0 if len(alive) < 5:
                world.start(next(names), holds=rng.random() < 0.5)
            case 1 if alive:
                world.kill(rng.choice(alive))
            case 2 if alive:
                world.leave(rng.choice(alive), briefly=rng.random() < 0.5)
            case 3 if alive:
                gone = world.workers[rng.choice(alive)]
                world.kill(gone.member_id)
                world.start(next(names), url=gone.url, instance_id=gone.instance_id)
            case 4 if alive:
                world.workers[rng.choice(alive)].draining ^= True
            case 5:
                world.configured = jobs_of(rng.randrange(0, 4), rng.randrange(0, 4))
                world.config_offset += 1
            case 6:
                world.crash()
            case _:
                pass
    if not world.workers:
        world.start(next(names))
    return world
