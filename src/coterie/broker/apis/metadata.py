"""Metadata: returns this broker, and all topics or the requested topics, which since v12 may be requested by id.
Creates a requested topic that does not exist, if both the request and the broker's settings allow it. Returns the
client's authorized operations if the request asks for them (KIP-430). Not supported: racks, because there is one
broker."""

from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    CLUSTER,
    TOPIC,
    AccessCheck,
    ApiAuthorization,
    ItemAuthorization,
    Operation,
    create_topic_authorization_error,
    is_topic_visible_or_unnamed,
)
from coterie.broker.apis.create_topics import check_new_topic_name, check_topic_and_broker_partition_limits
from coterie.broker.apis.operations import allowed_operations_bit_field
from coterie.broker.context import LEADER_EPOCH, NODE_ID, ApiRequest, BrokerContext
from coterie.broker.error_reply import await_error_and_message
from coterie.broker.loop_yield import yielding
from coterie.broker.storage.log import Topic
from coterie.broker.topics.names import is_internal_topic, topic_name_error
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_BY_ID_SINCE = 12
"""The first version in which a topic may be requested by its topic id."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    asked = request.body.topics
    # In v0 an empty list requests all topics; since v1 null does, and an empty list requests none.
    if asked is None or (not asked and request.header.api_version == 0):
        topics = [topic_values(topic) async for _, topic in yielding(sorted(broker.log.topics.items()))]
    else:
        # A topic that is requested twice has one entry in the response.
        topics = [await _find_or_create_topic(broker, request, one) async for one in yielding(dict.fromkeys(asked))]
    wanted = request.field_or_default("include_topic_authorized_operations", False)
    async for topic in yielding(topics):
        topic["topic_authorized_operations"] = allowed_operations_bit_field(
            broker, request, TOPIC, topic["name"] or "", is_requested=wanted
        )
    return {
        "brokers": [broker.address_fields | {"rack": None}],
        "cluster_id": broker.log.cluster_id,
        "controller_id": NODE_ID,
        "topics": topics,
        "cluster_authorized_operations": allowed_operations_bit_field(
            broker,
            request,
            CLUSTER,
            is_requested=request.field_or_default("include_cluster_authorized_operations", False),
        ),
        "error_code": ErrorCode.none,
    }


async def _find_or_create_topic(broker: BrokerContext, request: ApiRequest, asked: Any) -> dict[str, Any]:
    """The response entry of one requested topic. The topic is created if it does not exist and may be created."""
    topic_id = getattr(asked, "topic_id", None)
    if topic_id is not None and request.header.api_version >= _BY_ID_SINCE:
        topic = broker.log.topics_by_id.get(topic_id)
        return (
            topic_values(topic)
            if topic
            else topic_error_values(None, ErrorCode.unknown_topic_id) | {"topic_id": topic_id}
        )
    if topic_id is not None or asked.name is None:
        # Neither id nor name, which is invalid; or an id in v10 or v11, which have the field but do not support it.
        return topic_error_values(asked.name or "", ErrorCode.invalid_request)
    topic = broker.log.topics.get(asked.name)
    if topic is not None:
        return topic_values(topic)
    if topic_name_error(asked.name):
        return topic_error_values(asked.name, ErrorCode.invalid_topic_exception)
    if not (request.field_or_default("allow_auto_topic_creation", True) and broker.settings.auto_create_topics):
        return topic_error_values(asked.name, ErrorCode.unknown_topic_or_partition)
    error, _ = await await_error_and_message(_create_topic(broker, asked.name))
    # The topic may exist now because of this request or of a concurrent request.
    topic = broker.log.topics.get(asked.name)
    return topic_values(topic) if topic else topic_error_values(asked.name, error)


async def _create_topic(broker: BrokerContext, name: str) -> None:
    """Create the topic ``name`` with the broker's default number of partitions.

    :raises KafkaRefusal: when the name is invalid, reserved or too similar to that of an existing topic, a limit of
        partitions would be exceeded, or a concurrent request has created the topic.
    :raises WorldError: when the log cannot be written.
    """
    check_new_topic_name(broker, name)
    check_topic_and_broker_partition_limits(
        broker, partitions=broker.settings.default_partitions, added_partitions=broker.settings.default_partitions
    )
    await broker.log.create_topic(
        name, broker.settings.default_partitions, {}, partitions_max=broker.settings.partitions_max
    )


def topic_values(topic: Topic) -> dict[str, Any]:
    """The fields of a topic in responses, without the client's authorized operations."""
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal_topic(topic.name),
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


def topic_error_values(name: str | None, error: ErrorCode) -> dict[str, Any]:
    """The fields of a response entry that contains only the error code ``error`` for a requested topic."""
    return {"error_code": error, "name": name, "topic_id": None, "is_internal": False, "partitions": ()}


# -- authorization -----------------------------------------------------------------------------------------------------


def _describe_or_create_authorization_error(access: AccessCheck, asked: Any) -> ErrorCode | None:
    """The error code if the client may not describe the topic ``asked``, or if the request would create the topic and
    the client may not create it; else None."""
    error = access.topic_authorization_error_code(Operation.DESCRIBE, asked)
    if error is not None or asked.name is None or asked.name in access.broker.log.topics:
        return error
    settings = access.broker.settings
    would_create = access.request.field_or_default("allow_auto_topic_creation", True) and settings.auto_create_topics
    return create_topic_authorization_error(access, asked) if would_create else None


_AUTHORIZATION = ApiAuthorization(
    items=[
        ItemAuthorization(
            request_field="topics",
            response_field="topics",
            check=_describe_or_create_authorization_error,
            make_refused_entry=lambda topic, error: {
                "error_code": error,
                "name": topic.name,
                "topic_id": getattr(topic, "topic_id", None) if topic.name is None else None,
                "partitions": (),
            },
        )
    ],
    visibility_check_by_response_field={"topics": is_topic_visible_or_unnamed},
    calls_handler_if_all_refused=True,
)
API = KafkaApi(key=3, versions=range(14), handle=handle, authorization=_AUTHORIZATION)
