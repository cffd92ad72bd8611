"""The features of the group's protocol version; before the first round the protocol is None."""

from coterie.herder.state import Herder
from coterie.wire.connect import ConnectProtocol


def setting(herder: Herder) -> str | None:
    """The group's protocol, as ``connect.protocol`` names it."""
    protocol = herder.rounds.protocol
    return None if protocol is None else protocol.setting


def are_requests_signed(herder: Herder) -> bool:
    """Whether workers sign their requests to the leader (KIP-507)."""
    protocol = herder.rounds.protocol
    return protocol is not None and protocol >= ConnectProtocol.SESSIONED


def why_drain_waits(herder: Herder) -> str | None:
    """Why this worker's drain request does not reach the leader, as text for an operator; None when it does."""
    protocol = herder.rounds.protocol
    if protocol is None or protocol >= ConnectProtocol.STATIC:
        return None
    return (
        f"the group uses protocol {protocol.setting}, which cannot announce a drain; set "
        f"connect.protocol={ConnectProtocol.STATIC.setting} on all workers"
    )
