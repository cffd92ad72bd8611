"""The bookkeeping of calls into plug-ins: which calls wait, run or have timed out, and which may start. Starts no
thread and reads no clock.

| state | meaning | next |
|---|---|---|
| ``WaitingCall`` | waits until fewer calls of its queue run | Running, or removed: it was ended while it waited |
| ``RunningCall`` | a thread runs the call | TimedOut, or removed: the call has returned |
| ``TimedOutCall`` | has exceeded its time limit, and its thread has not ended | removed: the call has returned late |

A plug-in may block without end, and Python cannot end a thread. So two limits are independent: how many calls of a
queue run at once, and how long a call may take. A call counts as running for :data:`COUNTED_AS_RUNNING_MAX_S` only.
This time is halved for each ``concurrent_calls_max`` calls of the queue that have exceeded it and have not returned,
down to
:data:`COUNTED_AS_RUNNING_MIN_S`. So ``n`` calls that hang delay the other calls of their queue by less than ``2 *
COUNTED_AS_RUNNING_MAX_S + COUNTED_AS_RUNNING_MIN_S * n / concurrent_calls_max``: 40 starts that hang delay the next one
by 2.5 s. While many calls are slow and none hangs, the limit becomes one of the rate at which calls start.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NewType, TypeAlias

COUNTED_AS_RUNNING_MAX_S = 1
"""How long after its start a call counts as one of the running calls of its queue, in seconds, while none hangs."""
COUNTED_AS_RUNNING_MIN_S = 0.1
"""How long after its start, at least, a call counts as one of the running calls of its queue, in seconds, however many
calls of the queue hang."""

CallId = NewType("CallId", int)
"""Identifies one call in its ledger. Later calls have higher numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallQueueSpec:
    """The calls of one kind, of which a limited number runs at once. They start in the order in which they were
    added."""

    name: str
    concurrent_calls_max: int
    """Maximum number of calls that run at once, not counting those that have run for long
    (:func:`time_counted_as_running_s`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStage:
    """A part of a running call: what the plug-in does in it, and the time limit for it."""

    name: str
    """The name of the stage in error messages, such as ``validate``."""
    began_at_s: float
    """The monotonic second in which the stage began."""
    deadline_s: float | None
    """The monotonic second at which the time limit of the stage is over; None means that only the whole call has a time
    limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """State of a call that waits until fewer calls of its queue run."""

    queue: CallQueueSpec
    deadline_s: float | None
    """The monotonic second at which the time limit of the whole call is over; None means without limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCall:
    """State of a call that a thread runs, and whose time limit is not over."""

    queue: CallQueueSpec
    counts_as_running_until_s: float
    """The monotonic second until which the call counts as one of the running calls of its queue."""
    deadline_s: float | None
    """The monotonic second at which the time limit of the whole call is over; None means without limit."""
    open_stages: tuple[CallStage, ...] = ()
    """The stages that have begun and not ended, the innermost last. Empty while the call runs Coterie's own code, which
    has its own time limits."""

    @property
    def earliest_deadline_s(self) -> float | None:
        """The monotonic second at which the first time limit of the call is over: its own, or that of its innermost
        open stage; None while neither has one. Then the call becomes a :class:`TimedOutCall`."""
        limits = (self.deadline_s, self.open_stages[-1].deadline_s if self.open_stages else None)
        return min((limit for limit in limits if limit is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOutCall:
    """State of a call that has exceeded its time limit, and whose thread has not ended: its caller gets an error, and
    its result will not be used."""

    queue: CallQueueSpec


CallState: TypeAlias = WaitingCall | RunningCall | TimedOutCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredCall:
    """A call of which a time limit is over: that of the whole call, or that of its innermost open stage.
    ``has_stage_expired`` tells which. An outer stage has no time limit while another stage is open in it. A call that
    still waited was in no stage, and was removed."""

    call_id: CallId
    stage: CallStage | None
    """The innermost open stage, also if the time limit of the whole call is over; None if the call was in no stage, or
    still waited."""
    has_stage_expired: bool
    """Whether the time limit of ``stage`` is over. If False, that of the whole call is over."""


def time_counted_as_running_s(queue: CallQueueSpec, *, hanging_count: int) -> float:
    """How long after its start a call counts as one of the running calls of ``queue``, in seconds. ``hanging_count``:
    the number of calls of the queue that have run for longer than they count as running. The more calls hang, the
    shorter is the time, so that hanging calls delay the next calls less."""
    return max(
        COUNTED_AS_RUNNING_MAX_S / 2.0 ** min(hanging_count // queue.concurrent_calls_max, 64), COUNTED_AS_RUNNING_MIN_S
    )


class CallLedger:
    """All calls of one worker that have not returned. Times are monotonic seconds. Not safe on several threads."""

    def __init__(self) -> None:
        self._states: dict[CallId, CallState] = {}
        """The calls, in the order in which they were added."""
        self._calls_added = 0

    @property
    def lost_thread_count(self) -> int:
        """Number of threads that hang in a plug-in: the threads of calls that have timed out and have not returned."""
        return sum(isinstance(state, TimedOutCall) for state in self._states.values())

    def add(self, queue: CallQueueSpec, *, ends_at_s: float | None = None) -> CallId:
        """Add a waiting call, and return its id. ``ends_at_s``: the monotonic second at which the time limit of the
        whole call is over; None means without limit."""
        call_id = CallId(self._calls_added)
        self._calls_added += 1
        self._states[call_id] = WaitingCall(queue=queue, deadline_s=ends_at_s)
        return call_id

    def mark_next_calls_running(self, now_s: float) -> list[CallId]:
        """Change the calls that may start from waiting to running, and return their ids, the oldest first. The caller
        must start a thread for each."""
        running_by_queue = Counter(call.queue for call in self._calls_counted_as_running(now_s))
        started_by_queue = Counter(
            call.queue for call in self._states.values() if isinstance(call, RunningCall | TimedOutCall)
        )
        hanging_by_queue = started_by_queue - running_by_queue
        started: list[CallId] = []
        for call_id, state in list(self._states.items()):
            if isinstance(state, WaitingCall) and running_by_queue[state.queue] < state.queue.concurrent_calls_max:
                running_by_queue[state.queue] += 1
                self._states[call_id] = RunningCall(
                    queue=state.queue,
                    counts_as_running_until_s=now_s
                    + time_counted_as_running_s(state.queue, hanging_count=hanging_by_queue[state.queue]),
                    deadline_s=state.deadline_s,
                )
                started.append(call_id)
        return started

    def begin_stage_unless_timed_out(self, call_id: CallId, stage: CallStage) -> bool:
        """Begin ``stage`` in a running call. Meanwhile an outer stage has no time limit; the time limit of the whole
        call stays. If the outer stage has no time limit, ``stage`` has none either. Returns False, without a change,
        when the call has timed out."""
        match self._states[call_id]:
            case RunningCall(open_stages=stages) as state:
                if stages and stages[-1].deadline_s is None:
                    stage = replace(stage, deadline_s=None)
                self._states[call_id] = replace(state, open_stages=(*stages, stage))
                return True
            case _:
                return False

    def end_stage_unless_timed_out(self, call_id: CallId, *, now_s: float, outer_deadline_s: float) -> None:
        """End the innermost stage of a running call. The stage around it, if there is one and it has a time limit,
        begins again: its time limit is over at ``outer_deadline_s``. Does nothing when the call has timed out."""
        match self._states[call_id]:
            case RunningCall(open_stages=(*outermost, outer, _)) as state:
                if outer.deadline_s is not None:
                    outer = replace(outer, began_at_s=now_s, deadline_s=outer_deadline_s)
                self._states[call_id] = replace(state, open_stages=(*outermost, outer))
            case RunningCall() as state:
                self._states[call_id] = replace(state, open_stages=())
            case _:
                pass

    def shorten_time_limit(self, call_id: CallId, ends_at_s: float) -> None:
        """Shorten the time limit of a waiting or running call: it is over at the monotonic second ``ends_at_s``, unless
        it is over earlier. Does nothing for a call that has timed out or has returned."""
        match self._states.get(call_id):
            case (WaitingCall() | RunningCall()) as state if state.deadline_s is None or ends_at_s < state.deadline_s:
                self._states[call_id] = replace(state, deadline_s=ends_at_s)
            case _:
                pass

    def expire_calls(self, now_s: float) -> list[ExpiredCall]:
        """Return the calls whose time limit is over, and change their state: a running call becomes a
        :class:`TimedOutCall`, a waiting one is removed."""
        expired = []
        for call_id, state in list(self._states.items()):
            match state:
                case WaitingCall() if state.deadline_s is not None and now_s >= state.deadline_s:
                    del self._states[call_id]
                    expired.append(ExpiredCall(call_id=call_id, stage=None, has_stage_expired=False))
                case RunningCall() if state.earliest_deadline_s is not None and now_s >= state.earliest_deadline_s:
                    self._states[call_id] = TimedOutCall(queue=state.queue)
                    stage = state.open_stages[-1] if state.open_stages else None
                    stage_ends_at_s = None if stage is None else stage.deadline_s
                    has_stage_expired = stage_ends_at_s is not None and now_s >= stage_ends_at_s
                    expired.append(ExpiredCall(call_id=call_id, stage=stage, has_stage_expired=has_stage_expired))
                case _:
                    pass
        return expired

    def remove_and_return_whether_in_time(self, call_id: CallId) -> bool:
        """Remove a call that has returned or will never run. Returns whether it was in time: False if the call has
        exceeded its time limit (:class:`TimedOutCall`), so that its result must not be used; True for every other call,
        also for one that still waits."""
        return not isinstance(self._states.pop(call_id), TimedOutCall)

    def remove_waiting_calls(self) -> list[CallId]:
        """Remove all waiting calls, which are never run then, and return their ids."""
        waiting = [call_id for call_id, state in self._states.items() if isinstance(state, WaitingCall)]
        for call_id in waiting:
            del self._states[call_id]
        return waiting

    def running_call_ids(self) -> list[CallId]:
        """The ids of the calls that run and have not timed out, the oldest first."""
        return [call_id for call_id, state in self._states.items() if isinstance(state, RunningCall)]

    def next_change_at_s(self, now_s: float) -> float | None:
        """The monotonic second at which :meth:`expire_calls` or :meth:`mark_next_calls_running` next has something to
        do, if no other method is called before; None: never."""
        limits: list[float | None] = []
        for state in self._states.values():
            match state:
                case WaitingCall(deadline_s=ends_at_s) | RunningCall(earliest_deadline_s=ends_at_s):
                    limits.append(ends_at_s)
                case TimedOutCall():
                    pass
        queues_with_waiting = {state.queue for state in self._states.values() if isinstance(state, WaitingCall)}
        limits += [
            call.counts_as_running_until_s
            for call in self._calls_counted_as_running(now_s)
            if call.queue in queues_with_waiting
        ]
        return min((limit for limit in limits if limit is not None), default=None)

    def _calls_counted_as_running(self, now_s: float) -> Iterator[RunningCall]:
        """The running calls that count against the limits of their queues at the monotonic second ``now_s``: those that
        have not run for long (:attr:`RunningCall.counts_as_running_until_s`)."""
        for state in self._states.values():
            if isinstance(state, RunningCall) and now_s < state.counts_as_running_until_s:
                yield state
