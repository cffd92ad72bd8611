"""The base class of all simulations' faults: it injects random faults, and has the faults of processes that every
simulation has."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic

from coterie.lab.simulator.infrastructure_faults import InfrastructureFaults
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.sim_process import SimProcessT, sorted_by_name
from coterie.lab.simulator.world import World

DELIVERY_MAX_MS = 20_000
"""This long after the last fault, every message that was sent before has arrived: also on links that delayed messages,
and late requests of broken connections."""


class FaultInjector(ABC, Generic[SimProcessT]):
    """The base class of the faults of each simulation. A service is what processes run for: a worker, a client or a
    transactional id; its processes replace each other."""

    def __init__(self, world: World, infrastructure_faults: InfrastructureFaults, services: Sequence[str]) -> None:
        self._world = world
        self._rng = world.rng
        self._infrastructure_faults = infrastructure_faults
        self.live_processes: dict[str, SimProcessT] = {}
        """The processes that have not ended, by name, in the order in which they started."""
        self._services = services
        self._never_restarted: set[str] = set()
        """The services for which no process starts any more."""
        self._have_faults_ended = False

    def _set_faults(self, own_faults: Mapping[Callable[[], None], int], *, mean_intervals_ms: Sequence[int]) -> None:
        """Set the faults that may be injected: those of the infrastructure and ``own_faults``, the simulation's, with
        their weights. Choose the mean time between two faults from ``mean_intervals_ms``."""
        faults = {**self._infrastructure_faults.weight_by_fault(), **own_faults}
        self._faults = [fault for fault, weight in faults.items() for _ in range(weight)]
        # Some seeds have many faults, some so few that a fault occurs alone.
        self._mean_interval_ms = self._rng.choice(mean_intervals_ms)

    def run_with_faults(self, faults_ms: int) -> None:
        """Start the processes, and run the world with faults until the time ``faults_ms``. Then heal links and disk,
        and call `end_faults`."""
        self.begin_faults()
        self._world.run_until(faults_ms)
        self._world.add_record(RecordKind.FAULTS_END)
        self._have_faults_ended = True
        self._infrastructure_faults.heal()
        self.end_faults()

    @abstractmethod
    def begin_faults(self) -> None:
        """Start the processes, and schedule the first fault."""

    @abstractmethod
    def end_faults(self) -> None:
        """End all faults but those of links and disk, which have ended already. Called once, after the last fault."""

    @abstractmethod
    def start_service(self, service: str) -> None:
        """Start a process of ``service``, unless one runs or ``service`` is in ``_never_restarted``."""

    def start_missing_services(self) -> None:
        """Start a process of each service that has none. A late request of a process that has ended may have fenced its
        successor, which then has ended too."""
        for service in self._services:
            self.start_service(service)

    def _schedule_next_fault(self) -> None:
        """Schedule one random fault, and after it the next one."""
        self._world.call_after(1 + int(self._rng.expovariate(1 / self._mean_interval_ms)), self._inject_fault)

    def _inject_fault(self) -> None:
        """Begin one random fault and schedule the next one, unless the faults have ended."""
        if not self._have_faults_ended:
            self._rng.choice(self._faults)()
            self._schedule_next_fault()

    # -- processes ----------------------------------------------------------------------------------------------------

    def _random_process(self) -> SimProcessT | None:
        """One of the processes that have not ended; None if there is none."""
        processes = sorted_by_name(self.live_processes)
        return self._rng.choice(processes) if processes else None

    def _schedule_restart(self, service: str) -> None:
        """Have a process of ``service`` start some time later. Called when a process ends that is to be replaced. Does
        nothing in this class."""

    def _pause_random_process(self) -> None:
        """Pause a random process for 0.3 to 20 s."""
        process = self._random_process()
        if process is not None and not process.is_paused:
            process.pause()
            self._world.call_after(
                self._rng.choice((300, 2_000, 5_000, 8_000, 20_000)), partial(self._resume_process, process)
            )

    def _resume_process(self, process: SimProcessT) -> None:
        """Resume ``process``, if it is paused and has not ended."""
        if process.is_alive and process.is_paused:
            process.resume()

    def _kill_random_process(self) -> None:
        """Kill a random process. A new process of the same service (the same worker, client or producer) starts some
        time later."""
        process = self._random_process()
        if process is not None:
            process.kill(RecordKind.KILLED)
            self._schedule_restart(process.service)

    def kill_random_process_permanently(self) -> None:
        """Kill a random process, and never start another process of its service (the same worker, client or producer).
        Does nothing if this would leave no service that is restarted."""
        process = self._random_process()
        if process is not None and len(self._services) - len(self._never_restarted) > 1:
            self._never_restarted.add(process.service)
            process.kill(RecordKind.BURIED)
