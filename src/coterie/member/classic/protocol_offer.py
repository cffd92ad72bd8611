"""Which protocols a member offers to its group, and which protocol the group selected."""

from coterie.member.classic.state import InGroup, Member
from coterie.member.classic.turn import Turn
from coterie.member.events import WriteLogMessage
from coterie.wire.connect import ConnectProtocol


def protocols_safe_to_offer(turn: Turn) -> tuple[ConnectProtocol, ...]:
    """The protocols that JoinGroup lists: all protocols of the settings; but not eager (unless the settings contain no
    other protocol) if this worker owns jobs and may have missed that the group has selected eager.

    The leader of an eager group assumes that each member of the last rebalance received the selected protocol and stops
    all jobs before it joins the next rebalance. A member may have missed the selected protocol in two cases: the
    response to its join was lost; or no request that it sent within the last rebalance timeout was answered, in which
    time a group leaves a static member out of a rebalance. Such a member could still run jobs that are assigned to
    other members. So it offers only the other protocols. A group that needs eager refuses this join, and the member
    stops all jobs before it joins again. Any other group accepts the join; the member then requests another rebalance,
    in which it offers eager again.
    """
    place, settings = turn.member.place, turn.member.settings
    if not (isinstance(place, InGroup) and turn.member.owned):
        return settings.protocols
    lease_ends_ms = place.lease_ends_ms
    away_ms = 0 if lease_ends_ms is None else turn.now_ms - (lease_ends_ms - settings.lease_duration_ms)
    if not place.may_have_missed_protocol_change and away_ms < settings.rebalance_timeout_ms:
        return settings.protocols
    cooperative = tuple(offered for offered in settings.protocols if offered is not ConnectProtocol.EAGER)
    return cooperative or settings.protocols


def protocol_in_settings_or_none(member: Member, wire_name: str) -> ConnectProtocol | None:
    """The protocol with the name ``wire_name`` in Kafka's messages; None if this worker's settings do not contain
    it."""
    return next((offered for offered in member.settings.protocols if offered.wire_name == wire_name), None)


def log_protocol_if_changed(turn: Turn, protocol: ConnectProtocol) -> None:
    """Log the group's protocol if it differs from the protocol that was logged last. The message is a warning if the
    group's protocol is older than the newest protocol that this worker offers."""
    member = turn.member
    if protocol is member.logged_protocol:
        return
    member.logged_protocol = protocol
    newest = member.settings.protocols[0]
    if protocol is newest:
        turn.emit(WriteLogMessage(text=f"The group uses connect.protocol {protocol.setting}"))
        return
    text = (
        f"The group uses connect.protocol {protocol.setting}, not {newest.setting}, because at least one member "
        "supports no newer version"
    )
    if protocol is ConnectProtocol.EAGER:
        text += "; so each rebalance stops all tasks"
    if member.settings.claims is not None and protocol < ConnectProtocol.STATIC:
        text += "; static.connectors and static.tasks are ignored"
    turn.emit(WriteLogMessage(text=text, is_warning=True))
