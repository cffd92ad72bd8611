"""One step's working set."""

from dataclasses import replace

from coterie.member.events import Effect, Say, Send
from coterie.member.messages import Request
from coterie.member.state import InFlight, Member, Trouble

SAY_AGAIN_MS = 30_000


class Turn:
    def __init__(self, member: Member, now_ms: int) -> None:
        self.member = member
        self.now_ms = now_ms
        self.effects: list[Effect] = []

    def order(self, effect: Effect) -> None:
        self.effects.append(effect)

    def say_trouble(self, text: str) -> None:
        """At once when it is new, then again every so often: whoever reads the log is to see that it lasts."""
        trouble, now_ms = self.member.trouble, self.now_ms
        if trouble is None or trouble.text != text:
            self.order(Say(text=text))
            self.member.trouble = Trouble(text=text, since_ms=now_ms, said_at_ms=now_ms)
        elif now_ms - trouble.said_at_ms >= SAY_AGAIN_MS:
            self.order(Say(text=f"{text} (for {(now_ms - trouble.since_ms) // 1000} s now; asking on)"))
            self.member.trouble = replace(trouble, said_at_ms=now_ms)

    def send(self, request: Request) -> InFlight:
        sent = InFlight(id=next(self.member.request_ids), request=request, sent_at_ms=self.now_ms)
        self.order(Send(id=sent.id, request=request))
        return sent
