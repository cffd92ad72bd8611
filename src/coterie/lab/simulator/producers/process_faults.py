"""The starts and the faults of producers."""

from functools import partial

from coterie.lab.simulator.faults import FaultInjector
from coterie.lab.simulator.infrastructure_faults import InfrastructureFaults
from coterie.lab.simulator.producers.play import ProduceVersion, SharedByProducers
from coterie.lab.simulator.producers.producer import ProducerProcess
from coterie.lab.simulator.producers.sim_topic import PARTITION_COUNT
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.sim_process import newest_process

TRANSACTIONAL_IDS = ("orders", "payments", "audit")
"""The transactional ids; a seed has the first few of them."""


class ProducersFaults(FaultInjector[ProducerProcess]):
    """Starts the producers, injects the faults of the simulation with one seed, and lets the read_committed reader
    read. At the end of the faults some producers are killed permanently, the others resume, and in half of the seeds
    the broker crashes once more."""

    def __init__(self, play: SharedByProducers) -> None:
        ids = TRANSACTIONAL_IDS[: play.world.rng.randint(1, len(TRANSACTIONAL_IDS))]
        super().__init__(play.world, InfrastructureFaults(play.world, play.network, play.broker, ids), ids)
        self._play = play
        self._protocol_by_transactional_id = {
            name: self._rng.choice((ProduceVersion.V10, ProduceVersion.V11, ProduceVersion.V12, ProduceVersion.V12))
            for name in ids
        }
        """The protocol version of the next process of each transactional id."""
        for name in ids:
            if play.world.draw_bool(0.2):
                play.broker.store_producer_with_few_epochs(name, epochs_left=self._rng.randint(0, 6))
        self._process_count = 0
        """Number of processes started so far."""
        self._set_faults_and_choose_interval(
            {
                self._pause_random_process: 4,
                self._kill_and_restart_random_process: 4,
                self.kill_random_process_permanently: 1,
                self._start_second_process: 3,
                self._choose_version_of_next_process: 1,
                self._fail_disk: 1,
                self._fire_transaction_timer_early: 2,
            },
            mean_intervals_ms=(1_000, 3_000, 8_000),
        )

    def schedule_starts_and_faults(self) -> None:
        """Schedule the start of a process of each transactional id, in the next second, and the first fault; begin the
        reads of the read_committed reader."""
        for transactional_id in self._services:
            self._world.call_after(
                self._rng.randint(0, 1_000), partial(self.start_service_if_missing, transactional_id)
            )
        self._schedule_next_fault()
        self._read_and_check_repeatedly()

    def end_process_faults(self) -> None:
        """Kill each running process with a probability of 30 %, and never start another one of its transactional id.
        Resume the other processes: the next transaction of each is its last one. In half of the seeds crash the broker
        once more."""
        self._play.is_ending = True
        self._play.broker.disk.is_failing = False
        for producer in list(self.live_processes.values()):
            if self._world.draw_bool(0.3):
                self._never_restarted.add(producer.transactional_id)
                producer.kill(RecordKind.KILLED_PERMANENTLY)
            else:
                self._resume_process_if_paused(producer)
        if self._world.draw_bool(0.5):  # without a crash, the broker's present timers must end the open transactions
            self._infrastructure_faults.crash_and_restart_coordinator()

    def _read_and_check_repeatedly(self) -> None:
        """Let the read_committed reader fetch batches of each partition, 1, 3 or all, unless the broker is down. This
        is repeated until the end of the simulation."""
        if self._play.broker.is_up:
            for number in range(PARTITION_COUNT):
                self._play.checker.read_and_check_batches(number, batches_max=self._rng.choice((1, 3, -1)))
        self._world.call_after(self._rng.randint(100, 1_000), self._read_and_check_repeatedly)

    # -- producers ----------------------------------------------------------------------------------------------------

    def start_service_if_missing(self, service: str) -> None:
        """Start a process of the transactional id ``service`` if none runs, unless ``service`` is in
        ``_never_restarted``. During the faults this is repeated every few seconds, because the process may have ended
        by then: another process may have fenced it."""
        if service not in self._never_restarted and newest_process(self.live_processes, service) is None:
            self._start_process(service)
        if not self._have_faults_ended:
            # Check again later: the process may have been fenced by then.
            self._world.call_after(self._rng.randint(1_000, 6_000), partial(self.start_service_if_missing, service))

    def _start_process(self, transactional_id: str) -> None:
        self._process_count += 1
        name, protocol = (
            f"{transactional_id}-{self._process_count}",
            self._protocol_by_transactional_id[transactional_id],
        )
        ProducerProcess(self._play, self.live_processes, name, transactional_id, protocol)

    def _start_second_process(self) -> None:
        """Start a second process with the transactional id of a random process; the second process must fence the first
        one."""
        producer = self._random_process()
        if producer is not None:
            self._start_process(producer.transactional_id)

    def _choose_version_of_next_process(self) -> None:
        """Choose a random protocol version for the next process of a random transactional id."""
        self._protocol_by_transactional_id[self._rng.choice(self._services)] = self._rng.choice(list(ProduceVersion))

    # -- the broker ---------------------------------------------------------------------------------------------------

    def _fail_disk(self) -> None:
        """Let all writes of the broker that end in the next 0.1 to 4 s fail."""
        disk = self._play.broker.disk
        disk.is_failing = True
        self._world.add_record(RecordKind.DISK_FAILS)

        def end_failures() -> None:
            disk.is_failing = False

        self._infrastructure_faults.ends.end_after(self._rng.choice((100, 1_000, 4_000)), "failing disk", end_failures)

    def _fire_transaction_timer_early(self) -> None:
        """Fire the timer of a random transactional id now, as a delayed timer of an earlier transaction does. Usually
        no deadline has passed."""
        self._play.broker.fire_transaction_timer(self._rng.choice(self._services))
