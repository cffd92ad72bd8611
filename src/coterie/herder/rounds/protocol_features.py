"""What the version of the group's protocol supports. A worker does not know this version before its first round has
ended."""

from coterie.herder.state import Herder
from coterie.wire.connect import ConnectProtocol


def protocol_name(herder: Herder) -> str | None:
    """The group's protocol as a value of ``connect.protocol``; None before the first round."""
    protocol = herder.rounds.protocol
    return None if protocol is None else protocol.setting


def are_requests_signed(herder: Herder) -> bool:
    """Whether workers sign their requests to the leader (KIP-507): from protocol sessioned on. False before the first
    round."""
    protocol = herder.rounds.protocol
    return protocol is not None and protocol >= ConnectProtocol.SESSIONED


def are_repeated_writes_deduplicated(herder: Herder) -> bool:
    """Whether every leader of this group looks a repeated write up in the config log, because no worker of Kafka
    Connect can be a member: Connect does not have the protocol static. False before the first round."""
    protocol = herder.rounds.protocol
    return protocol is not None and protocol >= ConnectProtocol.STATIC


def may_rejoin_after_partial_release(herder: Herder) -> bool:
    """Whether this worker may request a round when it has released only some of its revoked jobs. True if no worker of
    Kafka Connect can be the leader; False before the first round.

    The join of such a round still reports the other revoked jobs as owned. A leader of Coterie recognizes them as
    revoked. A leader of Connect counts them as jobs that stay with this worker: it may revoke other jobs instead, and
    with each such round it waits longer until it revokes jobs again."""
    return are_repeated_writes_deduplicated(herder)


def drain_unreportable_reason(herder: Herder) -> str | None:
    """Why the leader does not receive this worker's drain request, as text for an operator: the group's protocol is
    older than static. None when the leader receives it, and before the first round."""
    protocol = herder.rounds.protocol
    if protocol is None or protocol >= ConnectProtocol.STATIC:
        return None
    return (
        f"the group uses protocol {protocol.setting}, which cannot announce a drain; set "
        f"connect.protocol={ConnectProtocol.STATIC.setting} on all workers"
    )
