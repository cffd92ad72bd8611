"""What the APIs of transactional producers ask the coordinator of transactions."""

from collections.abc import Callable
from dataclasses import replace

from coterie.broker.node import Node
from coterie.groups.transaction_messages import Event, Reply
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode


async def coordinator_reply(
    node: Node, transactional_id: str, make: Callable[[int], Event], *, knows_fenced: bool
) -> Reply:
    """The reply to the event that ``make`` makes with a fresh producer id. A fenced producer of a version that does not
    know PRODUCER_FENCED gets INVALID_PRODUCER_EPOCH (KIP-588)."""
    try:
        reply = await node.transactions.ask(transactional_id, make)
    except WorldError:
        return Reply(error=ErrorCode.kafka_storage_error)
    if reply.error is ErrorCode.producer_fenced and not knows_fenced:
        return replace(reply, error=ErrorCode.invalid_producer_epoch)
    return reply
