"""A second kind of groups: each is a counter. The same host runs it as runs classic groups, over a topic of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coterie.broker.groups.log import GroupTopic
from coterie.engine.output import Output
from coterie.groups.effects import Effect, Reply, SetTimer, TimerFired
from coterie.nouns.ids import GroupId, ReplyTo
from coterie.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """Answered with the new total; 0 only asks for it."""

    reply_to: ReplyTo
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    error: ErrorCode
    total: int = 0


@dataclass(slots=True)
class Counter:
    total: int = 0


Loaded: TypeAlias = None
Total: TypeAlias = int
"""A record. 0 is a tombstone."""


class CounterMachine:
    """A counter is reset ``reset_ms`` after its last change."""

    def __init__(self, reset_ms: int = 60_000) -> None:
        self._reset_ms = reset_ms

    def fresh(self, group_id: GroupId, /) -> Counter:
        return Counter()

    def apply(self, counter: Counter, total: Total, /) -> None:
        counter.total = total

    def step(
        self, counter: Counter, event: Add | Loaded | TimerFired[str], /, *, now_ms: int
    ) -> Output[Total, Effect[Counted, str]]:
        reset = SetTimer(key="reset", at_ms=now_ms + self._reset_ms)
        match event:
            case Add(amount=amount, reply_to=to) if amount < 0:
                assert amount > -1_000, "a bug, planted by tests"
                return Output(effects=(Reply(to=to, response=self.refused(event, ErrorCode.invalid_request)),))
            case Add(amount=0, reply_to=to):
                return Output(effects=(Reply(to=to, response=Counted(error=ErrorCode.none, total=counter.total)),))
            case Add(amount=amount, reply_to=to):
                counter.total += amount
                reply = Reply(to=to, response=Counted(error=ErrorCode.none, total=counter.total))
                return Output(records=(counter.total,), effects=(reset, reply))
            case TimerFired():
                counter.total = 0
                return Output(records=(0,))
            case None:
                return Output(effects=(reset,) if counter.total else ())

    def loaded(self, records: Sequence[Total], /) -> Sequence[Loaded]:
        return [None]

    def refused(self, request: Add, error: ErrorCode, /) -> Counted:
        return Counted(error=error)

    def founds(self, request: Add, /) -> bool:
        return request.amount > 0

    def is_known(self, counter: Counter, /) -> bool:
        return counter.total != 0

    def summary(self, event: Add | Loaded | TimerFired[str], /) -> object:
        return event

    def on_asked(self, counter: Counter, request: Add, /) -> None:
        pass

    def on_answered(self, counter: Counter, request: Add, response: Counted, /) -> None:
        pass


COUNTER_TOPIC: GroupTopic[Total] = GroupTopic(
    name="__counters",
    # As many bytes as the total counts, so that a test can write a line of any size.
    encode_line=lambda group_id, total: (group_id.encode(), b"1" * total if total else None),
    decode_line=lambda key, value: (GroupId(key.decode()), len(value or b"")),
)
