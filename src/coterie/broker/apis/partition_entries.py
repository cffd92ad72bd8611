"""Builds the response entries of the partitions that a request names, grouped by topic."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from coterie.broker.loop_yield import yielding
from coterie.wire.kio_entities import Values


async def partition_entries(
    topics: Iterable[Any],
    partition_entry: Callable[[str, Any], Awaitable[Values]],
    *,
    name_field: str = "name",
    partitions_field: str = "partitions",
) -> list[Values]:
    """A response entry for each of the request's ``topics``, with an entry for each of its partitions.

    ``partition_entry`` returns the response entry of one partition, given the topic's name and the partition in the
    request. ``name_field`` is the field with the topic's name in the request and the response; ``partitions_field`` is
    the request's field with a topic's partitions, which the response calls ``partitions``.
    """
    return [
        {
            name_field: getattr(topic, name_field),
            "partitions": [
                await partition_entry(getattr(topic, name_field), asked)
                async for asked in yielding(getattr(topic, partitions_field))
            ],
        }
        async for topic in yielding(topics)
    ]
