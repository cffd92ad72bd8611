"""Response entries for each partition that a request names, by topic."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from coterie.broker.turns import in_turns
from coterie.wire.shapes import Values


async def partition_answers(
    topics: Iterable[Any],
    answer: Callable[[str, Any], Awaitable[Values]],
    *,
    name: str = "name",
    partitions: str = "partitions",
) -> list[Values]:
    """The response entries of the topics. ``answer`` returns the entry of one partition, given the topic's name and
    the request's entry; ``name`` and ``partitions`` are fields of the request."""
    return [
        {
            name: getattr(topic, name),
            "partitions": [
                await answer(getattr(topic, name), asked) async for asked in in_turns(getattr(topic, partitions))
            ],
        }
        async for topic in in_turns(topics)
    ]
