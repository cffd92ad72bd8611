"""InitProducerId: assigns a new producer id to an idempotent producer; with a transactional id, increments the epoch of
its producer, which fences the previous producer and aborts its open transaction (Kafka responds CONCURRENT_TRANSACTIONS
until the abort is done; here it is immediate). Not supported: two-phase commit (v6), which is not stable in Kafka."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import CLUSTER, TOPIC, TRANSACTIONAL_ID, AccessCheck, Operation, Permission
from coterie.broker.apis.transactional import coordinator_reply
from coterie.broker.node import ApiRequest, Node
from coterie.groups.transaction_messages import NOBODY, Identity, InitProducerId
from coterie.nouns.errors import WorldError
from coterie.wire.batches import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values, milliseconds

_FENCED_SINCE = 4


async def handle(node: Node, request: ApiRequest) -> Values:
    transactional_id = request.body.transactional_id
    expected = Identity(request.told("producer_id", NO_PRODUCER_ID), request.told("producer_epoch", NO_PRODUCER_EPOCH))
    if transactional_id is None:
        try:
            return _answer(ErrorCode.none, Identity(await node.transactions.fresh_producer_id(), 0))
        except WorldError:
            return _answer(ErrorCode.kafka_storage_error)
    if not transactional_id or (expected.producer_id == NO_PRODUCER_ID) != (expected.epoch == NO_PRODUCER_EPOCH):
        return _answer(ErrorCode.invalid_request)
    reply = await coordinator_reply(
        node,
        transactional_id,
        lambda fresh_producer_id: InitProducerId(
            timeout_ms=milliseconds(request.body.transaction_timeout),
            timeout_max_ms=node.settings.transactions.timeout_max_ms,
            expected=None if expected == NOBODY else expected,
            fresh_producer_id=fresh_producer_id,
        ),
        knows_fenced=request.header.api_version >= _FENCED_SINCE,
    )
    return _answer(reply.error, reply.producer)


def _answer(error: ErrorCode, producer: Identity = NOBODY) -> Values:
    return {
        "error_code": error,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
    }


# -- authorization -----------------------------------------------------------------------------------------------------


def _producer(access: AccessCheck) -> ErrorCode | None:
    transactional_id = access.request.body.transactional_id
    if transactional_id is not None:
        return access.refusal(Operation.WRITE, TRANSACTIONAL_ID, transactional_id)
    if access.may(Operation.IDEMPOTENT_WRITE, CLUSTER) or access.may_anywhere(Operation.WRITE, TOPIC):
        return None
    return ErrorCode.cluster_authorization_failed


API = KafkaApi(key=22, versions=range(6), handle=handle, needs=Permission(whole=_producer))
