"""Why the broker does not do what a request asks for, and the error code of whatever went wrong."""

from collections.abc import Awaitable

from coterie.broker.storage.store import NoRoomError, TopicGoneError
from coterie.nouns.errors import CoterieError, WorldError
from coterie.wire.errors import ErrorCode


class RefusedError(CoterieError):
    """Nothing of it was done."""

    def __init__(self, error: ErrorCode, sentence: str | None = None) -> None:
        super().__init__(sentence or error.name)
        self.error = error
        self.sentence = sentence


async def outcome(attempt: Awaitable[None]) -> tuple[ErrorCode, str | None]:
    """Error code and sentence of one attempt of a request; `none` when it came to its end."""
    try:
        await attempt
    except RefusedError as refused:
        return refused.error, refused.sentence
    except NoRoomError as full:
        return ErrorCode.policy_violation, str(full)
    except TopicGoneError as gone:
        return ErrorCode.unknown_topic_or_partition, str(gone)
    except WorldError as failure:
        return ErrorCode.kafka_storage_error, str(failure)
    return ErrorCode.none, None
