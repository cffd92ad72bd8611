"""Requests of transactional producers to the transaction coordinator, shared by several APIs."""

from collections.abc import Callable
from dataclasses import replace

from coterie.broker.node import Node
from coterie.groups.transaction_messages import Event, Reply
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode


async def coordinator_reply(
    node: Node, transactional_id: str, make: Callable[[int], Event], *, knows_fenced: bool
) -> Reply:
    """The reply to the event that ``make`` builds with a new producer id. A fenced producer gets
    INVALID_PRODUCER_EPOCH in versions that do not support PRODUCER_FENCED (KIP-588)."""
    try:
        reply = await node.transactions.ask(transactional_id, make)
    except WorldError:
        return Reply(error=ErrorCode.kafka_storage_error)
    if reply.error is ErrorCode.producer_fenced and not knows_fenced:
        return replace(reply, error=ErrorCode.invalid_producer_epoch)
    return reply
