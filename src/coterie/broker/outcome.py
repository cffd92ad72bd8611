"""The error code and error message of one operation of a request."""

from collections.abc import Awaitable

from coterie.broker.storage.store import TopicGoneError
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode, KafkaRefusal


async def outcome(attempt: Awaitable[None]) -> tuple[ErrorCode, str | None]:
    """Await the operation; return its error code and error message, `none` if it succeeds."""
    try:
        await attempt
    except KafkaRefusal as refusal:
        return refusal.error, refusal.sentence
    except TopicGoneError as gone:
        return ErrorCode.unknown_topic_or_partition, str(gone)
    except WorldError as failure:
        return ErrorCode.kafka_storage_error, str(failure)
    return ErrorCode.none, None
