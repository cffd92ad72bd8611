"""DescribeLogDirs: the data directory: the size of each partition, and the size and free space of its disk. Not
supported: moves between directories, because there is one; v5 (KIP-1066), because kio does not support it yet."""

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, Permission, in_cluster
from coterie.broker.node import ApiRequest, Node
from coterie.broker.storage.log import Partition, Topic
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values


async def handle(node: Node, request: ApiRequest) -> Values:
    path = node.settings.data_path
    answer = {"error_code": ErrorCode.none}
    try:
        sizes = await node.log.sizes()
        total, free = await asyncio.to_thread(_room, path)
    except (WorldError, OSError):
        return answer | {"results": [{"error_code": ErrorCode.kafka_storage_error, "log_dir": str(path), "topics": ()}]}
    result = {
        "error_code": ErrorCode.none,
        "log_dir": str(path.absolute()),
        "topics": [
            {"name": topic.name, "partitions": [_described(partition, sizes) for partition in partitions]}
            for topic, partitions in _wanted(node, request)
            if partitions
        ],
        "total_bytes": total,
        "usable_bytes": free,
    }
    return answer | {"results": [result]}


def _wanted(node: Node, request: ApiRequest) -> Iterator[tuple[Topic, list[Partition]]]:
    """The existing partitions among the requested ones; null requests all."""
    if request.body.topics is None:
        for topic in node.log.topics.values():
            yield topic, list(topic.partitions)
        return
    for asked in request.body.topics:
        found = node.log.topics.get(asked.topic)
        if found is not None:
            partitions = (found.partition(number) for number in asked.partitions)
            yield found, [partition for partition in partitions if partition is not None]


def _described(partition: Partition, sizes: Mapping[int, int]) -> Values:
    return {
        "partition_index": partition.number,
        "partition_size": sizes.get(partition.id, 0),
        "offset_lag": 0,
        "is_future_key": False,
    }


def _room(path: Path) -> tuple[int, int]:
    """The total and the free bytes of the disk."""
    usage = shutil.disk_usage(path)
    return usage.total, usage.free


API = KafkaApi(key=35, versions=range(1, 5), handle=handle, needs=Permission(whole=in_cluster(Operation.DESCRIBE)))
