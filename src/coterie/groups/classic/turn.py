"""The working set of one step."""

from coterie.groups.classic.messages import Effect, Record, ReplyTo, Response, TimerKey
from coterie.groups.classic.state import Group, Member, apply
from coterie.groups.effects import CancelTimer, Reply, SetTimer


class Turn:
    """The working set of one step: the group, the time, and the records and effects of the step so far."""

    def __init__(self, group: Group, now_ms: int) -> None:
        self.group = group
        self.now_ms = now_ms
        self.records: list[Record] = []
        self.effects: list[Effect] = []

    def write(self, record: Record) -> None:
        """Add a record to the step's output and apply it to the group at once."""
        apply(self.group, record)  # at once: the rest of this step works with the new state
        self.records.append(record)

    def reply(self, reply_to: ReplyTo, response: Response) -> None:
        """Add the response to the request ``reply_to``."""
        self.effects.append(Reply(to=reply_to, response=response))

    def set_timer(self, key: TimerKey, in_ms: int) -> None:
        """Set the timer ``key`` to ``in_ms`` from now; if it is set already, move it."""
        at_ms = self.now_ms + in_ms
        self.group.deadlines[key] = at_ms
        self.effects.append(SetTimer(key=key, at_ms=at_ms))

    def cancel_timer(self, key: TimerKey) -> None:
        """Cancel the timer ``key``, if it is set."""
        if self.group.deadlines.pop(key, None) is not None:
            self.effects.append(CancelTimer(key=key))

    def renew_session(self, member: Member) -> None:
        """Renew the member's session: set its session timer to a session timeout from now."""
        self.set_timer(member.session_timer_key, member.session_timeout_ms)
