"""What the protocol that the group has voted for allows; None before the first round."""

from coterie.herder.state import Herder
from coterie.wire.connect import ConnectProtocol


def setting(herder: Herder) -> str | None:
    """The group's protocol, as ``connect.protocol`` names it."""
    protocol = herder.rounds.protocol
    return None if protocol is None else protocol.setting


def are_requests_signed(herder: Herder) -> bool:
    """Whether workers sign what they ask of their leader (KIP-507)."""
    protocol = herder.rounds.protocol
    return protocol is not None and protocol >= ConnectProtocol.SESSIONED


def why_drain_waits(herder: Herder) -> str | None:
    """Why the leader does not learn of a drain; None when it does."""
    protocol = herder.rounds.protocol
    if protocol is None or protocol >= ConnectProtocol.STATIC:
        return None
    return (
        f"the group speaks {protocol.setting}, which has no word for a drain: all workers have to offer "
        f"connect.protocol={ConnectProtocol.STATIC.setting}"
    )
