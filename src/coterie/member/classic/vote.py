"""What a member offers its group, and what it makes of the group's vote."""

from coterie.member.classic.state import InGroup, Member
from coterie.member.classic.turn import Turn
from coterie.member.events import Say
from coterie.wire.connect import ConnectProtocol


def what_to_offer(turn: Turn) -> tuple[ConnectProtocol, ...]:
    """Everything; but from a worker at work that may have missed a vote, nothing that would have it stop first.

    An eager group's leader takes whoever was in the last round to have heard of its vote, and to have stopped before
    the next. Who has not heard (the answer to its join was lost; or it is a static member, which a group may leave out
    of a round once it has waited for the rebalance timeout) would still run what others are given. So it offers the
    other protocols alone. A group that cannot do without eager refuses that, and so it learns to stop first; any other
    takes it, and is offered eager again in a round of its own.
    """
    place, settings = turn.member.place, turn.member.settings
    if not (isinstance(place, InGroup) and turn.member.owned):
        return settings.protocols
    proved_until_ms = place.proved_until_ms
    away_ms = 0 if proved_until_ms is None else turn.now_ms - (proved_until_ms - settings.lease_ms)
    if not place.may_have_missed_vote and away_ms < settings.rebalance_timeout_ms:
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
