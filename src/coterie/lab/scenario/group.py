"""The base class of the scenarios of workers and of consumers: the real coordinator of one classic group, on a clock
that only `GroupScenario.advance_clock` moves, over a network without delays."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count

from coterie.engine.timers import Timers
from coterie.groups.classic.messages import Event, GroupPhase, Record, ReplyTo, Request, Response, TimerKey
from coterie.groups.classic.state import ClassicGroupSettings, Group, check_all_invariants
from coterie.groups.effects import CancelTimer, Reply, SetTimer, TimerFired
from coterie.lab.steps import MachineSteps
from coterie.nouns.ids import GenerationId, GroupId


class GroupScenario(ABC):
    """The coordinator of one classic group, its timers, and the queue of calls to make at the current time. A subclass
    adds the members."""

    def __init__(self, group_id: GroupId, steps: MachineSteps) -> None:
        self.steps = steps
        self.now_ms = 0
        """The time of the scenario's clock, in ms since the start of the scenario."""
        self.output_lines: list[str] = []
        """The lines that the transcript has for the present command so far; a subclass clears them before each
        command."""
        self.group = Group(
            group_id, ClassicGroupSettings(initial_rebalance_delay_ms=0)
        )  # KIP-415: "start rebalancing immediately"
        self._timers = Timers[TimerKey]()
        self._request_ids = map(ReplyTo, count(1))
        """An iterator over the ids of future requests: 1, 2, 3, …"""
        self._response_handlers: dict[ReplyTo, Callable[[Response], None]] = {}
        """By id of each request without a response: the function that receives the response."""
        self._queue: deque[Callable[[], None]] = deque()
        """The calls to make at the current time, in order."""
        self._start_counts: dict[str, int] = {}
        """By the name of a member's worker or consumer, how often it has started."""

    def add_output_line(self, line: str) -> None:
        """Add ``line`` to the lines that the transcript has for the present command."""
        self.output_lines.append(line)

    def enqueue_call(self, callback: Callable[[], None]) -> None:
        """Queue a call of ``callback`` at the current time; :meth:`run_all_due_now` makes the queued calls in order."""
        self._queue.append(callback)

    def queue_request(
        self, build_request: Callable[[ReplyTo], Request], on_response: Callable[[Response], None]
    ) -> None:
        """Queue a request to the coordinator. When :meth:`run_all_due_now` sends the request, ``build_request`` is
        called with the request's id. When the coordinator responds, a call of ``on_response`` with the response is
        queued."""
        reply_to = next(self._request_ids)
        self._response_handlers[reply_to] = on_response
        self.enqueue_call(lambda: self._step_coordinator(build_request(reply_to)))

    def advance_clock(self, duration_ms: int) -> None:
        """Advance the clock by ``duration_ms``. Each timer that becomes due in this time fires at its own time, and the
        queued calls that it causes are made then."""
        until_ms = self.now_ms + duration_ms
        while (at_ms := self._next_timer_at_ms()) is not None and at_ms <= until_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self.run_all_due_now()
        self.now_ms = until_ms

    def run_all_due_now(self) -> None:
        """Make all queued calls and fire all timers that are due at the current time, until no call is queued and no
        timer is due."""
        while True:
            if self._queue:
                self._queue.popleft()()
            elif (key := self._timers.pop_due(self.now_ms)) is not None:
                self._step_coordinator(TimerFired(key=key))
            elif not self._fire_due_member_timer():
                return

    def _increment_start_count(self, name: str) -> int:
        """Count one more start of the member ``name``. Returns the number of its starts, including this one."""
        self._start_counts[name] = self._start_counts.get(name, 0) + 1
        return self._start_counts[name]

    @abstractmethod
    def _fire_due_member_timer(self) -> bool:
        """Fire one timer of a member that is due now, if there is one. Returns whether there was one."""

    @abstractmethod
    def _next_member_timer_times_ms(self) -> Iterable[int | None]:
        """For each member, the time on the scenario's clock, in ms, at which its next timer is due; None if it has no
        timer."""

    @abstractmethod
    def _print_rebalance_of_step(
        self, phase_before: GroupPhase, generation_before: GenerationId, records: Sequence[Record]
    ) -> None:
        """Print what the last step of the coordinator has changed. ``phase_before`` and ``generation_before`` are those
        of the group before the step; ``records`` are what the step has written."""

    def _step_coordinator(self, event: Event) -> None:
        """Step the coordinator with ``event``, print what has changed, and perform the effects at once. The calls with
        responses are queued."""
        phase_before, generation_before = self.group.phase, self.group.generation
        output = self.steps.step_classic_group(self.group, event, now_ms=self.now_ms)
        check_all_invariants(self.group)
        self._print_rebalance_of_step(phase_before, generation_before, output.records)
        for effect in output.effects:
            match effect:
                case Reply(to=to, response=response):
                    self.enqueue_call(partial(self._response_handlers.pop(to), response))
                case SetTimer(key=key, at_ms=at_ms):
                    self._timers.set(key, at_ms)
                case CancelTimer(key=key):
                    self._timers.cancel(key)

    def _next_timer_at_ms(self) -> int | None:
        """The time of the earliest timer of the coordinator and the members, which may have passed; None if there is no
        timer."""
        deadlines = [self._timers.next_deadline_ms(), *self._next_member_timer_times_ms()]
        return min((at_ms for at_ms in deadlines if at_ms is not None), default=None)
