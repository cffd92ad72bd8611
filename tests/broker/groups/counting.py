"""A second kind of group: a counter. The host of classic groups runs it, too, with a separate topic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coterie.broker.groups.log import GroupTopicFormat
from coterie.engine.output import Output
from coterie.groups.effects import Effect, Reply, SetTimer, TimerFired
from coterie.nouns.ids import GroupId, ReplyTo
from coterie.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """Add an amount and respond with the new total; 0 only reads it."""

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

    @property
    def refusal_code_or_wait_while_loading(self) -> ErrorCode | None:
        return None

    def new_group(self, group_id: GroupId, /) -> Counter:
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
                return Output(effects=(Reply(to=to, response=self.refusal_response(event, ErrorCode.invalid_request)),))
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

    def notifications_after_load(self, records: Sequence[Total], /) -> Sequence[Loaded]:
        return [None]

    def refusal_response(self, request: Add, error: ErrorCode, /) -> Counted:
        return Counted(error=error)

    def may_create_group(self, request: Add, /) -> bool:
        return request.amount > 0

    def has_state(self, counter: Counter, /) -> bool:
        return counter.total != 0

    def reserves_group_id(self, counter: Counter, /) -> bool:
        return counter.total != 0

    def event_summary(self, event: Add | Loaded | TimerFired[str], /) -> object:
        return event

    def observe_request(self, counter: Counter, request: Add, /) -> None:
        pass

    def observe_response(self, counter: Counter, request: Add, response: Counted, /) -> None:
        pass


COUNTER_TOPIC: GroupTopicFormat[Total] = GroupTopicFormat(
    name="__counters",
    # As many bytes as the total, so that a test can write a record of any size.
    encode_record=lambda group_id, total: (group_id.encode(), b"1" * total if total else None),
    decode_record=lambda key, value: (GroupId(key.decode()), len(value or b"")),
)
