"""Which protocols a member offers to its group, and which protocol the group selected."""

from coterie.member.classic.state import InGroup, Member
from coterie.member.classic.turn import Turn
from coterie.member.events import Say
from coterie.wire.connect import ConnectProtocol


def what_to_offer(turn: Turn) -> tuple[ConnectProtocol, ...]:
    """The protocols that JoinGroup lists: all protocols of the settings, but not eager while this worker runs jobs and
    may have missed that the group has selected eager.

    The leader of an eager group assumes that each member of the last rebalance received the selected protocol and stops
    all jobs before it joins the next rebalance. A member may not have received it: because the response to its join was
    lost, or because it is a static member, which a group leaves out of a rebalance after the rebalance timeout. Such a
    member could still run jobs that are assigned to other members. So it offers only the other protocols. A group that
    needs eager refuses this join, and the member stops all jobs before it joins again. Any other group accepts the
    join, and the member offers eager again in a further rebalance.
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
    """The protocol of that name; None if this worker does not offer it."""
    return next((offered for offered in member.settings.protocols if offered.wire_name == wire_name), None)


def announce(turn: Turn, protocol: ConnectProtocol) -> None:
    """Log the group's protocol whenever it changes."""
    member = turn.member
    if protocol is member.announced:
        return
    member.announced = protocol
    newest = member.settings.protocols[0]
    if protocol is newest:
        turn.order(Say(text=f"The group uses connect.protocol {protocol.setting}"))
        return
    text = (
        f"The group uses connect.protocol {protocol.setting}, not {newest.setting}, because at least one member "
        "supports no newer version"
    )
    if protocol is ConnectProtocol.EAGER:
        text += "; so each rebalance stops all tasks"
    if member.settings.claims is not None and protocol < ConnectProtocol.STATIC:
        text += "; static.connectors and static.tasks are ignored"
    turn.order(Say(text=text, warns=True))
