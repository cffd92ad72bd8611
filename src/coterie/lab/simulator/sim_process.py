"""A simulated process of a worker, a client or a producer: it starts, is paused and resumed, and is killed."""

from collections.abc import Callable, Mapping
from typing import Self, TypeVar

from coterie.lab.simulator.records import RecordKind, RecordValue
from coterie.lab.simulator.world import World


class SimProcess:
    """One process of a service. ``service`` is the name of a worker or client, or a transactional id. Another process
    of the same service may start after this one has ended, or while it runs."""

    def __init__(self, world: World, name: str, service: str, live_processes: dict[str, Self]) -> None:
        """The process adds itself to ``live_processes`` under its name; `kill` removes it."""
        self.world = world
        self.name = name
        self.service = service
        self.is_alive = True
        """False once the process has ended."""
        self.is_paused = False
        self._live_processes = live_processes
        self._missed_callbacks: list[Callable[[], None]] = []
        """The callbacks that wait for the end of the pause."""
        live_processes[name] = self

    def kill(self, kind: RecordKind, *values: RecordValue) -> None:
        """End the process at once, and record its end as ``kind`` with its name and ``values``. Its planned callbacks
        are not called."""
        self.is_alive = False
        if self._live_processes.get(self.name) is self:
            del self._live_processes[self.name]
        self.world.add_record(kind, self.name, *values)

    def pause(self) -> None:
        """Pause the process, as SIGSTOP does: its callbacks wait until `resume`."""
        self.is_paused = True
        self.world.add_record(RecordKind.PAUSED, self.name)

    def resume(self) -> None:
        """End the pause, and call the callbacks that were due during the pause."""
        self.is_paused = False
        self.world.add_record(RecordKind.RESUMED, self.name)
        missed_callbacks, self._missed_callbacks = self._missed_callbacks, []
        for callback in missed_callbacks:
            self.call_now_or_on_resume(callback)

    def call_after(self, in_ms: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` in ``in_ms``; if the process is paused at that time, when it resumes; if it has ended,
        never."""
        self.world.call_after(in_ms, lambda: self.call_now_or_on_resume(callback))

    def call_now_or_on_resume(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` now; if the process is paused, when it resumes; if the process has ended, never."""
        if self.is_paused:
            self._missed_callbacks.append(callback)
        elif self.is_alive:
            callback()


SimProcessT = TypeVar("SimProcessT", bound=SimProcess)


def sorted_by_name(live_processes: Mapping[str, SimProcessT]) -> list[SimProcessT]:
    """The processes of ``live_processes``, sorted by their names."""
    return [live_processes[name] for name in sorted(live_processes)]


def newest_process(live_processes: Mapping[str, SimProcessT], service: str) -> SimProcessT | None:
    """The process of ``service`` in ``live_processes`` that started last; None if there is none."""
    return next((process for process in reversed(list(live_processes.values())) if process.service == service), None)
