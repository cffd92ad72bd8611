"""One step's working set."""

from coterie.member.events import Effect, Send
from coterie.member.messages import Request
from coterie.member.state import InFlight, Member


class Turn:
    def __init__(self, member: Member, now_ms: int) -> None:
        self.member = member
        self.now_ms = now_ms
        self.effects: list[Effect] = []

    def order(self, effect: Effect) -> None:
        self.effects.append(effect)

    def send(self, request: Request) -> InFlight:
        sent = InFlight(id=next(self.member.request_ids), request=request, sent_at_ms=self.now_ms)
        self.order(Send(id=sent.id, request=request))
        return sent
