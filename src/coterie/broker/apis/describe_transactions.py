"""DescribeTransactions: the coordinator's state of transactional ids (KIP-664). Kafka's states for a transaction whose
markers are not all written never occur: here the markers are written together with the decision."""

from collections.abc import Iterable

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import TOPIC, TRANSACTIONAL_ID, AccessCheck, Operation, Permission, each_name
from coterie.broker.node import ApiRequest, Node
from coterie.broker.turns import in_turns
from coterie.groups.transaction_messages import TopicPartition, TransactionWritten
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values


async def handle(node: Node, request: ApiRequest) -> Values:
    return {
        "transaction_states": [await _described(node, name) async for name in in_turns(request.body.transactional_ids)],
    }


async def _described(node: Node, transactional_id: str) -> Values:
    if not transactional_id:
        return _unknown(transactional_id, ErrorCode.invalid_request)
    try:
        written = await node.transactions.read(transactional_id)
    except WorldError:
        return _unknown(transactional_id, ErrorCode.kafka_storage_error)
    if written is None:
        return _unknown(transactional_id, ErrorCode.transactional_id_not_found)
    return _known(transactional_id, written)


def _known(transactional_id: str, written: TransactionWritten) -> Values:
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": str(written.state),
        "transaction_timeout": written.timeout_ms,
        "transaction_start_time": written.started_at_ms,
        "producer_id": written.producer.producer_id,
        "producer_epoch": written.producer.epoch,
        "topics": _topics(written.partitions),
    }


def _topics(partitions: Iterable[TopicPartition]) -> list[Values]:
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers.setdefault(topic, []).append(number)
    return [{"topic": topic, "partitions": numbers[topic]} for topic in numbers]


def _unknown(transactional_id: str, error: ErrorCode) -> Values:
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


def _seen_transactions(access: AccessCheck, answer: Values) -> Values:
    """Remove the topics that the client may not describe, without a hint that they exist."""
    return {
        **answer,
        "transaction_states": [
            {
                **one,
                "topics": [topic for topic in one["topics"] if access.may(Operation.DESCRIBE, TOPIC, topic["topic"])],
            }
            for one in answer.get("transaction_states", ())
        ],
    }


_NEEDS = Permission(
    each=[
        each_name(
            lambda access, name: access.refusal(Operation.DESCRIBE, TRANSACTIONAL_ID, name),
            asked="transactional_ids",
            answers="transaction_states",
            name="transactional_id",
        )
    ],
    rewritten=_seen_transactions,
)
API = KafkaApi(key=65, versions=range(1), handle=handle, needs=_NEEDS)
