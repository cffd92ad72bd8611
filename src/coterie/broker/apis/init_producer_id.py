"""InitProducerId: v0-5 · a fresh producer id of epoch 0, never given twice, for idempotent producers · transactions
are refused; sequence numbers are not checked yet: a batch that is sent again is written again."""

from coterie.broker.node import Node, Request
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values


async def handle(node: Node, request: Request) -> Values:
    if request.body.transactional_id is not None:
        return _answer(ErrorCode.transactional_id_authorization_failed)
    try:
        return _answer(ErrorCode.none, await node.log.next_number("next producer id"), 0)
    except WorldError:
        return _answer(ErrorCode.kafka_storage_error)


def _answer(error: ErrorCode, producer_id: int = -1, producer_epoch: int = -1) -> Values:
    return {
        "throttle_time": 0,
        "error_code": error,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
    }
