"""What simulated clients and producers are as processes: they live, stand still, go on, and die."""

from collections.abc import Callable, MutableMapping
from typing import Self

from coterie.lab.simulator.records import RecordKind, Value
from coterie.lab.simulator.world import World


class Actor:
    """One process. Another one of the same home may follow it, or come while it lives."""

    def __init__(self, world: World, name: str, home: str, living: MutableMapping[str, Self]) -> None:
        """``living`` is where it is to be found, by its name, until it dies."""
        self.world = world
        self.name = name
        self.home = home
        self.alive = True
        self.paused = False
        self._living = living
        self._missed: list[Callable[[], None]] = []
        living[name] = self

    def kill(self, how: RecordKind, *values: Value) -> None:
        self.alive = False
        if self._living.get(self.name) is self:
            del self._living[self.name]
        self.world.record(how, self.name, *values)

    def pause(self) -> None:
        self.paused = True
        self.world.record(RecordKind.PAUSED, self.name)

    def resume(self) -> None:
        self.paused = False
        self.world.record(RecordKind.RESUMED, self.name)
        missed, self._missed = self._missed, []
        for happens in missed:
            happens()

    def _later(self, ms: int, happens: Callable[[], None]) -> None:
        self.world.after(ms, lambda: self._awake(happens))

    def _awake(self, happens: Callable[[], None]) -> None:
        """Now; when it goes on, if it stands still; never, if it is dead."""
        if self.paused:
            self._missed.append(lambda: self._awake(happens))
        elif self.alive:
            happens()
