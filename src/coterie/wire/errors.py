"""Kafka's error codes, as one name for all packages, and the exception for a refusal with such a code."""

from kio.schema.errors import ErrorCode

from coterie.nouns.errors import Refusal

__all__ = ("ErrorCode", "KafkaRefusal")


class KafkaRefusal(Refusal):
    """Refuses a request of Kafka's protocol with the error code ``error``. ``message`` is the text for responses that
    have a field for an error message; None: no text."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or error.name)
        self.error = error
        self.message = message
