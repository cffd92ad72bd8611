"""Base class of the scenarios of workers and of consumers: the real coordinator of one group, on a clock that only
`wait` moves, over a network without delay."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count

from coterie.engine.timers import Timers
from coterie.groups.classic.messages import Event, Phase, Record, ReplyTo, Request, Response, TimerKey
from coterie.groups.classic.state import Group, Limits, check_whole
from coterie.groups.effects import CancelTimer, Reply, SetTimer, TimerFired
from coterie.lab.steps import Steps
from coterie.nouns.ids import Generation, GroupId


class GroupStage(ABC):
    def __init__(self, group_id: GroupId, steps: Steps) -> None:
        self.steps = steps
        self.now_ms = 0
        self.lines: list[str] = []
        self.group = Group(group_id, Limits(initial_rebalance_delay_ms=0))  # KIP-415: "start rebalancing immediately"
        self._timers = Timers[TimerKey]()
        self._numbers = map(ReplyTo, count(1))
        self._waiting: dict[ReplyTo, Callable[[Response], None]] = {}
        self._queue: deque[Callable[[], None]] = deque()
        self._lives: dict[str, int] = {}

    def say(self, line: str) -> None:
        self.lines.append(line)

    def soon(self, act: Callable[[], None]) -> None:
        self._queue.append(act)

    def ask(self, make: Callable[[ReplyTo], Request], answered: Callable[[Response], None]) -> None:
        """Queue the request that ``make`` returns; its response is queued as a call of ``answered``."""
        reply_to = next(self._numbers)
        self._waiting[reply_to] = answered
        self.soon(lambda: self._coordinate(make(reply_to)))

    def wait(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        while (at_ms := self._next_at_ms()) is not None and at_ms <= until_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self.settle()
        self.now_ms = until_ms

    def settle(self) -> None:
        """Perform everything that is queued or due at the current time."""
        while True:
            if self._queue:
                self._queue.popleft()()
            elif (key := self._timers.pop_due(self.now_ms)) is not None:
                self._coordinate(TimerFired(key=key))
            elif not self._fire_due():
                return

    def _next_life(self, name: str) -> int:
        """Number of starts of ``name``, this one included."""
        self._lives[name] = self._lives.get(name, 0) + 1
        return self._lives[name]

    @abstractmethod
    def _fire_due(self) -> bool:
        """Fire one member's timer that is due; False if none is due."""

    @abstractmethod
    def _deadlines(self) -> Iterable[int | None]:
        """The time in ms at which each member's next timer is due; None for no timer."""

    @abstractmethod
    def _tell_step(self, was: Phase, generation: Generation, records: Sequence[Record]) -> None:
        """Print what the coordinator's step has changed; before the step the group was in phase ``was`` and in
        ``generation``."""

    def _coordinate(self, event: Event) -> None:
        was, generation = self.group.phase, self.group.generation
        output = self.steps.group(self.group, event, now_ms=self.now_ms)
        check_whole(self.group)
        self._tell_step(was, generation, output.records)
        for effect in output.effects:
            match effect:
                case Reply(to=to, response=response):
                    self.soon(partial(self._waiting.pop(to), response))
                case SetTimer(key=key, at_ms=at_ms):
                    self._timers.set(key, at_ms)
                case CancelTimer(key=key):
                    self._timers.cancel(key)

    def _next_at_ms(self) -> int | None:
        deadlines = [self._timers.next_at_ms(), *self._deadlines()]
        return min((at_ms for at_ms in deadlines if at_ms is not None), default=None)
