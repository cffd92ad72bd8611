"""The outcome of one seed, with the end of its trace, which is printed if an invariant is broken."""

from collections.abc import Callable
from dataclasses import dataclass

from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOutcome:
    """What the simulation with one seed has resulted in: the checksum of its records, counts, and the first broken
    invariant."""

    seed: int
    digest: str
    """The checksum of all records: two runs of a seed are equal if their digests are equal."""
    simulated_ms: int
    """The simulated time at the end, in ms since the start."""
    callback_count: int
    """Number of callbacks that have run."""
    generation_or_transaction_count: int
    """The generation of the group at the end; for a connect group the group epoch, for producers the number of
    transactions that have ended."""
    violation: Violation | None
    """The violation of the first broken invariant, at which the simulation ended; None if all invariants held."""
    trace_text: str
    """The last lines of the trace."""


def run_to_outcome(
    seed: int,
    world: World,
    play: Callable[[], None],
    *,
    generation_or_transaction_count: Callable[[], int],
    trace_lines: int,
) -> SimulationOutcome:
    """Run ``play``, the simulation with ``seed`` in ``world``, and return its outcome.
    ``generation_or_transaction_count`` is called at the end; ``trace_lines`` is how many of the last lines of the trace
    the outcome has. A `Violation` becomes part of the outcome; every other exception is a bug of a machine or of the
    simulator, and is raised with these lines in a note."""
    violation = None
    try:
        play()
    except Violation as violated:
        world.add_record(RecordKind.VIOLATION, violated.invariant)
        world.add_to_trace(str(violated))
        violation = violated
    except Exception as error:
        error.add_note(
            f"the simulation with seed {seed} ended with this exception: a machine or the simulator has a bug; the "
            f"last lines of its trace:\n{world.trace_text(trace_lines)}"
        )
        raise
    return SimulationOutcome(
        seed=seed,
        digest=world.digest,
        simulated_ms=world.now_ms,
        callback_count=world.callback_count,
        generation_or_transaction_count=generation_or_transaction_count(),
        violation=violation,
        trace_text=world.trace_text(trace_lines),
    )


def run_until_settled(
    world: World, unsettled_reason: Callable[[], str | None], invariant: Invariant, *, within_ms: int, every_ms: int
) -> None:
    """Run the world until ``unsettled_reason`` returns None. ``unsettled_reason`` is called at once, and then every
    ``every_ms``; a text that it returns is the reason why the simulation has not settled yet.

    :raises Violation: of ``invariant``, when ``unsettled_reason`` still returns a text after ``within_ms``.
    """
    until_ms = world.now_ms + within_ms
    while (reason := unsettled_reason()) is not None:
        if world.now_ms >= until_ms:
            raise Violation(invariant, f"not settled after {within_ms} ms without faults: {reason}")
        world.run_until(world.now_ms + every_ms)
