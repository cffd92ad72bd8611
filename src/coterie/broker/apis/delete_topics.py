"""DeleteTopics: by name, and by id since v6; deletes the topic's records, configs and committed offsets. Internal
topics cannot be deleted: in Kafka they can, with the offsets of every group."""

from collections import Counter
from typing import Any, TypeAlias
from uuid import UUID

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import TOPIC, AccessCheck, Operation, Permission, each_name, each_topic
from coterie.broker.node import ApiRequest, Node
from coterie.broker.outcome import outcome
from coterie.broker.storage.log import Topic
from coterie.broker.topics.names import is_internal
from coterie.broker.turns import in_turns
from coterie.groups.classic.offset_messages import TopicDeleted
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.shapes import Values

_TopicKey: TypeAlias = "tuple[str | None, UUID | None]"
"""One topic, by name or by id."""


async def handle(node: Node, request: ApiRequest) -> Values:
    # Before v6 the request has a list of names.
    asked: list[_TopicKey] = [(one.name, one.topic_id) for one in request.told("topics", ())]
    asked += [(name, None) for name in request.told("topic_names", ())]
    often = Counter(asked)
    answers: list[Values] = []
    async for one in in_turns(often):
        name, topic_id = one
        topic = _found(node, one)
        if topic is not None and one == (topic.name, None) and (None, topic.topic_id) in often:
            # Also requested by its id: the entry for the id refuses both.
            continue
        error, sentence = await outcome(_delete(node, one, topic, often))
        answers.append(
            {
                "name": name if topic is None else topic.name,
                "topic_id": topic_id if topic is None else topic.topic_id,
                "error_code": error,
                "error_message": sentence,
            }
        )
    return {"responses": answers}


def _found(node: Node, asked: _TopicKey) -> Topic | None:
    name, topic_id = asked
    if name is not None:
        return node.log.topics.get(name)
    return None if topic_id is None else node.log.topics_by_id.get(topic_id)


async def _delete(node: Node, asked: _TopicKey, topic: Topic | None, often: Counter[_TopicKey]) -> None:
    """:raises KafkaRefusal, WorldError: the topic was not deleted."""
    name, topic_id = asked
    if name is None and topic_id is None:
        raise KafkaRefusal(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    if name is not None and topic_id is not None:
        raise KafkaRefusal(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
    if often[asked] > 1:
        raise KafkaRefusal(ErrorCode.invalid_request, f"Duplicate topic {'name' if topic_id is None else 'id'}.")
    if topic is None:
        raise KafkaRefusal(ErrorCode.unknown_topic_or_partition if topic_id is None else ErrorCode.unknown_topic_id)
    if name is None and (topic.name, None) in often:
        raise KafkaRefusal(ErrorCode.invalid_request, "The request has the topic by its name and by its id.")
    if is_internal(topic.name):
        raise KafkaRefusal(ErrorCode.invalid_topic_exception, f"The internal topic {topic.name} cannot be deleted.")
    await node.log.delete_topic(topic)
    node.groups.tell_all(TopicDeleted(topic=topic.name))


# -- authorization -----------------------------------------------------------------------------------------------------


def _deletion(access: AccessCheck, asked: Any) -> ErrorCode | None:
    """Only a client that may describe a topic is informed that the topic does not exist."""
    name = asked if isinstance(asked, str) else asked.name
    if name is not None and name not in access.node.log.topics:
        return access.refusal(Operation.DESCRIBE, TOPIC, name)
    return access.refusal(Operation.DELETE, TOPIC, name) if name else access.topic(Operation.DELETE, asked)


_NEEDS = Permission(
    each=[
        each_topic(_deletion, answers="responses"),
        each_name(_deletion, asked="topic_names", answers="responses", name="name"),
    ]
)
API = KafkaApi(key=20, versions=range(1, 7), handle=handle, needs=_NEEDS)
