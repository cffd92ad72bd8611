"""OffsetFetch: the committed offsets of one group, or of several (v8 and later), for some or all partitions. Not
supported: offsets in transactions, so all offsets are stable; member epochs (KIP-848), which classic groups lack."""

from itertools import groupby
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import GROUP, TOPIC, AccessCheck, Each, Operation, Permission
from coterie.broker.node import ApiRequest, Node, topic_of
from coterie.broker.turns import in_turns
from coterie.groups.classic.offset_messages import (
    NO_LEADER_EPOCH,
    CommittedOffset,
    OffsetFetch,
    OffsetFetchResponse,
    TopicPartition,
)
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_ERROR_OF_GROUP_SINCE = 2
_MANY_SINCE = 8
_NO_OFFSET = -1


async def handle(node: Node, request: ApiRequest) -> Values:
    if request.header.api_version >= _MANY_SINCE:
        groups = [await _answer(node, request, asked) async for asked in in_turns(request.body.groups)]
        return {"groups": groups}
    return await _answer(node, request, request.body)


async def _answer(node: Node, request: ApiRequest, asked: Any) -> dict[str, Any]:
    named = None if asked.topics is None else _named(node, asked.topics)
    response = await node.groups.ask(
        GroupId(asked.group_id),
        lambda reply_to: OffsetFetch(
            reply_to=reply_to,
            partitions=None
            if named is None
            else tuple(
                TopicPartition(topic, number) for topic, one in named if topic for number in one.partition_indexes
            ),
        ),
    )
    assert isinstance(response, OffsetFetchResponse)
    answer: dict[str, Any] = {"group_id": asked.group_id, "error_code": response.error, "topics": []}
    if response.error is ErrorCode.none or request.header.api_version < _ERROR_OF_GROUP_SINCE:
        answer["topics"] = _everything(node, response) if named is None else _asked_for(named, response)
    return answer


def _named(node: Node, topics: Any) -> list[tuple[str | None, Any]]:
    """Each requested topic with its name; None if its id (v10 and later) is unknown. A topic requested by name need not
    exist."""
    named: list[tuple[str | None, Any]] = []
    for asked in topics:
        name = getattr(asked, "name", None)
        if name is None:
            topic = topic_of(node, asked)
            name = None if topic is None else topic.name
        named.append((name, asked))
    return named


def _asked_for(named: list[tuple[str | None, Any]], response: OffsetFetchResponse) -> list[Values]:
    return [
        {
            "name": name,
            "topic_id": getattr(asked, "topic_id", None),
            "partitions": [
                _partition(number, None, ErrorCode.unknown_topic_id)
                if name is None
                else _partition(number, response.offsets.get(TopicPartition(name, number)), response.error)
                for number in asked.partition_indexes
            ],
        }
        for name, asked in named
    ]


def _everything(node: Node, response: OffsetFetchResponse) -> list[Values]:
    """A topic that was deleted since has no id for the response; its offsets are about to be deleted, too."""
    answers: list[Values] = []
    for name, partitions in groupby(response.offsets, key=lambda of: of.topic):
        topic = node.log.topics.get(name)
        if topic is not None:
            told = [_partition(of.partition, response.offsets[of], ErrorCode.none) for of in partitions]
            answers.append({"name": name, "topic_id": topic.topic_id, "partitions": told})
    return answers


def _partition(number: int, committed: CommittedOffset | None, error: ErrorCode) -> Values:
    return {
        "partition_index": number,
        "committed_offset": _NO_OFFSET if committed is None else committed.offset,
        "committed_leader_epoch": NO_LEADER_EPOCH if committed is None else committed.leader_epoch,
        "metadata": "" if committed is None else committed.metadata,
        "error_code": error,
    }


# -- authorization -----------------------------------------------------------------------------------------------------


def _fetched_group(access: AccessCheck) -> ErrorCode | None:
    """In v2 to v7 the request has one group, with an error code in the response; before v2 the partitions have the
    error code; since v8 there are several groups."""
    group_id = access.request.told("group_id", None)
    if group_id is None or access.request.header.api_version < _ERROR_OF_GROUP_SINCE:
        return None
    return access.refusal(Operation.DESCRIBE, GROUP, group_id)


def _seen_offsets(access: AccessCheck, answer: Values) -> Values:
    """Remove topics that the client may not describe; a topic that the request names gets an error code instead."""
    body = access.request.body
    if not hasattr(body, "groups"):
        has_code = access.request.header.api_version >= _ERROR_OF_GROUP_SINCE
        refusal = None if has_code else access.refusal(Operation.DESCRIBE, GROUP, body.group_id)
        return {**answer, "topics": _seen_topics(access, answer["topics"], body.topics is not None, refusal)}
    by_id = {group.group_id: group for group in body.groups}
    return {
        **answer,
        "groups": [
            {
                **group,
                "topics": _seen_topics(access, group["topics"], by_id[group["group_id"]].topics is not None, None),
            }
            for group in answer.get("groups", ())
        ],
    }


def _seen_topics(access: AccessCheck, topics: Any, are_named: bool, of_group: ErrorCode | None) -> list[Values]:
    seen: list[Values] = []
    for topic in topics:
        name = topic["name"]
        error = of_group or (None if name is None else access.refusal(Operation.DESCRIBE, TOPIC, name))
        if error is None:
            seen.append(topic)
        elif are_named:
            hidden = [
                {"partition_index": one["partition_index"], "committed_offset": -1, "metadata": "", "error_code": error}
                for one in topic["partitions"]
            ]
            seen.append({**topic, "partitions": hidden})
    return seen


_NEEDS = Permission(
    whole=_fetched_group,
    each=[
        Each(
            asked="groups",
            answers="groups",
            needs=lambda access, group: access.refusal(Operation.DESCRIBE, GROUP, group.group_id),
            refused=lambda group, error: {"group_id": group.group_id, "error_code": error},
        )
    ],
    rewritten=_seen_offsets,
)
API = KafkaApi(key=9, versions=range(1, 11), handle=handle, needs=_NEEDS)
