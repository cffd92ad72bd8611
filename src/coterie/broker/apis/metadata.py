"""Metadata: v0-13 · this broker, all topics or the named ones; a missing topic is created where clients may and the
settings allow it · racks, authorized operations: there is one broker, and no authorizer yet."""

from typing import Any

from coterie.broker.group_log import GROUPS_TOPIC
from coterie.broker.log import Topic
from coterie.broker.node import LEADER_EPOCH, NODE_ID, Node, Request
from coterie.broker.store import TopicExistsError
from coterie.broker.topic_rules import name_error
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values


async def handle(node: Node, request: Request) -> Values:
    asked = request.body.topics
    # In v0 an empty list asks for all; since v1 null does, and an empty list for none.
    if asked is None or (not asked and request.header.api_version == 0):
        topics: list[Values] = [described(topic) for _, topic in sorted(node.log.topics.items())]
    else:
        may_create = bool(request.told("allow_auto_topic_creation", True)) and node.settings.auto_create_topics
        topics = [await _answer(node, entity, may_create=may_create) for entity in asked]
    return {
        "throttle_time": 0,
        "brokers": [node.address | {"rack": None}],
        "cluster_id": node.log.cluster_id,
        "controller_id": NODE_ID,
        "topics": topics,
        "error_code": ErrorCode.none,
    }


async def _answer(node: Node, asked: Any, *, may_create: bool) -> Values:
    if asked.name is None:
        # Since v12 a topic may be asked for by its id alone; a null name in v10 and v11 means nothing.
        topic_id = getattr(asked, "topic_id", None)
        topic = node.log.topics_by_id.get(topic_id) if topic_id is not None else None
        return described(topic) if topic else _unknown(None, ErrorCode.unknown_topic_id) | {"topic_id": topic_id}
    topic = node.log.topics.get(asked.name)
    if topic is not None:
        return described(topic)
    if name_error(asked.name):
        return _unknown(asked.name, ErrorCode.invalid_topic_exception)
    if not may_create or node.log.partition_count + node.settings.default_partitions > node.settings.partitions_max:
        return _unknown(asked.name, ErrorCode.unknown_topic_or_partition)
    try:
        return described(await node.log.create_topic(asked.name, node.settings.default_partitions, {}))
    except TopicExistsError:
        # Somebody else asked at the same time.
        return described(node.log.topics[asked.name])
    except WorldError:
        return _unknown(asked.name, ErrorCode.kafka_storage_error)


def described(topic: Topic) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name == GROUPS_TOPIC,
        "partitions": [
            {
                "error_code": ErrorCode.none,
                "partition_index": partition.number,
                "leader_id": NODE_ID,
                "leader_epoch": LEADER_EPOCH,
                "replica_nodes": (NODE_ID,),
                "isr_nodes": (NODE_ID,),
                "offline_replicas": (),
            }
            for partition in topic.partitions
        ],
    }


def _unknown(name: str | None, error: ErrorCode) -> dict[str, Any]:
    return {"error_code": error, "name": name, "topic_id": None, "is_internal": False, "partitions": ()}
