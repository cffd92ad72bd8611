"""The working set of one step: the member, the time, and the effects so far."""

from dataclasses import replace
from typing import TypeVar

from coterie.member.classic.messages import Effect, Request
from coterie.member.classic.state import InFlight, Member, Trouble
from coterie.member.events import Say, Send

RequestT = TypeVar("RequestT", bound=Request)

SAY_AGAIN_MS = 30_000
TROUBLES_MAX = 8
"""How many failures are stored: the number of different messages of a broken network is unbounded."""


class Turn:
    def __init__(self, member: Member, now_ms: int) -> None:
        self.member = member
        self.now_ms = now_ms
        self.effects: list[Effect] = []

    def order(self, effect: Effect) -> None:
        self.effects.append(effect)

    def say_trouble(self, text: str) -> None:
        """Log a new failure at once, and a continuing failure every ``SAY_AGAIN_MS``. Several failures may alternate,
        for instance when both heartbeats and joins fail."""
        troubles, now_ms = self.member.troubles, self.now_ms
        trouble = troubles.get(text)
        if trouble is None:
            self.order(Say(text=text))
            if len(troubles) == TROUBLES_MAX:
                del troubles[min(troubles, key=lambda known: troubles[known].said_at_ms)]
            troubles[text] = Trouble(since_ms=now_ms, said_at_ms=now_ms)
        elif now_ms - trouble.said_at_ms >= SAY_AGAIN_MS:
            self.order(Say(text=f"{text} (for {(now_ms - trouble.since_ms) // 1000} s now; retrying)"))
            troubles[text] = replace(trouble, said_at_ms=now_ms)

    def send(self, request: RequestT) -> InFlight[RequestT]:
        sent = InFlight(id=next(self.member.request_ids), request=request, sent_at_ms=self.now_ms)
        self.order(Send(id=sent.id, request=request))
        return sent
