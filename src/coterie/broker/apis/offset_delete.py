"""OffsetDelete: deletes offsets of a group, unless a member of the group subscribes to their topic (KIP-496)."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, Permission, each_partition, in_group, on_topic
from coterie.broker.node import ApiRequest, Node
from coterie.groups.classic.offset_messages import OffsetDelete, OffsetDeleteResponse
from coterie.nouns.ids import GroupId, TopicPartition
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values


async def handle(node: Node, request: ApiRequest) -> Values:
    body = request.body
    # Check which topics exist before the group handles the request: topics may be created or deleted meanwhile.
    checked = [
        (asked, [node.log.partition(asked.name, one.partition_index) is not None for one in asked.partitions])
        for asked in body.topics
    ]
    there = tuple(
        TopicPartition(asked.name, partition.partition_index)
        for asked, found in checked
        for partition, is_there in zip(asked.partitions, found, strict=True)
        if is_there
    )
    response = await node.groups.ask(
        GroupId(body.group_id), lambda reply_to: OffsetDelete(reply_to=reply_to, partitions=there)
    )
    assert isinstance(response, OffsetDeleteResponse)
    answer = {"error_code": response.error, "topics": ()}
    if response.error is not ErrorCode.none:
        return answer
    errors = iter(response.errors)
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


_NEEDS = Permission(whole=in_group(Operation.DELETE), each=[each_partition(on_topic(Operation.READ))])
API = KafkaApi(key=47, versions=range(1), handle=handle, needs=_NEEDS)
