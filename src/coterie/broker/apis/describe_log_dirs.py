"""DescribeLogDirs: returns the data directory with the size of each partition in it, and the total and free bytes of
its disk. Not supported: moves between directories, because there is one; v5 (KIP-1066), because kio does not support it
yet."""

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import ApiAuthorization, Operation, make_cluster_check
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.storage.log import Partition, Topic
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    path = broker.settings.data_path.absolute()
    answer = {"error_code": ErrorCode.none}
    try:
        sizes_by_row_id = await broker.log.partition_sizes_by_row_id()
        total, free = await asyncio.to_thread(_total_and_free_bytes, path)
    except (WorldError, OSError):
        return answer | {"results": [{"error_code": ErrorCode.kafka_storage_error, "log_dir": str(path), "topics": ()}]}
    result = {
        "error_code": ErrorCode.none,
        "log_dir": str(path),
        "topics": [
            {
                "name": topic.name,
                "partitions": [_partition_values(partition, sizes_by_row_id) for partition in partitions],
            }
            for topic, partitions in _existing_requested_partitions(broker, request)
            if partitions
        ],
        "total_bytes": total,
        "usable_bytes": free,
    }
    return answer | {"results": [result]}


def _existing_requested_partitions(
    broker: BrokerContext, request: ApiRequest
) -> Iterator[tuple[Topic, list[Partition]]]:
    """Yield each requested topic that exists, with those of its requested partitions that exist. A request whose topics
    are null requests all partitions of all topics."""
    if request.body.topics is None:
        for topic in broker.log.topics.values():
            yield topic, list(topic.partitions)
        return
    for asked in request.body.topics:
        found = broker.log.topics.get(asked.topic)
        if found is not None:
            partitions = (found.partition(number) for number in asked.partitions)
            yield found, [partition for partition in partitions if partition is not None]


def _partition_values(partition: Partition, sizes_by_row_id: Mapping[int, int]) -> Values:
    """The response entry of one partition; ``sizes_by_row_id`` are bytes, by the partitions' row ids."""
    return {
        "partition_index": partition.number,
        "partition_size": sizes_by_row_id.get(partition.row_id, 0),
        "offset_lag": 0,
        "is_future_key": False,
    }


def _total_and_free_bytes(path: Path) -> tuple[int, int]:
    """The total and the free bytes of the disk that contains ``path``.

    :raises OSError: when the disk cannot be examined.
    """
    usage = shutil.disk_usage(path)
    return usage.total, usage.free


API = KafkaApi(
    key=35,
    versions=range(1, 5),
    handle=handle,
    authorization=ApiAuthorization(check_request=make_cluster_check(Operation.DESCRIBE)),
)
