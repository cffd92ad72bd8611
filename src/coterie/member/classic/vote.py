"""Which protocols a member offers its group, and what the group chose."""

from coterie.member.classic.state import InGroup, Member
from coterie.member.classic.turn import Turn
from coterie.member.events import Say
from coterie.wire.connect import ConnectProtocol


def what_to_offer(turn: Turn) -> tuple[ConnectProtocol, ...]:
    """All protocols; but not eager while this worker runs jobs and may have missed a vote for eager.

    The leader of an eager group assumes that each member of the last round received the vote and stops everything
    before it joins the next round. A member that did not receive the vote (the answer to its join was lost; or it is a
    static member, which a group leaves out of a round after the rebalance timeout) would still run jobs that other
    members are assigned. So such a member offers the other protocols only. A group that needs eager refuses this join,
    and the member stops everything before it joins again; any other group accepts it, and the member offers eager
    again in a further round.
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
    """Log the group's protocol whenever it changes."""
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
