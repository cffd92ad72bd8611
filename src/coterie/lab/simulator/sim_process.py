"""A simulated process of a worker, a client or a producer: it starts, is paused and resumed, and is killed."""

from collections.abc import Callable, Mapping
from typing import Self, TypeVar

from coterie.lab.simulator.records import RecordKind, RecordValue
from coterie.lab.simulator.world import World


class SimProcess:
    """One process of the ``service``: the name of a worker or client, or a transactional id. Another process of the
    same service may start after this one has ended, or while it runs."""

    def __init__(self, world: World, name: str, service: str, living: dict[str, Self]) -> None:
        """The process adds itself to ``living`` under its name; `kill` removes it."""
        self.world = world
        self.name = name
        self.service = service
        self.alive = True
        """False once the process has ended."""
        self.paused = False
        self._living = living
        self._missed: list[Callable[[], None]] = []
        """The callbacks that came while the process was paused."""
        living[name] = self

    def kill(self, how: RecordKind, *values: RecordValue) -> None:
        """End the process, and record its end as ``how`` with its name and ``values``."""
        self.alive = False
        if self._living.get(self.name) is self:
            del self._living[self.name]
        self.world.record(how, self.name, *values)

    def pause(self) -> None:
        """Pause the process, as SIGSTOP does: callbacks wait until it resumes."""
        self.paused = True
        self.world.record(RecordKind.PAUSED, self.name)

    def resume(self) -> None:
        """End the pause, and call the callbacks that came meanwhile."""
        self.paused = False
        self.world.record(RecordKind.RESUMED, self.name)
        missed, self._missed = self._missed, []
        for happens in missed:
            self.deliver(happens)

    def after(self, ms: int, callback: Callable[[], None]) -> None:
        """Pass ``callback`` to `deliver` in ``ms``."""
        self.world.after(ms, lambda: self.deliver(callback))

    def deliver(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` now; if the process is paused, when it resumes; if the process has ended, never."""
        if self.paused:
            self._missed.append(callback)
        elif self.alive:
            callback()


SimProcessT = TypeVar("SimProcessT", bound=SimProcess)


def sorted_by_name(living: Mapping[str, SimProcessT]) -> list[SimProcessT]:
    """The processes of ``living``, sorted by their names."""
    return [living[name] for name in sorted(living)]


def newest_process(living: dict[str, SimProcessT], service: str) -> SimProcessT | None:
    """The process of ``service`` in ``living`` that started last; None if there is none."""
    return next((process for process in reversed(living.values()) if process.service == service), None)
