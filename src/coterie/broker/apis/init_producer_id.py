"""InitProducerId: assigns a new producer id to an idempotent producer. For a request with a transactional id, the
response has the producer id that belongs to this transactional id, with the next epoch; or a new producer id, if there
is none yet or its epochs are used up. This fences the previous producer, whose requests are refused from then on, and
aborts its open transaction. Kafka responds CONCURRENT_TRANSACTIONS until the abort is complete; here the abort is
complete before the response. Not supported: two-phase commit (v6), which is not stable in Kafka."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import CLUSTER, TOPIC, TRANSACTIONAL_ID, AccessCheck, ApiAuthorization, Operation
from coterie.broker.apis.transactional import ask_transaction_coordinator
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.groups.transaction_messages import NO_PRODUCER, InitProducerId, ProducerIdAndEpoch
from coterie.nouns.errors import WorldError
from coterie.wire.batches import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values, to_milliseconds

_FENCED_SINCE = 4
"""The first version in which the response may have the error code PRODUCER_FENCED (KIP-588)."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    transactional_id = request.body.transactional_id
    expected = ProducerIdAndEpoch(
        request.field_or_default("producer_id", NO_PRODUCER_ID),
        request.field_or_default("producer_epoch", NO_PRODUCER_EPOCH),
    )
    if transactional_id is None:
        try:
            return _producer_values(
                ErrorCode.none, ProducerIdAndEpoch(await broker.transactions.fresh_producer_id(), 0)
            )
        except WorldError:
            return _producer_values(ErrorCode.kafka_storage_error)
    if not transactional_id or (expected.producer_id == NO_PRODUCER_ID) != (expected.epoch == NO_PRODUCER_EPOCH):
        return _producer_values(ErrorCode.invalid_request)
    reply = await ask_transaction_coordinator(
        broker,
        transactional_id,
        lambda fresh_producer_id: InitProducerId(
            transaction_timeout_ms=to_milliseconds(request.body.transaction_timeout),
            transaction_timeout_max_ms=broker.settings.transactions.timeout_max_ms,
            expected_producer=None if expected == NO_PRODUCER else expected,
            fresh_producer_id=fresh_producer_id,
        ),
        supports_producer_fenced=request.header.api_version >= _FENCED_SINCE,
    )
    return _producer_values(reply.error, reply.producer)


def _producer_values(error: ErrorCode, producer: ProducerIdAndEpoch = NO_PRODUCER) -> Values:
    return {
        "error_code": error,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
    }


# -- authorization -----------------------------------------------------------------------------------------------------


def _producer_authorization_error(access: AccessCheck) -> ErrorCode | None:
    """The error code if the client may not use this producer, else None. A request with a transactional id needs WRITE
    on this id; a request without needs IDEMPOTENT_WRITE on the cluster, or WRITE on any topic."""
    transactional_id = access.request.body.transactional_id
    if transactional_id is not None:
        return access.error_code(Operation.WRITE, TRANSACTIONAL_ID, transactional_id)
    if access.is_allowed(Operation.IDEMPOTENT_WRITE, CLUSTER) or access.is_allowed_on_any(Operation.WRITE, TOPIC):
        return None
    return ErrorCode.cluster_authorization_failed


API = KafkaApi(
    key=22,
    versions=range(6),
    handle=handle,
    authorization=ApiAuthorization(check_request=_producer_authorization_error),
)
