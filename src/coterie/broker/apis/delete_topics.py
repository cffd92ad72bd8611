"""DeleteTopics: deletes topics, requested by name or, since v6, by topic id; with each topic its records, its configs,
and the offsets that groups have committed for it. Internal topics cannot be deleted. In Kafka they can, which deletes
the offsets of every group."""

from collections import Counter
from typing import Any, TypeAlias
from uuid import UUID

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    TOPIC,
    AccessCheck,
    ApiAuthorization,
    Operation,
    name_items_authorization,
    topic_authorization_with_topic_errors,
)
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.error_reply import await_error_and_message
from coterie.broker.loop_yield import yielding
from coterie.broker.storage.log import Topic
from coterie.broker.topics.names import is_internal_topic
from coterie.groups.classic.offset_messages import TopicDeleted
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.kio_entities import Values

_TopicKey: TypeAlias = "tuple[str | None, UUID | None]"
"""A topic as the request identifies it: its name, None if the request has the topic id; and its topic id, None if the
request has the name. A request with both or neither is refused."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    # Before v6 the request has a list of names.
    asked: list[_TopicKey] = [(one.name, one.topic_id) for one in request.field_or_default("topics", ())]
    asked += [(name, None) for name in request.field_or_default("topic_names", ())]
    key_counts = Counter(asked)
    answers: list[Values] = []
    async for one in yielding(key_counts):
        name, topic_id = one
        topic = _find_topic(broker, one)
        if topic is not None and one == (topic.name, None) and (None, topic.topic_id) in key_counts:
            # Also requested by its id: the entry for the id refuses both.
            continue
        error, error_message = await await_error_and_message(_delete_topic(broker, one, topic, key_counts))
        answers.append(
            {
                "name": name if topic is None else topic.name,
                "topic_id": topic_id if topic is None else topic.topic_id,
                "error_code": error,
                "error_message": error_message,
            }
        )
    return {"responses": answers}


def _find_topic(broker: BrokerContext, asked: _TopicKey) -> Topic | None:
    """The topic with the requested name or, without a name, with the requested topic id; None if there is none."""
    name, topic_id = asked
    if name is not None:
        return broker.log.topics.get(name)
    return None if topic_id is None else broker.log.topics_by_id.get(topic_id)


async def _delete_topic(
    broker: BrokerContext, asked: _TopicKey, topic: Topic | None, key_counts: Counter[_TopicKey]
) -> None:
    """Delete ``topic``, which is None if the requested topic does not exist. ``asked`` is its key in the request;
    ``key_counts`` counts how often the request contains each key.

    :raises KafkaRefusal: when the topic does not exist or is internal, or the request is invalid or contains the topic
        twice.
    :raises WorldError: when a concurrent request has deleted the topic, or the log cannot be written. After each error
        this call has not deleted the topic.
    """
    name, topic_id = asked
    if name is None and topic_id is None:
        raise KafkaRefusal(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    if name is not None and topic_id is not None:
        raise KafkaRefusal(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
    if key_counts[asked] > 1:
        topic_text = f"name {name}" if topic_id is None else f"id {topic_id}"
        raise KafkaRefusal(
            ErrorCode.invalid_request,
            f"The request contains the topic {topic_text} more than once, so it does not delete this topic: send it "
            "once.",
        )
    if topic is None:
        raise KafkaRefusal(ErrorCode.unknown_topic_or_partition if topic_id is None else ErrorCode.unknown_topic_id)
    if name is None and (topic.name, None) in key_counts:
        raise KafkaRefusal(
            ErrorCode.invalid_request,
            "The request contains this topic twice, by its name and by its id, so it does not delete it: send it once.",
        )
    if is_internal_topic(topic.name):
        raise KafkaRefusal(ErrorCode.invalid_topic_exception, f"The internal topic {topic.name} cannot be deleted.")
    await broker.log.delete_topic(topic)
    broker.groups.notify_all(TopicDeleted(topic=topic.name))


# -- authorization -----------------------------------------------------------------------------------------------------


def _delete_or_describe_authorization_error(access: AccessCheck, asked: Any) -> ErrorCode | None:
    """The error code of a refused topic, given as a name or as an entry of the request; None if the client may delete
    it.

    For the name of a topic that does not exist, the operation DESCRIBE is checked instead of DELETE, so that only a
    client that may describe the topic is informed that the topic does not exist.
    """
    name = asked if isinstance(asked, str) else asked.name
    if name is not None and name not in access.broker.log.topics:
        return access.error_code(Operation.DESCRIBE, TOPIC, name)
    return (
        access.error_code(Operation.DELETE, TOPIC, name)
        if name
        else access.topic_authorization_error_code(Operation.DELETE, asked)
    )


_AUTHORIZATION = ApiAuthorization(
    items=[
        topic_authorization_with_topic_errors(_delete_or_describe_authorization_error, response_field="responses"),
        name_items_authorization(
            _delete_or_describe_authorization_error,
            request_field="topic_names",
            response_field="responses",
            name_field="name",
        ),
    ]
)
API = KafkaApi(key=20, versions=range(1, 7), handle=handle, authorization=_AUTHORIZATION)
