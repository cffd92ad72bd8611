"""CreatePartitions: increases the number of partitions of a topic; with validate-only. Not supported: replicas, because
there is one broker."""

from collections import Counter
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.create_topics import assignment_error, check_room
from coterie.broker.apis.needs import Operation, Permission, each_topic, on_topic
from coterie.broker.node import ApiRequest, Node
from coterie.broker.outcome import outcome
from coterie.broker.topics.names import is_internal
from coterie.broker.turns import in_turns
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.shapes import Values


async def handle(node: Node, request: ApiRequest) -> Values:
    often = Counter(asked.name for asked in request.body.topics)
    answers: list[Values] = []
    async for asked in in_turns({asked.name: asked for asked in request.body.topics}.values()):
        error, sentence = await outcome(_grow(node, asked, often, validate_only=request.body.validate_only))
        answers.append({"name": asked.name, "error_code": error, "error_message": sentence})
    return {"results": answers}


async def _grow(node: Node, asked: Any, often: Counter[str], *, validate_only: bool) -> None:
    """:raises KafkaRefusal, WorldError: the topic is unchanged."""
    if often[asked.name] > 1:
        raise KafkaRefusal(ErrorCode.invalid_request, "Duplicate topic name.")
    topic = node.log.topics.get(asked.name)
    if topic is None:
        raise KafkaRefusal(ErrorCode.unknown_topic_or_partition)
    if is_internal(asked.name):
        raise KafkaRefusal(
            ErrorCode.invalid_topic_exception, f"The number of partitions of {asked.name} cannot be changed."
        )
    before, after = len(topic.partitions), asked.count
    if after == before:
        raise KafkaRefusal(ErrorCode.invalid_partitions, f"Topic already has {before} partition(s).")
    if after < before:
        raise KafkaRefusal(
            ErrorCode.invalid_partitions,
            f"The topic {asked.name} currently has {before} partition(s); {after} would not be an increase.",
        )
    check_room(node, partitions=after, more=after - before)
    if asked.assignments is not None:
        if len(asked.assignments) != after - before:
            raise KafkaRefusal(
                ErrorCode.invalid_replica_assignment,
                f"Attempted to add {after - before} additional partition(s), but only {len(asked.assignments)}"
                " assignment(s) were specified.",
            )
        for assignment in asked.assignments:
            if sentence := assignment_error(assignment.broker_ids):
                raise KafkaRefusal(ErrorCode.invalid_replica_assignment, sentence)
    if not validate_only:
        await node.log.create_partitions(topic, after, partitions_max=node.settings.partitions_max)


_NEEDS = Permission(each=[each_topic(on_topic(Operation.ALTER), answers="results")])
API = KafkaApi(key=37, versions=range(4), handle=handle, needs=_NEEDS)
