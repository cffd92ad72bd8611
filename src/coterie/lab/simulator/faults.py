"""Random faults: those of links, disk and coordinator (`storm`), and those of the processes of every simulation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic

from coterie.lab.simulator.actor import ActorT, by_name
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.storm import Storm
from coterie.lab.simulator.world import World

LATEST_MS = 20_000
"""This long after the last fault every message sent before it has arrived, also those on clogged links and those
that are late because their connection broke."""


class Faults(ABC, Generic[ActorT]):
    """The base class of the faults of each simulation."""

    def __init__(self, world: World, storm: Storm, homes: Sequence[str]) -> None:
        self._world = world
        self._rng = world.rng
        self._storm = storm
        self.living: dict[str, ActorT] = {}
        """The processes that have not ended, by name, in the order in which they started."""
        self._homes = homes
        self._gone_for_good: set[str] = set()
        self._over = False

    def _plan(self, own: Mapping[Callable[[], None], int], *, pauses_ms: Sequence[int]) -> None:
        """Choose the faults: those of the storm and the simulation's ``own``, each with its weight."""
        faults = {**self._storm.faults(), **own}
        self._faults = [fault for fault, weight in faults.items() for _ in range(weight)]
        # Some seeds have many faults, some so few that a fault occurs alone.
        self._pause_between_ms = self._rng.choice(pauses_ms)

    def run(self, weather_ms: int) -> None:
        """Run the world with faults until ``weather_ms``."""
        self.begin()
        self._world.run_until(weather_ms)
        self._world.record(RecordKind.FAULTS_END)
        self._over = True
        self._storm.heal()
        self.end()

    @abstractmethod
    def begin(self) -> None:
        """Start processes and faults."""

    @abstractmethod
    def end(self) -> None:
        """Called after the last fault, when links and the coordinator's disk are healthy: undo all other faults."""

    @abstractmethod
    def start(self, home: str) -> None:
        """Start a process of ``home`` if none runs, unless ``home`` is in ``_gone_for_good``."""

    def start_missing(self) -> None:
        """Start a process of each home without one: a late request of an ended process may have fenced its
        successor."""
        for home in self._homes:
            self.start(home)

    def _next(self) -> None:
        self._world.after(1 + int(self._rng.expovariate(1 / self._pause_between_ms)), self._strike)

    def _strike(self) -> None:
        if not self._over:
            self._rng.choice(self._faults)()
            self._next()

    # -- processes ----------------------------------------------------------------------------------------------------

    def _someone(self) -> ActorT | None:
        processes = by_name(self.living)
        return self._rng.choice(processes) if processes else None

    def _come_back(self, home: str) -> None:
        """Called when a process ends after which another one of ``home`` is to start."""

    def _pause(self) -> None:
        process = self._someone()
        if process is not None and not process.paused:
            process.pause()
            self._world.after(self._rng.choice((300, 2_000, 5_000, 8_000, 20_000)), partial(self._resume, process))

    def _resume(self, process: ActorT) -> None:
        if process.alive and process.paused:
            process.resume()

    def _kill(self) -> None:
        process = self._someone()
        if process is not None:
            process.kill(RecordKind.KILLED)
            self._come_back(process.home)

    def bury(self) -> None:
        """Kill a process permanently: no process of its ``home`` starts again. Never affects the last home."""
        process = self._someone()
        if process is not None and len(self._homes) - len(self._gone_for_good) > 1:
            self._gone_for_good.add(process.home)
            process.kill(RecordKind.BURIED)
