"""The faults of producers; at the end all of them stop."""

from functools import partial

from coterie.lab.simulator.actor import youngest
from coterie.lab.simulator.faults import Faults
from coterie.lab.simulator.producers.ledger import PARTITIONS
from coterie.lab.simulator.producers.play import ProducersPlay, Style
from coterie.lab.simulator.producers.producer import ProducerProcess
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.storm import Storm

IDS = ("orders", "payments", "audit")


class ProducersWeather(Faults[ProducerProcess]):
    def __init__(self, play: ProducersPlay) -> None:
        ids = IDS[: play.world.rng.randint(1, len(IDS))]
        super().__init__(play.world, Storm(play.world, play.network, play.broker, ids), ids)
        self._play = play
        self._styles = {name: self._rng.choice((Style.V10, Style.V11, Style.V12, Style.V12)) for name in ids}
        for name in ids:
            if play.world.chance(0.2):
                play.broker.age(name, epochs_left=self._rng.randint(0, 6))
        self._processes = 0
        self._plan(
            {
                self._pause: 4,
                self._kill: 4,
                self.bury: 1,
                self._start_a_copy: 3,
                self._upgrade: 1,
                self._fail_disk: 1,
                self._time_out_too_soon: 2,
            },
            pauses_ms=(1_000, 3_000, 8_000),
        )

    def begin(self) -> None:
        for transactional_id in self._homes:
            self._world.after(self._rng.randint(0, 1_000), partial(self.start, transactional_id))
        self._next()
        self._read()

    def end(self) -> None:
        """Kill some producers permanently, in any state, resume the others, and perhaps crash the broker once more."""
        self._play.is_ending = True
        self._play.broker.disk.failing = False
        for producer in list(self.living.values()):
            if self._world.chance(0.3):
                self._gone_for_good.add(producer.transactional_id)
                producer.kill(RecordKind.BURIED)
            else:
                self._resume(producer)
        if self._world.chance(0.5):  # without a crash, the broker's present timers must end the open transactions
            self._storm.crash_coordinator()

    def _read(self) -> None:
        """Have the read_committed consumer fetch batches, a few or all."""
        if self._play.broker.up:
            for number in range(PARTITIONS):
                self._play.watch.on_read(number, batches_max=self._rng.choice((1, 3, -1)))
        self._world.after(self._rng.randint(100, 1_000), self._read)

    # -- producers ----------------------------------------------------------------------------------------------------

    def start(self, home: str) -> None:
        if home not in self._gone_for_good and youngest(self.living, home) is None:
            self._start_process(home)
        if not self._over:
            # Check again later: the process may have been fenced by then.
            self._world.after(self._rng.randint(1_000, 6_000), partial(self.start, home))

    def _start_process(self, transactional_id: str) -> None:
        self._processes += 1
        name, style = f"{transactional_id}-{self._processes}", self._styles[transactional_id]
        ProducerProcess(self._play, self.living, name, transactional_id, style)

    def _start_a_copy(self) -> None:
        """Start a second process of a producer: the newer process must fence the older one."""
        producer = self._someone()
        if producer is not None:
            self._start_process(producer.transactional_id)

    def _upgrade(self) -> None:
        """Choose another protocol version for the next process of a transactional id."""
        self._styles[self._rng.choice(self._homes)] = self._rng.choice(list(Style))

    # -- the broker ---------------------------------------------------------------------------------------------------

    def _fail_disk(self) -> None:
        disk = self._play.broker.disk
        disk.failing = True
        self._world.record(RecordKind.DISK_FAILS)

        def heal() -> None:
            disk.failing = False

        self._world.after(self._rng.choice((100, 1_000, 4_000)), heal)

    def _time_out_too_soon(self) -> None:
        """Fire a timer early, like a delayed timer of a transaction that has ended while the next one began."""
        self._play.broker.time_out(self._rng.choice(self._homes))
