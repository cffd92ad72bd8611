"""EndTxn: commits or aborts a transaction. The response is sent when the markers in all partitions are durable, so
later requests of any client find the transaction completed; v5 returns the producer's next epoch (KIP-890)."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Permission, in_transaction
from coterie.broker.apis.transactional import coordinator_reply
from coterie.broker.node import ApiRequest, Node
from coterie.groups.transaction_messages import EndTransaction, Identity, Reply
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_FENCED_SINCE = 2
_BUMPS_SINCE = 5


async def handle(node: Node, request: ApiRequest) -> Values:
    reply = await _ended(node, request)
    return {
        "error_code": reply.error,
        "producer_id": reply.producer.producer_id,
        "producer_epoch": reply.producer.epoch,
    }


async def _ended(node: Node, request: ApiRequest) -> Reply:
    body = request.body
    if not body.transactional_id:
        return Reply(error=ErrorCode.invalid_request)
    return await coordinator_reply(
        node,
        body.transactional_id,
        lambda fresh_producer_id: EndTransaction(
            producer=Identity(body.producer_id, body.producer_epoch),
            is_commit=body.committed,
            bumps_epoch=request.header.api_version >= _BUMPS_SINCE,
            fresh_producer_id=fresh_producer_id,
        ),
        knows_fenced=request.header.api_version >= _FENCED_SINCE,
    )


API = KafkaApi(key=26, versions=range(6), handle=handle, needs=Permission(whole=in_transaction()))
