"""What a member offers its group, and what it makes of the group's vote."""

from coterie.member.classic.events import Say
from coterie.member.classic.state import Member
from coterie.member.classic.turn import Turn
from coterie.wire.connect import ConnectProtocol


def what_to_offer(turn: Turn) -> tuple[ConnectProtocol, ...]:
    """Everything; but from a worker at work that may have missed a vote, nothing that would have it stop first.

    An eager group's leader takes whoever was in the last round to have heard of its vote, and to have stopped before
    the next. Who has not heard (the answer to its join was lost; or it is a static member, which a group may leave out
    of a round once it has waited for the rebalance timeout) would still run what others are given. So it offers the
    other protocols alone. A group that cannot do without eager refuses that, and so it learns to stop first; any other
    takes it, and is offered eager again in a round of its own.
    """
    member, settings = turn.member, turn.member.settings
    leased_at_ms = member.leased_at_ms
    was_away = leased_at_ms is not None and turn.now_ms >= leased_at_ms + settings.rebalance_timeout_ms
    if not (member.owned and (member.unheard or was_away)):
        return settings.protocols
    cooperative = tuple(offered for offered in settings.protocols if offered is not ConnectProtocol.EAGER)
    return cooperative or settings.protocols


def spoken(member: Member, wire_name: str) -> ConnectProtocol | None:
    """The protocol of that name, if this worker offers it."""
    return next((offered for offered in member.settings.protocols if offered.wire_name == wire_name), None)


def announce(turn: Turn, protocol: ConnectProtocol) -> None:
    """Say what the group speaks, whenever that is another protocol than before."""
    member = turn.member
    if protocol is member.announced:
        return
    member.announced = protocol
    newest = member.settings.protocols[0]
    if protocol is newest:
        turn.order(Say(text=f"The group speaks {protocol.setting}"))
        return
    text = f"The group speaks {protocol.setting}, not {newest.setting}: a member's connect.protocol is that old"
    if protocol is ConnectProtocol.EAGER:
        text += "; so each rebalance stops all tasks"
    if member.settings.claims is not None and protocol < ConnectProtocol.STATIC:
        text += "; static.connectors and static.tasks are ignored"
    turn.order(Say(text=text, warns=True))
