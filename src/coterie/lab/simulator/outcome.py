"""The outcome of one seed, with the end of its trace for failures."""

from collections.abc import Callable
from dataclasses import dataclass

from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one seed; ``violation`` None means that all invariants held."""

    seed: int
    digest: str
    virtual_ms: int
    events: int
    generations: int
    violation: Violation | None
    story: str
    """The last lines of the trace."""


def told_by(
    seed: int, world: World, play: Callable[[], None], *, generations: Callable[[], int], story_lines: int
) -> Outcome:
    """Run ``play`` and return its outcome. An exception other than `Violation` is raised again, with the last lines of
    the trace in a note."""
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


def settle(
    world: World, unsettled: Callable[[], str | None], broken: Invariant, *, within_ms: int, every_ms: int
) -> None:
    """Run the world until ``unsettled``, called every ``every_ms``, returns None. Until then it returns the reason why
    the simulation is not settled.

    :raises Violation: ``broken``, when there is still a reason after ``within_ms``.
    """
    until_ms = world.now_ms + within_ms
    while (missing := unsettled()) is not None:
        if world.now_ms >= until_ms:
            raise Violation(broken, f"{within_ms} ms after the last fault {missing}")
        world.run_until(world.now_ms + every_ms)
