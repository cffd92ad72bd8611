"""One seed of the producers' simulation: faults, then none; then every transaction must end and every log must be read
to its end."""

from collections.abc import Collection
from functools import partial

from coterie.lab.simulator.faults import LATEST_MS
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.outcome import Outcome, settle, told_by
from coterie.lab.simulator.producers.broker import SimBroker
from coterie.lab.simulator.producers.ledger import Ledger, create_store
from coterie.lab.simulator.producers.play import ProducersPlay
from coterie.lab.simulator.producers.producer import ProducerProcess
from coterie.lab.simulator.producers.watch import ProducersWatch
from coterie.lab.simulator.producers.weather import ProducersWeather
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.world import World

WEATHER_MS = 45_000
SETTLE_MS = 120_000
"""Enough time for copies to fence each other, for the end of a transaction in which the producer pauses more than once
for twice the timeout, for the last timeout, and for one more commit of each producer."""


def simulate_producers(seed: int, *, weather_ms: int = WEATHER_MS, story_lines: int = 15) -> Outcome:
    """Run one seed. An exception is a crash of a machine or of the simulator; its note has the end of the trace. The
    outcome's ``generations`` counts ended transactions."""
    world = World(seed)
    timeout_ms = world.rng.choice((2_000, 6_000, 15_000))
    store = create_store()
    ledger = Ledger(store)
    watch = ProducersWatch(world, ledger, timeout_ms=timeout_ms)
    broker = SimBroker(world, watch, store, ledger)
    play = ProducersPlay(world, Network(world), broker, watch, timeout_ms=timeout_ms)

    def story() -> None:
        weather = ProducersWeather(play)
        weather.run(weather_ms)
        world.run_until(world.now_ms + LATEST_MS)
        weather.start_missing()
        check_calm(play, weather.living.values())

    try:
        return told_by(seed, world, story, generations=lambda: watch.ended, story_lines=story_lines)
    finally:
        store.close()


def check_calm(play: ProducersPlay, producers: Collection[ProducerProcess]) -> None:
    settle(play.world, partial(unsettled, play, producers), Invariant.ENDS, within_ms=SETTLE_MS, every_ms=1_000)
    play.world.record(RecordKind.SETTLED, play.watch.ended)
    play.broker.crash()
    play.broker.start()
    play.watch.rewind()
    if (missing := unsettled(play, producers)) is not None:
        raise Violation(Invariant.NOTHING_LOST, f"after the last crash {missing}")


def unsettled(play: ProducersPlay, producers: Collection[ProducerProcess]) -> str | None:
    """The reason why the producers have not settled; None when every transaction has ended and is read."""
    if still_open := play.broker.open_transactions():
        return f"the transactions of {still_open} are open"
    for producer in producers:
        if not producer.is_done:
            return f"{producer.name} has not committed its last transaction"
    return play.watch.unread()
