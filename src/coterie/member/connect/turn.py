"""The data of one step: the member, the time, and the effects so far."""

from typing import TypeVar

from coterie.member.connect.messages import Effect, Request
from coterie.member.connect.state import Member
from coterie.member.events import Send, WriteLogMessage
from coterie.member.in_flight import InFlight

RequestT = TypeVar("RequestT", bound=Request)


class Turn:
    """The data of one step: the member, the time, and the effects of the step so far, in the order of their output."""

    def __init__(self, member: Member, now_ms: int) -> None:
        self.member = member
        self.now_ms = now_ms
        self.effects: list[Effect] = []

    def emit(self, effect: Effect) -> None:
        """Add an effect to those of this step."""
        self.effects.append(effect)

    def log(self, text: str) -> None:
        """Write a message, which is no warning, to the process's log."""
        self.emit(WriteLogMessage(text=text))

    def log_failure_at_info_unless_recent(self, text: str) -> None:
        """Log a failure, not as a warning, unless the same one was logged a short time before (`FailureLog`)."""
        message = self.member.failures.add(text, self.now_ms)
        if message is not None:
            self.log(message)

    def send(self, request: RequestT) -> InFlight[RequestT]:
        """Emit a request with a new id, and return it as a request that waits for its response."""
        sent = InFlight(id=next(self.member.request_ids), request=request, sent_at_ms=self.now_ms)
        self.member.last_request_id = sent.id
        self.emit(Send(id=sent.id, request=request))
        return sent
