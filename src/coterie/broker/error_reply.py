"""Turns the exceptions of one operation of a request into Kafka's error code and error message."""

from collections.abc import Awaitable

from coterie.broker.storage.store import TopicGoneError
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode, KafkaRefusal


async def await_error_and_message(operation: Awaitable[None]) -> tuple[ErrorCode, str | None]:
    """Await ``operation``; return the error code and the error message for the response: NONE and None if ``operation``
    succeeds. The message of a refusal may be None, too. Only a `KafkaRefusal` and a `WorldError` (an error of the log)
    become error codes; other exceptions are raised."""
    try:
        await operation
    except KafkaRefusal as refusal:
        return refusal.error, refusal.message
    except TopicGoneError as gone:
        return ErrorCode.unknown_topic_or_partition, str(gone)
    except WorldError as failure:
        return ErrorCode.kafka_storage_error, str(failure)
    return ErrorCode.none, None
