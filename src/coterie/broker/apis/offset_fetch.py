"""OffsetFetch: returns the committed offsets of one group, or since v8 of several groups, for the requested partitions
or for all. A member of a connect group fetches with its member epoch (KIP-848, since v9). A client may require stable
offsets (since v7): then a partition has an error code while an open transaction has committed an offset of it."""

from itertools import groupby
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import GROUP, TOPIC, AccessCheck, ApiAuthorization, ItemAuthorization, Operation
from coterie.broker.apis.connect_offsets import offset_request_error
from coterie.broker.context import ApiRequest, BrokerContext, requested_topic
from coterie.broker.loop_yield import yielding
from coterie.groups.classic.offset_messages import (
    NO_LEADER_EPOCH,
    CommittedOffset,
    OffsetFetch,
    OffsetFetchResponse,
    TopicPartition,
)
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_GROUP_ERROR_SINCE = 2
"""The first version whose response has an error code for the group, and not only for each partition."""
_BATCHED_SINCE = 8
"""The first version with several groups in one request."""
_NO_EPOCH = -1
"""The member epoch of a client that is not a member."""
_NO_OFFSET = -1
"""The offset in the response for a partition without a committed offset."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    if request.header.api_version >= _BATCHED_SINCE:
        groups = [await _group_values(broker, request, asked) async for asked in yielding(request.body.groups)]
        return {"groups": groups}
    return await _group_values(broker, request, request.body)


async def _group_values(broker: BrokerContext, request: ApiRequest, group: Any) -> dict[str, Any]:
    """The response entry of the group in the request's entry ``group``: its committed offsets, or an error code."""
    if (connect_groups := broker.connect_groups_owning_id(group.group_id)) is not None:
        error = await offset_request_error(
            connect_groups,
            GroupId(group.group_id),
            member_id=getattr(group, "member_id", None),
            member_epoch=getattr(group, "member_epoch", _NO_EPOCH),
            is_commit=False,
        )
        if error is not ErrorCode.none:
            return {"group_id": group.group_id, "error_code": error, "topics": []}
    named = None if group.topics is None else _topics_with_names(broker, group.topics)
    response = await broker.groups.ask(
        GroupId(group.group_id),
        lambda reply_to: OffsetFetch(
            reply_to=reply_to,
            partitions=None
            if named is None
            else tuple(
                TopicPartition(topic, number) for topic, one in named if topic for number in one.partition_indexes
            ),
            requires_stable=request.field_or_default("require_stable", False),
        ),
    )
    assert isinstance(response, OffsetFetchResponse)
    answer: dict[str, Any] = {"group_id": group.group_id, "error_code": response.error, "topics": []}
    if response.error is ErrorCode.none or request.header.api_version < _GROUP_ERROR_SINCE:
        answer["topics"] = (
            _committed_topic_entries(broker, response) if named is None else _requested_topic_entries(named, response)
        )
    return answer


def _topics_with_names(broker: BrokerContext, topics: Any) -> list[tuple[str | None, Any]]:
    """A pair of the topic's name and the request's entry, for each of the request's ``topics``. The name is None if the
    topic is requested by a topic id (since v10) that does not exist. A topic that is requested by name need not
    exist."""
    named: list[tuple[str | None, Any]] = []
    for asked in topics:
        name = getattr(asked, "name", None)
        if name is None:
            topic = requested_topic(broker, asked)
            name = None if topic is None else topic.name
        named.append((name, asked))
    return named


def _requested_topic_entries(named: list[tuple[str | None, Any]], response: OffsetFetchResponse) -> list[Values]:
    """The response entries of the requested topics. ``named`` are pairs of a topic's name, None for an unknown topic
    id, and the request's entry."""
    return [
        {
            "name": name,
            "topic_id": getattr(asked, "topic_id", None),
            "partitions": [
                _partition_values(number, None, ErrorCode.unknown_topic_id)
                if name is None
                else _committed_offset_values(response, TopicPartition(name, number))
                for number in asked.partition_indexes
            ],
        }
        for name, asked in named
    ]


def _committed_topic_entries(broker: BrokerContext, response: OffsetFetchResponse) -> list[Values]:
    """The response entries of all topics for which the group has committed offsets. A topic that was deleted since is
    left out: it has no topic id, and its offsets are about to be deleted, too."""
    answers: list[Values] = []
    for name, partitions in groupby(response.offsets, key=lambda of: of.topic):
        topic = broker.log.topics.get(name)
        if topic is not None:
            partition_values = [_committed_offset_values(response, of) for of in partitions]
            answers.append({"name": name, "topic_id": topic.topic_id, "partitions": partition_values})
    return answers


def _committed_offset_values(response: OffsetFetchResponse, of: TopicPartition) -> Values:
    """The response entry of one partition: the committed offset of the group in ``response``, or an error code."""
    if of in response.unstable_partitions:
        return _partition_values(of.partition, None, ErrorCode.unstable_offset_commit)
    return _partition_values(of.partition, response.offsets.get(of), response.error)


def _partition_values(number: int, committed: CommittedOffset | None, error: ErrorCode) -> Values:
    """The response entry of one partition; ``committed`` is None if there is no committed offset."""
    return {
        "partition_index": number,
        "committed_offset": _NO_OFFSET if committed is None else committed.offset,
        "committed_leader_epoch": NO_LEADER_EPOCH if committed is None else committed.leader_epoch,
        "metadata": "" if committed is None else committed.metadata,
        "error_code": error,
    }


# -- authorization -----------------------------------------------------------------------------------------------------


def _single_group_authorization_error_since_v2(access: AccessCheck) -> ErrorCode | None:
    """The error code if the client may not describe the only group of a request of v2-7, else None. For all other
    versions None: since v8 each group is checked on its own; before v2 only the partitions have error codes, and
    `_remove_or_refuse_unauthorized_topics` checks the group."""
    group_id = access.request.field_or_default("group_id", None)
    if group_id is None or access.request.header.api_version < _GROUP_ERROR_SINCE:
        return None
    return access.error_code(Operation.DESCRIBE, GROUP, group_id)


def _remove_or_refuse_unauthorized_topics(access: AccessCheck, answer: Values) -> Values:
    """The response without the topics that the client may not describe. If the request names such a topic, its
    partitions have an error code instead of offsets. Before v2 the response has no error code of the group: if the
    client may not describe the group, each partition that the request names has the error code of that refusal."""
    body = access.request.body
    if not hasattr(body, "groups"):
        has_code = access.request.header.api_version >= _GROUP_ERROR_SINCE
        refusal = None if has_code else access.error_code(Operation.DESCRIBE, GROUP, body.group_id)
        return {
            **answer,
            "topics": _remove_or_refuse_unauthorized_entries(
                access, answer["topics"], body.topics is not None, refusal
            ),
        }
    by_id = {group.group_id: group for group in body.groups}
    return {
        **answer,
        "groups": [
            {
                **group,
                "topics": _remove_or_refuse_unauthorized_entries(
                    access, group["topics"], by_id[group["group_id"]].topics is not None, None
                ),
            }
            for group in answer.get("groups", ())
        ],
    }


def _remove_or_refuse_unauthorized_entries(
    access: AccessCheck, topics: Any, are_named_in_request: bool, group_error: ErrorCode | None
) -> list[Values]:
    """The response entries ``topics`` as the client may see them. ``are_named_in_request``: whether the request names
    the topics, and does not request all; ``group_error``: the error code of a refused group, which each partition gets
    (before v2)."""
    seen: list[Values] = []
    for topic in topics:
        name = topic["name"]
        error = group_error or (None if name is None else access.error_code(Operation.DESCRIBE, TOPIC, name))
        if error is None:
            seen.append(topic)
        elif are_named_in_request:
            hidden = [
                {"partition_index": one["partition_index"], "committed_offset": -1, "metadata": "", "error_code": error}
                for one in topic["partitions"]
            ]
            seen.append({**topic, "partitions": hidden})
    return seen


_AUTHORIZATION = ApiAuthorization(
    check_request=_single_group_authorization_error_since_v2,
    items=[
        ItemAuthorization(
            request_field="groups",
            response_field="groups",
            check=lambda access, group: access.error_code(Operation.DESCRIBE, GROUP, group.group_id),
            make_refused_entry=lambda group, error: {"group_id": group.group_id, "error_code": error},
        )
    ],
    filter_response=_remove_or_refuse_unauthorized_topics,
)
API = KafkaApi(key=9, versions=range(1, 11), handle=handle, authorization=_AUTHORIZATION)
