"""The data of one step: the member, the time, and the effects so far."""

from dataclasses import replace
from typing import TypeVar

from coterie.member.classic.messages import Effect, Request
from coterie.member.classic.state import InFlight, Member, RecurringFailure
from coterie.member.events import Send, WriteLogMessage

RequestT = TypeVar("RequestT", bound=Request)

LOG_REPEAT_INTERVAL_MS = 30_000
"""The time after which a failure that continues is logged again."""
FAILURES_MAX = 8
"""How many different failures are stored at once. The number of different messages of a broken network is unbounded."""


class Turn:
    """The data of one step. Effects are returned in the order in which they were added."""

    def __init__(self, member: Member, now_ms: int) -> None:
        self.member = member
        self.now_ms = now_ms
        self.effects: list[Effect] = []

    def emit(self, effect: Effect) -> None:
        """Add an effect to those of this step."""
        self.effects.append(effect)

    def log_failure(self, text: str) -> None:
        """Log a failure: a new one at once, and one with the same text again only every ``LOG_REPEAT_INTERVAL_MS``,
        with the time for which it has lasted. Several failures may alternate, for instance when both heartbeats and
        joins fail."""
        failures, now_ms = self.member.failures, self.now_ms
        failure = failures.get(text)
        if failure is None:
            self.emit(WriteLogMessage(text=text))
            if len(failures) == FAILURES_MAX:
                del failures[min(failures, key=lambda known: failures[known].logged_at_ms)]
            failures[text] = RecurringFailure(since_ms=now_ms, logged_at_ms=now_ms)
        elif now_ms - failure.logged_at_ms >= LOG_REPEAT_INTERVAL_MS:
            self.emit(WriteLogMessage(text=f"{text} (for {(now_ms - failure.since_ms) // 1000} s now; retrying)"))
            failures[text] = replace(failure, logged_at_ms=now_ms)

    def send(self, request: RequestT) -> InFlight[RequestT]:
        """Emit a request with a new id, and return it as a request that waits for its response."""
        sent = InFlight(id=next(self.member.request_ids), request=request, sent_at_ms=self.now_ms)
        self.emit(Send(id=sent.id, request=request))
        return sent
