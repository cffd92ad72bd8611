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
    callback_count: int
    """Number of callbacks that have run."""
    generation_count: int
    """The group's generation at the end; for producers the number of transactions that have ended."""
    violation: Violation | None
    trace_text: str
    """The last lines of the trace."""


def run_to_outcome(
    seed: int, world: World, play: Callable[[], None], *, generation_count: Callable[[], int], trace_lines: int
) -> Outcome:
    """Run ``play`` and return the outcome of the seed. The function ``generation_count`` is called at the end;
    ``trace_lines`` lines of the trace are kept. A `Violation` becomes part of the outcome; every other exception is a
    bug of a machine or of the simulator, and is raised with the last lines of the trace in a note."""
    violation = None
    try:
        play()
    except Violation as violated:
        world.add_record(RecordKind.VIOLATION, violated.invariant)
        world.add_to_trace(str(violated))
        violation = violated
    except Exception as error:
        error.add_note(f"seed {seed} crashed; its last lines:\n{world.trace_text(trace_lines)}")
        raise
    return Outcome(
        seed=seed,
        digest=world.digest,
        virtual_ms=world.now_ms,
        callback_count=world.callback_count,
        generation_count=generation_count(),
        violation=violation,
        trace_text=world.trace_text(trace_lines),
    )


def run_until_settled(
    world: World, unsettled_reason: Callable[[], str | None], invariant: Invariant, *, within_ms: int, every_ms: int
) -> None:
    """Run the world until ``unsettled_reason`` returns None. ``unsettled_reason`` is called at once, and then every
    ``every_ms``; a text that it returns is the reason why the simulation has not settled.

    :raises Violation: of ``invariant``, when there still is a reason after ``within_ms``.
    """
    until_ms = world.now_ms + within_ms
    while (reason := unsettled_reason()) is not None:
        if world.now_ms >= until_ms:
            raise Violation(invariant, f"{within_ms} ms after the last fault {reason}")
        world.run_until(world.now_ms + every_ms)
