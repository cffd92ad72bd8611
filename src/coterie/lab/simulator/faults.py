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
        self.living: dict[str, SimProcessT] = {}
        """The processes that have not ended, by name, in the order in which they started."""
        self._services = services
        self._never_restarted: set[str] = set()
        """The services for which no process starts any more."""
        self._faults_ended = False

    def _plan(self, own: Mapping[Callable[[], None], int], *, pauses_ms: Sequence[int]) -> None:
        """Set the faults that may be injected: those of the infrastructure and ``own``, the simulation's, with their
        weights. Choose the mean time between two faults from ``pauses_ms``."""
        faults = {**self._infrastructure_faults.faults(), **own}
        self._faults = [fault for fault, weight in faults.items() for _ in range(weight)]
        # Some seeds have many faults, some so few that a fault occurs alone.
        self._pause_between_ms = self._rng.choice(pauses_ms)

    def run(self, faults_ms: int) -> None:
        """Start the processes, and run the world with faults until the time ``faults_ms``. Then heal links and disk,
        and call `end`."""
        self.begin()
        self._world.run_until(faults_ms)
        self._world.record(RecordKind.FAULTS_END)
        self._faults_ended = True
        self._infrastructure_faults.heal()
        self.end()

    @abstractmethod
    def begin(self) -> None:
        """Start the processes, and schedule the first fault."""

    @abstractmethod
    def end(self) -> None:
        """End all faults but those of links and disk, which have ended already. Called once, after the last fault."""

    @abstractmethod
    def start(self, service: str) -> None:
        """Start a process of ``service``, unless one runs or ``service`` is in ``_never_restarted``."""

    def start_missing(self) -> None:
        """Start a process of each service that has none. A late request of a process that has ended may have fenced its
        successor, which then has ended too."""
        for home in self._services:
            self.start(home)

    def _schedule_next_fault(self) -> None:
        """Schedule one random fault, and after it the next one."""
        self._world.after(1 + int(self._rng.expovariate(1 / self._pause_between_ms)), self._inject_fault)

    def _inject_fault(self) -> None:
        """Begin one random fault and schedule the next one, unless the faults have ended."""
        if not self._faults_ended:
            self._rng.choice(self._faults)()
            self._schedule_next_fault()

    # -- processes ----------------------------------------------------------------------------------------------------

    def _random_process(self) -> SimProcessT | None:
        """One of the processes that have not ended; None if there is none."""
        processes = sorted_by_name(self.living)
        return self._rng.choice(processes) if processes else None

    def _schedule_restart(self, service: str) -> None:
        """Have a process of ``service`` start some time later. Called when a process ends that is to be replaced. Does
        nothing in this class."""

    def _pause(self) -> None:
        """Pause a random process for 0.3 to 20 s."""
        process = self._random_process()
        if process is not None and not process.paused:
            process.pause()
            self._world.after(self._rng.choice((300, 2_000, 5_000, 8_000, 20_000)), partial(self._resume, process))

    def _resume(self, process: SimProcessT) -> None:
        """Resume ``process``, if it is paused and has not ended."""
        if process.alive and process.paused:
            process.resume()

    def _kill(self) -> None:
        """Kill a random process; another one of its service starts some time later."""
        process = self._random_process()
        if process is not None:
            process.kill(RecordKind.KILLED)
            self._schedule_restart(process.service)

    def kill_for_good(self) -> None:
        """Kill a random process, and start no other process of its service. Does nothing if this would leave no service
        that is restarted."""
        process = self._random_process()
        if process is not None and len(self._services) - len(self._never_restarted) > 1:
            self._never_restarted.add(process.service)
            process.kill(RecordKind.BURIED)
