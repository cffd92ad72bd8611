"""EndTxn: commits or aborts a transaction. The response is sent when the transaction's markers in all of its partitions
are durable, so the transaction is complete for every request that a client sends after the response. In v5 the response
has the producer id and epoch that the producer must use next (KIP-890)."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import ApiAuthorization, make_transactional_id_write_check
from coterie.broker.apis.transactional import ask_transaction_coordinator
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.groups.transaction_messages import EndTransaction, ProducerIdAndEpoch, Reply
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_FENCED_SINCE = 2
"""The first version in which the response may have the error code PRODUCER_FENCED (KIP-588)."""
_BUMPS_EPOCH_SINCE = 5
"""The first version with which each end of a transaction increments the producer's epoch (KIP-890)."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    reply = await _end_transaction(broker, request)
    return {
        "error_code": reply.error,
        "producer_id": reply.producer.producer_id,
        "producer_epoch": reply.producer.epoch,
    }


async def _end_transaction(broker: BrokerContext, request: ApiRequest) -> Reply:
    """Commit or abort the transaction, as the request demands. Returns the transaction coordinator's reply once the end
    of the transaction is durable, or an error."""
    body = request.body
    if not body.transactional_id:
        return Reply(error=ErrorCode.invalid_request)
    return await ask_transaction_coordinator(
        broker,
        body.transactional_id,
        lambda fresh_producer_id: EndTransaction(
            producer=ProducerIdAndEpoch(body.producer_id, body.producer_epoch),
            is_commit=body.committed,
            bumps_epoch=request.header.api_version >= _BUMPS_EPOCH_SINCE,
            fresh_producer_id=fresh_producer_id,
        ),
        supports_producer_fenced=request.header.api_version >= _FENCED_SINCE,
    )


API = KafkaApi(
    key=26,
    versions=range(6),
    handle=handle,
    authorization=ApiAuthorization(check_request=make_transactional_id_write_check()),
)
