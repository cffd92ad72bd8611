"""The outcome of one seed, with the end of its trace, which is printed if an invariant is broken."""

from collections.abc import Callable
from dataclasses import dataclass

from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one seed. ``violation`` is the broken invariant; None if all invariants held."""

    seed: int
    digest: str
    """The checksum of all records: two runs of a seed are equal if their digests are."""
    virtual_ms: int
    """The simulated time at the end."""
    events: int
    """Number of callbacks that have run."""
    generations: int
    """The group's generation at the end; for producers the number of transactions that have ended."""
    violation: Violation | None
    story: str
    """The last lines of the trace."""


def run_to_outcome(
    seed: int, world: World, play: Callable[[], None], *, generations: Callable[[], int], story_lines: int
) -> Outcome:
    """Run ``play`` and return the outcome of the seed. The function ``generations`` is called at the end;
    ``story_lines`` lines of the trace are kept. A `Violation` becomes part of the outcome; every other exception is a
    bug of a machine or of the simulator, and is raised with the last lines of the trace in a note."""
    violation = None
    try:
        play()
    except Violation as broken:
        world.record(RecordKind.VIOLATION, broken.invariant)
        world.say(str(broken))
        violation = broken
    except Exception as error:
        error.add_note(f"seed {seed} crashed; its last lines:\n{world.story(story_lines)}")
        raise
    return Outcome(
        seed=seed,
        digest=world.digest,
        virtual_ms=world.now_ms,
        events=world.events,
        generations=generations(),
        violation=violation,
        story=world.story(story_lines),
    )


def run_until_settled(
    world: World, unsettled_reason: Callable[[], str | None], broken: Invariant, *, within_ms: int, every_ms: int
) -> None:
    """Run the world until ``unsettled_reason`` returns None. It is called now and then every ``every_ms``; a text is
    the reason why the simulation has not settled.

    :raises Violation: of the invariant ``broken``, when there still is a reason after ``within_ms``.
    """
    until_ms = world.now_ms + within_ms
    while (missing := unsettled_reason()) is not None:
        if world.now_ms >= until_ms:
            raise Violation(broken, f"{within_ms} ms after the last fault {missing}")
        world.run_until(world.now_ms + every_ms)
