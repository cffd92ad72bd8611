"""Metadata: this broker, and all topics or the requested ones, by id since v12; creates a missing topic if the request
and the settings allow that; the client's authorized operations (KIP-430). Not supported: racks; there is one broker."""

from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.create_topics import check_name, check_room
from coterie.broker.apis.needs import CLUSTER, TOPIC, AccessCheck, Each, Operation, Permission, creation, is_topic_shown
from coterie.broker.apis.operations import allowed_operations
from coterie.broker.node import LEADER_EPOCH, NODE_ID, ApiRequest, Node
from coterie.broker.outcome import outcome
from coterie.broker.storage.log import Topic
from coterie.broker.topics.names import is_internal, name_error
from coterie.broker.turns import in_turns
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_BY_ID_SINCE = 12


async def handle(node: Node, request: ApiRequest) -> Values:
    asked = request.body.topics
    # In v0 an empty list requests all topics; since v1 null does, and an empty list requests none.
    if asked is None or (not asked and request.header.api_version == 0):
        topics = [described(topic) async for _, topic in in_turns(sorted(node.log.topics.items()))]
    else:
        # A topic that is requested twice has one entry in the response.
        topics = [await _answer(node, request, one) async for one in in_turns(dict.fromkeys(asked))]
    wanted = request.told("include_topic_authorized_operations", False)
    async for topic in in_turns(topics):
        topic["topic_authorized_operations"] = allowed_operations(
            node, request, TOPIC, topic["name"] or "", wanted=wanted
        )
    return {
        "brokers": [node.address | {"rack": None}],
        "cluster_id": node.log.cluster_id,
        "controller_id": NODE_ID,
        "topics": topics,
        "cluster_authorized_operations": allowed_operations(
            node, request, CLUSTER, wanted=request.told("include_cluster_authorized_operations", False)
        ),
        "error_code": ErrorCode.none,
    }


async def _answer(node: Node, request: ApiRequest, asked: Any) -> dict[str, Any]:
    topic_id = getattr(asked, "topic_id", None)
    if topic_id is not None and request.header.api_version >= _BY_ID_SINCE:
        topic = node.log.topics_by_id.get(topic_id)
        return described(topic) if topic else missing(None, ErrorCode.unknown_topic_id) | {"topic_id": topic_id}
    if topic_id is not None or asked.name is None:
        # Neither id nor name, which is invalid; or an id in v10 or v11, which have the field but do not support it.
        return missing(asked.name or "", ErrorCode.invalid_request)
    topic = node.log.topics.get(asked.name)
    if topic is not None:
        return described(topic)
    if name_error(asked.name):
        return missing(asked.name, ErrorCode.invalid_topic_exception)
    if not (request.told("allow_auto_topic_creation", True) and node.settings.auto_create_topics):
        return missing(asked.name, ErrorCode.unknown_topic_or_partition)
    error, _ = await outcome(_create(node, asked.name))
    # The topic may exist now because of this request or of a concurrent request.
    topic = node.log.topics.get(asked.name)
    return described(topic) if topic else missing(asked.name, error)


async def _create(node: Node, name: str) -> None:
    """:raises KafkaRefusal, WorldError: the topic was not created, or a concurrent request created it."""
    check_name(node, name)
    check_room(node, partitions=node.settings.default_partitions, more=node.settings.default_partitions)
    await node.log.create_topic(name, node.settings.default_partitions, {}, partitions_max=node.settings.partitions_max)


def described(topic: Topic) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal(topic.name),
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


def missing(name: str | None, error: ErrorCode) -> dict[str, Any]:
    return {"error_code": error, "name": name, "topic_id": None, "is_internal": False, "partitions": ()}


# -- authorization -----------------------------------------------------------------------------------------------------


def _metadata_topic(access: AccessCheck, asked: Any) -> ErrorCode | None:
    """Authorize describing the topic, and creating it if the request would create it."""
    error = access.topic(Operation.DESCRIBE, asked)
    if error is not None or asked.name is None or asked.name in access.node.log.topics:
        return error
    settings = access.node.settings
    would_create = access.request.told("allow_auto_topic_creation", True) and settings.auto_create_topics
    return creation(access, asked) if would_create else None


_NEEDS = Permission(
    each=[
        Each(
            asked="topics",
            answers="topics",
            needs=_metadata_topic,
            refused=lambda topic, error: {
                "error_code": error,
                "name": topic.name,
                "topic_id": getattr(topic, "topic_id", None) if topic.name is None else None,
                "partitions": (),
            },
        )
    ],
    shown={"topics": is_topic_shown},
    is_asked_anyway=True,
)
API = KafkaApi(key=3, versions=range(14), handle=handle, needs=_NEEDS)
