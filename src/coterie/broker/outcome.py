"""What became of one attempt of a request, as error code and sentence."""

from collections.abc import Awaitable

from coterie.broker.storage.store import TopicGoneError
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode, KafkaRefusal


async def outcome(attempt: Awaitable[None]) -> tuple[ErrorCode, str | None]:
    """Error code and sentence of one attempt of a request; `none` when it came to its end."""
    try:
        await attempt
    except KafkaRefusal as refusal:
        return refusal.error, refusal.sentence
    except TopicGoneError as gone:
        return ErrorCode.unknown_topic_or_partition, str(gone)
    except WorldError as failure:
        return ErrorCode.kafka_storage_error, str(failure)
    return ErrorCode.none, None
