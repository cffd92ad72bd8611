"""DescribeTransactions: returns the state that the transaction coordinator has for each requested transactional id
(KIP-664). Kafka's states for a decided transaction whose markers are not all written never occur: here the markers are
written in one step with the decision to commit or abort."""

from collections.abc import Iterable

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    TOPIC,
    TRANSACTIONAL_ID,
    AccessCheck,
    ApiAuthorization,
    Operation,
    name_items_authorization,
)
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.loop_yield import yielding
from coterie.groups.transaction_messages import TopicPartition, TransactionWritten
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    return {
        "transaction_states": [
            await _describe_transaction(broker, name) async for name in yielding(request.body.transactional_ids)
        ],
    }


async def _describe_transaction(broker: BrokerContext, transactional_id: str) -> Values:
    """The response entry of one transactional id: its transaction, or an error."""
    if not transactional_id:
        return _error_values(transactional_id, ErrorCode.invalid_request)
    try:
        written = await broker.transactions.read_transaction(transactional_id)
    except WorldError:
        return _error_values(transactional_id, ErrorCode.kafka_storage_error)
    if written is None:
        return _error_values(transactional_id, ErrorCode.transactional_id_not_found)
    return _transaction_values(transactional_id, written)


def _transaction_values(transactional_id: str, written: TransactionWritten) -> Values:
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": str(written.state),
        "transaction_timeout": written.transaction_timeout_ms,
        "transaction_start_time": written.started_at_ms,
        "producer_id": written.producer.producer_id,
        "producer_epoch": written.producer.epoch,
        "topics": _topics_values(written.partitions),
    }


def _topics_values(partitions: Iterable[TopicPartition]) -> list[Values]:
    """The partitions of a transaction, grouped by topic and sorted."""
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers.setdefault(topic, []).append(number)
    return [{"topic": topic, "partitions": numbers[topic]} for topic in numbers]


def _error_values(transactional_id: str, error: ErrorCode) -> Values:
    return {
        "error_code": error,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": (),
    }


# -- authorization -----------------------------------------------------------------------------------------------------


def _hide_topics(access: AccessCheck, answer: Values) -> Values:
    """The response without those topics in its transactions that the client may not describe."""
    return {
        **answer,
        "transaction_states": [
            {
                **one,
                "topics": [
                    topic for topic in one["topics"] if access.is_allowed(Operation.DESCRIBE, TOPIC, topic["topic"])
                ],
            }
            for one in answer.get("transaction_states", ())
        ],
    }


_AUTHORIZATION = ApiAuthorization(
    items=[
        name_items_authorization(
            lambda access, name: access.error_code(Operation.DESCRIBE, TRANSACTIONAL_ID, name),
            request_field="transactional_ids",
            response_field="transaction_states",
            name_field="transactional_id",
        )
    ],
    filter_response=_hide_topics,
)
API = KafkaApi(key=65, versions=range(1), handle=handle, authorization=_AUTHORIZATION)
