"""The base class of the four simulations' fault injectors: it starts the processes and injects random faults, and has
the faults of processes that several simulations have."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic

from coterie.lab.simulator.infrastructure_faults import InfrastructureFaults
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.sim_process import SimProcessT, sorted_by_name
from coterie.lab.simulator.world import World

DELIVERY_MAX_MS = 20_000
"""When this time has passed since the last fault, every message that was sent during the faults has arrived or was
lost: also those on links that delayed messages, and late requests of broken connections."""


class FaultInjector(ABC, Generic[SimProcessT]):
    """The base class of what starts, disturbs and ends the processes of a simulation. A service is the worker, client
    or transactional id for which a process runs; the processes of one service replace each other. A service whose
    process was killed permanently is never restarted, also not by `start_missing_services`. `end_process_faults` may
    itself crash the coordinator or broker once more, and end processes permanently."""

    def __init__(self, world: World, infrastructure_faults: InfrastructureFaults, services: Sequence[str]) -> None:
        self._world = world
        self._rng = world.rng
        self._infrastructure_faults = infrastructure_faults
        self.live_processes: dict[str, SimProcessT] = {}
        """The processes that have not ended, by name, in the order in which they started."""
        self._services = services
        """The names of all services of the seed."""
        self._never_restarted: set[str] = set()
        """The services for which no process starts any more."""
        self._have_faults_ended = False

    def _set_faults_and_choose_interval(
        self, own_faults: Mapping[Callable[[], None], int], *, mean_intervals_ms: Sequence[int]
    ) -> None:
        """Set the faults that may be injected: those of links, disk and coordinator, and ``own_faults``, the faults of
        this simulation; each with its weight, which is its frequency in comparison with others. Choose the seed's mean
        time between two faults at random from ``mean_intervals_ms``."""
        faults = {**self._infrastructure_faults.weight_by_fault(), **own_faults}
        self._faults = [fault for fault, weight in faults.items() for _ in range(weight)]
        # Some seeds have many faults, some so few that a fault occurs alone.
        self._mean_interval_ms = self._rng.choice(mean_intervals_ms)

    def run_with_faults_and_end_them(self, faults_ms: int) -> None:
        """Call `schedule_starts_and_faults`, and run the world with faults until the simulated time ``faults_ms``. Then
        end the faults of links and disk, and call `end_process_faults`."""
        self.schedule_starts_and_faults()
        self._world.run_until(faults_ms)
        self._world.add_record(RecordKind.FAULTS_END)
        self._have_faults_ended = True
        self._infrastructure_faults.heal()
        self.end_process_faults()

    @abstractmethod
    def schedule_starts_and_faults(self) -> None:
        """Schedule the starts of the first processes, and the first fault."""

    @abstractmethod
    def end_process_faults(self) -> None:
        """End the faults of this simulation's processes; those of links and disk have ended already. Called once, after
        the last fault. An implementation also crashes the coordinator or broker once more, in all seeds or in some of
        them, and may end processes permanently."""

    @abstractmethod
    def start_service_if_missing(self, service: str) -> None:
        """Start a process of ``service``, unless one runs or ``service`` is in ``_never_restarted``. A subclass may
        start it later."""

    def start_missing_services(self) -> None:
        """Call `start_service_if_missing` for all services: those without a process get one. A service may have none
        because a late request of a process that had ended has fenced its successor, which then has ended, too."""
        for service in self._services:
            self.start_service_if_missing(service)

    def _schedule_next_fault(self) -> None:
        """Schedule a call of :meth:`_inject_fault` after a random time, with the seed's mean time between two
        faults."""
        self._world.call_after(1 + int(self._rng.expovariate(1 / self._mean_interval_ms)), self._inject_fault)

    def _inject_fault(self) -> None:
        """Begin one random fault and schedule the next one, unless the faults have ended."""
        if not self._have_faults_ended:
            self._rng.choice(self._faults)()
            self._schedule_next_fault()

    # -- processes ----------------------------------------------------------------------------------------------------

    def _random_process(self) -> SimProcessT | None:
        """A random one of the processes that have not ended; None if there is none."""
        processes = sorted_by_name(self.live_processes)
        return self._rng.choice(processes) if processes else None

    def _schedule_restart(self, service: str) -> None:
        """Start a process of ``service`` some time later. Called when a process ends and its service is to get another
        one. Does nothing in this class."""

    def _pause_random_process(self) -> None:
        """Pause a random process for 0.3 to 20 s, unless it is paused already."""
        process = self._random_process()
        if process is not None and not process.is_paused:
            process.pause()
            self._world.call_after(
                self._rng.choice((300, 2_000, 5_000, 8_000, 20_000)), partial(self._resume_process_if_paused, process)
            )

    def _resume_process_if_paused(self, process: SimProcessT) -> None:
        """Resume ``process``, if it is paused and has not ended."""
        if process.is_alive and process.is_paused:
            process.resume()

    def _kill_and_restart_random_process(self) -> None:
        """Kill a random process, and schedule a new process of the same service (the same worker, client or
        transactional id)."""
        process = self._random_process()
        if process is not None:
            process.kill(RecordKind.KILLED)
            self._schedule_restart(process.service)

    def kill_random_process_permanently(self) -> None:
        """Kill a random process, and never start another process of its service (the same worker, client or
        transactional id). Does nothing if only one service is left whose processes are restarted."""
        process = self._random_process()
        if process is not None and len(self._services) - len(self._never_restarted) > 1:
            self._never_restarted.add(process.service)
            process.kill(RecordKind.KILLED_PERMANENTLY)
