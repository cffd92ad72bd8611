"""Answers that tell something of each partition that a request names, topic by topic."""

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
    """For each topic of the request the answers for its partitions; ``answer`` takes the topic's name and what the
    request tells of the partition. ``name`` and ``partitions`` are the request's fields."""
    return [
        {
            name: getattr(topic, name),
            "partitions": [
                await answer(getattr(topic, name), asked) async for asked in in_turns(getattr(topic, partitions))
            ],
        }
        async for topic in in_turns(topics)
    ]
