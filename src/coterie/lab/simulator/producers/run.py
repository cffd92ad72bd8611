"""The producers' simulation with one seed: a time with faults, then a time without; at the end every transaction must
end, and every partition must be read to its end."""

from collections.abc import Collection
from functools import partial

from coterie.lab.simulator.faults import DELIVERY_MAX_MS
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.outcome import SimulationOutcome, run_to_outcome, run_until_settled
from coterie.lab.simulator.producers.broker import SimBroker
from coterie.lab.simulator.producers.checker import ProducersChecker
from coterie.lab.simulator.producers.play import SharedByProducers
from coterie.lab.simulator.producers.process_faults import ProducersFaults
from coterie.lab.simulator.producers.producer import ProducerProcess
from coterie.lab.simulator.producers.sim_topic import SimTopic, create_store_with_topic
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.world import World

FAULTS_DURATION_MS = 45_000
"""How long faults are injected, in simulated time."""
SETTLE_TIMEOUT_MS = 120_000
"""How long the producers may take to settle when no fault is left: enough for processes with one transactional id to
fence each other, for the end of a transaction in which the producer pauses more than once for twice the timeout, for
the last timeout, and for one more commit of each producer."""


def simulate_producers(seed: int, *, faults_ms: int = FAULTS_DURATION_MS, trace_lines: int = 15) -> SimulationOutcome:
    """Run the simulation of producers with ``seed``; the first ``faults_ms`` have faults. A violated invariant is in
    the outcome; every other exception is a bug of a machine or of the simulator, and is raised with the end of the
    trace in a note. The ``generation_or_transaction_count`` of the outcome is the number of transactions that have
    ended, by a commit or an abort."""
    world = World(seed)
    timeout_ms = world.rng.choice((2_000, 6_000, 15_000))
    store = create_store_with_topic()
    topic = SimTopic(store)
    checker = ProducersChecker(world, topic, timeout_ms=timeout_ms)
    broker = SimBroker(world, checker, store, topic)
    play = SharedByProducers(world, Network(world), broker, checker, timeout_ms=timeout_ms)

    def run_faults_and_settle() -> None:
        faults = ProducersFaults(play)
        faults.run_with_faults_and_end_them(faults_ms)
        world.run_until(world.now_ms + DELIVERY_MAX_MS)
        faults.start_missing_services()
        run_until_settled_and_restart(play, faults.live_processes.values())

    try:
        return run_to_outcome(
            seed,
            world,
            run_faults_and_settle,
            generation_or_transaction_count=lambda: checker.ended_transaction_count,
            trace_lines=trace_lines,
        )
    finally:
        store.close()


def run_until_settled_and_restart(play: SharedByProducers, producers: Collection[ProducerProcess]) -> None:
    """Run until the producers have settled; then crash and restart the broker, read all logs from their start, and
    check that the producers are still settled.

    :raises Violation: ENDS, NOTHING_LOST, COMMITTED_ONLY, or of an invariant that is broken meanwhile.
    """
    run_until_settled(
        play.world,
        partial(read_on_and_find_unsettled, play, producers),
        Invariant.ENDS,
        within_ms=SETTLE_TIMEOUT_MS,
        every_ms=1_000,
    )
    play.world.add_record(RecordKind.SETTLED, play.checker.ended_transaction_count)
    play.broker.crash()
    play.broker.start()
    play.checker.restart_reader()
    if (reason := read_on_and_find_unsettled(play, producers)) is not None:
        raise Violation(Invariant.NOTHING_LOST, f"after a restart of the broker in a settled state: {reason}")


def read_on_and_find_unsettled(play: SharedByProducers, producers: Collection[ProducerProcess]) -> str | None:
    """The reason why the producers have not settled; None when every transaction has ended, every producer has
    committed its last transaction, and the read_committed reader has read all logs to their end. Lets the reader read
    on.

    :raises Violation: COMMITTED_ONLY.
    """
    if open_ids := play.broker.ids_of_open_transactions():
        return f"the transactions of {open_ids} are open"
    for producer in producers:
        if not producer.is_done:
            return f"{producer.name} has not committed its last transaction"
    return play.checker.read_and_describe_lag()
