"""Base class of the scenarios of workers and of consumers: the real coordinator of one group, on a clock that only
`GroupScenario.wait` moves, over a network without delay."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count

from coterie.engine.timers import Timers
from coterie.groups.classic.messages import Event, Phase, Record, ReplyTo, Request, Response, TimerKey
from coterie.groups.classic.state import Group, Limits, check_all
from coterie.groups.effects import CancelTimer, Reply, SetTimer, TimerFired
from coterie.lab.steps import Steps
from coterie.nouns.ids import Generation, GroupId


class GroupScenario(ABC):
    """The coordinator of one group, its timers and the queue of what is to be done at the current time. A subclass adds
    the members."""

    def __init__(self, group_id: GroupId, steps: Steps) -> None:
        self.steps = steps
        self.now_ms = 0
        self.lines: list[str] = []
        """The lines printed so far."""
        self.group = Group(group_id, Limits(initial_rebalance_delay_ms=0))  # KIP-415: "start rebalancing immediately"
        self._timers = Timers[TimerKey]()
        self._numbers = map(ReplyTo, count(1))
        """The ids of the next requests."""
        self._waiting: dict[ReplyTo, Callable[[Response], None]] = {}
        """For each request without a response, the function that receives it."""
        self._queue: deque[Callable[[], None]] = deque()
        """What is to be done at the current time, in order."""
        self._lives: dict[str, int] = {}
        """How often each member has started."""

    def print_line(self, line: str) -> None:
        """Add ``line`` to the lines that the present command prints."""
        self.lines.append(line)

    def enqueue(self, act: Callable[[], None]) -> None:
        """Have ``act`` called by `run_queue`, after all that is queued before it."""
        self._queue.append(act)

    def ask(self, make: Callable[[ReplyTo], Request], answered: Callable[[Response], None]) -> None:
        """Queue a request to the coordinator: ``make`` builds it from its id when its turn comes. The response is
        queued as a call of ``answered``."""
        reply_to = next(self._numbers)
        self._waiting[reply_to] = answered
        self.enqueue(lambda: self._coordinate(make(reply_to)))

    def wait(self, ms: int) -> None:
        """Let ``ms`` pass, and do on the way what is due, each at its time."""
        until_ms = self.now_ms + ms
        while (at_ms := self._next_at_ms()) is not None and at_ms <= until_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self.run_queue()
        self.now_ms = until_ms

    def run_queue(self) -> None:
        """Call everything that is queued and fire all timers that are due at the current time, until nothing is
        left."""
        while True:
            if self._queue:
                self._queue.popleft()()
            elif (key := self._timers.pop_due(self.now_ms)) is not None:
                self._coordinate(TimerFired(key=key))
            elif not self._fire_due():
                return

    def _next_life(self, name: str) -> int:
        """Count a start of ``name``. Returns the number of its starts, with this one."""
        self._lives[name] = self._lives.get(name, 0) + 1
        return self._lives[name]

    @abstractmethod
    def _fire_due(self) -> bool:
        """Fire one timer of a member that is due. Returns whether there was one."""

    @abstractmethod
    def _deadlines(self) -> Iterable[int | None]:
        """For each member, the time in ms at which its next timer is due; None if it has none."""

    @abstractmethod
    def _report_step(self, was: Phase, generation: Generation, records: Sequence[Record]) -> None:
        """Print what a step of the coordinator has changed. Before the step the group was in phase ``was`` and in
        ``generation``; the step has written ``records``."""

    def _coordinate(self, event: Event) -> None:
        """Step the coordinator with ``event``, print what has changed, and perform the effects. Responses are
        queued."""
        was, generation = self.group.phase, self.group.generation
        output = self.steps.group(self.group, event, now_ms=self.now_ms)
        check_all(self.group)
        self._report_step(was, generation, output.records)
        for effect in output.effects:
            match effect:
                case Reply(to=to, response=response):
                    self.enqueue(partial(self._waiting.pop(to), response))
                case SetTimer(key=key, at_ms=at_ms):
                    self._timers.set(key, at_ms)
                case CancelTimer(key=key):
                    self._timers.cancel(key)

    def _next_at_ms(self) -> int | None:
        """The time of the next timer of the coordinator or of a member; None if there is none."""
        deadlines = [self._timers.next_at_ms(), *self._deadlines()]
        return min((at_ms for at_ms in deadlines if at_ms is not None), default=None)
