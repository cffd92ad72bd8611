"""AddOffsetsToTxn: adds the partition with a group's offsets to a transaction, before TxnOffsetCommit (v4 and before)
commits offsets of the group in it."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import ApiAuthorization, transactional_write_or_group_read_error
from coterie.broker.apis.transactional import OFFSETS_PARTITION, ask_transaction_coordinator
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.groups.transaction_messages import AddPartitions, ProducerIdAndEpoch
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_FENCED_SINCE = 2
"""The first version in which the response may have the error code PRODUCER_FENCED (KIP-588)."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    body = request.body
    if not body.transactional_id:
        return {"error_code": ErrorCode.invalid_request}
    event = AddPartitions(
        producer=ProducerIdAndEpoch(body.producer_id, body.producer_epoch),
        partitions=frozenset((OFFSETS_PARTITION,)),
    )
    reply = await ask_transaction_coordinator(
        broker,
        body.transactional_id,
        lambda _: event,
        supports_producer_fenced=request.header.api_version >= _FENCED_SINCE,
    )
    return {"error_code": reply.error}


API = KafkaApi(
    key=25,
    versions=range(5),
    handle=handle,
    authorization=ApiAuthorization(check_request=transactional_write_or_group_read_error),
)
