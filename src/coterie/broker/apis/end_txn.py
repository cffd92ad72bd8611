"""EndTxn: commits or aborts; the answer leaves when the markers in all partitions are durable, so what it ended
is over for whoever asks next; v5 gives the producer its next epoch (KIP-890) · nothing is left out."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Permission, in_transaction
from coterie.broker.node import ApiRequest, Node
from coterie.groups.transaction_messages import EndTransaction, Identity, Reply
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_FENCED_SINCE = 2
"""Before this version a fenced producer is told INVALID_PRODUCER_EPOCH (KIP-588)."""
_BUMPS_SINCE = 5


async def handle(node: Node, request: ApiRequest) -> Values:
    reply = await _ended(node, request)
    error = reply.error
    if error is ErrorCode.producer_fenced and request.header.api_version < _FENCED_SINCE:
        error = ErrorCode.invalid_producer_epoch
    return {
        "throttle_time": 0,
        "error_code": error,
        "producer_id": reply.producer.producer_id,
        "producer_epoch": reply.producer.epoch,
    }


async def _ended(node: Node, request: ApiRequest) -> Reply:
    body = request.body
    if not body.transactional_id:
        return Reply(error=ErrorCode.invalid_request)
    try:
        return await node.transactions.ask(
            body.transactional_id,
            lambda fresh_producer_id: EndTransaction(
                producer=Identity(body.producer_id, body.producer_epoch),
                is_commit=body.committed,
                bumps_epoch=request.header.api_version >= _BUMPS_SINCE,
                fresh_producer_id=fresh_producer_id,
            ),
        )
    except WorldError:
        return Reply(error=ErrorCode.kafka_storage_error)


API = KafkaApi(key=26, versions=range(6), handle=handle, needs=Permission(whole=in_transaction()))
