"""OffsetDelete: deletes committed offsets of a group. An offset is kept, with an error code, while a member of the
group subscribes to its topic (KIP-496)."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    ApiAuthorization,
    Operation,
    make_group_check,
    make_topic_check,
    topic_authorization_with_partition_errors,
)
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.groups.classic.offset_messages import OffsetDelete, OffsetDeleteResponse
from coterie.nouns.ids import GroupId, TopicPartition
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    body = request.body
    # Check which topics exist before the group handles the request: topics may be created or deleted meanwhile.
    checked = [
        (asked, [broker.log.partition(asked.name, one.partition_index) is not None for one in asked.partitions])
        for asked in body.topics
    ]
    there = tuple(
        TopicPartition(asked.name, partition.partition_index)
        for asked, found in checked
        for partition, is_there in zip(asked.partitions, found, strict=True)
        if is_there
    )
    response = await broker.groups.ask(
        GroupId(body.group_id), lambda reply_to: OffsetDelete(reply_to=reply_to, partitions=there)
    )
    assert isinstance(response, OffsetDeleteResponse)
    answer = {"error_code": response.error, "topics": ()}
    if response.error is not ErrorCode.none:
        return answer
    errors = iter(response.partition_errors)
    return answer | {
        "topics": [
            {
                "name": asked.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": next(errors) if is_there else ErrorCode.unknown_topic_or_partition,
                    }
                    for partition, is_there in zip(asked.partitions, found, strict=True)
                ],
            }
            for asked, found in checked
            if found
        ]
    }


_AUTHORIZATION = ApiAuthorization(
    check_request=make_group_check(Operation.DELETE),
    items=[topic_authorization_with_partition_errors(make_topic_check(Operation.READ))],
)
API = KafkaApi(key=47, versions=range(1), handle=handle, authorization=_AUTHORIZATION)
