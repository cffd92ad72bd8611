"""Sends the requests of transactional producers to the transaction coordinator, for several APIs."""

from collections.abc import Callable
from dataclasses import replace

from coterie.broker.context import BrokerContext
from coterie.broker.groups.classic import CLASSIC_TOPIC
from coterie.groups.transaction_messages import Event, Reply, TopicPartition
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode

OFFSETS_PARTITION = TopicPartition(CLASSIC_TOPIC.name, 0)
"""The only partition of ``__consumer_offsets``, with the offsets of all groups."""


async def ask_transaction_coordinator(
    broker: BrokerContext,
    transactional_id: str,
    make_event_for_next_producer_id: Callable[[int], Event],
    *,
    supports_producer_fenced: bool,
) -> Reply:
    """The transaction coordinator's reply to the event that ``make_event_for_next_producer_id`` builds, once the step
    is durable. ``make_event_for_next_producer_id`` receives an unused producer id, for events that need one.

    If the log cannot be written, the reply has the error code KAFKA_STORAGE_ERROR. If a newer producer has fenced this
    one, the error code is PRODUCER_FENCED or, unless ``supports_producer_fenced``, INVALID_PRODUCER_EPOCH (KIP-588).
    """
    try:
        reply = await broker.transactions.ask(transactional_id, make_event_for_next_producer_id)
    except WorldError:
        return Reply(error=ErrorCode.kafka_storage_error)
    if reply.error is ErrorCode.producer_fenced and not supports_producer_fenced:
        return replace(reply, error=ErrorCode.invalid_producer_epoch)
    return reply
