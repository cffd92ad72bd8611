"""A simulated process of a worker, a client or a producer: it starts, is paused and resumed, and is killed."""

from collections.abc import Callable, Mapping
from typing import Self, TypeVar

from coterie.lab.simulator.records import RecordKind, RecordValue
from coterie.lab.simulator.world import World


class Actor:
    """One process. Another process of the same ``home`` (worker, client or transactional id) may start after it has
    ended, or while it runs."""

    def __init__(self, world: World, name: str, home: str, living: dict[str, Self]) -> None:
        """``living`` holds the process under its name until the process ends."""
        self.world = world
        self.name = name
        self.home = home
        self.alive = True
        self.paused = False
        self._living = living
        self._missed: list[Callable[[], None]] = []
        living[name] = self

    def kill(self, how: RecordKind, *values: RecordValue) -> None:
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
            self.soon(happens)

    def after(self, ms: int, happens: Callable[[], None]) -> None:
        self.world.after(ms, lambda: self.soon(happens))

    def soon(self, happens: Callable[[], None]) -> None:
        """Call ``happens`` now; if the process is paused, when it resumes; if it has ended, never."""
        if self.paused:
            self._missed.append(happens)
        elif self.alive:
            happens()


ActorT = TypeVar("ActorT", bound=Actor)


def by_name(living: Mapping[str, ActorT]) -> list[ActorT]:
    """The processes of ``living``, sorted by their names."""
    return [living[name] for name in sorted(living)]


def youngest(living: dict[str, ActorT], home: str) -> ActorT | None:
    """The process of ``home`` in ``living`` that started last; None if there is none."""
    return next((process for process in reversed(living.values()) if process.home == home), None)
